-- name: read_effect
select id, instance_id, step, mode, state, attempt, idempotency_key, request, fence, worker_id, first_started_at,
  started_at, not_after, opens_at, settled_at, receipt, last_error, resolution, resolved_by, reason
from holdfast.effects where tenant_id = :tenant_id and id = :id

-- name: list_effects
select id, instance_id, step, mode, state, attempt, idempotency_key, request, fence, worker_id, first_started_at,
  started_at, not_after, opens_at, settled_at, receipt, last_error, resolution, resolved_by, reason
from holdfast.effects where tenant_id = :tenant_id order by started_at desc limit :limit

-- name: list_effects_of_state
select id, instance_id, step, mode, state, attempt, idempotency_key, request, fence, worker_id, first_started_at,
  started_at, not_after, opens_at, settled_at, receipt, last_error, resolution, resolved_by, reason
from holdfast.effects where tenant_id = :tenant_id and state = :state order by started_at desc limit :limit

-- name: unknown_effects
select id, instance_id, step, mode, state, attempt, idempotency_key, request, fence, worker_id, first_started_at,
  started_at, not_after, opens_at, settled_at, receipt, last_error, resolution, resolved_by, reason
from holdfast.effects where tenant_id = :tenant_id and state = 'outcome_unknown' order by started_at limit :limit

-- name: effects_of_instance
select id, instance_id, step, mode, state, attempt, idempotency_key, request, fence, worker_id, first_started_at,
  started_at, not_after, opens_at, settled_at, receipt, last_error, resolution, resolved_by, reason
from holdfast.effects where tenant_id = :tenant_id and instance_id = :instance_id order by started_at limit :limit

-- name: count_resolutions_taken
-- How many people's words on this effect a turn has taken.
select count(*) from holdfast.effects f
join holdfast.events e on e.tenant_id = f.tenant_id and e.instance_id = f.instance_id
where f.tenant_id = :tenant_id and f.id = :id and e.id like :ids and e.consumed_seq is not null

-- name: read_observations
select observed_at, worker_id, fence, attempt, outcome, payload from holdfast.effect_observations
where tenant_id = :tenant_id and effect_id = :effect_id order by observed_at

-- name: list_dead_letters
select id, source, instance_id, definition_key, reason, payload, created_at, resolution
from holdfast.dead_letters where tenant_id = :tenant_id order by created_at desc limit :limit
