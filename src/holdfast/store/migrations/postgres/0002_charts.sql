-- Statecharts: published definitions, the tasks that instances wait for, and what each tenant's tasks may reach.

create table holdfast.definitions (
  tenant_id text not null,
  key text not null,
  version integer not null,
  id bytea not null,
  kind text not null check (kind in ('chart', 'template')),
  status text not null check (status in ('active', 'inactive', 'archived')),
  hash text not null,                              -- of the text below, byte for byte
  spec text not null,                              -- in its own key order: order is meaning, so this is never sorted
  handlers text not null,                          -- JSON list: what a worker must have registered to run it
  created_at bigint not null,
  created_by text not null,
  changed_at bigint not null,
  changed_by text not null,
  primary key (tenant_id, key, version)
);
create unique index definitions_id on holdfast.definitions (tenant_id, id);
create unique index definitions_content on holdfast.definitions (tenant_id, key, hash);
create index definitions_changed on holdfast.definitions (changed_at);

create table holdfast.tasks (
  tenant_id text not null,
  id bytea not null,
  instance_id bytea not null,
  definition_key text not null,
  key text not null,                               -- its name in the history: name/turn.index
  type text not null check (type in ('HUMAN', 'TIMER', 'HTTP', 'EMAIL', 'AI', 'SYSTEM')),
  name text not null,
  title text,
  status text not null check (status in ('pending', 'running', 'succeeded', 'failed', 'cancelled', 'skipped')),
  run_at bigint,
  attempts integer not null default 0,
  max_attempts integer not null default 1,
  locked_by bytea,
  locked_at bigint,
  fence bigint not null default 0,
  idempotency_key text not null,
  input bytea not null,
  options bytea not null,
  output bytea,
  error bytea,
  trace_id text,
  assignee text,
  groups text,                                     -- JSON list of candidate groups
  priority integer not null default 0,
  due_at bigint,
  follow_up_at bigint,
  invoke_id text,                                  -- set when the chart invoked it: where its answer belongs
  visit bigint not null default 0,
  standing_type text,                              -- the last history entry about it, so that a claim need not read back
  standing bytea,
  version integer not null default 0,              -- counts people's changes: claim, unclaim, assign
  codec smallint not null default 0,
  key_id text,
  created_at bigint not null,
  started_at bigint,
  completed_at bigint,
  completed_by text,
  closed_at bigint,                                -- from here on its instance does not wait for it any more
  primary key (tenant_id, id)
);
create index tasks_of_instance on holdfast.tasks (tenant_id, instance_id, closed_at);
create index tasks_due on holdfast.tasks (run_at) where status = 'pending' and run_at is not null;
create index tasks_inbox on holdfast.tasks (tenant_id, id) where type = 'HUMAN' and closed_at is null;

create table holdfast.tenants (
  tenant_id text not null primary key,
  http_hosts text not null default '[]',           -- JSON list of hosts that HTTP tasks may call
  ai_enabled boolean not null default true,
  changed_at bigint not null,
  changed_by text not null
);
