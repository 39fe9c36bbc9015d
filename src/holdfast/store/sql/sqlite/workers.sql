-- part: scheduled
i.run_at is not null and i.locked_by is null and i.tenant_id <> '#instances_due'

-- part: next_of_tenant
from holdfast.instances i where i.queue = h.queue and i.tenant_id = :tenant_id
      and (i.definition_key, i.definition_version, i.run_at) > (coalesce(h.definition_key, ''),
        coalesce(h.definition_version, 0), 9223372036854775807)
      and i.run_at is not null and i.locked_by is null and i.tenant_id <> '#instances_due'
      order by i.definition_key, i.definition_version limit 1

-- name: queues_of_tenant
-- From one queue to the next, then from one definition of this tenant to the next, one descent of the index for each:
-- other tenants' work is stepped over, and so are those who sleep. Counts no further than it is told to.
with recursive queues (queue) as (
  select min(i.queue) from holdfast.instances i where {scheduled}
  union all
  select (select min(i.queue) from holdfast.instances i where i.queue > q.queue and {scheduled})
  from queues q where q.queue is not null
), heads (queue, definition_key, definition_version, number) as (
  select q.queue, '', 0, 0 from queues q where q.queue is not null
  union all
  select h.queue, (select i.definition_key {next_of_tenant}), (select i.definition_version {next_of_tenant}), h.number + 1
  from heads h where h.definition_key is not null and h.number < :heads
)
select queue, min(sum(due), :counted), min(oldest) from (
  select h.queue, (
    select count(*) from (
      select 1 from holdfast.instances i
      where i.queue = h.queue and i.tenant_id = :tenant_id and i.definition_key = h.definition_key
        and i.definition_version = h.definition_version and {scheduled} and i.run_at <= :now limit :counted)) as due, (
    select i.run_at from holdfast.instances i
    where i.queue = h.queue and i.tenant_id = :tenant_id and i.definition_key = h.definition_key
      and i.definition_version = h.definition_version and {scheduled} order by i.run_at limit 1) as oldest
  from heads h where h.definition_key is not null and h.number > 0
) found where due > 0 group by queue order by queue
