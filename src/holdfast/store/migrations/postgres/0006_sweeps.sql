-- What a door sweeps is counted, so that it goes on until nothing is left.
drop function holdfast.bury_requests(bigint, bigint);
create function holdfast.bury_requests(bigint, bigint) returns bigint
  language sql security definer set search_path = pg_catalog, pg_temp as $$
  with buried as (
    update holdfast.idempotency_keys set response = null, response_headers = null
    where (tenant_id, principal_id, operation, entity_id, key) in (
      select tenant_id, principal_id, operation, entity_id, key from holdfast.idempotency_keys
      where expires_at <= least($1, (extract(epoch from clock_timestamp()) * 1000000)::bigint)
        and response is not null limit $2)
    returning 1
  )
  select count(*) from buried
$$;

drop function holdfast.remove_tombstones(bigint, bigint);
create function holdfast.remove_tombstones(bigint, bigint) returns bigint
  language sql security definer set search_path = pg_catalog, pg_temp as $$
  with removed as (
    delete from holdfast.idempotency_keys
    where (tenant_id, principal_id, operation, entity_id, key) in (
      select tenant_id, principal_id, operation, entity_id, key from holdfast.idempotency_keys
      where expires_at <= least($1, (extract(epoch from clock_timestamp()) * 1000000)::bigint) limit $2)
    returning 1
  )
  select count(*) from removed
$$;
