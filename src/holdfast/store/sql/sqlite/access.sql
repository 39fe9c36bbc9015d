-- part: audit_columns
id, at, actor, principal_id, action, entity_type, entity_id, summary, request_id

-- name: list_audit_of_entity
-- Named: SQLite takes the primary key, which has the order too, and would walk past everything about others.
select {audit_columns} from holdfast.audit_events indexed by holdfast_audit_events_of_entity
where tenant_id = :tenant_id and entity_type = :entity_type and entity_id = :entity_id and id < :before
order by id desc limit :limit
