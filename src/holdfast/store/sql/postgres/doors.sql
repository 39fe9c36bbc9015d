-- What a door asks without a tenant goes through functions that answer numbers, never rows of tenants (0004_walls).

-- name: door_count_backlog
select holdfast.count_backlog(:queue::text, :limit::bigint)

-- name: door_count_ahead
select holdfast.count_ahead(:queue::text, :run_at::bigint, :limit::bigint)

-- name: door_queue_heads
select queue, run_at from holdfast.queue_numbers(:heads::integer, 0, 0, 0)

-- name: door_queue_depths
select queue, due, slept from holdfast.queue_numbers(:heads::integer, :now::bigint, :counted::bigint, :looked::bigint)

-- name: door_count_open_dead_letters
select holdfast.count_open_dead_letters(:limit::bigint)

-- name: door_count_parked
select holdfast.count_parked(:limit::bigint)

-- name: door_count_unknown_effects
select holdfast.count_unknown_effects(:limit::bigint)

-- name: door_bury_requests
select holdfast.bury_requests(:now::bigint, :limit::bigint)

-- name: door_remove_tombstones
select holdfast.remove_tombstones(:before::bigint, :limit::bigint)

-- name: door_count_ways_in
select holdfast.count_ways_in(:now::bigint)

-- name: door_list_workers
select id, host, pid, started_at, heartbeat_at, stopped_at, fenced_at, fenced_by, liveness, definitions,
  holdfast.claims_of(id) as holds
from holdfast.workers where tenant_id = '*' and host <> '#workers_by_start' order by started_at desc limit :limit

-- name: bind_tenant
-- For the rest of the transaction: on a caller's own connection, whose login may be of the role holdfast_door.
select set_config('holdfast.tenant', cast(:tenant_id as text), true)

-- name: how_the_wall_stands
-- Whether it is up; whether it holds for this login; whether this login may act as a door, and as a worker.
select holdfast.walls_are_up(),
  row_security_active('holdfast.instances'),
  exists (select 1 from pg_roles where rolname = 'holdfast_door' and pg_has_role(current_user, oid, 'member')),
  exists (select 1 from pg_roles where rolname = 'holdfast_worker' and pg_has_role(current_user, oid, 'usage'))

-- name: read_heartbeat
select stopped_at, liveness, heartbeat_at, fenced_at from holdfast.workers where tenant_id = '*' and id = :worker_id
