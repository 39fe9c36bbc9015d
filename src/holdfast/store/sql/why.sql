-- name: read_holder
-- Who has claimed it, and since when.
select i.locked_by, i.locked_at, (select w.host from holdfast.workers w where w.tenant_id = '*' and w.id = i.locked_by)
from holdfast.instances i
where i.tenant_id = :tenant_id and i.id = :id and i.locked_by is not null

-- name: unknown_since
-- Since when nobody knows what became of an instance's effects.
select case when type = 'EFFECT_UNKNOWN' then name else 'undo:' || name end as step, max(at) from holdfast.history
where tenant_id = :tenant_id and instance_id = :instance_id and type in ('EFFECT_UNKNOWN', 'COMPENSATION_UNKNOWN')
group by type, name

-- name: count_ahead
-- What fell due before it among those it stands in line with: claims go round tenants and definitions, oldest first.
-- Counts no further than the limit.
select count(*) from (
  select 1 from holdfast.instances
  where queue = :queue and tenant_id = :tenant_id and definition_key = :key and definition_version = :version
    and run_at is not null and locked_by is null and tenant_id <> '#instances_due' and run_at < :run_at limit :limit
) ahead

-- name: working_workers
-- Those that serve every tenant.
select id, definitions from holdfast.workers
where tenant_id in ('*', :tenant_id) and fenced_at is null and host <> '#workers_unfenced'
  and stopped_at is null order by started_at desc limit :limit

-- name: quarantined_since
select quarantined_at from holdfast.installation where tenant_id in ('*', :tenant_id) and quarantined_at is not null

-- name: open_tasks_in_short
select key, type, name, title, run_at, attempts, max_attempts, error, assignee, groups, created_at,
  status, standing_type from holdfast.tasks
where tenant_id = :tenant_id and instance_id = :instance_id and tenant_id <> '#tasks_of_instance'
  and status in ('pending', 'running')
order by created_at, key limit :limit

-- name: effects_in_doubt
-- Each with whether a person is asked: only then is a reason given.
select step, reason is not null from holdfast.effects
where tenant_id = :tenant_id and instance_id = :instance_id and tenant_id <> '#effects_of_instance'
  and state = 'outcome_unknown'
