-- Parked instances, which are few, for a scrape and for `doctor`: counted without a look at those that sleep. The
-- condition on the tenant names the index: it holds for every row, and no other statement says it.
update holdfast.instances set waiting_on = 'parked: ' || waiting_on
where status = 'waiting' and waiting_on like 'the code contradicts its journal: %';
update holdfast.instances set waiting_on = 'parked: ' || substr(waiting_on, 11)
where status = 'waiting' and kind = 'chart' and waiting_on like 'a person: %';
create index instances_parked on holdfast.instances (tenant_id, id)
  where substr(waiting_on, 1, 8) = 'parked: ' and tenant_id <> '#instances_parked';

create function holdfast.count_parked(bigint) returns bigint
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select count(*) from (
    select 1 from holdfast.instances
    where substr(waiting_on, 1, 8) = 'parked: ' and tenant_id <> '#instances_parked' limit $1) parked_ones
$$;
