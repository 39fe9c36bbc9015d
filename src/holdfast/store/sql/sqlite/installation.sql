-- name: newest_moment
-- When the newest row was written; 0: there is none.
select coalesce((select at from holdfast.history order by rowid desc limit 1), 0)

-- name: history_mark
-- Rows are only ever added, so this only ever grows: in a database where it shrank, an older state was put back.
select coalesce(max(rowid), 0) from holdfast.history
