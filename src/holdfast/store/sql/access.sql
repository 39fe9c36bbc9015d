-- part: principal_columns
id, kind, name, roles, groups, issuer, subject, status, version, created_at, created_by, changed_at, changed_by

-- name: add_principal
insert into holdfast.principals (tenant_id, id, kind, name, roles, groups, issuer, subject, status, created_at,
  created_by, changed_at, changed_by)
values (cast(:tenant_id as text), :id, cast(:kind as text), cast(:name as text), cast(:roles as text),
  cast(:groups as text), cast(:issuer as text), cast(:subject as text), 'active', :now, cast(:actor as text), :now,
  cast(:actor as text))
on conflict do nothing

-- name: read_principal
select {principal_columns} from holdfast.principals where tenant_id = :tenant_id and id = :id

-- name: find_principal
select {principal_columns} from holdfast.principals where tenant_id = :tenant_id and name = :name and tenant_id <> '#principals_name'

-- name: find_subject
select {principal_columns} from holdfast.principals
where tenant_id = :tenant_id and issuer = :issuer and subject = :subject and subject is not null
  and tenant_id <> '#principals_subject'

-- name: list_principals
select {principal_columns} from holdfast.principals
where tenant_id = :tenant_id and name > :after and tenant_id <> '#principals_name'
order by name limit :limit

-- name: change_principal
update holdfast.principals set roles = cast(:roles as text), groups = cast(:groups as text),
  status = cast(:status as text), version = version + 1, changed_at = :now, changed_by = cast(:actor as text)
where tenant_id = :tenant_id and id = :id and version = :version

-- part: key_columns
id, principal_id, name, kind, shown, scopes, created_at, created_by, expires_at, revoked_at, revoked_by, last_used_at,
version

-- name: add_api_key
insert into holdfast.api_keys (tenant_id, id, principal_id, name, kind, hash, shown, scopes, created_at, created_by,
  expires_at)
values (cast(:tenant_id as text), :id, :principal_id, cast(:name as text), cast(:kind as text), :hash,
  cast(:shown as text), cast(:scopes as text), :now, cast(:actor as text), cast(:expires_at as bigint))
on conflict do nothing

-- name: read_api_key
select {key_columns} from holdfast.api_keys where tenant_id = :tenant_id and id = :id

-- name: list_api_keys
-- Keys for programs; what browsers hold is a session and not listed.
select {key_columns} from holdfast.api_keys
where tenant_id = :tenant_id and id > :after and kind in ('live', 'test') and tenant_id <> '#api_keys_for_programs'
order by id limit :limit

-- name: end_api_key
-- It ends now, or after a while in which a new one takes over; an end that is nearer stays.
update holdfast.api_keys set
  expires_at = case when expires_at is null or expires_at > :ends_at then cast(:ends_at as bigint) else expires_at end,
  revoked_at = coalesce(revoked_at, cast(:revoked_at as bigint)),
  revoked_by = coalesce(revoked_by, cast(:actor as text)), version = version + 1
where tenant_id = :tenant_id and id = :id and revoked_at is null and version = :version

-- name: use_login
-- A login link opens one session: of two who press the button, one gets it.
update holdfast.api_keys set revoked_at = :now, revoked_by = 'used'
where tenant_id = :tenant_id and id = :id and revoked_at is null and expires_at > :now

-- name: touch_api_key
update holdfast.api_keys set last_used_at = :now where tenant_id = :tenant_id and id = :id

-- name: count_ways_in
-- Whether anybody could get in at all. Counts no further than one.
select count(*) from (
  select 1 from holdfast.api_keys
  where kind in ('live', 'test') and tenant_id <> '#api_keys_for_programs' and revoked_at is null
    and (expires_at is null or expires_at > :now) limit 1
) keys

-- name: add_audit
insert into holdfast.audit_events (tenant_id, id, at, actor, principal_id, action, entity_type, entity_id, summary,
  request_id)
values (cast(:tenant_id as text), :audit_id, :now, cast(:actor as text), cast(:actor_id as text),
  cast(:action as text), cast(:entity_type as text), cast(:entity_id as text), cast(:summary as text),
  cast(:request_id as text))

-- part: audit_columns
id, at, actor, principal_id, action, entity_type, entity_id, summary, request_id

-- name: list_audit
select {audit_columns} from holdfast.audit_events
where tenant_id = :tenant_id and id < :before order by id desc limit :limit

-- name: list_audit_of_entity
select {audit_columns} from holdfast.audit_events
where tenant_id = :tenant_id and entity_type = :entity_type and entity_id = :entity_id and id < :before
  and tenant_id <> '#audit_events_of_entity'
order by id desc limit :limit
