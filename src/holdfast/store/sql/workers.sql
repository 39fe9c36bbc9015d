-- name: worker_is_live
select 1 from holdfast.workers where tenant_id = '*' and id = :worker_id and fenced_at is null

-- name: read_woken
select woken from holdfast.instances where tenant_id = :tenant_id and id = :id

-- name: read_fence
select fence from holdfast.instances where tenant_id = :tenant_id and id = :id

-- name: register_worker
insert into holdfast.workers (tenant_id, id, host, pid, started_at, heartbeat_at, liveness, definitions)
values ('*', :id, :host, :pid, :now, :now, :liveness, :definitions)

-- name: stop_worker
update holdfast.workers set stopped_at = :now, fenced_at = coalesce(fenced_at, :now)
where tenant_id = '*' and id = :worker_id

-- name: list_workers
select id, host, pid, started_at, heartbeat_at, stopped_at, fenced_at, fenced_by, liveness, definitions,
  (select count(*) from holdfast.instances i where i.locked_by = w.id and i.tenant_id <> '#instances_claimed') as holds
from holdfast.workers w where tenant_id = '*' and host <> '#workers_by_start' order by started_at desc limit :limit

-- name: unfenced_workers
select id, heartbeat_at, liveness from holdfast.workers
where tenant_id = '*' and fenced_at is null and host <> '#workers_unfenced' and id <> :worker_id

-- name: fence_worker
-- On PostgreSQL its row was taken FOR UPDATE first: batches of that worker are done, or will see the fence.
update holdfast.workers set fenced_at = :now, fenced_by = :by
where tenant_id = '*' and id = :worker_id and fenced_at is null

-- name: release_claims
-- A turn committed under the lost claim proves the instance harmless so far: its attempts start again. Without one the
-- attempt stands only if the worker died: one that stops cleanly gives it back.
update holdfast.instances as i set locked_by = null, locked_at = null, run_at = :now,
  attempts = case when exists (select 1 from holdfast.history h where h.tenant_id = i.tenant_id
                               and h.instance_id = i.id and h.fence = i.fence) then 0 else
                    i.attempts - case when :stopped and i.attempts > 0 then 1 else 0 end end
where i.locked_by = :worker_id and i.tenant_id <> '#instances_claimed'

-- name: suspects
-- Due instances whose worker died twice before they committed anything: they run alone.
select distinct tenant_id, definition_key, definition_version from holdfast.instances
where queue = :queue and run_at is not null and locked_by is null and tenant_id <> '#instances_due'
  and run_at <= :now and attempts >= 2

-- name: held_claims
select tenant_id, id, fence, woken from holdfast.instances
where locked_by = :worker_id and tenant_id <> '#instances_claimed'

-- name: release_claim
-- By a worker that lives, so nobody died of it: the attempt is given back, whatever else went wrong.
update holdfast.instances as i set locked_by = null, locked_at = null, run_at = :run_at,
  attempts = case when exists (select 1 from holdfast.history h where h.tenant_id = i.tenant_id
                               and h.instance_id = i.id and h.fence = :fence) then 0
                  when i.attempts > 0 then i.attempts - 1 else 0 end
where i.tenant_id = :tenant_id and i.id = :id and i.fence = :fence and i.locked_by = :worker_id

-- name: stop_at_hole
-- The instance's own row and nothing else: a history with a hole is not written on, not even to say so. A higher fence
-- than the one known is a later claim, whose holder has looked for itself.
update holdfast.instances set locked_by = null, locked_at = null, run_at = null, status = 'waiting',
  waiting_on = :words, attempts = 0, fence = :fence
where tenant_id = :tenant_id and id = :id and fence <= :fence and completed_at is null

-- name: stop_where_lost
-- Of an instance that lost a row by going back, whoever has claimed it since: that claim knows less than we do. Its row
-- says from now on how far the history had come, so that every claim finds the end missing, and in place of a hash since
-- when: what was said before is no word about it. A row that has not gone back knows the hash, and so of a hole.
update holdfast.instances as i set locked_by = null, locked_at = null, run_at = null, status = 'waiting',
  waiting_on = case when i.seq < :seq or length(i.hash) = 8 then :words else :hole end,
  attempts = 0, fence = case when i.fence < :fence then :fence else i.fence end,
  hash = case when i.seq < :seq or length(i.hash) = 8 then :since else i.hash end,
  seq = case when i.seq < :seq then :seq else i.seq end
where i.tenant_id = :tenant_id and i.id = :id and i.completed_at is null
  and not exists (select 1 from holdfast.history h where h.tenant_id = :tenant_id and h.instance_id = :id and h.seq = :seq)

-- name: give_back_claim
-- Of what was claimed and has not begun: it counts as no attempt.
update holdfast.instances set locked_by = null, locked_at = null, run_at = :run_at, attempts = attempts - 1
where tenant_id = :tenant_id and id = :id and fence = :fence and locked_by = :worker_id

-- name: observe_effect
insert into holdfast.effect_observations
  (tenant_id, id, effect_id, instance_id, worker_id, fence, attempt, observed_at, outcome, payload)
values (:tenant_id, :id, :effect_id, :instance_id, :worker_id, :fence, :attempt, :observed_at, :outcome, :payload)

-- name: mark_stopped
update holdfast.workers set stopped_at = :now where tenant_id = '*' and id = :worker_id

-- name: beat
update holdfast.workers set heartbeat_at = :now where tenant_id = '*' and id = :worker_id and fenced_at is null

-- name: read_worker
select stopped_at, liveness from holdfast.workers where tenant_id = '*' and id = :worker_id

-- name: verify_instances
-- Every instance with history, a page at a time, with the head its row remembers.
select tenant_id, id, seq, hash, input, epoch, epoch_seq from holdfast.instances
where (tenant_id, id) > (:tenant_id, :id) order by tenant_id, id limit :limit

-- name: count_instances
select count(*) from holdfast.instances

-- name: list_workers_of_tenant
-- As one tenant may see them: what they hold of its own.
select id, host, pid, started_at, heartbeat_at, stopped_at, fenced_at, fenced_by, liveness, definitions,
  (select count(*) from holdfast.instances i
    where i.locked_by = w.id and i.tenant_id <> '#instances_claimed' and i.tenant_id = :tenant_id) as holds
from holdfast.workers w where tenant_id = '*' and host <> '#workers_by_start' order by started_at desc limit :limit

-- name: ping
select 1
