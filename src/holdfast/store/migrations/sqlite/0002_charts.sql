-- Statecharts: published definitions, the tasks that instances wait for, and what each tenant's tasks may reach.

create table holdfast_definitions (
  tenant_id text not null,
  key text not null,
  version integer not null,
  id blob not null,
  kind text not null check (kind in ('chart', 'template')),
  status text not null check (status in ('active', 'inactive', 'archived')),
  hash text not null,                              -- of the text below, byte for byte
  spec text not null,                              -- in its own key order: order is meaning, so this is never sorted
  handlers text not null,                          -- JSON list: what a worker must have registered to run it
  created_at integer not null,
  created_by text not null,
  changed_at integer not null,
  changed_by text not null,
  primary key (tenant_id, key, version)
) strict, without rowid;
create unique index holdfast_definitions_id on holdfast_definitions (tenant_id, id);
create unique index holdfast_definitions_content on holdfast_definitions (tenant_id, key, hash);
create index holdfast_definitions_changed on holdfast_definitions (changed_at);

create table holdfast_tasks (
  tenant_id text not null,
  id blob not null,
  instance_id blob not null,
  definition_key text not null,
  key text not null,                               -- its name in the history: name/turn.index
  type text not null check (type in ('HUMAN', 'TIMER', 'HTTP', 'EMAIL', 'AI', 'SYSTEM')),
  name text not null,
  title text,
  status text not null check (status in ('pending', 'running', 'succeeded', 'failed', 'cancelled', 'skipped')),
  run_at integer,
  attempts integer not null default 0,
  max_attempts integer not null default 1,
  locked_by blob,
  locked_at integer,
  fence integer not null default 0,
  idempotency_key text not null,
  input blob not null,
  options blob not null,
  output blob,
  error blob,
  trace_id text,
  assignee text,
  groups text,                                     -- JSON list of candidate groups
  priority integer not null default 0,
  due_at integer,
  follow_up_at integer,
  invoke_id text,                                  -- set when the chart invoked it: where its answer belongs
  visit integer not null default 0,
  standing_type text,                              -- the last history entry about it, so that a claim need not read back
  standing blob,
  version integer not null default 0,              -- counts people's changes: claim, unclaim, assign
  codec integer not null default 0,
  key_id text,
  created_at integer not null,
  started_at integer,
  completed_at integer,
  completed_by text,
  closed_at integer,                               -- from here on its instance does not wait for it any more
  primary key (tenant_id, id)
) strict;  -- with rowid: appending is cheaper than clustering by a random id
create index holdfast_tasks_of_instance on holdfast_tasks (tenant_id, instance_id, closed_at);
create index holdfast_tasks_due on holdfast_tasks (run_at) where status = 'pending' and run_at is not null;
create index holdfast_tasks_inbox on holdfast_tasks (tenant_id, id) where type = 'HUMAN' and closed_at is null;

create table holdfast_tenants (
  tenant_id text not null primary key,
  http_hosts text not null default '[]',           -- JSON list of hosts that HTTP tasks may call
  ai_enabled integer not null default 1,
  changed_at integer not null,
  changed_by text not null
) strict, without rowid;
