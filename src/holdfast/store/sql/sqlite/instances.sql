-- name: list_live_instances_of_status
-- SQLite would rather walk the primary key past every finished instance; PostgreSQL chooses well by itself.
select id, kind, definition_key, definition_version, business_key, status, waiting_on, queue, attempts, input,
  result, last_error, compensation, parent_id, parent_step, seq, current_state, created_at, started_at, completed_at,
  run_at, locked_by
from holdfast.instances indexed by holdfast_instances_live
where tenant_id = :tenant_id and status = :status and completed_at is null and id < :before
order by id desc limit :limit
