-- Lists that grow: tasks by what people ask for, definitions by their status.

-- Every status is a run of its own, newest first; a page over several is merged from their heads.
drop index holdfast_tasks_by_time;
create index holdfast_tasks_of_status on holdfast_tasks (tenant_id, status, created_at, id);
-- What is open, of any type, the most urgent first.
create index holdfast_tasks_open on holdfast_tasks (tenant_id, priority desc, created_at, key, id)
  where closed_at is null;
-- Once more, because of two that cost the same the one that was made last is taken, and these are the smaller ones.
drop index holdfast_tasks_inbox;
create index holdfast_tasks_inbox on holdfast_tasks (tenant_id, priority desc, created_at, key, id)
  where type = 'HUMAN' and closed_at is null;
drop index holdfast_tasks_of_assignee;
create index holdfast_tasks_of_assignee on holdfast_tasks (tenant_id, assignee, priority desc, created_at, key, id)
  where assignee is not null and closed_at is null;

-- An open task under each of its groups' names: a list of groups in one column has no order that a page could follow.
create table holdfast_task_groups (
  tenant_id text not null,
  name text not null,
  urgency integer not null,                        -- the task's priority, moment and key: what the inbox is sorted by
  made_at integer not null,
  task_key text not null,
  task_id blob not null,
  primary key (tenant_id, task_id, name)
) strict, without rowid;
create index holdfast_task_groups_inbox on holdfast_task_groups
  (tenant_id, name, urgency desc, made_at, task_key, task_id);
create trigger holdfast_task_joins after insert on holdfast_tasks
  when new.groups is not null and new.closed_at is null
  begin
    insert or ignore into holdfast_task_groups (tenant_id, name, urgency, made_at, task_key, task_id)
    select new.tenant_id, value, new.priority, new.created_at, new.key, new.id from json_each(new.groups);
  end;
create trigger holdfast_task_leaves after update of closed_at on holdfast_tasks
  when new.groups is not null and old.closed_at is null and new.closed_at is not null
  begin
    delete from holdfast_task_groups where tenant_id = new.tenant_id and task_id = new.id;
  end;
insert or ignore into holdfast_task_groups (tenant_id, name, urgency, made_at, task_key, task_id)
select t.tenant_id, g.value, t.priority, t.created_at, t.key, t.id from holdfast_tasks t join json_each(t.groups) g
where t.groups is not null and t.closed_at is null;

create index holdfast_definitions_by_key on holdfast_definitions (tenant_id, key, version desc);
create index holdfast_definitions_of_status on holdfast_definitions (tenant_id, status, key, version desc);
create index holdfast_task_comments_by_time on holdfast_task_comments (tenant_id, task_id, at, id);
