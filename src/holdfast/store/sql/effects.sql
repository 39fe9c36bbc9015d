-- part: effect_columns
id, instance_id, step, mode, state, attempt, idempotency_key, request, fence, worker_id, first_started_at,
  started_at, not_after, opens_at, settled_at, receipt, last_error, resolution, resolved_by, reason

-- part: effect_listed
id, instance_id, step, mode, state, attempt, idempotency_key,
  case when length(request) <= :most then request end as request, fence, worker_id, first_started_at, started_at,
  not_after, opens_at, settled_at, case when length(receipt) <= :most then receipt end as receipt,
  case when length(last_error) <= :most then last_error end as last_error, resolution, resolved_by, reason,
  case when length(request) > :most then 'request ' else '' end
    || case when length(receipt) > :most then 'receipt ' else '' end
    || case when length(last_error) > :most then 'error ' else '' end as left_out

-- part: effect_page
tenant_id <> '#effects_of_state'
    and (started_at, id) < (:before_at, :before) order by started_at desc, id desc limit :limit

-- name: read_effect
select {effect_columns}
from holdfast.effects where tenant_id = :tenant_id and id = :id

-- name: list_effects
-- Newest first. Every state is a run of its own in the index; the page is merged from the heads of those asked for.
select * from (
  select * from (select {effect_listed} from holdfast.effects
    where tenant_id = :tenant_id and state = 'started' and cast(:states as text) like '%started%' and {effect_page}) started_ones
  union all
  select * from (select {effect_listed} from holdfast.effects
    where tenant_id = :tenant_id and state = 'succeeded' and cast(:states as text) like '%succeeded%' and {effect_page}) succeeded_ones
  union all
  select * from (select {effect_listed} from holdfast.effects
    where tenant_id = :tenant_id and state = 'failed' and cast(:states as text) like '%failed%' and {effect_page}) failed_ones
  union all
  select * from (select {effect_listed} from holdfast.effects
    where tenant_id = :tenant_id and state = 'outcome_unknown' and cast(:states as text) like '%outcome_unknown%' and {effect_page}) outcome_unknown_ones
  union all
  select * from (select {effect_listed} from holdfast.effects
    where tenant_id = :tenant_id and state = 'resolved' and cast(:states as text) like '%resolved%' and {effect_page}) resolved_ones
) found order by started_at desc, id desc limit :limit

-- name: unknown_effects
select {effect_listed}
from holdfast.effects where tenant_id = :tenant_id and state = 'outcome_unknown' and tenant_id <> '#effects_unknown'
order by started_at limit :limit

-- name: effects_of_instance
select {effect_listed}
from holdfast.effects where tenant_id = :tenant_id and instance_id = :instance_id and tenant_id <> '#effects_of_instance'
order by started_at limit :limit

-- name: effects_that_may_have_happened
-- Of an instance in all its epochs, with what has undone them, and whether it is known that they did.
select step, state = 'succeeded' or coalesce(resolution, '') = 'happened'
from holdfast.effects where tenant_id = :tenant_id and instance_id = :instance_id and tenant_id <> '#effects_of_instance'
  and (state in ('started', 'outcome_unknown', 'succeeded') or resolution in ('happened', 'abort'))
limit :limit

-- name: page_of_instances_effects
select {effect_listed}
from holdfast.effects where tenant_id = :tenant_id and instance_id = :instance_id and tenant_id <> '#effects_of_instance'
  and (started_at, id) > (:after_at, :after) order by started_at, id limit :limit

-- name: count_resolutions_taken
-- How many people's words on this effect a turn has taken.
select count(*) from holdfast.events
where tenant_id = :tenant_id and instance_id = (
    select instance_id from holdfast.effects where tenant_id = :tenant_id and id = :id)
  and id like :ids and consumed_seq is not null

-- name: read_observations
select observed_at, worker_id, fence, attempt, outcome, payload from holdfast.effect_observations
where tenant_id = :tenant_id and effect_id = :effect_id and tenant_id <> '#observations_of_effect'
order by observed_at

-- name: call_of_effect
-- Who made the latest call, and whether what this attempt came back with is on record as evidence.
select e.worker_id, exists (select 1 from holdfast.effect_observations o
  where o.tenant_id = e.tenant_id and o.effect_id = e.id and o.attempt = :attempt
    and o.tenant_id <> '#observations_of_effect')
from holdfast.effects e where e.tenant_id = :tenant_id and e.id = :id

-- name: list_dead_letters
select id, source, instance_id, definition_key, reason, payload, created_at, resolution, resolved_at, resolved_by
from holdfast.dead_letters
where tenant_id = :tenant_id and (created_at, id) < (:before_at, :before) and tenant_id <> '#dead_letters_by_time'
order by created_at desc, id desc limit :limit

-- name: list_open_dead_letters
-- In the order of their ids, which the index of the open ones has: those dealt with since are not walked through.
select id, source, instance_id, definition_key, reason, payload, created_at, resolution, resolved_at, resolved_by
from holdfast.dead_letters
where tenant_id = :tenant_id and resolution is null and tenant_id <> '#dead_letters_open' order by id limit :limit

-- name: read_dead_letter
select id, source, instance_id, definition_key, reason, payload, created_at, resolution, resolved_at, resolved_by
from holdfast.dead_letters where tenant_id = :tenant_id and id = :id

-- name: resolve_dead_letter
update holdfast.dead_letters set resolution = :resolution, resolved_at = :now, resolved_by = :by
where tenant_id = :tenant_id and id = :id and resolution is null

-- name: page_of_dead_letters
select id, source, instance_id, definition_key, reason, case when length(payload) <= :most then payload end as payload,
  created_at, resolution, resolved_at, resolved_by, case when length(payload) > :most then 'payload' else '' end as left_out
from holdfast.dead_letters
where tenant_id = :tenant_id and (created_at, id) < (:before_at, :before) and tenant_id <> '#dead_letters_by_time'
order by created_at desc, id desc limit :limit
