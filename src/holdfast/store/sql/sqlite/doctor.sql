-- name: database_version
select sqlite_version()

-- name: journal_mode
pragma journal_mode
