-- part: definition_columns
id, key, version, kind, status, hash, handlers, created_at, created_by, changed_at, changed_by, revision

-- name: list_definitions_of_key_and_status
-- Named: SQLite takes the index of the versions alone, and would look through them all.
select {definition_columns} from holdfast.definitions indexed by holdfast_definitions_of_status
where tenant_id = :tenant_id and status = cast(:status as text) and key = cast(:key as text)
  and version < :after_version
order by version desc limit :limit
