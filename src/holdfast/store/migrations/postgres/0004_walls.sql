-- The second wall: row-level security. The first one are the statements, which all name their tenant.
--
-- holdfast_door     the API's role: sees the rows of the one tenant that its transaction names in holdfast.tenant
-- holdfast_worker   spans tenants: workers, the library and the command line; used by membership, never by SET ROLE,
--                   because authors' transactions run in the same session and need their own tables
--
-- Later migrations say in holdfast.rights what the roles may do with a new table. Whatever has a tenant_id is walled in
-- by put_up_walls(), which runs after every migration.

create table holdfast.rights (
  relation text not null,
  role text not null check (role in ('holdfast_door', 'holdfast_worker')),
  privileges text not null,
  primary key (relation, role)
);
insert into holdfast.rights (role, relation, privileges) values
  -- A door starts instances and wakes them; it never moves one, and it writes no history.
  ('holdfast_door', 'instances', 'select, insert, update (woken, run_at)'),
  ('holdfast_door', 'history', 'select'),
  ('holdfast_door', 'events', 'select, insert'),
  ('holdfast_door', 'effects', 'select'),
  ('holdfast_door', 'effect_observations', 'select'),
  ('holdfast_door', 'dead_letters', 'select, update (resolution, resolved_at, resolved_by)'),
  -- A published definition is never edited, only put into use and out of it.
  ('holdfast_door', 'definitions', 'select, insert, update (status, revision, changed_at, changed_by)'),
  ('holdfast_door', 'tasks', 'select, update'),
  ('holdfast_door', 'task_comments', 'select, insert'),
  ('holdfast_door', 'tenants', 'select, insert, update'),
  ('holdfast_door', 'principals', 'select, insert, update'),
  ('holdfast_door', 'api_keys',
    'select, insert, update (name, scopes, expires_at, revoked_at, revoked_by, last_used_at, version)'),
  ('holdfast_door', 'idempotency_keys', 'select, insert, update, delete'),
  ('holdfast_door', 'audit_events', 'select, insert'),
  -- A start asks whether the worker it names lives, FOR KEY SHARE, which PostgreSQL counts as an update. A door has no
  -- policy for updates here, so it finds no such worker, and changes none.
  ('holdfast_door', 'workers', 'select, update (tenant_id)'),
  ('holdfast_door', 'installation', 'select'),
  ('holdfast_door', 'migrations', 'select'),
  ('holdfast_worker', 'instances', 'select, insert, update'),
  ('holdfast_worker', 'history', 'select, insert'),
  ('holdfast_worker', 'events', 'select, insert, update'),
  ('holdfast_worker', 'effects', 'select, insert, update'),
  ('holdfast_worker', 'effect_observations', 'select, insert'),
  ('holdfast_worker', 'dead_letters', 'select, insert, update'),
  ('holdfast_worker', 'definitions', 'select, insert, update (status, revision, changed_at, changed_by)'),
  ('holdfast_worker', 'tasks', 'select, insert, update'),
  ('holdfast_worker', 'task_comments', 'select, insert'),
  ('holdfast_worker', 'tenants', 'select, insert, update'),
  ('holdfast_worker', 'principals', 'select, insert, update'),
  ('holdfast_worker', 'api_keys',
    'select, insert, update (name, scopes, expires_at, revoked_at, revoked_by, last_used_at, version)'),
  ('holdfast_worker', 'idempotency_keys', 'select, insert, update, delete'),
  ('holdfast_worker', 'audit_events', 'select, insert'),
  ('holdfast_worker', 'workers', 'select, insert, update'),
  ('holdfast_worker', 'installation', 'select, insert, update'),
  ('holdfast_worker', 'migrations', 'select');

-- What a door may know of all tenants together, or do for all of them: each is a function of its owner's rights.

create function holdfast.count_backlog(text, bigint) returns bigint
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select count(*) from (
    select 1 from holdfast.instances
    where queue = $1 and run_at is not null and locked_by is null and status = 'pending' limit $2
  ) waiting
$$;

create function holdfast.count_ahead(text, bigint, bigint) returns bigint
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select count(*) from (
    select 1 from holdfast.instances
    where queue = $1 and run_at is not null and locked_by is null and run_at < $2 limit $3
  ) ahead
$$;

-- As queue_heads and queue_depths in store/sql/metrics.sql, without the names of tenants and definitions.
create function holdfast.queue_numbers(heads integer, now bigint, counted bigint, looked bigint)
  returns table (queue text, run_at bigint, due bigint, slept bigint)
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  with recursive heads as (
    (select i.queue, i.tenant_id, i.definition_key, i.definition_version, i.run_at, 1 as number
     from holdfast.instances i where i.run_at is not null and i.locked_by is null
     order by i.queue, i.tenant_id, i.definition_key, i.definition_version, i.run_at limit 1)
    union all
    select n.queue, n.tenant_id, n.definition_key, n.definition_version, n.run_at, h.number + 1
    from heads h cross join lateral (
      select i.queue, i.tenant_id, i.definition_key, i.definition_version, i.run_at from holdfast.instances i
      where i.run_at is not null and i.locked_by is null
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
        and i.run_at <= $2 limit $3) due_ones),
    (select min(o.run_at) from (
      select i.run_at, i.status from holdfast.instances i
      where i.queue = h.queue and i.tenant_id = h.tenant_id and i.definition_key = h.definition_key
        and i.definition_version = h.definition_version and i.run_at is not null and i.locked_by is null
        and i.run_at <= $2 order by i.run_at limit $4) o
     where o.status <> 'pending')
  from heads h
$$;

create function holdfast.count_open_dead_letters(bigint) returns bigint
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select count(*) from (select 1 from holdfast.dead_letters where resolution is null limit $1) open_ones
$$;

create function holdfast.count_unknown_effects(bigint) returns bigint
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select count(*) from (select 1 from holdfast.effects where state = 'outcome_unknown' limit $1) unknown_ones
$$;

-- Answers that are old enough are emptied, and what is left of them is removed after a while, for all tenants at once.
-- Never before its time by the database's own clock, whatever is asked for.
create function holdfast.bury_requests(bigint, bigint) returns void
  language sql security definer set search_path = pg_catalog, pg_temp as $$
  update holdfast.idempotency_keys set response = null, response_headers = null
  where (tenant_id, principal_id, operation, entity_id, key) in (
    select tenant_id, principal_id, operation, entity_id, key from holdfast.idempotency_keys
    where expires_at <= least($1, (extract(epoch from clock_timestamp()) * 1000000)::bigint)
      and response is not null limit $2)
$$;

create function holdfast.remove_tombstones(bigint, bigint) returns void
  language sql security definer set search_path = pg_catalog, pg_temp as $$
  delete from holdfast.idempotency_keys
  where (tenant_id, principal_id, operation, entity_id, key) in (
    select tenant_id, principal_id, operation, entity_id, key from holdfast.idempotency_keys
    where expires_at <= least($1, (extract(epoch from clock_timestamp()) * 1000000)::bigint) limit $2)
$$;

create function holdfast.claims_of(bytea) returns bigint
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select count(*) from holdfast.instances where locked_by = $1
$$;

-- Whether anybody holds a key at all. Counts no further than one.
create function holdfast.count_ways_in(bigint) returns bigint
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select count(*) from (
    select 1 from holdfast.api_keys
    where kind in ('live', 'test') and revoked_at is null and (expires_at is null or expires_at > $1) limit 1
  ) keys
$$;

-- Whether the wall is up: every table of tenants' rows is closed to whoever has no policy, its owner included.
create function holdfast.walls_are_up() returns boolean
  language sql stable set search_path = pg_catalog, pg_temp as $$
  select bool_and(c.relrowsecurity and c.relforcerowsecurity)
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
  join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped
  where n.nspname = 'holdfast' and c.relkind in ('r', 'p')
$$;

-- Puts the wall up, or brings it up to date. Without the roles, and the right to make them or be of them, it leaves
-- everything as it is and says false: a simple set-up goes on without. Roles belong to the whole cluster, and another
-- database may be making them at this moment.
create function holdfast.put_up_walls() returns boolean
  language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  wanted text;
  place record;
  mine constant text := 'tenant_id = current_setting(''holdfast.tenant'', true)';
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
