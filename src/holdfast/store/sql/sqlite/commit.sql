-- The parts of a commit, each run once per chunk of rows; {rows} becomes (?,?,…),(?,?,…). One writer at a time,
-- so the guards are counted: any count that is off rolls back and the turns are tried one by one.

-- name: commit_guard
-- `cross join` fixes the order: one look-up by primary key per turn, never a walk through all of a worker's claims.
-- Row n+1 needs row n: a history that lost its end is not written on.
with h(tenant_id, instance_id, fence, seq, after) as (values {rows})
select count(*) from h cross join holdfast.instances i
where i.tenant_id = h.tenant_id and i.id = h.instance_id and i.locked_by = :worker_id and i.fence = h.fence
  and (h.seq = 1 or h.after = (
    select p.hash from holdfast.history p
    where p.tenant_id = h.tenant_id and p.instance_id = h.instance_id and p.seq = h.seq - 1))

-- name: commit_history
insert into holdfast.history (tenant_id, instance_id, seq, type, name, fence, at, payload, salt, hash) values {rows}

-- name: commit_changes
with c(tenant_id, id, fence, status, waiting_on, run_at, release, woken, seq, hash, result, last_error,
       compensation, snapshot, current_state, completed_at, definition_version, epoch_seq) as (values {rows})
update holdfast.instances as i set
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
  epoch = i.epoch + (c.epoch_seq is not null),
  epoch_seq = coalesce(c.epoch_seq, i.epoch_seq)
from c
where i.tenant_id = c.tenant_id and i.id = c.id and i.fence = c.fence
returning id, locked_by is not null

-- name: commit_ends
-- An instance that ends hands its claim back whatever came meanwhile: what `commit_changes` comes to then.
update holdfast.instances set
  status = :status, waiting_on = :waiting_on, run_at = null, locked_by = null, attempts = 0, seq = :seq, hash = :hash,
  result = coalesce(:result, result), last_error = coalesce(:last_error, last_error),
  compensation = coalesce(:compensation, compensation), snapshot = coalesce(:snapshot, snapshot),
  current_state = coalesce(:current_state, current_state), completed_at = :completed_at
where tenant_id = :tenant_id and id = :id and fence = :fence

-- name: commit_moves
-- An instance that goes on under the same claim: what `commit_changes` comes to when nothing is handed back or ended.
with c(tenant_id, id, fence, status, waiting_on, seq, hash, snapshot, current_state) as (values {rows})
update holdfast.instances as i set
  status = c.status, waiting_on = c.waiting_on, run_at = null, attempts = 0, seq = c.seq, hash = c.hash,
  snapshot = coalesce(c.snapshot, i.snapshot), current_state = coalesce(c.current_state, i.current_state),
  completed_at = null
from c
where i.tenant_id = c.tenant_id and i.id = c.id and i.fence = c.fence

-- name: commit_starts
with s(tenant_id, id, kind, definition_key, definition_version, business_key, queue, priority, run_at, input,
       parent_id, parent_step, trace_id, created_at, by_id, claimed_by, created_by) as (values {rows})
insert into holdfast.instances (tenant_id, id, kind, definition_key, definition_version, business_key, status,
                                queue, priority, run_at, input, parent_id, parent_step, trace_id, created_at,
                                locked_by, locked_at, started_at, fence, attempts, created_by)
select s.tenant_id, s.id, s.kind, s.definition_key, s.definition_version, s.business_key,
       iif(w.id is null, 'pending', 'running'), s.queue, s.priority, iif(w.id is null, s.run_at, null), s.input,
       s.parent_id, s.parent_step, s.trace_id, s.created_at,
       w.id, iif(w.id is null, null, s.created_at), iif(w.id is null, null, s.created_at), w.id is not null,
       w.id is not null, s.created_by
from s left join holdfast.workers w on w.tenant_id = '*' and w.id = s.claimed_by and w.fenced_at is null
where true
on conflict do nothing

-- name: commit_events
-- After those that are there, whatever the sender's clock says; `number`: the place among those to one instance.
with e(tenant_id, instance_id, id, kind, name, payload, sent_at, by_id, task_id, sent_by, number) as (values {rows})
insert into holdfast.events (tenant_id, instance_id, id, kind, name, payload, sent_at, sent_by)
select e.tenant_id, e.instance_id, e.id, e.kind, e.name, e.payload, max(e.sent_at, i.last_sent_at + e.number), e.sent_by
from e join holdfast.instances i on i.tenant_id = e.tenant_id and i.id = e.instance_id and i.completed_at is null
where true
on conflict do nothing
returning tenant_id, instance_id, sent_at

-- name: commit_woken
with w(tenant_id, instance_id, events, newest, now) as (values {rows})
update holdfast.instances as i set
  woken = i.woken + w.events, last_sent_at = max(i.last_sent_at, w.newest),
  run_at = case when i.locked_by is null and i.completed_at is null
                then min(coalesce(i.run_at, w.now), w.now) else i.run_at end
from w where i.tenant_id = w.tenant_id and i.id = w.instance_id

-- name: commit_consumed
with c(tenant_id, instance_id, id, seq) as (values {rows})
update holdfast.events as e set consumed_seq = c.seq from c
where e.tenant_id = c.tenant_id and e.instance_id = c.instance_id and e.id = c.id and e.consumed_seq is null

-- name: commit_effects
insert into holdfast.effects (tenant_id, id, instance_id, step, mode, state, attempt, idempotency_key,
  request_hash, request, fence, worker_id, first_started_at, started_at, not_after, opens_at, settled_at,
  receipt, last_error, resolution, resolved_by, reason) values {rows}
on conflict (tenant_id, id) do update set
  state = excluded.state, attempt = excluded.attempt,
  mode = case when excluded.state = 'started' then excluded.mode else holdfast.effects.mode end,
  -- Whoever made the call stays named, whoever finds out about it later.
  fence = case when excluded.state = 'started' then excluded.fence else holdfast.effects.fence end,
  worker_id = case when excluded.state = 'started' then excluded.worker_id else holdfast.effects.worker_id end,
  started_at = excluded.started_at, not_after = excluded.not_after, opens_at = excluded.opens_at,
  settled_at = excluded.settled_at, receipt = excluded.receipt, last_error = excluded.last_error,
  resolution = excluded.resolution, resolved_by = excluded.resolved_by, reason = excluded.reason

-- name: commit_dead_letters
insert into holdfast.dead_letters (tenant_id, id, source, instance_id, definition_key, reason, payload, created_at)
values {rows} on conflict do nothing

-- name: commit_tasks
insert into holdfast.tasks (tenant_id, id, instance_id, definition_key, key, type, name, title, status, run_at,
  attempts, max_attempts, locked_by, locked_at, fence, idempotency_key, input, options, trace_id, assignee, groups,
  priority, due_at, follow_up_at, invoke_id, visit, created_at, started_at, standing_type, standing, output, error,
  completed_at, closed_at) values {rows}
on conflict do nothing

-- name: commit_task_changes
-- Settled once: whoever committed first has won, a person or a worker. A worker's turn also says that its instance has
-- taken note, which a person's word alone does not. That word stands on the version the person saw.
with c(tenant_id, id, instance_id, status, run_at, attempts, locked_by, fence, output, error, standing_type, standing,
       at, completed_at, completed_by, by_id, input, version) as (values {rows})
update holdfast.tasks as t set
  status = iif(t.completed_at is null, c.status, t.status), run_at = iif(t.completed_at is null, c.run_at, null),
  attempts = max(t.attempts, c.attempts), locked_by = c.locked_by,
  locked_at = iif(c.locked_by is null, null, c.at), fence = max(t.fence, c.fence),
  output = iif(t.completed_at is null, coalesce(c.output, t.output), t.output),
  error = iif(t.completed_at is null, coalesce(c.error, t.error), t.error),
  standing_type = coalesce(c.standing_type, t.standing_type), standing = coalesce(c.standing, t.standing),
  started_at = coalesce(t.started_at, iif(c.status = 'running', c.at, null)),
  completed_at = coalesce(t.completed_at, c.completed_at), completed_by = coalesce(t.completed_by, c.completed_by),
  closed_at = iif(c.by_id is null, null, c.completed_at), input = coalesce(c.input, t.input),
  version = t.version + iif(t.completed_at is null and c.completed_at is not null, 1, 0)
from c
where t.tenant_id = c.tenant_id and t.id = c.id and t.closed_at is null
  and (c.by_id is not null or t.completed_at is null) and (c.version is null or t.version = c.version)
