-- The ground floor: instances, their history, the events that move them, effects, workers, dead letters.
-- Moments are microseconds since 1970 UTC (integer), so both databases and Python agree to the digit.

create table holdfast_workers (
  tenant_id text not null default '*',            -- '*': this worker serves every tenant
  id blob not null,
  host text not null,
  pid integer not null,
  started_at integer not null,
  heartbeat_at integer not null,
  stopped_at integer,                              -- set by a clean exit
  fenced_at integer,                               -- from here on nothing this worker sends is accepted
  fenced_by blob,
  liveness text not null,                         -- how others can tell that it lives: lock key or lock file
  definitions text not null,
  primary key (tenant_id, id)
) strict, without rowid;

create table holdfast_instances (
  tenant_id text not null,
  id blob not null,
  kind text not null,
  definition_key text not null,
  definition_version integer not null,
  business_key text,
  status text not null check (status in
    ('pending', 'running', 'waiting', 'compensating', 'completed', 'failed', 'cancelled')),
  waiting_on text,
  queue text not null default 'default',
  priority integer not null default 0,
  concurrency_key text,
  run_at integer,
  locked_by blob,
  locked_at integer,
  fence integer not null default 0,
  attempts integer not null default 0,
  woken integer not null default 0,                -- how many events were ever delivered
  epoch integer not null default 0,
  codec integer not null default 0,
  key_id text,
  input blob not null,
  snapshot blob,
  current_state text,
  result blob,
  last_error blob,
  compensation text check (compensation in ('complete', 'partial')),
  parent_id blob,
  parent_step text,
  trace_id text,
  seq integer not null default 0,                  -- head of the history when this row last changed
  hash blob,
  created_at integer not null,
  started_at integer,
  completed_at integer,
  primary key (tenant_id, id)
) strict, without rowid;
create unique index holdfast_instances_business_key on holdfast_instances (tenant_id, definition_key, business_key)
  where business_key is not null;
create index holdfast_instances_due on holdfast_instances (queue, tenant_id, definition_key, definition_version, run_at)
  where run_at is not null and locked_by is null;
create index holdfast_instances_claimed on holdfast_instances (locked_by) where locked_by is not null;
create index holdfast_instances_live on holdfast_instances (tenant_id, status, id) where completed_at is null;

create table holdfast_history (
  tenant_id text not null,
  instance_id blob not null,
  seq integer not null,
  type text not null,
  name text not null,
  fence integer not null,
  at integer not null,
  payload blob,                                  -- null only after erasure
  salt blob,
  hash blob not null,
  payload_hash blob,                             -- kept in place of an erased payload
  codec integer not null default 0,
  key_id text,
  primary key (tenant_id, instance_id, seq)
) strict;  -- with rowid: appending is cheaper than clustering by instance

-- REPLACE deletes without delete triggers on a connection that left recursive_triggers off, so an insert
-- over an existing row is refused as well.
create trigger holdfast_history_no_update before update on holdfast_history
  begin select raise(abort, 'holdfast_history is append-only: UPDATE refused'); end;
create trigger holdfast_history_no_delete before delete on holdfast_history
  begin select raise(abort, 'holdfast_history is append-only: DELETE refused'); end;
create trigger holdfast_history_no_replace before insert on holdfast_history
  when exists (select 1 from holdfast_history h where h.tenant_id = new.tenant_id
               and h.instance_id = new.instance_id and h.seq = new.seq)
  begin select raise(abort, 'holdfast_history is append-only: REPLACE refused'); end;

create view holdfast_steps as
  select tenant_id, instance_id, seq, name, type, at, payload from holdfast_history
  where type in ('STEP_COMPLETED', 'STEP_FAILED', 'EFFECT_SUCCEEDED', 'EFFECT_FAILED', 'TRANSACTION_COMMITTED');

create table holdfast_events (
  tenant_id text not null,
  instance_id blob not null,
  id text not null,
  kind text not null,
  name text not null,
  payload blob not null,
  codec integer not null default 0,
  key_id text,
  sent_at integer not null,
  consumed_seq integer,                            -- the history entry that took it
  primary key (tenant_id, instance_id, id)
) strict, without rowid;

create table holdfast_effects (
  tenant_id text not null,
  id blob not null,
  instance_id blob not null,
  step text not null,
  mode text not null check (mode in ('keyed', 'lookup', 'manual')),
  state text not null check (state in ('started', 'succeeded', 'failed', 'outcome_unknown', 'resolved')),
  attempt integer not null,
  idempotency_key text not null,
  request_hash blob not null,
  request blob not null,
  fence integer not null,
  worker_id blob not null,
  first_started_at integer not null,
  started_at integer not null,
  not_after integer not null,
  opens_at integer not null,                       -- from here on a person may say "start it again"
  settled_at integer,
  receipt blob,
  last_error blob,
  resolution text check (resolution in ('happened', 'did_not_happen', 'abort')),
  resolved_by text,
  reason text,
  codec integer not null default 0,
  key_id text,
  primary key (tenant_id, id)
) strict, without rowid;
create index holdfast_effects_unknown on holdfast_effects (tenant_id, started_at) where state = 'outcome_unknown';
create index holdfast_effects_of_instance on holdfast_effects (tenant_id, instance_id);

create table holdfast_effect_observations (
  tenant_id text not null,
  id blob not null,
  effect_id blob not null,
  instance_id blob not null,
  worker_id blob not null,
  fence integer not null,
  attempt integer not null,
  observed_at integer not null,
  outcome text not null,
  payload blob not null,
  primary key (tenant_id, id)
) strict, without rowid;
create index holdfast_observations_of_effect on holdfast_effect_observations (tenant_id, effect_id);

create table holdfast_dead_letters (
  tenant_id text not null,
  id blob not null,
  source text not null,
  instance_id blob,
  definition_key text,
  reason text not null,
  payload blob not null,
  created_at integer not null,
  resolution text check (resolution in ('replayed', 'ignored', 'handled_by_script', 'handler_failed')),
  resolved_at integer,
  resolved_by text,
  primary key (tenant_id, id)
) strict, without rowid;
create index holdfast_dead_letters_open on holdfast_dead_letters (tenant_id, id) where resolution is null;
