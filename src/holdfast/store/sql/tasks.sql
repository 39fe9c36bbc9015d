-- part: task_columns
id, instance_id, definition_key, key, type, name, title, status, run_at, attempts, max_attempts, locked_by,
  locked_at, fence, idempotency_key, input, options, output, error, trace_id, assignee, groups, priority, due_at,
  follow_up_at, invoke_id, version, created_at, started_at, completed_at, completed_by

-- part: task_wanted
(cast(:status as text) is null or status = cast(:status as text))
  and (cast(:type as text) is null or type = cast(:type as text))
  and (cast(:assignee as text) is null or assignee = cast(:assignee as text))
  and (cast(:group as text) is null or groups like cast(:group as text) escape '~')

-- name: read_task
select {task_columns}
from holdfast.tasks where tenant_id = :tenant_id and id = :id

-- part: urgent_first
(priority < :after_priority or (priority = :after_priority and (created_at, key, id) > (:after_at, :after_key, :after_id)))
order by priority desc, created_at, key, id limit :limit

-- name: list_tasks
select {task_columns}
from holdfast.tasks where tenant_id = :tenant_id and (created_at, id) < (:after_at, :after_id)
  and {task_wanted}
order by created_at desc, id desc limit :limit

-- name: list_open_tasks
select {task_columns}
from holdfast.tasks where tenant_id = :tenant_id and status in ('pending', 'running')
  and {task_wanted} and {urgent_first}

-- name: list_inbox
-- The inbox. Says closed_at is null so that the planner may use the small index of what people have open.
select {task_columns}
from holdfast.tasks
where tenant_id = :tenant_id and type = 'HUMAN' and closed_at is null and status in ('pending', 'running')
  and {task_wanted} and {urgent_first}

-- name: list_tasks_of_assignee
select {task_columns}
from holdfast.tasks
where tenant_id = :tenant_id and assignee = cast(:assignee as text) and closed_at is null
  and status in ('pending', 'running') and {task_wanted} and {urgent_first}

-- name: tasks_of_instance
select {task_columns}
from holdfast.tasks where tenant_id = :tenant_id and instance_id = :instance_id
  and (not cast(:open as boolean) or status in ('pending', 'running')) and {task_wanted}
  and (created_at, key, id) > (:after_at, :after_key, :after_id)
order by created_at, key, id limit :limit

-- name: give_task
-- The version is the compare-and-set: of two people who press the button at once, one gets it.
update holdfast.tasks set assignee = cast(:who as text), version = version + 1
where tenant_id = :tenant_id and id = :id and version = :version and type = 'HUMAN'
  and status in ('pending', 'running')

-- name: add_comment
insert into holdfast.task_comments (tenant_id, task_id, id, at, author, body)
values (cast(:tenant_id as text), :task_id, :id, :now, cast(:author as text), cast(:body as text))
on conflict do nothing

-- name: list_comments
select id, at, author, body from holdfast.task_comments
where tenant_id = :tenant_id and task_id = :task_id and (at, id) > (:after_at, :after)
order by at, id limit :limit

-- name: read_tenant
select http_hosts, ai_enabled, version from holdfast.tenants where tenant_id = :tenant_id

-- name: set_tenant
-- What is not given stays as it is, in the statement itself: two people who change different things at once both count.
insert into holdfast.tenants (tenant_id, http_hosts, ai_enabled, changed_at, changed_by, version)
select cast(:tenant_id as text), coalesce(cast(:http_hosts as text), '[]'),
  coalesce(cast(:ai_enabled as boolean), cast(:ai_default as boolean)), :now, cast(:actor as text), 1
where cast(:version as integer) is null or cast(:version as integer) = 0 or exists (
  select 1 from holdfast.tenants where tenant_id = cast(:tenant_id as text))
on conflict (tenant_id) do update set
  http_hosts = coalesce(cast(:http_hosts as text), holdfast.tenants.http_hosts),
  ai_enabled = coalesce(cast(:ai_enabled as boolean), holdfast.tenants.ai_enabled),
  changed_at = excluded.changed_at, changed_by = excluded.changed_by, version = holdfast.tenants.version + 1
where cast(:version as integer) is null or holdfast.tenants.version = cast(:version as integer)
