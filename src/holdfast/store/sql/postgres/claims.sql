-- Where a list of keys meets a table, the tenant is named as `= any(array[…])`: of such a condition the planner can make
-- look-ups by the index and nothing else, while `=` lets it hash the whole of a table that was empty when it planned.

-- name: claim_instances
-- Claims rotate over tenants: walk the index from one (tenant, definition) to the next, one descent each, and
-- take an equal share from every one that has due work. Definitions this worker does not know are stepped over.
with recursive me as materialized (
  select id from holdfast.workers where tenant_id = '*' and id = :worker_id and fenced_at is null for key share
), heads as (
  (select tenant_id, definition_key, definition_version, run_at from holdfast.instances
   where queue = :queue and run_at is not null and locked_by is null and tenant_id <> '#instances_due'
   order by tenant_id, definition_key, definition_version, run_at limit 1)
  union all
  select n.tenant_id, n.definition_key, n.definition_version, n.run_at
  from heads h cross join lateral (
    select i.tenant_id, i.definition_key, i.definition_version, i.run_at from holdfast.instances i
    where i.queue = :queue and i.run_at is not null and i.locked_by is null and i.tenant_id <> '#instances_due'
      and (i.tenant_id, i.definition_key, i.definition_version)
        > (h.tenant_id, h.definition_key, h.definition_version)
    order by i.tenant_id, i.definition_key, i.definition_version, i.run_at limit 1
  ) n
), due as materialized (
  select h.tenant_id, h.definition_key, h.definition_version, h.run_at
  from heads h
  join unnest(:places::text[], :keys::text[], :versions::integer[]) as d(tenant_id, key, version)
    on d.key = h.definition_key and d.version = h.definition_version and d.tenant_id in ('', h.tenant_id)
  where h.run_at <= :now
  order by h.run_at limit :limit
), shares as materialized (
  select greatest(:limit / greatest((select count(*) from due), 1), 1) as each
), picked as materialized (
  select i.tenant_id, i.id, i.run_at
  from due d cross join lateral (
    select j.tenant_id, j.id, j.run_at from holdfast.instances j
    where j.queue = :queue and j.tenant_id = d.tenant_id and j.definition_key = d.definition_key
      and j.definition_version = d.definition_version
      and j.run_at <= :now and j.run_at is not null and j.locked_by is null
      and j.tenant_id <> '#instances_due' and (j.attempts >= 2) = :alone
    order by j.run_at limit (select each from shares)
    for update skip locked
  ) i
)
update holdfast.instances i set
  locked_by = me.id, locked_at = :now, fence = i.fence + 1, attempts = i.attempts + 1, run_at = null,
  status = case when i.status = 'compensating' then i.status else 'running' end, waiting_on = null,
  started_at = coalesce(i.started_at, :now)
from picked p cross join me
where i.tenant_id = any(array[p.tenant_id]) and i.id = p.id
returning i.tenant_id, i.id, i.kind, i.definition_key, i.definition_version, i.status, i.input, i.snapshot,
  i.fence, i.attempts, i.woken, i.parent_id, i.parent_step, i.trace_id, i.created_at, i.created_by,
  i.epoch, i.epoch_seq, i.seq, i.hash, p.run_at as due_at

-- name: read_histories
-- From the row on with which the epoch began: what was before is not replayed.
select h.instance_id, h.seq, h.type, h.name, h.payload, h.hash, h.at
from unnest(:tenants::text[], :instances::bytea[], :epoch_seqs::bigint[]) as i(tenant_id, id, epoch_seq)
join holdfast.history h on h.tenant_id = any(array[i.tenant_id]) and h.instance_id = i.id and h.seq >= i.epoch_seq
order by h.instance_id, h.seq

-- name: read_heads
select i.id, h.seq, h.type, h.name, h.payload, h.hash, h.at
from unnest(:tenants::text[], :instances::bytea[]) as i(tenant_id, id)
cross join lateral (
  select seq, type, name, payload, hash, at from holdfast.history
  where tenant_id = i.tenant_id and instance_id = i.id order by seq desc limit 1
) h

-- name: read_open_tasks
-- One look-up for each by `offset 0`, behind which the planner moves no condition: an open task's index has another way in.
select t.instance_id, t.id, t.key, t.type, t.name, t.status, t.run_at, t.attempts, t.max_attempts, t.input, t.options,
  t.invoke_id, t.visit, t.standing_type, t.standing, t.created_at
from unnest(:tenants::text[], :instances::bytea[]) as i(tenant_id, id)
cross join lateral (
  select * from holdfast.tasks
  where tenant_id = i.tenant_id and instance_id = i.id and closed_at is null and tenant_id <> '#tasks_of_instance' offset 0
) t
order by t.instance_id, t.created_at, t.key

-- part: event_columns
e.id, e.kind, e.name, e.payload, e.sent_at, e.sent_by

-- name: read_events
-- Everything but signals; of signals the first of each name, from one name to the next by one descent of the index.
-- Subqueries with an order and a limit of their own: the primary key would lead through every event ever sent.
with recursive asked as materialized (
  select tenant_id, id, names from unnest(:tenants::text[], :instances::bytea[], :names::integer[]) as i(tenant_id, id, names)
), lines as (
  select a.tenant_id, a.id, a.names as room, n.name
  from asked a cross join lateral (
    select e.name from holdfast.events e
    where e.tenant_id = a.tenant_id and e.instance_id = a.id and e.consumed_seq is null and e.kind = 'signal'
      and e.tenant_id <> '#events_signals'
      and e.name > '' and a.names > 0
    order by e.name limit 1
  ) n
  union all
  select l.tenant_id, l.id, l.room - (l.name <> all(:skip::text[]))::integer, n.name
  from lines l cross join lateral (
    select e.name from holdfast.events e
    where e.tenant_id = l.tenant_id and e.instance_id = l.id and e.consumed_seq is null and e.kind = 'signal'
      and e.tenant_id <> '#events_signals'
      and e.name > l.name and l.room - (l.name <> all(:skip::text[]))::integer > 0
    order by e.name limit 1
  ) n
), found as (
  select a.id as instance_id, w.* from asked a cross join lateral (
    select {event_columns} from holdfast.events e
    where e.tenant_id = a.tenant_id and e.instance_id = a.id and e.consumed_seq is null and e.kind <> 'signal'
      and e.tenant_id <> '#events_words'
    order by e.sent_at, e.id limit 2147483647
  ) w
  union all
  select l.id, s.* from lines l cross join lateral (
    select {event_columns} from holdfast.events e
    where e.tenant_id = l.tenant_id and e.instance_id = l.id and e.consumed_seq is null and e.kind = 'signal'
      and e.tenant_id <> '#events_signals'
      and e.name = l.name
    order by e.sent_at, e.id limit :each
  ) s
  where l.name <> all(:skip::text[])
)
select instance_id, id, kind, name, payload, sent_at, sent_by from found order by instance_id, sent_at, id

-- name: read_events_named
with asked as materialized (
  select tenant_id, id from unnest(:tenants::text[], :instances::bytea[]) as i(tenant_id, id)
), found as (
  select a.id as instance_id, w.* from asked a cross join lateral (
    select {event_columns} from holdfast.events e
    where e.tenant_id = a.tenant_id and e.instance_id = a.id and e.consumed_seq is null and e.kind <> 'signal'
      and e.tenant_id <> '#events_words'
    order by e.sent_at, e.id limit 2147483647
  ) w
  union all
  select a.id, s.* from asked a cross join unnest(:only::text[]) as n(name) cross join lateral (
    select {event_columns} from holdfast.events e
    where e.tenant_id = a.tenant_id and e.instance_id = a.id and e.consumed_seq is null and e.kind = 'signal'
      and e.tenant_id <> '#events_signals'
      and e.name = n.name
    order by e.sent_at, e.id limit :each
  ) s
)
select instance_id, id, kind, name, payload, sent_at, sent_by from found order by instance_id, sent_at, id

-- name: look_up_history
select h.hash
from unnest(:tenants::text[], :instances::bytea[], :seqs::bigint[]) as i(tenant_id, id, seq)
join holdfast.history h on h.tenant_id = any(array[i.tenant_id]) and h.instance_id = i.id and h.seq = i.seq

-- name: look_up_grounds
-- What turns that were refused stand on: the fence of the claim, and the row before.
select n.id, n.fence, h.hash
from unnest(:tenants::text[], :instances::bytea[], :seqs::bigint[]) as i(tenant_id, id, seq)
join holdfast.instances n on n.tenant_id = any(array[i.tenant_id]) and n.id = i.id
left join lateral (
  select p.hash from holdfast.history p where p.tenant_id = i.tenant_id and p.instance_id = i.id and p.seq = i.seq limit 1
) h on true

-- name: look_up_starts
select n.id
from unnest(:tenants::text[], :instances::bytea[]) as i(tenant_id, id)
join holdfast.instances n on n.tenant_id = any(array[i.tenant_id]) and n.id = i.id

-- name: look_up_events
select e.instance_id, e.id, e.sent_at, e.payload
from unnest(:tenants::text[], :instances::bytea[], :ids::text[]) as i(tenant_id, instance_id, id)
join holdfast.events e on e.tenant_id = any(array[i.tenant_id]) and e.instance_id = i.instance_id and e.id = i.id

-- name: read_clock
select (extract(epoch from clock_timestamp()) * 1000000)::bigint

-- name: look_up_claims
select n.id
from unnest(:tenants::text[], :instances::bytea[], :fences::bigint[]) as i(tenant_id, id, fence)
join holdfast.instances n
  on n.tenant_id = any(array[i.tenant_id]) and n.id = i.id and n.fence = i.fence and n.locked_by = :worker_id

-- name: next_due
with recursive heads as (
  (select tenant_id, definition_key, definition_version, run_at from holdfast.instances
   where queue = :queue and run_at is not null and locked_by is null and tenant_id <> '#instances_due'
   order by tenant_id, definition_key, definition_version, run_at limit 1)
  union all
  select n.tenant_id, n.definition_key, n.definition_version, n.run_at
  from heads h cross join lateral (
    select i.tenant_id, i.definition_key, i.definition_version, i.run_at from holdfast.instances i
    where i.queue = :queue and i.run_at is not null and i.locked_by is null and i.tenant_id <> '#instances_due'
      and (i.tenant_id, i.definition_key, i.definition_version)
        > (h.tenant_id, h.definition_key, h.definition_version)
    order by i.tenant_id, i.definition_key, i.definition_version, i.run_at limit 1
  ) n
)
select min(h.run_at) from heads h
join unnest(:places::text[], :keys::text[], :versions::integer[]) as d(tenant_id, key, version)
  on d.key = h.definition_key and d.version = h.definition_version and d.tenant_id in ('', h.tenant_id)

-- name: lock_worker
-- Waits for the batch that holds it FOR KEY SHARE; from here on none can begin.
select 1 from holdfast.workers where tenant_id = '*' and id = :worker_id for update

-- name: beat_and_clock
with beat as (
  update holdfast.workers set heartbeat_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint
  where tenant_id = '*' and id = :worker_id and fenced_at is null returning id
)
select (extract(epoch from clock_timestamp()) * 1000000)::bigint, (select id from beat)

-- name: beat_held
-- Of a worker that gave everything back and has a call in a thread: fenced, and not known to be gone.
with beat as (
  update holdfast.workers set heartbeat_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint
  where tenant_id = '*' and id = :worker_id and stopped_at is null returning id
)
select (extract(epoch from clock_timestamp()) * 1000000)::bigint, (select id from beat)
