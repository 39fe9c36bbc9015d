-- An index answers only the statements that name it (decision 16). The name is a condition that holds for every row,
-- `tenant_id <> '#the_index'`, since no tenant's id begins with `#`. It stands in the index and in the statements that
-- use the index; for any other statement the planner cannot prove that the index has all the rows it asks for.
-- Workers have one tenant, '*', which would prove any such condition: their indexes are named by the host.

-- One index by business key in place of two: as many instances share one as there are definitions, at most. No
-- statement asked for tasks by their moment, or for the API keys of a principal.
drop index holdfast.instances_of_business_key;
drop index holdfast.tasks_due;
drop index holdfast.api_keys_of_principal;

-- Workers stay in the table when they are gone, and sessions among the keys.
create index workers_unfenced on holdfast.workers (tenant_id, id)
  where fenced_at is null and host <> '#workers_unfenced';
create index workers_by_start on holdfast.workers (tenant_id, started_at) where host <> '#workers_by_start';
drop index holdfast.instances_business_key;
create unique index instances_business_key on holdfast.instances (tenant_id, business_key, definition_key)
  where business_key is not null and tenant_id <> '#instances_business_key';
drop index holdfast.instances_due;
create index instances_due on holdfast.instances (queue, tenant_id, definition_key, definition_version, run_at)
  where run_at is not null and locked_by is null and tenant_id <> '#instances_due';
drop index holdfast.instances_claimed;
create index instances_claimed on holdfast.instances (locked_by)
  where locked_by is not null and tenant_id <> '#instances_claimed';
drop index holdfast.instances_of_status;
create index instances_of_status on holdfast.instances (tenant_id, status, created_at, id)
  where tenant_id <> '#instances_of_status';
drop index holdfast.instances_of_definition;
create index instances_of_definition on holdfast.instances (tenant_id, definition_key, status, created_at, id)
  where tenant_id <> '#instances_of_definition';
drop index holdfast.instances_of_parent;
create index instances_of_parent on holdfast.instances (tenant_id, parent_id, created_at, id)
  where parent_id is not null and tenant_id <> '#instances_of_parent';
drop index holdfast.events_words;
create index events_words on holdfast.events (tenant_id, instance_id, sent_at, id)
  where consumed_seq is null and kind <> 'signal' and tenant_id <> '#events_words';
drop index holdfast.events_signals;
create index events_signals on holdfast.events (tenant_id, instance_id, name, sent_at, id)
  where consumed_seq is null and kind = 'signal' and tenant_id <> '#events_signals';
drop index holdfast.effects_unknown;
create index effects_unknown on holdfast.effects (tenant_id, started_at)
  where state = 'outcome_unknown' and tenant_id <> '#effects_unknown';
drop index holdfast.effects_of_instance;
create index effects_of_instance on holdfast.effects (tenant_id, instance_id) where tenant_id <> '#effects_of_instance';
drop index holdfast.effects_of_state;
create index effects_of_state on holdfast.effects (tenant_id, state, started_at, id)
  where tenant_id <> '#effects_of_state';
drop index holdfast.observations_of_effect;
create index observations_of_effect on holdfast.effect_observations (tenant_id, effect_id)
  where tenant_id <> '#observations_of_effect';
drop index holdfast.dead_letters_open;
create index dead_letters_open on holdfast.dead_letters (tenant_id, id)
  where resolution is null and tenant_id <> '#dead_letters_open';
drop index holdfast.dead_letters_by_time;
create index dead_letters_by_time on holdfast.dead_letters (tenant_id, created_at, id)
  where tenant_id <> '#dead_letters_by_time';
drop index holdfast.definitions_id;
create unique index definitions_id on holdfast.definitions (tenant_id, id) where tenant_id <> '#definitions_id';
drop index holdfast.definitions_content;
create unique index definitions_content on holdfast.definitions (tenant_id, key, hash)
  where tenant_id <> '#definitions_content';
drop index holdfast.definitions_changed;
create index definitions_changed on holdfast.definitions (changed_at) where tenant_id <> '#definitions_changed';
drop index holdfast.definitions_by_key;
create index definitions_by_key on holdfast.definitions (tenant_id, key, version desc)
  where tenant_id <> '#definitions_by_key';
drop index holdfast.definitions_of_status;
create index definitions_of_status on holdfast.definitions (tenant_id, status, key, version desc)
  where tenant_id <> '#definitions_of_status';
drop index holdfast.tasks_of_instance;
create index tasks_of_instance on holdfast.tasks (tenant_id, instance_id, closed_at)
  where tenant_id <> '#tasks_of_instance';
drop index holdfast.tasks_of_status;
create index tasks_of_status on holdfast.tasks (tenant_id, status, created_at, id)
  where tenant_id <> '#tasks_of_status';
drop index holdfast.tasks_open;
create index tasks_open on holdfast.tasks (tenant_id, priority desc, created_at, key, id)
  where closed_at is null and tenant_id <> '#tasks_open';
drop index holdfast.tasks_inbox;
create index tasks_inbox on holdfast.tasks (tenant_id, priority desc, created_at, key, id)
  where type = 'HUMAN' and closed_at is null and tenant_id <> '#tasks_inbox';
drop index holdfast.tasks_of_assignee;
create index tasks_of_assignee on holdfast.tasks (tenant_id, assignee, priority desc, created_at, key, id)
  where assignee is not null and closed_at is null and tenant_id <> '#tasks_of_assignee';
drop index holdfast.task_groups_inbox;
create index task_groups_inbox on holdfast.task_groups (tenant_id, name, urgency desc, made_at, task_key, task_id)
  where tenant_id <> '#task_groups_inbox';
drop index holdfast.task_comments_by_time;
create index task_comments_by_time on holdfast.task_comments (tenant_id, task_id, at, id)
  where tenant_id <> '#task_comments_by_time';
drop index holdfast.principals_name;
create unique index principals_name on holdfast.principals (tenant_id, name) where tenant_id <> '#principals_name';
drop index holdfast.principals_subject;
create unique index principals_subject on holdfast.principals (tenant_id, issuer, subject)
  where subject is not null and tenant_id <> '#principals_subject';
drop index holdfast.api_keys_hash;
create unique index api_keys_hash on holdfast.api_keys (tenant_id, hash) where tenant_id <> '#api_keys_hash';
drop index holdfast.api_keys_found;
create index api_keys_found on holdfast.api_keys (hash) where tenant_id <> '#api_keys_found';
create index api_keys_for_programs on holdfast.api_keys (tenant_id, id)
  where kind in ('live', 'test') and tenant_id <> '#api_keys_for_programs';
drop index holdfast.idempotency_keys_expiry;
create index idempotency_keys_expiry on holdfast.idempotency_keys (expires_at)
  where tenant_id <> '#idempotency_keys_expiry';
drop index holdfast.idempotency_keys_answers;
create index idempotency_keys_answers on holdfast.idempotency_keys (expires_at)
  where response is not null and tenant_id <> '#idempotency_keys_answers';
drop index holdfast.audit_events_of_entity;
create index audit_events_of_entity on holdfast.audit_events (tenant_id, entity_type, entity_id, id)
  where tenant_id <> '#audit_events_of_entity';

-- What a door may know of all tenants together (0004_walls, 0005_lists, 0006_sweeps), by name.

create or replace function holdfast.count_backlog(text, bigint) returns bigint
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select count(*) from (
    select 1 from holdfast.instances
    where queue = $1 and run_at is not null and locked_by is null and tenant_id <> '#instances_due'
      and status = 'pending' limit $2
  ) waiting
$$;

create or replace function holdfast.count_ahead(text, bigint, bigint) returns bigint
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select count(*) from (
    select 1 from holdfast.instances
    where queue = $1 and run_at is not null and locked_by is null and tenant_id <> '#instances_due'
      and run_at < $2 limit $3
  ) ahead
$$;

-- As queue_heads and queue_depths in store/sql/metrics.sql, without the names of tenants and definitions.
create or replace function holdfast.queue_numbers(heads integer, now bigint, counted bigint, looked bigint)
  returns table (queue text, run_at bigint, due bigint, slept bigint)
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  with recursive heads as (
    (select i.queue, i.tenant_id, i.definition_key, i.definition_version, i.run_at, 1 as number
     from holdfast.instances i where i.run_at is not null and i.locked_by is null and i.tenant_id <> '#instances_due'
     order by i.queue, i.tenant_id, i.definition_key, i.definition_version, i.run_at limit 1)
    union all
    select n.queue, n.tenant_id, n.definition_key, n.definition_version, n.run_at, h.number + 1
    from heads h cross join lateral (
      select i.queue, i.tenant_id, i.definition_key, i.definition_version, i.run_at from holdfast.instances i
      where i.run_at is not null and i.locked_by is null and i.tenant_id <> '#instances_due'
        and (i.queue, i.tenant_id, i.definition_key, i.definition_version)
          > (h.queue, h.tenant_id, h.definition_key, h.definition_version)
      order by i.queue, i.tenant_id, i.definition_key, i.definition_version, i.run_at limit 1
    ) n
    where h.number < $1
  )
  select h.queue, h.run_at, (
    select count(*) from (
      select 1 from holdfast.instances i
      where i.queue = h.queue and i.tenant_id = h.tenant_id and i.definition_key = h.definition_key
        and i.definition_version = h.definition_version and i.run_at is not null and i.locked_by is null
        and i.tenant_id <> '#instances_due' and i.run_at <= $2 limit $3) due_ones),
    (select min(o.run_at) from (
      select i.run_at, i.status from holdfast.instances i
      where i.queue = h.queue and i.tenant_id = h.tenant_id and i.definition_key = h.definition_key
        and i.definition_version = h.definition_version and i.run_at is not null and i.locked_by is null
        and i.tenant_id <> '#instances_due' and i.run_at <= $2 order by i.run_at limit $4) o
     where o.status <> 'pending')
  from heads h
$$;

create or replace function holdfast.count_open_dead_letters(bigint) returns bigint
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select count(*) from (
    select 1 from holdfast.dead_letters where resolution is null and tenant_id <> '#dead_letters_open' limit $1
  ) open_ones
$$;

create or replace function holdfast.count_unknown_effects(bigint) returns bigint
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select count(*) from (
    select 1 from holdfast.effects where state = 'outcome_unknown' and tenant_id <> '#effects_unknown' limit $1
  ) unknown_ones
$$;

create or replace function holdfast.claims_of(bytea) returns bigint
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select count(*) from holdfast.instances where locked_by = $1 and tenant_id <> '#instances_claimed'
$$;

create or replace function holdfast.count_ways_in(bigint) returns bigint
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select count(*) from (
    select 1 from holdfast.api_keys
    where kind in ('live', 'test') and tenant_id <> '#api_keys_for_programs' and revoked_at is null
      and (expires_at is null or expires_at > $1) limit 1
  ) keys
$$;

create or replace function holdfast.bury_requests(bigint, bigint) returns bigint
  language sql security definer set search_path = pg_catalog, pg_temp as $$
  with buried as (
    update holdfast.idempotency_keys set response = null, response_headers = null
    where (tenant_id, principal_id, operation, entity_id, key) in (
      select tenant_id, principal_id, operation, entity_id, key from holdfast.idempotency_keys
      where expires_at <= least($1, (extract(epoch from clock_timestamp()) * 1000000)::bigint)
        and response is not null and tenant_id <> '#idempotency_keys_answers' limit $2)
    returning 1
  )
  select count(*) from buried
$$;

create or replace function holdfast.remove_tombstones(bigint, bigint) returns bigint
  language sql security definer set search_path = pg_catalog, pg_temp as $$
  with removed as (
    delete from holdfast.idempotency_keys
    where (tenant_id, principal_id, operation, entity_id, key) in (
      select tenant_id, principal_id, operation, entity_id, key from holdfast.idempotency_keys
      where expires_at <= least($1, (extract(epoch from clock_timestamp()) * 1000000)::bigint)
        and tenant_id <> '#idempotency_keys_expiry' limit $2)
    returning 1
  )
  select count(*) from removed
$$;

create or replace function holdfast.queues_of_tenant(text, bigint, bigint, integer)
  returns table (queue text, due bigint, oldest bigint)
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  with recursive mine as (
    select $1 as tenant_id
    where $1 = current_setting('holdfast.tenant', true)
      or (coalesce(current_setting('holdfast.tenant', true), '') = '' and current_setting('role') <> 'holdfast_door'
        and pg_has_role(session_user, current_user, 'member'))
  ), queues as (
    (select i.queue, 1 as number from holdfast.instances i
     where i.run_at is not null and i.locked_by is null and i.tenant_id <> '#instances_due' order by i.queue limit 1)
    union all
    select n.queue, q.number + 1 from queues q cross join lateral (
      select i.queue from holdfast.instances i
      where i.run_at is not null and i.locked_by is null and i.tenant_id <> '#instances_due'
        and i.queue > q.queue order by i.queue limit 1
    ) n
    where q.number < $4
  ), heads as (
    select h.queue, h.definition_key, h.definition_version, 1 as number
    from queues q cross join mine cross join lateral (
      select i.queue, i.definition_key, i.definition_version from holdfast.instances i
      where i.run_at is not null and i.locked_by is null and i.tenant_id <> '#instances_due'
        and i.queue = q.queue and i.tenant_id = mine.tenant_id
      order by i.definition_key, i.definition_version limit 1
    ) h
    union all
    select n.queue, n.definition_key, n.definition_version, h.number + 1
    from heads h cross join mine cross join lateral (
      select i.queue, i.definition_key, i.definition_version from holdfast.instances i
      where i.run_at is not null and i.locked_by is null and i.tenant_id <> '#instances_due'
        and i.queue = h.queue and i.tenant_id = mine.tenant_id
        and (i.definition_key, i.definition_version) > (h.definition_key, h.definition_version)
      order by i.definition_key, i.definition_version limit 1
    ) n
    where h.number < $4
  )
  select h.queue, least(sum(c.due), $3)::bigint, min(c.oldest) from heads h cross join mine cross join lateral (
    select count(*) as due, min(d.run_at) as oldest from (
      select i.run_at from holdfast.instances i
      where i.run_at is not null and i.locked_by is null and i.tenant_id <> '#instances_due'
        and i.queue = h.queue and i.tenant_id = mine.tenant_id
        and i.definition_key = h.definition_key and i.definition_version = h.definition_version and i.run_at <= $2
      order by i.run_at limit $3
    ) d
  ) c
  where c.due > 0 group by h.queue order by h.queue
$$;

-- Tells the feed's index what lies in the newest pages of the history, which are read whole otherwise. Gives way to a
-- vacuum, which does the same: PostgreSQL cancels a vacuum that somebody has waited for longer than a second.
create function holdfast.summarize_history() returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
begin
  perform brin_summarize_new_values('holdfast.history_of_late');
exception when lock_not_available then null;
end $$;

create or replace function holdfast.put_up_walls() returns boolean
  language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  wanted text;
  place record;
  -- In a collation of its own, no index answers it: the wall is a filter, and a door's plans are those of the workers.
  mine constant text := 'tenant_id = current_setting(''holdfast.tenant'', true) collate "C"';
begin
  foreach wanted in array array['holdfast_door', 'holdfast_worker'] loop
    begin
      if not exists (select 1 from pg_roles where rolname = wanted) then
        execute format('create role %I nologin', wanted);
      end if;
    exception when duplicate_object or unique_violation or insufficient_privilege then null;
    end;
    begin
      if exists (select 1 from pg_roles where rolname = wanted and not pg_has_role(current_user, oid, 'usage')) then
        execute format('grant %I to %I', wanted, current_user);
      end if;
    exception when duplicate_object or unique_violation or insufficient_privilege then null;
    end;
  end loop;
  if not exists (select 1 from pg_roles where rolname = 'holdfast_door')
    or not exists (
      select 1 from pg_roles where rolname = 'holdfast_worker' and pg_has_role(current_user, oid, 'usage')
    )
  then
    raise notice 'no row-level security: % is not of the role holdfast_worker and may not make it so', current_user;
    return false;
  end if;

  grant usage on schema holdfast to holdfast_door, holdfast_worker;
  revoke all on all tables in schema holdfast from public, holdfast_door, holdfast_worker;
  for place in select relation, role, privileges from holdfast.rights loop
    execute format('grant %s on holdfast.%I to %I', place.privileges, place.relation, place.role);
  end loop;
  revoke all on all functions in schema holdfast from public;
  for place in
    select p.oid::regprocedure as function from pg_proc p
    where p.pronamespace = 'holdfast'::regnamespace and (p.prosecdef or p.proname = 'walls_are_up')
  loop
    execute format('grant execute on function %s to holdfast_door, holdfast_worker', place.function);
  end loop;

  for place in
    select c.relname as relation from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped
    where n.nspname = 'holdfast' and c.relkind in ('r', 'p')
  loop
    execute format('alter table holdfast.%I enable row level security', place.relation);
    execute format('alter table holdfast.%I force row level security', place.relation);
    execute format('drop policy if exists worker_spans_tenants on holdfast.%I', place.relation);
    execute format('create policy worker_spans_tenants on holdfast.%I to holdfast_worker using (true) with check (true)',
      place.relation);
    execute format('drop policy if exists door_keeps_to_its_tenant on holdfast.%I', place.relation);
    -- Rows under '*' are everybody's: a door reads them.
    if place.relation in ('workers', 'installation') then
      execute format('create policy door_keeps_to_its_tenant on holdfast.%I for select to holdfast_door using (true)',
        place.relation);
    else
      execute format('create policy door_keeps_to_its_tenant on holdfast.%I to holdfast_door using (%s) with check (%s)',
        place.relation, mine, mine);
    end if;
  end loop;

  -- A request shows its key before anybody knows its tenant.
  drop policy if exists door_finds_the_key_it_is_shown on holdfast.api_keys;
  create policy door_finds_the_key_it_is_shown on holdfast.api_keys for select to holdfast_door
    using (encode(hash, 'hex') = current_setting('holdfast.key_hash', true));
  return true;
end $$;
