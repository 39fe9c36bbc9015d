-- part: task_columns
id, instance_id, definition_key, key, type, name, title, status, run_at, attempts, max_attempts, locked_by,
  locked_at, fence, idempotency_key, input, options, output, error, trace_id, assignee, groups, priority, due_at,
  follow_up_at, invoke_id, version, created_at, started_at, completed_at, completed_by

-- part: task_listed
id, instance_id, definition_key, key, type, name, title, status, run_at, attempts, max_attempts, locked_by,
  locked_at, fence, idempotency_key, case when length(input) <= :most then input end as input,
  case when length(options) <= :most then options end as options,
  case when length(output) <= :most then output end as output, case when length(error) <= :most then error end as error,
  trace_id, assignee, groups, priority, due_at, follow_up_at, invoke_id, version, created_at, started_at, completed_at,
  completed_by,
  case when length(input) > :most then 'input ' else '' end || case when length(options) > :most then 'form ' else '' end
    || case when length(output) > :most then 'output ' else '' end
    || case when length(error) > :most then 'error ' else '' end as left_out

-- part: task_wanted
(cast(:status as text) is null or status = cast(:status as text))
  and (cast(:type as text) is null or type = cast(:type as text))
  and (cast(:assignee as text) is null or assignee = cast(:assignee as text))
  and (cast(:group as text) is null or groups like cast(:group as text) escape '~')

-- name: read_task
select {task_columns}
from holdfast.tasks where tenant_id = :tenant_id and id = :id

-- part: as_urgent
closed_at is null and status in ('pending', 'running')
      and priority = :after_priority and (created_at, key, id) > (:after_at, :after_key, :after_id)
      order by created_at, key, id limit :looked

-- part: less_urgent
closed_at is null and status in ('pending', 'running') and priority < :after_priority
      order by priority desc, created_at, key, id limit :looked

-- part: newer_first
(created_at, id) < (:after_at, :after_id) order by created_at desc, id desc limit :looked

-- name: list_tasks
-- Newest first, merged from the runs of the statuses asked for. As in every list of tasks, what no index knows is looked
-- for among so many only: the last that was looked at comes along, wanted or not, and the next page begins behind it.
select {task_listed}, place, case when {task_wanted} then 1 else 0 end as wanted from (
  select {task_columns}, row_number() over (order by created_at desc, id desc) as place from (
    select * from (select {task_columns} from holdfast.tasks
      where tenant_id = :tenant_id and tenant_id <> '#tasks_of_status' and status = 'pending' and cast(:statuses as text) like '%pending%' and {newer_first}) pending
    union all
    select * from (select {task_columns} from holdfast.tasks
      where tenant_id = :tenant_id and tenant_id <> '#tasks_of_status' and status = 'running' and cast(:statuses as text) like '%running%' and {newer_first}) running
    union all
    select * from (select {task_columns} from holdfast.tasks
      where tenant_id = :tenant_id and tenant_id <> '#tasks_of_status' and status = 'succeeded' and cast(:statuses as text) like '%succeeded%' and {newer_first}) succeeded
    union all
    select * from (select {task_columns} from holdfast.tasks
      where tenant_id = :tenant_id and tenant_id <> '#tasks_of_status' and status = 'failed' and cast(:statuses as text) like '%failed%' and {newer_first}) failed
    union all
    select * from (select {task_columns} from holdfast.tasks
      where tenant_id = :tenant_id and tenant_id <> '#tasks_of_status' and status = 'cancelled' and cast(:statuses as text) like '%cancelled%' and {newer_first}) cancelled
    union all
    select * from (select {task_columns} from holdfast.tasks
      where tenant_id = :tenant_id and tenant_id <> '#tasks_of_status' and status = 'skipped' and cast(:statuses as text) like '%skipped%' and {newer_first}) skipped
    order by created_at desc, id desc limit :looked
  ) looked_at
) placed where {task_wanted} or place = :looked order by created_at desc, id desc limit :limit

-- name: list_open_tasks
-- The most urgent first: the rest of those as urgent as the last of the page before, then the less urgent.
select {task_listed}, place, case when {task_wanted} then 1 else 0 end as wanted from (
  select {task_columns}, row_number() over (order by priority desc, created_at, key, id) as place from (
    select * from (select {task_columns} from holdfast.tasks
      where tenant_id = :tenant_id and tenant_id <> '#tasks_open' and {as_urgent}) as_urgent
    union all
    select * from (select {task_columns} from holdfast.tasks
      where tenant_id = :tenant_id and tenant_id <> '#tasks_open' and {less_urgent}) less_urgent
    order by priority desc, created_at, key, id limit :looked
  ) looked_at
) placed where {task_wanted} or place = :looked order by priority desc, created_at, key, id limit :limit

-- name: list_inbox
-- Says closed_at is null so that the planner may use the small index of what people have open.
select {task_listed}, place, case when {task_wanted} then 1 else 0 end as wanted from (
  select {task_columns}, row_number() over (order by priority desc, created_at, key, id) as place from (
    select * from (select {task_columns} from holdfast.tasks
      where tenant_id = :tenant_id and tenant_id <> '#tasks_inbox' and type = 'HUMAN' and {as_urgent}) as_urgent
    union all
    select * from (select {task_columns} from holdfast.tasks
      where tenant_id = :tenant_id and tenant_id <> '#tasks_inbox' and type = 'HUMAN' and {less_urgent}) less_urgent
    order by priority desc, created_at, key, id limit :looked
  ) looked_at
) placed where {task_wanted} or place = :looked order by priority desc, created_at, key, id limit :limit

-- name: list_tasks_of_assignee
select {task_listed}, place, case when {task_wanted} then 1 else 0 end as wanted from (
  select {task_columns}, row_number() over (order by priority desc, created_at, key, id) as place from (
    select * from (select {task_columns} from holdfast.tasks
      where tenant_id = :tenant_id and tenant_id <> '#tasks_of_assignee' and assignee = cast(:assignee as text) and {as_urgent}) as_urgent
    union all
    select * from (select {task_columns} from holdfast.tasks
      where tenant_id = :tenant_id and tenant_id <> '#tasks_of_assignee' and assignee = cast(:assignee as text) and {less_urgent}) less_urgent
    order by priority desc, created_at, key, id limit :looked
  ) looked_at
) placed where {task_wanted} or place = :looked order by priority desc, created_at, key, id limit :limit

-- part: members
select task_id, row_number() over (order by urgency desc, made_at, task_key, task_id) as place from (
    select * from (select urgency, made_at, task_key, task_id from holdfast.task_groups
      where tenant_id = :tenant_id and name = cast(:group_name as text) and tenant_id <> '#task_groups_inbox'
        and urgency = :after_priority
        and (made_at, task_key, task_id) > (:after_at, :after_key, :after_id)
      order by made_at, task_key, task_id limit :looked) as_urgent
    union all
    select * from (select urgency, made_at, task_key, task_id from holdfast.task_groups
      where tenant_id = :tenant_id and name = cast(:group_name as text) and tenant_id <> '#task_groups_inbox'
        and urgency < :after_priority
      order by urgency desc, made_at, task_key, task_id limit :looked) less_urgent
    order by urgency desc, made_at, task_key, task_id limit :looked
  ) looked_at

-- name: list_tasks_of_group
-- Open ones only: those are filed under their groups.
select {task_listed}, place, case when {task_wanted} and status in ('pending', 'running') then 1 else 0 end as wanted from (
  {members}
) members join holdfast.tasks on tenant_id = :tenant_id and id = task_id
where ({task_wanted} and status in ('pending', 'running')) or place = :looked
order by place limit :limit

-- name: tasks_of_instance
select {task_listed}, 0 as place, 1 as wanted
from holdfast.tasks where tenant_id = :tenant_id and instance_id = :instance_id and tenant_id <> '#tasks_of_instance'
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
where tenant_id = :tenant_id and task_id = :task_id and tenant_id <> '#task_comments_by_time'
  and (at, id) > (:after_at, :after)
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

-- part: first_order
select kind, name, payload, sent_at from holdfast.events
  where tenant_id = :tenant_id and instance_id = :instance_id and consumed_seq is null
    and kind <> 'signal' and tenant_id <> '#events_words' and kind = 'cancel'
  order by sent_at, id limit 1

-- part: next_name
select e.name from holdfast.events e
    where e.tenant_id = :tenant_id and e.instance_id = :instance_id and e.consumed_seq is null and e.kind = 'signal'
      and e.tenant_id <> '#events_signals' and e.name > n.name
    order by e.name limit 1

-- name: before_a_word
-- Of a chart: what came first and may take the task away before a word on it is taken. A cancel comes before all else.
-- Of signals the first of each name, from one name to the next by one descent of the index: the line may be long. (SQLite
-- leaves a name at the first event that comes after those that it has.)
with recursive names (name, place) as (
  select '', 0
  union all
  select ({next_name}), n.place + 1 from names n where n.name is not null and n.place < :limit
)
select * from (
  {first_order}
) orders
union all
select * from (
  select e.kind, e.name, e.payload, e.sent_at from names n cross join holdfast.events e
  where e.tenant_id = :tenant_id and e.instance_id = :instance_id and e.consumed_seq is null and e.kind = 'signal'
    and e.tenant_id <> '#events_signals' and e.name = n.name and n.place > 0
  order by e.sent_at, e.id limit :limit
) signals

-- name: invocation_of_task
select invoke_id, visit from holdfast.tasks where tenant_id = :tenant_id and id = :id
