-- name: database_version
select current_setting('server_version_num')::bigint, version()

-- name: backend_pid
select pg_backend_pid()

-- name: read_wall
select coalesce(bool_and(relrowsecurity), false), coalesce(bool_and(relforcerowsecurity), false),
  (select count(*) from pg_roles where rolname in ('holdfast_door', 'holdfast_worker'))
from pg_class where oid = to_regclass('holdfast.instances')
