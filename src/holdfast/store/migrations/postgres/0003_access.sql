-- The server's ground: who may do what, requests that are answered once, what was changed by whom, and how lists are
-- read a page at a time.

create table holdfast.principals (
  tenant_id text not null,
  id bytea not null,
  kind text not null check (kind in ('human', 'service', 'agent')),
  name text not null,                              -- how it is named in histories: the actor
  roles text not null,                             -- JSON list
  groups text not null default '[]',               -- JSON list: whose tasks are its own to take
  issuer text,                                     -- who vouches for it, when it comes with an OIDC token
  subject text,
  status text not null check (status in ('active', 'disabled')),
  version integer not null default 0,
  created_at bigint not null,
  created_by text not null,
  changed_at bigint not null,
  changed_by text not null,
  primary key (tenant_id, id)
);
create unique index principals_name on holdfast.principals (tenant_id, name);
create unique index principals_subject on holdfast.principals (tenant_id, issuer, subject) where subject is not null;

create table holdfast.api_keys (
  tenant_id text not null,
  id bytea not null,
  principal_id bytea not null,
  name text not null,
  kind text not null check (kind in ('live', 'test', 'session', 'login')),
  hash bytea not null,                             -- SHA-256 of the key, which is kept nowhere
  shown text not null,                             -- its first characters, to recognise it by
  scopes text,                                     -- JSON list of capabilities; null: all that its principal has
  created_at bigint not null,
  created_by text not null,
  expires_at bigint,
  revoked_at bigint,
  revoked_by text,
  last_used_at bigint,
  version integer not null default 0,
  primary key (tenant_id, id)
);
create unique index api_keys_hash on holdfast.api_keys (tenant_id, hash);
create index api_keys_found on holdfast.api_keys (hash);  -- a request shows its key before anybody knows its tenant
create index api_keys_of_principal on holdfast.api_keys (tenant_id, principal_id);

create table holdfast.idempotency_keys (
  tenant_id text not null,
  principal_id text not null,
  operation text not null,                         -- method and route template
  entity_id text not null,                         -- '' where the route names none
  key text not null,
  hash_version smallint not null,
  request_hash bytea not null,
  status text not null check (status in ('STARTED', 'SUCCEEDED', 'FAILED')),
  response_status integer,
  response_headers text,
  response bytea,                                  -- null once only the tombstone is left
  locked_at bigint,
  locked_by text,
  created_at bigint not null,
  completed_at bigint,
  expires_at bigint not null,
  primary key (tenant_id, principal_id, operation, entity_id, key)
);
create index idempotency_keys_expiry on holdfast.idempotency_keys (expires_at);
create index idempotency_keys_answers on holdfast.idempotency_keys (expires_at) where response is not null;

create table holdfast.audit_events (
  tenant_id text not null,
  id bytea not null,
  at bigint not null,
  actor text not null,
  principal_id text,
  action text not null,
  entity_type text not null,
  entity_id text not null,
  summary text not null,                           -- JSON: what changed, never a payload
  request_id text,
  primary key (tenant_id, id)
);
create index audit_events_of_entity on holdfast.audit_events (tenant_id, entity_type, entity_id, id);

create function holdfast.audit_is_append_only() returns trigger language plpgsql as $$
begin
  raise exception 'holdfast.audit_events is append-only: % refused', tg_op using errcode = 'restrict_violation';
end $$;
create trigger audit_rows_stay before update or delete on holdfast.audit_events
  for each row execute function holdfast.audit_is_append_only();
create trigger audit_table_stays before truncate on holdfast.audit_events
  for each statement execute function holdfast.audit_is_append_only();

create table holdfast.task_comments (
  tenant_id text not null,
  task_id bytea not null,
  id bytea not null,
  at bigint not null,
  author text not null,
  body text not null,
  primary key (tenant_id, task_id, id)
);

-- Whether this database is the one its workers knew, or a copy that was restored: then nothing is sent until a person
-- has looked.
create table holdfast.installation (
  tenant_id text not null default '*' primary key,
  identity text,
  quarantined_at bigint,
  reason text,
  changed_at bigint not null,
  changed_by text not null
);

alter table holdfast.instances add column created_by text;
alter table holdfast.events add column sent_by text;
alter table holdfast.definitions add column revision integer not null default 0;
alter table holdfast.tenants add column version integer not null default 0;

create index dead_letters_by_time on holdfast.dead_letters (tenant_id, created_at, id);
create index effects_of_state on holdfast.effects (tenant_id, state, started_at, id);

-- Lists of instances, newest first, by any of status, key and business key: every status has its own run in the index,
-- and a page over several is merged from their heads.
drop index holdfast.instances_live;
create index instances_of_status on holdfast.instances (tenant_id, status, created_at, id);
create index instances_of_definition on holdfast.instances (tenant_id, definition_key, status, created_at, id);
create index instances_of_business_key on holdfast.instances (tenant_id, business_key, created_at, id)
  where business_key is not null;
create index instances_of_parent on holdfast.instances (tenant_id, parent_id, created_at, id)
  where parent_id is not null;

drop index holdfast.tasks_inbox;
create index tasks_inbox on holdfast.tasks (tenant_id, priority desc, created_at, key, id)
  where type = 'HUMAN' and closed_at is null;
create index tasks_of_assignee on holdfast.tasks (tenant_id, assignee, priority desc, created_at, key, id)
  where assignee is not null and closed_at is null;
create index tasks_by_time on holdfast.tasks (tenant_id, created_at, id);

-- The feed reads what was written lately. Rows come in the order of time, more or less, so that a few words about every
-- stretch of the table are enough, and cost nothing to keep.
create index history_of_late on holdfast.history using brin (at) with (autosummarize = on, pages_per_range = 32);
