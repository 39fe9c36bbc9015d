-- Lists that grow: tasks by what people ask for, definitions by their status, and the queues of one tenant.

-- Every status is a run of its own, newest first; a page over several is merged from their heads.
drop index holdfast.tasks_by_time;
create index tasks_of_status on holdfast.tasks (tenant_id, status, created_at, id);
-- What is open, of any type, the most urgent first.
create index tasks_open on holdfast.tasks (tenant_id, priority desc, created_at, key, id) where closed_at is null;
-- Once more, because of two that cost the same the one that was made last is taken, and these are the smaller ones.
drop index holdfast.tasks_inbox;
create index tasks_inbox on holdfast.tasks (tenant_id, priority desc, created_at, key, id)
  where type = 'HUMAN' and closed_at is null;
drop index holdfast.tasks_of_assignee;
create index tasks_of_assignee on holdfast.tasks (tenant_id, assignee, priority desc, created_at, key, id)
  where assignee is not null and closed_at is null;

-- An open task under each of its groups' names: a list of groups in one column has no order that a page could follow.
create table holdfast.task_groups (
  tenant_id text not null,
  name text not null,
  urgency integer not null,                        -- the task's priority, moment and key: what the inbox is sorted by
  made_at bigint not null,
  task_key text not null,
  task_id bytea not null,
  primary key (tenant_id, task_id, name)
);
create index task_groups_inbox on holdfast.task_groups (tenant_id, name, urgency desc, made_at, task_key, task_id);
insert into holdfast.rights (role, relation, privileges) values
  ('holdfast_door', 'task_groups', 'select'),
  ('holdfast_worker', 'task_groups', 'select, insert, delete');

create function holdfast.task_joins_its_groups() returns trigger language plpgsql as $$
begin
  insert into holdfast.task_groups (tenant_id, name, urgency, made_at, task_key, task_id)
  select distinct new.tenant_id, name, new.priority, new.created_at, new.key, new.id
  from json_array_elements_text(new.groups::json) as name
  on conflict do nothing;
  return null;
end $$;
create function holdfast.task_leaves_its_groups() returns trigger language plpgsql as $$
begin
  delete from holdfast.task_groups where tenant_id = new.tenant_id and task_id = new.id;
  return null;
end $$;
create trigger task_joins after insert on holdfast.tasks for each row
  when (new.groups is not null and new.closed_at is null) execute function holdfast.task_joins_its_groups();
create trigger task_leaves after update of closed_at on holdfast.tasks for each row
  when (new.groups is not null and old.closed_at is null and new.closed_at is not null)
  execute function holdfast.task_leaves_its_groups();
insert into holdfast.task_groups (tenant_id, name, urgency, made_at, task_key, task_id)
select distinct t.tenant_id, name, t.priority, t.created_at, t.key, t.id
from holdfast.tasks t cross join lateral json_array_elements_text(t.groups::json) as name
where t.groups is not null and t.closed_at is null
on conflict do nothing;

-- In this order: of two that cost the same, PostgreSQL takes the one made last.
create index definitions_by_key on holdfast.definitions (tenant_id, key, version desc);
create index definitions_of_status on holdfast.definitions (tenant_id, status, key, version desc);

-- The queues in which a tenant has work that is due: from one queue to the next, then from one definition of this tenant
-- to the next, one descent of the index for each. Other tenants' work is stepped over, and so are those who sleep. A door
-- is answered about the tenant that its transaction names, and nobody else but the owner about any.
create function holdfast.queues_of_tenant(text, bigint, bigint, integer)
  returns table (queue text, due bigint, oldest bigint)
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  with recursive mine as (
    select $1 as tenant_id
    where $1 = current_setting('holdfast.tenant', true)
      or (coalesce(current_setting('holdfast.tenant', true), '') = '' and current_setting('role') <> 'holdfast_door'
        and pg_has_role(session_user, current_user, 'member'))
  ), queues as (
    (select i.queue, 1 as number from holdfast.instances i
     where i.run_at is not null and i.locked_by is null order by i.queue limit 1)
    union all
    select n.queue, q.number + 1 from queues q cross join lateral (
      select i.queue from holdfast.instances i
      where i.run_at is not null and i.locked_by is null and i.queue > q.queue order by i.queue limit 1
    ) n
    where q.number < $4
  ), heads as (
    select h.queue, h.definition_key, h.definition_version, 1 as number
    from queues q cross join mine cross join lateral (
      select i.queue, i.definition_key, i.definition_version from holdfast.instances i
      where i.run_at is not null and i.locked_by is null and i.queue = q.queue and i.tenant_id = mine.tenant_id
      order by i.definition_key, i.definition_version limit 1
    ) h
    union all
    select n.queue, n.definition_key, n.definition_version, h.number + 1
    from heads h cross join mine cross join lateral (
      select i.queue, i.definition_key, i.definition_version from holdfast.instances i
      where i.run_at is not null and i.locked_by is null and i.queue = h.queue and i.tenant_id = mine.tenant_id
        and (i.definition_key, i.definition_version) > (h.definition_key, h.definition_version)
      order by i.definition_key, i.definition_version limit 1
    ) n
    where h.number < $4
  )
  select h.queue, least(sum(c.due), $3)::bigint, min(c.oldest) from heads h cross join mine cross join lateral (
    select count(*) as due, min(d.run_at) as oldest from (
      select i.run_at from holdfast.instances i
      where i.run_at is not null and i.locked_by is null and i.queue = h.queue and i.tenant_id = mine.tenant_id
        and i.definition_key = h.definition_key and i.definition_version = h.definition_version and i.run_at <= $2
      order by i.run_at limit $3
    ) d
  ) c
  where c.due > 0 group by h.queue order by h.queue
$$;

create index task_comments_by_time on holdfast.task_comments (tenant_id, task_id, at, id);
