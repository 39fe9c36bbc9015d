-- The ground floor: instances, their history, the events that move them, effects, workers, dead letters.
-- Moments are microseconds since 1970 UTC (bigint), so both databases and Python agree to the digit.

create table holdfast.workers (
  tenant_id text not null default '*',            -- '*': this worker serves every tenant
  id bytea not null,
  host text not null,
  pid bigint not null,
  started_at bigint not null,
  heartbeat_at bigint not null,
  stopped_at bigint,                              -- set by a clean exit
  fenced_at bigint,                               -- from here on nothing this worker sends is accepted
  fenced_by bytea,
  liveness text not null,                         -- how others can tell that it lives: lock key or lock file
  definitions text not null,
  primary key (tenant_id, id)
);

create table holdfast.instances (
  tenant_id text not null,
  id bytea not null,
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
  run_at bigint,
  locked_by bytea,
  locked_at bigint,
  fence bigint not null default 0,
  attempts integer not null default 0,
  woken bigint not null default 0,                -- how many events were ever delivered
  epoch integer not null default 0,
  codec smallint not null default 0,
  key_id text,
  input bytea not null,
  snapshot bytea,
  current_state text,
  result bytea,
  last_error bytea,
  compensation text check (compensation in ('complete', 'partial')),
  parent_id bytea,
  parent_step text,
  trace_id text,
  seq bigint not null default 0,                  -- head of the history when this row last changed
  hash bytea,
  created_at bigint not null,
  started_at bigint,
  completed_at bigint,
  primary key (tenant_id, id)
);
create unique index instances_business_key on holdfast.instances (tenant_id, definition_key, business_key)
  where business_key is not null;
create index instances_due on holdfast.instances (queue, tenant_id, definition_key, definition_version, run_at)
  where run_at is not null and locked_by is null;
create index instances_claimed on holdfast.instances (locked_by) where locked_by is not null;
create index instances_live on holdfast.instances (tenant_id, status, id) where completed_at is null;

create table holdfast.history (
  tenant_id text not null,
  instance_id bytea not null,
  seq bigint not null,
  type text not null,
  name text not null,
  fence bigint not null,
  at bigint not null,
  payload bytea,                                  -- null only after erasure
  salt bytea,
  hash bytea not null,
  payload_hash bytea,                             -- kept in place of an erased payload
  codec smallint not null default 0,
  key_id text,
  primary key (tenant_id, instance_id, seq)
);

create function holdfast.history_is_append_only() returns trigger language plpgsql as $$
begin
  raise exception 'holdfast.history is append-only: % refused', tg_op using errcode = 'restrict_violation';
end $$;
create trigger history_rows_stay before update or delete on holdfast.history
  for each row execute function holdfast.history_is_append_only();
create trigger history_table_stays before truncate on holdfast.history
  for each statement execute function holdfast.history_is_append_only();

create view holdfast.steps as
  select tenant_id, instance_id, seq, name, type, at, payload from holdfast.history
  where type in ('STEP_COMPLETED', 'STEP_FAILED', 'EFFECT_SUCCEEDED', 'EFFECT_FAILED', 'TRANSACTION_COMMITTED');

create table holdfast.events (
  tenant_id text not null,
  instance_id bytea not null,
  id text not null,
  kind text not null,
  name text not null,
  payload bytea not null,
  codec smallint not null default 0,
  key_id text,
  sent_at bigint not null,
  consumed_seq bigint,                            -- the history entry that took it
  primary key (tenant_id, instance_id, id)
);

create table holdfast.effects (
  tenant_id text not null,
  id bytea not null,
  instance_id bytea not null,
  step text not null,
  mode text not null check (mode in ('keyed', 'lookup', 'manual')),
  state text not null check (state in ('started', 'succeeded', 'failed', 'outcome_unknown', 'resolved')),
  attempt integer not null,
  idempotency_key text not null,
  request_hash bytea not null,
  request bytea not null,
  fence bigint not null,
  worker_id bytea not null,
  first_started_at bigint not null,
  started_at bigint not null,
  not_after bigint not null,
  opens_at bigint not null,                       -- from here on a person may say "start it again"
  settled_at bigint,
  receipt bytea,
  last_error bytea,
  resolution text check (resolution in ('happened', 'did_not_happen', 'abort')),
  resolved_by text,
  reason text,
  codec smallint not null default 0,
  key_id text,
  primary key (tenant_id, id)
);
create index effects_unknown on holdfast.effects (tenant_id, started_at) where state = 'outcome_unknown';
create index effects_of_instance on holdfast.effects (tenant_id, instance_id);

create table holdfast.effect_observations (
  tenant_id text not null,
  id bytea not null,
  effect_id bytea not null,
  instance_id bytea not null,
  worker_id bytea not null,
  fence bigint not null,
  attempt integer not null,
  observed_at bigint not null,
  outcome text not null,
  payload bytea not null,
  primary key (tenant_id, id)
);
create index observations_of_effect on holdfast.effect_observations (tenant_id, effect_id);

create table holdfast.dead_letters (
  tenant_id text not null,
  id bytea not null,
  source text not null,
  instance_id bytea,
  definition_key text,
  reason text not null,
  payload bytea not null,
  created_at bigint not null,
  resolution text check (resolution in ('replayed', 'ignored', 'handled_by_script', 'handler_failed')),
  resolved_at bigint,
  resolved_by text,
  primary key (tenant_id, id)
);
create index dead_letters_open on holdfast.dead_letters (tenant_id, id) where resolution is null;
