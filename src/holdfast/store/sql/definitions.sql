-- name: publish_definition
insert into holdfast.definitions (tenant_id, key, version, id, kind, status, hash, spec, handlers, created_at,
  created_by, changed_at, changed_by)
values (cast(:tenant_id as text), cast(:key as text), :version, :id, cast(:kind as text), 'active',
  cast(:hash as text), cast(:spec as text), cast(:handlers as text), :now, cast(:actor as text), :now,
  cast(:actor as text))
on conflict do nothing

-- name: find_definition_content
select version from holdfast.definitions where tenant_id = :tenant_id and key = :key and hash = :hash
  and tenant_id <> '#definitions_content'

-- name: newest_version
select coalesce(max(version), 0) from holdfast.definitions where tenant_id = :tenant_id and key = :key

-- name: newest_active_version
select max(version) from holdfast.definitions
where tenant_id = :tenant_id and key = :key and status = 'active' and tenant_id <> '#definitions_of_status'

-- name: read_definition
select id, key, version, kind, status, hash, handlers, created_at, created_by, changed_at, changed_by,
  revision, spec
from holdfast.definitions where tenant_id = :tenant_id and key = :key and version = :version

-- name: read_definition_by_id
select id, key, version, kind, status, hash, handlers, created_at, created_by, changed_at, changed_by,
  revision, spec
from holdfast.definitions where tenant_id = :tenant_id and id = :id and tenant_id <> '#definitions_id'

-- part: definition_columns
id, key, version, kind, status, hash, handlers, created_at, created_by, changed_at, changed_by, revision

-- name: list_definitions
-- By key, the newest version first: the rest of the last page's key, then the keys behind it.
select * from (
  select * from (select {definition_columns} from holdfast.definitions
    where tenant_id = :tenant_id and key = cast(:after_key as text) and version < :after_version
      and tenant_id <> '#definitions_by_key'
    order by version desc limit :limit) older
  union all
  select * from (select {definition_columns} from holdfast.definitions
    where tenant_id = :tenant_id and key > cast(:after_key as text) and tenant_id <> '#definitions_by_key'
    order by key, version desc limit :limit) others
) found order by key, version desc limit :limit

-- name: list_definitions_of_status
select * from (
  select * from (select {definition_columns} from holdfast.definitions
    where tenant_id = :tenant_id and status = cast(:status as text) and key = cast(:after_key as text) and version < :after_version
      and tenant_id <> '#definitions_of_status'
    order by version desc limit :limit) older
  union all
  select * from (select {definition_columns} from holdfast.definitions
    where tenant_id = :tenant_id and status = cast(:status as text) and key > cast(:after_key as text)
      and tenant_id <> '#definitions_of_status'
    order by key, version desc limit :limit) others
) found order by key, version desc limit :limit

-- name: list_definitions_of_key
select {definition_columns} from holdfast.definitions
where tenant_id = :tenant_id and key = cast(:key as text) and version < :after_version
order by version desc limit :limit

-- name: list_definitions_of_key_and_status
select {definition_columns} from holdfast.definitions
where tenant_id = :tenant_id and status = cast(:status as text) and key = cast(:key as text)
  and version < :after_version and tenant_id <> '#definitions_of_status'
order by version desc limit :limit

-- name: set_definition_status
update holdfast.definitions set status = cast(:status as text), changed_at = :now, changed_by = cast(:actor as text),
  revision = revision + 1
where tenant_id = :tenant_id and key = :key and version = :version and revision = :revision

-- name: changed_definitions
-- What a worker has not heard of yet. Clocks differ a little, so it asks for a while back.
select tenant_id, key, version, status, handlers, changed_at from holdfast.definitions
where changed_at >= :since and tenant_id <> '#definitions_changed'
