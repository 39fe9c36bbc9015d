-- The server's ground: who may do what, requests that are answered once, what was changed by whom, and how lists are
-- read a page at a time.

create table holdfast_principals (
  tenant_id text not null,
  id blob not null,
  kind text not null check (kind in ('human', 'service', 'agent')),
  name text not null,                              -- how it is named in histories: the actor
  roles text not null,                             -- JSON list
  groups text not null default '[]',               -- JSON list: whose tasks are its own to take
  issuer text,                                     -- who vouches for it, when it comes with an OIDC token
  subject text,
  status text not null check (status in ('active', 'disabled')),
  version integer not null default 0,
  created_at integer not null,
  created_by text not null,
  changed_at integer not null,
  changed_by text not null,
  primary key (tenant_id, id)
) strict, without rowid;
create unique index holdfast_principals_name on holdfast_principals (tenant_id, name);
create unique index holdfast_principals_subject on holdfast_principals (tenant_id, issuer, subject) where subject is not null;

create table holdfast_api_keys (
  tenant_id text not null,
  id blob not null,
  principal_id blob not null,
  name text not null,
  kind text not null check (kind in ('live', 'test', 'session', 'login')),
  hash blob not null,                             -- SHA-256 of the key, which is kept nowhere
  shown text not null,                             -- its first characters, to recognise it by
  scopes text,                                     -- JSON list of capabilities; null: all that its principal has
  created_at integer not null,
  created_by text not null,
  expires_at integer,
  revoked_at integer,
  revoked_by text,
  last_used_at integer,
  version integer not null default 0,
  primary key (tenant_id, id)
) strict, without rowid;
create unique index holdfast_api_keys_hash on holdfast_api_keys (tenant_id, hash);
create index holdfast_api_keys_found on holdfast_api_keys (hash);  -- a request shows its key before anybody knows its tenant
create index holdfast_api_keys_of_principal on holdfast_api_keys (tenant_id, principal_id);

create table holdfast_idempotency_keys (
  tenant_id text not null,
  principal_id text not null,
  operation text not null,                         -- method and route template
  entity_id text not null,                         -- '' where the route names none
  key text not null,
  hash_version integer not null,
  request_hash blob not null,
  status text not null check (status in ('STARTED', 'SUCCEEDED', 'FAILED')),
  response_status integer,
  response_headers text,
  response blob,                                  -- null once only the tombstone is left
  locked_at integer,
  locked_by text,
  created_at integer not null,
  completed_at integer,
  expires_at integer not null,
  primary key (tenant_id, principal_id, operation, entity_id, key)
) strict, without rowid;
create index holdfast_idempotency_keys_expiry on holdfast_idempotency_keys (expires_at);
create index holdfast_idempotency_keys_answers on holdfast_idempotency_keys (expires_at) where response is not null;

create table holdfast_audit_events (
  tenant_id text not null,
  id blob not null,
  at integer not null,
  actor text not null,
  principal_id text,
  action text not null,
  entity_type text not null,
  entity_id text not null,
  summary text not null,                           -- JSON: what changed, never a payload
  request_id text,
  primary key (tenant_id, id)
) strict, without rowid;
create index holdfast_audit_events_of_entity on holdfast_audit_events (tenant_id, entity_type, entity_id, id);

create trigger holdfast_audit_no_update before update on holdfast_audit_events
  begin select raise(abort, 'holdfast_audit_events is append-only: UPDATE refused'); end;
create trigger holdfast_audit_no_delete before delete on holdfast_audit_events
  begin select raise(abort, 'holdfast_audit_events is append-only: DELETE refused'); end;
create trigger holdfast_audit_no_replace before insert on holdfast_audit_events
  when exists (select 1 from holdfast_audit_events a where a.tenant_id = new.tenant_id and a.id = new.id)
  begin select raise(abort, 'holdfast_audit_events is append-only: REPLACE refused'); end;

create table holdfast_task_comments (
  tenant_id text not null,
  task_id blob not null,
  id blob not null,
  at integer not null,
  author text not null,
  body text not null,
  primary key (tenant_id, task_id, id)
) strict, without rowid;

-- Whether this database is the one its workers knew, or a copy that was restored: then nothing is sent until a person
-- has looked.
create table holdfast_installation (
  tenant_id text not null default '*' primary key,
  identity text,
  quarantined_at integer,
  reason text,
  changed_at integer not null,
  changed_by text not null
) strict, without rowid;

alter table holdfast_instances add column created_by text;
alter table holdfast_events add column sent_by text;
alter table holdfast_definitions add column revision integer not null default 0;
alter table holdfast_tenants add column version integer not null default 0;

create index holdfast_dead_letters_by_time on holdfast_dead_letters (tenant_id, created_at, id);
create index holdfast_effects_of_state on holdfast_effects (tenant_id, state, started_at, id);

-- Lists of instances, newest first, by any of status, key and business key: every status has its own run in the index,
-- and a page over several is merged from their heads.
drop index holdfast_instances_live;
create index holdfast_instances_of_status on holdfast_instances (tenant_id, status, created_at, id);
create index holdfast_instances_of_definition on holdfast_instances (tenant_id, definition_key, status, created_at, id);
create index holdfast_instances_of_business_key on holdfast_instances (tenant_id, business_key, created_at, id)
  where business_key is not null;
create index holdfast_instances_of_parent on holdfast_instances (tenant_id, parent_id, created_at, id)
  where parent_id is not null;

drop index holdfast_tasks_inbox;
create index holdfast_tasks_inbox on holdfast_tasks (tenant_id, priority desc, created_at, key, id)
  where type = 'HUMAN' and closed_at is null;
create index holdfast_tasks_of_assignee on holdfast_tasks (tenant_id, assignee, priority desc, created_at, key, id)
  where assignee is not null and closed_at is null;
create index holdfast_tasks_by_time on holdfast_tasks (tenant_id, created_at, id);
