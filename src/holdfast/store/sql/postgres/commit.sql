-- The parts of the one statement that commits a batch of turns. The store joins those parts that the batch
-- needs; every part hangs on `won`, so a turn is written whole or not at all and never fails its neighbours.
-- Columns arrive as array literals (`{1,2}` as text), history payloads as one text, split at U+001F, which JSON never
-- holds unescaped, and ids, salts and hashes, which are all of one size, as one value that is cut: the driver's own array
-- encoding costs ten times as much, element by element.
-- Where a list meets a table, the tenant is named as `= any(array[…])`, for the reason given in claims.sql.

-- name: commit_me
-- Fencing takes this row FOR UPDATE, heartbeats are non-key updates: only fencing waits for us, and we for it.
me as materialized (
  select id from holdfast.workers
  where tenant_id = '*' and id = :worker_id and fenced_at is null
  for key share
)

-- name: commit_won
-- Inserting seq n+1 is the compare-and-set. A turn whose claim is gone is not returned. A turn whose seq is taken fails
-- the whole batch, which is then written by `commit_careful`: to let the database step over a conflict costs every row
-- a fifth more time and log, and conflicts behind the claim's guard are the rarest thing there is.
won as (
  insert into holdfast.history (tenant_id, instance_id, seq, type, name, fence, at, payload, salt, hash)
  select h.tenant_id, h.instance_id, h.seq, h.type, h.name, h.fence, h.at, h.payload, h.salt, h.hash
  from me cross join (
    select tenant_id, substr(:first_2::bytea, 16 * n::integer - 15, 16) as instance_id, seq, type, name, fence, at,
      convert_to(payload, 'UTF8') as payload, substr(:first_9::bytea, 16 * n::integer - 15, 16) as salt,
      substr(:first_10::bytea, 32 * n::integer - 31, 32) as hash,
      substr(:first_11::bytea, 32 * n::integer - 31, 32) as after
    from unnest(:first_1::text::text[], :first_3::text::bigint[], :first_4::text::text[], :first_5::text::text[],
                :first_6::text::bigint[], :first_7::text::bigint[], string_to_array(:first_8, e'\x1f'))
      with ordinality as columns(tenant_id, seq, type, name, fence, at, payload, n)
  ) h
  cross join lateral (
    -- `is not distinct from` and the limit keep this a look-up by primary key, whatever the statistics say.
    select 1 from holdfast.instances i
    where i.tenant_id = h.tenant_id and i.id = h.instance_id and i.fence = h.fence
      and i.locked_by is not distinct from me.id
    limit 1
  ) claim
  -- Row n+1 needs row n: a history that lost its end is not written on.
  where h.seq = 1 or h.after = (
    select p.hash from holdfast.history p
    where p.tenant_id = h.tenant_id and p.instance_id = h.instance_id and p.seq = h.seq - 1
  )
  {commit_careful}
  returning tenant_id, instance_id
)

-- name: commit_careful
on conflict do nothing

-- name: commit_more
more as (
  insert into holdfast.history (tenant_id, instance_id, seq, type, name, fence, at, payload, salt, hash)
  select h.tenant_id, h.instance_id, h.seq, h.type, h.name, h.fence, h.at, h.payload, h.salt, h.hash
  from (
    select tenant_id, substr(:more_2::bytea, 16 * n::integer - 15, 16) as instance_id, seq, type, name, fence, at,
      convert_to(payload, 'UTF8') as payload, substr(:more_9::bytea, 16 * n::integer - 15, 16) as salt,
      substr(:more_10::bytea, 32 * n::integer - 31, 32) as hash
    from unnest(:more_1::text::text[], :more_3::text::bigint[], :more_4::text::text[], :more_5::text::text[],
                :more_6::text::bigint[], :more_7::text::bigint[], string_to_array(:more_8, e'\x1f'))
      with ordinality as columns(tenant_id, seq, type, name, fence, at, payload, n)
  ) h
  join won on won.tenant_id = h.tenant_id and won.instance_id = h.instance_id
)

-- name: commit_changes
-- `woken` decides whether the claim may go: an event this turn has not seen keeps it.
changed as (
  update holdfast.instances i set
    status = case when not c.release or i.woken <= c.woken then c.status else i.status end,
    waiting_on = case when not c.release or i.woken <= c.woken then c.waiting_on else i.waiting_on end,
    run_at = case when c.release and i.woken <= c.woken then c.run_at else null end,
    locked_by = case when c.release and i.woken <= c.woken then null else i.locked_by end,
    attempts = 0,
    seq = c.seq,
    hash = c.hash,
    result = coalesce(c.result, i.result),
    last_error = coalesce(c.last_error, i.last_error),
    compensation = coalesce(c.compensation, i.compensation),
    snapshot = coalesce(c.snapshot, i.snapshot),
    current_state = coalesce(c.current_state, i.current_state),
    completed_at = c.completed_at,
    definition_version = coalesce(c.definition_version, i.definition_version),
    epoch = i.epoch + (c.epoch_seq is not null)::integer,
    epoch_seq = coalesce(c.epoch_seq, i.epoch_seq)
  from unnest(:change_1::text::text[], :change_2::text::bytea[], :change_3::text::bigint[], :change_4::text::text[], :change_5::text::text[],
              :change_6::text::bigint[], :change_7::text::boolean[], :change_8::text::bigint[], :change_9::text::bigint[], :change_10::text::bytea[],
              :change_11::text::bytea[], :change_12::text::bytea[], :change_13::text::text[], :change_14::text::bytea[], :change_15::text::text[],
              :change_16::text::bigint[], :change_17::text::integer[], :change_18::text::bigint[])
    as c(tenant_id, id, fence, status, waiting_on, run_at, release, woken, seq, hash, result, last_error,
         compensation, snapshot, current_state, completed_at, definition_version, epoch_seq)
  join won on won.tenant_id = c.tenant_id and won.instance_id = c.id
  where i.tenant_id = any(array[c.tenant_id]) and i.id = c.id and i.fence = c.fence
  returning i.id, (c.release and i.locked_by is not null) as kept
)

-- name: commit_told
-- The events of this batch whose turns have won. A start looks here for those it is born with.
told as (
  select e.*
  from unnest(:event_1::text::text[], :event_2::text::bytea[], :event_3::text::text[], :event_4::text::text[], :event_5::text::text[],
              :event_6::text::bytea[], :event_7::text::bigint[], :event_8::text::bytea[], :event_9::text::bytea[],
              :event_10::text::text[]) with ordinality
    as e(tenant_id, instance_id, id, kind, name, payload, sent_at, by, task_id, sent_by, number)
  where e.by is null or exists (select 1 from won where won.tenant_id = e.tenant_id and won.instance_id = e.by)
)

-- name: commit_starts
-- What this statement inserts it cannot update: a child that is told something in the turn that starts it (as a rule
-- that it is cancelled) is born woken, or its first claim would not read its events.
-- A start may name a worker that has room for it; locked like `me`, so that fencing either sees the claim or stops it.
claimant as materialized (
  select w.id from (select distinct unnest(:start_16::text::bytea[]) as id) named
  cross join lateral (
    select id from holdfast.workers where tenant_id = '*' and id = named.id and fenced_at is null
    for key share
  ) w
), started as (
  insert into holdfast.instances (tenant_id, id, kind, definition_key, definition_version, business_key, status,
                                  queue, priority, run_at, input, parent_id, parent_step, trace_id, created_at,
                                  locked_by, locked_at, started_at, fence, attempts, woken, created_by)
  select s.tenant_id, s.id, s.kind, s.definition_key, s.definition_version, s.business_key,
         case when claimant.id is null then 'pending' else 'running' end,
         s.queue, s.priority,
         case when claimant.id is null then least(s.run_at, case when w.events > 0 then :now::bigint end) end,
         s.input, s.parent_id, s.parent_step, s.trace_id, s.created_at,
         claimant.id, case when claimant.id is not null then s.created_at end,
         case when claimant.id is not null then s.created_at end,
         (claimant.id is not null)::integer, (claimant.id is not null)::integer, coalesce(w.events, 0), s.created_by
  from unnest(:start_1::text::text[], :start_2::text::bytea[], :start_3::text::text[], :start_4::text::text[], :start_5::text::integer[],
              :start_6::text::text[], :start_7::text::text[], :start_8::text::integer[], :start_9::text::bigint[], :start_10::text::bytea[],
              :start_11::text::bytea[], :start_12::text::text[], :start_13::text::text[], :start_14::text::bigint[], :start_15::text::bytea[],
              :start_16::text::bytea[], :start_17::text::text[]) with ordinality
    as s(tenant_id, id, kind, definition_key, definition_version, business_key, queue, priority, run_at, input,
         parent_id, parent_step, trace_id, created_at, by, claimed_by, created_by, number)
  left join claimant on claimant.id = s.claimed_by
  left join (select tenant_id, instance_id, count(*) as events from told group by tenant_id, instance_id) w
    on w.tenant_id = s.tenant_id and w.instance_id = s.id
  where s.by is null or exists (select 1 from won where won.tenant_id = s.tenant_id and won.instance_id = s.by)
  order by s.number  -- of two with the same business key the first is born, however they are joined
  on conflict do nothing
  returning tenant_id, id, locked_by is not null as claimed
)

-- name: commit_events
-- An event for an instance that has ended is not kept: its sender is told. One that is born here is not there yet.
-- Each comes after those that are there, whatever its sender's clock says, in the order of the batch.
sent as (
  insert into holdfast.events (tenant_id, instance_id, id, kind, name, payload, sent_at, sent_by)
  select e.tenant_id, e.instance_id, e.id, e.kind, e.name, e.payload,
    greatest(e.sent_at, receiver.last_sent_at
      + row_number() over (partition by e.tenant_id, e.instance_id order by e.number)), e.sent_by
  from told e
  cross join lateral (
    -- The limit keeps this a look-up by primary key: no other index can answer it before it is done.
    select i.completed_at, i.last_sent_at from holdfast.instances i
    where i.tenant_id = e.tenant_id and i.id = e.instance_id
    union all
    select null, 0 from started where started.tenant_id = e.tenant_id and started.id = e.instance_id
    limit 1
  ) receiver
  where receiver.completed_at is null
    and (e.task_id is null or exists (select 1 from tasked where tasked.id = e.task_id))
  on conflict do nothing
  returning tenant_id, instance_id, sent_at
), woken as (
  update holdfast.instances i set
    woken = i.woken + w.events, last_sent_at = greatest(i.last_sent_at, w.newest),
    run_at = case when i.locked_by is null and i.completed_at is null
                  then least(coalesce(i.run_at, :now), :now) else i.run_at end
  from (select tenant_id, instance_id, count(*) as events, max(sent_at) as newest from sent
        group by tenant_id, instance_id order by instance_id) w  -- all lock in this order: see `PostgresCommits._run`
  where i.tenant_id = any(array[w.tenant_id]) and i.id = w.instance_id
)

-- name: commit_consumed
consumed as (
  update holdfast.events e set consumed_seq = c.seq
  from unnest(:consumed_1::text::text[], :consumed_2::text::bytea[], :consumed_3::text::text[], :consumed_4::text::bigint[])
    as c(tenant_id, instance_id, id, seq)
  join won on won.tenant_id = c.tenant_id and won.instance_id = c.instance_id
  where e.tenant_id = any(array[c.tenant_id]) and e.instance_id = c.instance_id and e.id = c.id and e.consumed_seq is null
)

-- name: commit_effects
effected as (
  insert into holdfast.effects (tenant_id, id, instance_id, step, mode, state, attempt, idempotency_key,
    request_hash, request, fence, worker_id, first_started_at, started_at, not_after, opens_at, settled_at,
    receipt, last_error, resolution, resolved_by, reason)
  select f.* from unnest(:effect_1::text::text[], :effect_2::text::bytea[], :effect_3::text::bytea[], :effect_4::text::text[],
      :effect_5::text::text[], :effect_6::text::text[], :effect_7::text::integer[], :effect_8::text::text[], :effect_9::text::bytea[],
      :effect_10::text::bytea[], :effect_11::text::bigint[], :effect_12::text::bytea[], :effect_13::text::bigint[], :effect_14::text::bigint[],
      :effect_15::text::bigint[], :effect_16::text::bigint[], :effect_17::text::bigint[], :effect_18::text::bytea[], :effect_19::text::bytea[],
      :effect_20::text::text[], :effect_21::text::text[], :effect_22::text::text[])
    as f(tenant_id, id, instance_id, step, mode, state, attempt, idempotency_key, request_hash, request, fence,
         worker_id, first_started_at, started_at, not_after, opens_at, settled_at, receipt, last_error, resolution,
         resolved_by, reason)
  join won on won.tenant_id = f.tenant_id and won.instance_id = f.instance_id
  on conflict (tenant_id, id) do update set
    state = excluded.state, attempt = excluded.attempt,
    mode = case when excluded.state = 'started' then excluded.mode else effects.mode end,
    -- Whoever made the call stays named, whoever finds out about it later.
    fence = case when excluded.state = 'started' then excluded.fence else effects.fence end,
    worker_id = case when excluded.state = 'started' then excluded.worker_id else effects.worker_id end,
    started_at = excluded.started_at, not_after = excluded.not_after, opens_at = excluded.opens_at,
    settled_at = excluded.settled_at, receipt = excluded.receipt, last_error = excluded.last_error,
    resolution = excluded.resolution, resolved_by = excluded.resolved_by, reason = excluded.reason
)

-- name: commit_dead_letters
buried as (
  insert into holdfast.dead_letters (tenant_id, id, source, instance_id, definition_key, reason, payload, created_at)
  select d.* from unnest(:dead_1::text::text[], :dead_2::text::bytea[], :dead_3::text::text[], :dead_4::text::bytea[], :dead_5::text::text[],
                         :dead_6::text::text[], :dead_7::text::bytea[], :dead_8::text::bigint[])
    as d(tenant_id, id, source, instance_id, definition_key, reason, payload, created_at)
  join won on won.tenant_id = d.tenant_id and won.instance_id = d.instance_id
  on conflict do nothing
)

-- name: commit_tasks
tasks_made as (
  insert into holdfast.tasks (tenant_id, id, instance_id, definition_key, key, type, name, title, status, run_at,
    attempts, max_attempts, locked_by, locked_at, fence, idempotency_key, input, options, trace_id, assignee, groups,
    priority, due_at, follow_up_at, invoke_id, visit, created_at, started_at, standing_type, standing, output, error,
    completed_at, closed_at)
  select k.* from unnest(:task_1::text::text[], :task_2::text::bytea[], :task_3::text::bytea[], :task_4::text::text[],
      :task_5::text::text[], :task_6::text::text[], :task_7::text::text[], :task_8::text::text[], :task_9::text::text[],
      :task_10::text::bigint[], :task_11::text::integer[], :task_12::text::integer[], :task_13::text::bytea[],
      :task_14::text::bigint[], :task_15::text::bigint[], :task_16::text::text[], :task_17::text::bytea[],
      :task_18::text::bytea[], :task_19::text::text[], :task_20::text::text[], :task_21::text::text[],
      :task_22::text::integer[], :task_23::text::bigint[], :task_24::text::bigint[], :task_25::text::text[],
      :task_26::text::bigint[], :task_27::text::bigint[], :task_28::text::bigint[], :task_29::text::text[],
      :task_30::text::bytea[], :task_31::text::bytea[], :task_32::text::bytea[], :task_33::text::bigint[],
      :task_34::text::bigint[])
    as k(tenant_id, id, instance_id, definition_key, key, type, name, title, status, run_at, attempts, max_attempts,
         locked_by, locked_at, fence, idempotency_key, input, options, trace_id, assignee, groups, priority, due_at,
         follow_up_at, invoke_id, visit, created_at, started_at, standing_type, standing, output, error, completed_at,
         closed_at)
  join won on won.tenant_id = k.tenant_id and won.instance_id = k.instance_id
  on conflict do nothing
)

-- name: commit_task_changes
-- Settled once: whoever committed first has won, a person or a worker. A worker's turn also says that its instance has
-- taken note, which a person's word alone does not. That word stands on the version the person saw, and goes together
-- with the event that carries it: where an event of that id is there already, neither is written.
tasked as (
  update holdfast.tasks t set
    status = case when t.completed_at is null then c.status else t.status end,
    run_at = case when t.completed_at is null then c.run_at end,
    attempts = greatest(t.attempts, c.attempts), locked_by = c.locked_by,
    locked_at = case when c.locked_by is not null then c.at end, fence = greatest(t.fence, c.fence),
    output = case when t.completed_at is null then coalesce(c.output, t.output) else t.output end,
    error = case when t.completed_at is null then coalesce(c.error, t.error) else t.error end,
    standing_type = coalesce(c.standing_type, t.standing_type), standing = coalesce(c.standing, t.standing),
    started_at = coalesce(t.started_at, case when c.status = 'running' then c.at end),
    completed_at = coalesce(t.completed_at, c.completed_at), completed_by = coalesce(t.completed_by, c.completed_by),
    closed_at = case when c.by is not null then c.completed_at end, input = coalesce(c.input, t.input),
    version = t.version + case when t.completed_at is null and c.completed_at is not null then 1 else 0 end
  from unnest(:taskchange_1::text::text[], :taskchange_2::text::bytea[], :taskchange_3::text::bytea[],
      :taskchange_4::text::text[], :taskchange_5::text::bigint[], :taskchange_6::text::integer[],
      :taskchange_7::text::bytea[], :taskchange_8::text::bigint[], :taskchange_9::text::bytea[],
      :taskchange_10::text::bytea[], :taskchange_11::text::text[], :taskchange_12::text::bytea[],
      :taskchange_13::text::bigint[], :taskchange_14::text::bigint[], :taskchange_15::text::text[],
      :taskchange_16::text::bytea[], :taskchange_17::text::bytea[], :taskchange_18::text::integer[])
    as c(tenant_id, id, instance_id, status, run_at, attempts, locked_by, fence, output, error, standing_type, standing,
         at, completed_at, completed_by, by, input, version)
  where t.tenant_id = any(array[c.tenant_id]) and t.id = c.id and t.closed_at is null
    and (c.version is null or t.version = c.version)
    and case when c.by is null then t.completed_at is null and not exists (
               select 1 from told join holdfast.events e
                 on e.tenant_id = any(array[told.tenant_id]) and e.instance_id = told.instance_id and e.id = told.id
               where told.task_id = c.id)
             else exists (select 1 from won where won.tenant_id = c.tenant_id and won.instance_id = c.by) end
  returning t.id
)
