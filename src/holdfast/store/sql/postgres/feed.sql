-- name: feed_horizon
-- Every transaction before it has ended. The tenant is named as everywhere at a door.
select pg_snapshot_xmin(pg_current_snapshot())::text::bigint from (select :tenant_id::text) tenant

-- name: feed_between
-- A row's xmin has 32 bits; counted back from a horizon that is not before it, it is whole. A row that is too new for
-- this stretch seems four thousand million transactions old, and is left for the next.
select instance_id, definition_key, seq, type, name, at from (
  select h.instance_id, i.definition_key, h.seq, h.type, h.name, h.at,
    :high::bigint - ((:high::bigint - h.xmin::text::bigint) & 4294967295) as transaction
  from holdfast.history h
  join holdfast.instances i on i.tenant_id = h.tenant_id and i.id = h.instance_id
  where h.tenant_id || '' = :tenant_id and h.at >= :since
) recent
where transaction >= :low and transaction < :high
  and (at, instance_id, seq) > (:after_at::bigint, :after_id::bytea, :after_seq::bigint)
order by at, instance_id, seq limit :limit
