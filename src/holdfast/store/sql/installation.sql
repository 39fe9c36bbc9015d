-- name: read_installation
select identity, quarantined_at, reason, changed_at, changed_by from holdfast.installation where tenant_id = '*'

-- name: record_installation
-- The first worker of a database says which one it is; of two at once, one does.
insert into holdfast.installation (tenant_id, identity, changed_at, changed_by)
values ('*', :identity, :now, :actor)
on conflict (tenant_id) do update
set identity = excluded.identity, changed_at = excluded.changed_at, changed_by = excluded.changed_by
where holdfast.installation.identity is null and holdfast.installation.quarantined_at is null

-- name: enter_quarantine
-- The first reason stays.
insert into holdfast.installation (tenant_id, quarantined_at, reason, changed_at, changed_by)
values ('*', :now, :reason, :now, :actor)
on conflict (tenant_id) do update
set quarantined_at = excluded.quarantined_at, reason = excluded.reason, changed_at = excluded.changed_at,
  changed_by = excluded.changed_by
where holdfast.installation.quarantined_at is null

-- name: lift_quarantine
insert into holdfast.installation (tenant_id, identity, reason, changed_at, changed_by)
values ('*', :identity, :reason, :now, :actor)
on conflict (tenant_id) do update
set identity = excluded.identity, quarantined_at = null, reason = excluded.reason, changed_at = excluded.changed_at,
  changed_by = excluded.changed_by

-- name: count_due
-- What would begin to move at once. Reads all that is scheduled, once, for a person who asks.
select count(*) from holdfast.instances
where run_at is not null and locked_by is null and run_at <= :now and tenant_id <> '#instances_due'
