-- What a scrape asks of the database. Everything here walks an index or counts no further than it is told to: a scraper
-- must not be able to hurt, however many instances sleep and however long a queue is.

-- part: heads
-- From one (queue, tenant, definition) with scheduled work to the next, one descent of the index for each column:
-- those who sleep are stepped over, not counted. SQLite begins such a search with the row it is to come after, and takes
-- values with a type of their own by the first column only: hence the last moment there is, and the coalesce.
recursive heads (queue, tenant_id, definition_key, definition_version, number) as (
  select * from (
    select queue, tenant_id, definition_key, definition_version, 1 from holdfast.instances
    where run_at is not null and locked_by is null and tenant_id <> '#instances_due'
    order by queue, tenant_id, definition_key, definition_version limit 1) start_here
  union all
  select
    (select queue from holdfast.instances where
        (queue, tenant_id, definition_key, definition_version, run_at) > (coalesce(h.queue, ''),
          coalesce(h.tenant_id, ''), coalesce(h.definition_key, ''), coalesce(h.definition_version, 0), 9223372036854775807)
      and run_at is not null and locked_by is null and tenant_id <> '#instances_due'
      order by queue, tenant_id, definition_key, definition_version limit 1),
    (select tenant_id from holdfast.instances where
        (queue, tenant_id, definition_key, definition_version, run_at) > (coalesce(h.queue, ''),
          coalesce(h.tenant_id, ''), coalesce(h.definition_key, ''), coalesce(h.definition_version, 0), 9223372036854775807)
      and run_at is not null and locked_by is null and tenant_id <> '#instances_due'
      order by queue, tenant_id, definition_key, definition_version limit 1),
    (select definition_key from holdfast.instances where
        (queue, tenant_id, definition_key, definition_version, run_at) > (coalesce(h.queue, ''),
          coalesce(h.tenant_id, ''), coalesce(h.definition_key, ''), coalesce(h.definition_version, 0), 9223372036854775807)
      and run_at is not null and locked_by is null and tenant_id <> '#instances_due'
      order by queue, tenant_id, definition_key, definition_version limit 1),
    (select definition_version from holdfast.instances where
        (queue, tenant_id, definition_key, definition_version, run_at) > (coalesce(h.queue, ''),
          coalesce(h.tenant_id, ''), coalesce(h.definition_key, ''), coalesce(h.definition_version, 0), 9223372036854775807)
      and run_at is not null and locked_by is null and tenant_id <> '#instances_due'
      order by queue, tenant_id, definition_key, definition_version limit 1),
    h.number + 1
  from heads h where h.queue is not null and h.number < :heads
)

-- name: queue_heads
-- Every queue and tenant's definition in it that has scheduled work, with the earliest moment of it.
with {heads}
select queue, (
  select run_at from holdfast.instances i
  where i.queue = h.queue and i.tenant_id = h.tenant_id and i.definition_key = h.definition_key
    and i.definition_version = h.definition_version and i.run_at is not null and i.locked_by is null
    and i.tenant_id <> '#instances_due'
  order by i.run_at limit 1)
from heads h where queue is not null

-- name: queue_depths
-- Due and unclaimed: how many, and since when the one waits that slept before (the oldest `looked` of each are looked at).
with {heads}
select queue, (
  select count(*) from (
    select 1 from holdfast.instances i
    where i.queue = h.queue and i.tenant_id = h.tenant_id and i.definition_key = h.definition_key
      and i.definition_version = h.definition_version and i.run_at is not null and i.locked_by is null
    and i.tenant_id <> '#instances_due'
      and i.run_at <= :now limit :counted) due),
  (select min(run_at) from (
    select run_at, status from holdfast.instances i
    where i.queue = h.queue and i.tenant_id = h.tenant_id and i.definition_key = h.definition_key
      and i.definition_version = h.definition_version and i.run_at is not null and i.locked_by is null
    and i.tenant_id <> '#instances_due'
      and i.run_at <= :now order by i.run_at limit :looked) oldest
   where status <> 'pending')
from heads h where queue is not null

-- name: count_open_dead_letters
select count(*) from (select 1 from holdfast.dead_letters where resolution is null and tenant_id <> '#dead_letters_open' limit :limit) open_ones

-- name: count_parked
select count(*) from (
  select 1 from holdfast.instances
  where substr(waiting_on, 1, 8) = 'parked: ' and tenant_id <> '#instances_parked' limit :limit) parked_ones

-- name: count_unknown_effects
select count(*) from (select 1 from holdfast.effects where state = 'outcome_unknown' and tenant_id <> '#effects_unknown' limit :limit) unknown_ones
