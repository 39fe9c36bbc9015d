-- name: next_head
-- One step of the walk from one (tenant, definition) with scheduled work to the next: one descent of the index.
select tenant_id, definition_key, definition_version, run_at from holdfast.instances
where queue = :queue and run_at is not null and locked_by is null and tenant_id <> '#instances_due'
  -- With the last moment there is, or SQLite would begin at the first of the group and walk past all who sleep in it.
  and (tenant_id, definition_key, definition_version, run_at) > (:tenant_id, :key, :version, 9223372036854775807)
order by tenant_id, definition_key, definition_version, run_at limit 1

-- name: due_of_share
-- Those whom claim_share is about to claim, as they will be, and since when each is due. Asked first, because
-- `returning` knows nothing of what it replaces and costs more than reading; one writer at a time, so both see the same.
select tenant_id, id, kind, definition_key, definition_version,
  case when status = 'compensating' then status else 'running' end, input, snapshot,
  fence + 1, attempts + 1, woken, parent_id, parent_step, trace_id, created_at, created_by, epoch, epoch_seq, seq, hash,
  run_at
from holdfast.instances
where queue = :queue and tenant_id = :tenant_id and definition_key = :key and definition_version = :version
  and run_at <= :now and run_at is not null and locked_by is null and tenant_id <> '#instances_due'
  and (attempts >= 2) = :alone
order by run_at limit :limit

-- name: claim_share
-- One writer at a time in SQLite, so this cannot race; the PostgreSQL twin adds skip locked.
update holdfast.instances set
  locked_by = :worker_id, locked_at = :now, fence = fence + 1, attempts = attempts + 1, run_at = null,
  status = case when status = 'compensating' then status else 'running' end, waiting_on = null,
  started_at = coalesce(started_at, :now)
where (tenant_id, id) in (
  select tenant_id, id from holdfast.instances
  where queue = :queue and tenant_id = :tenant_id and definition_key = :key and definition_version = :version
    and run_at <= :now and run_at is not null and locked_by is null and tenant_id <> '#instances_due'
    and (attempts >= 2) = :alone
  order by run_at limit :limit
)

-- name: read_history_of
select seq, type, name, payload, hash, at from holdfast.history
where tenant_id = :tenant_id and instance_id = :instance_id and seq >= :epoch_seq order by seq

-- name: read_head_of
select seq, type, name, payload, hash, at from holdfast.history
where tenant_id = :tenant_id and instance_id = :instance_id order by seq desc limit 1

-- name: read_open_tasks_of
select id, key, type, name, status, run_at, attempts, max_attempts, input, options, invoke_id, visit, standing_type,
  standing, created_at
from holdfast.tasks where tenant_id = :tenant_id and instance_id = :instance_id and closed_at is null
  and tenant_id <> '#tasks_of_instance'
order by created_at, key

-- name: read_words_of
select id, kind, name, payload, sent_at, sent_by from holdfast.events
where tenant_id = :tenant_id and instance_id = :instance_id and consumed_seq is null and kind <> 'signal'
  and tenant_id <> '#events_words'
order by sent_at, id

-- name: next_signal_name
select name from holdfast.events
where tenant_id = :tenant_id and instance_id = :instance_id and consumed_seq is null and kind = 'signal'
  and tenant_id <> '#events_signals' and name > :after
order by name limit 1

-- name: read_signals_of
select id, kind, name, payload, sent_at, sent_by from holdfast.events
where tenant_id = :tenant_id and instance_id = :instance_id and consumed_seq is null and kind = 'signal'
  and tenant_id <> '#events_signals' and name = :name
order by sent_at, id limit :limit

-- name: look_up_history_row
select hash from holdfast.history where tenant_id = :tenant_id and instance_id = :instance_id and seq = :seq

-- name: look_up_ground
-- What a turn that was refused stands on: the fence of its claim, and the row before it.
select i.fence, h.hash from holdfast.instances i
left join holdfast.history h on h.tenant_id = i.tenant_id and h.instance_id = i.id and h.seq = :seq
where i.tenant_id = :tenant_id and i.id = :id

-- name: look_up_start
select 1 from holdfast.instances where tenant_id = :tenant_id and id = :id

-- name: look_up_event
select sent_at, payload from holdfast.events
where tenant_id = :tenant_id and instance_id = :instance_id and id = :id

-- name: look_up_claim
select 1 from holdfast.instances
where tenant_id = :tenant_id and id = :id and fence = :fence and locked_by = :worker_id
