-- name: feed_horizon
-- Every transaction before it has ended. The tenant is named as everywhere at a door.
select pg_snapshot_xmin(pg_current_snapshot())::text::bigint from (select :tenant_id::text) tenant

-- name: summarize_history
-- Through a function (0008_named_indexes): it takes the owner of the index. The tenant is named as everywhere at a door.
select holdfast.summarize_history() from (select :tenant_id::text) tenant

-- name: feed_between
-- A row's xmin has 32 bits; counted back from a horizon that is not before it, it is whole. A row that is too new for
-- this stretch seems four thousand million transactions old, and is left for the next.
-- The history is read first and by its moments: joined with its instances it would be read whole, and `|| ''` keeps it
-- from the primary key, where all of a tenant's history would be walked through.
with recent as materialized (
  select instance_id, seq, type, name, at, :high::bigint - ((:high::bigint - xmin::text::bigint) & 4294967295) as transaction
  from holdfast.history where tenant_id || '' = :tenant_id and at >= :since
), page as materialized (
  select instance_id, seq, type, name, at from recent
  where transaction >= :low and transaction < :high
    and (at, instance_id, seq) > (:after_at::bigint, :after_id::bytea, :after_seq::bigint)
  order by at, instance_id, seq limit :limit
)
select p.instance_id, coalesce((
    select i.definition_key from holdfast.instances i where i.tenant_id = :tenant_id and i.id = p.instance_id), ''),
  p.seq, p.type, p.name, p.at
from page p order by p.at, p.instance_id, p.seq
