-- name: database_identity
-- Which server, since its initdb, and which database on it. Not every provider lets one ask for the first.
select (select system_identifier from pg_control_system())::text, oid::bigint
from pg_database where datname = current_database()

-- name: timeline
-- Grows with every promotion. A standby that is not promoted has none of its own.
select case when pg_is_in_recovery() then null
  else ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint end

-- name: database_oid
select oid::bigint from pg_database where datname = current_database()
