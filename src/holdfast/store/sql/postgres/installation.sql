-- name: database_identity
-- Which server, since its initdb, and which database on it. Not every provider lets one ask for the first.
select (select system_identifier from pg_control_system())::text, oid::bigint
from pg_database where datname = current_database()

-- name: database_oid
select oid::bigint from pg_database where datname = current_database()
