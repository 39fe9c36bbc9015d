-- name: read_instance
select id, kind, definition_key, definition_version, business_key, status, waiting_on, queue, attempts, input,
  result, last_error, compensation, parent_id, parent_step, seq, current_state, created_at, started_at, completed_at,
  run_at, locked_by
from holdfast.instances where tenant_id = :tenant_id and id = :id

-- name: list_instances
select id, kind, definition_key, definition_version, business_key, status, waiting_on, queue, attempts, input,
  result, last_error, compensation, parent_id, parent_step, seq, current_state, created_at, started_at, completed_at,
  run_at, locked_by
from holdfast.instances
where tenant_id = :tenant_id and id < :before
order by id desc limit :limit

-- name: list_instances_of_status
select id, kind, definition_key, definition_version, business_key, status, waiting_on, queue, attempts, input,
  result, last_error, compensation, parent_id, parent_step, seq, current_state, created_at, started_at, completed_at,
  run_at, locked_by
from holdfast.instances
where tenant_id = :tenant_id and status = :status and id < :before
order by id desc limit :limit

-- name: list_live_instances_of_status
-- Says completed_at is null so that the planner may use the small index of living instances.
select id, kind, definition_key, definition_version, business_key, status, waiting_on, queue, attempts, input,
  result, last_error, compensation, parent_id, parent_step, seq, current_state, created_at, started_at, completed_at,
  run_at, locked_by
from holdfast.instances
where tenant_id = :tenant_id and status = :status and completed_at is null and id < :before
order by id desc limit :limit

-- name: find_business_key
select id, input, status from holdfast.instances
where tenant_id = :tenant_id and definition_key = :definition_key and business_key = :business_key

-- name: read_ending
select status, result, last_error, waiting_on, completed_at from holdfast.instances
where tenant_id = :tenant_id and id = :id

-- name: read_history
select seq, type, name, fence, at, payload, salt, hash, payload_hash from holdfast.history
where tenant_id = :tenant_id and instance_id = :instance_id and seq > :after order by seq limit :limit

-- name: read_event
select kind, name, payload, sent_at, consumed_seq from holdfast.events
where tenant_id = :tenant_id and instance_id = :instance_id and id = :id

-- name: start_alone
-- One start on the caller's own connection. Casts, because not every library says what it sends.
insert into holdfast.instances (tenant_id, id, kind, definition_key, definition_version, business_key, status,
                                queue, priority, run_at, input, trace_id, created_at)
values (cast(:tenant_id as text), :id, cast(:kind as text), cast(:definition_key as text), :definition_version,
        cast(:business_key as text), 'pending', cast(:queue as text), :priority, cast(:run_at as bigint), :input,
        cast(:trace_id as text), cast(:created_at as bigint))
on conflict do nothing
returning id

-- name: count_backlog
-- Counts no further than the limit, so that a long queue costs no more than a short one.
select count(*) from (
  select 1 from holdfast.instances
  where queue = :queue and run_at is not null and locked_by is null and status = 'pending' limit :limit
) waiting

-- name: read_snapshot
select snapshot, definition_key, definition_version, status from holdfast.instances
where tenant_id = :tenant_id and id = :id
