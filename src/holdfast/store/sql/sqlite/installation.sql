-- name: history_mark
-- Rows are only ever added, so this only ever grows: in a database where it shrank, an older state was put back.
select coalesce(max(rowid), 0) from holdfast.history
