-- name: claim_request
-- The action never runs before this row is there. A request that finds one does not run: it reads what stands there.
insert into holdfast.idempotency_keys (tenant_id, principal_id, operation, entity_id, key, hash_version, request_hash,
  status, locked_at, locked_by, created_at, expires_at)
values (cast(:tenant_id as text), cast(:principal_id as text), cast(:operation as text), cast(:entity_id as text),
  cast(:key as text), :hash_version, :request_hash, 'STARTED', :now, cast(:locked_by as text), :now, :expires_at)
on conflict do nothing

-- name: read_request
select hash_version, request_hash, status, response_status, response_headers, response, locked_at, locked_by,
  created_at, expires_at, completed_at
from holdfast.idempotency_keys
where tenant_id = :tenant_id and principal_id = :principal_id and operation = :operation and entity_id = :entity_id
  and key = :key

-- name: take_over_request
-- Of several who find it abandoned one wins: the lock that was read is the compare-and-set.
update holdfast.idempotency_keys set locked_at = :now, locked_by = cast(:locked_by as text)
where tenant_id = :tenant_id and principal_id = :principal_id and operation = :operation and entity_id = :entity_id
  and key = :key and status = 'STARTED' and locked_by = :found and locked_at <= :stale

-- name: settle_request
update holdfast.idempotency_keys set status = cast(:status as text), response_status = :response_status,
  response_headers = cast(:response_headers as text), response = :response, completed_at = :now, locked_at = null,
  locked_by = null
where tenant_id = :tenant_id and principal_id = :principal_id and operation = :operation and entity_id = :entity_id
  and key = :key and status = 'STARTED' and locked_by = :locked_by

-- name: forget_request
-- What was refused before anything happened burns no key.
delete from holdfast.idempotency_keys
where tenant_id = :tenant_id and principal_id = :principal_id and operation = :operation and entity_id = :entity_id
  and key = :key and status = 'STARTED' and locked_by = :locked_by

-- name: mark_request
-- In the transaction of the change itself. Whoever has lost the request to another changes nothing.
update holdfast.idempotency_keys set completed_at = :marked_at
where tenant_id = :tenant_id and principal_id = :principal_id and operation = :operation and entity_id = :entity_id
  and key = :key and status = 'STARTED' and locked_by = :locked_by

-- name: release_request
-- It went wrong in a way that may go better: whoever asks again takes it over at once, under the same ids.
update holdfast.idempotency_keys set locked_at = 0
where tenant_id = :tenant_id and principal_id = :principal_id and operation = :operation and entity_id = :entity_id
  and key = :key and status = 'STARTED' and locked_by = :locked_by

-- name: bury_requests
-- A few at a time: whoever else writes must not wait for a clean-up.
update holdfast.idempotency_keys set response = null, response_headers = null
where (tenant_id, principal_id, operation, entity_id, key) in (
  select tenant_id, principal_id, operation, entity_id, key from holdfast.idempotency_keys
  where expires_at <= :now and response is not null and tenant_id <> '#idempotency_keys_answers' limit :limit)

-- name: remove_tombstones
delete from holdfast.idempotency_keys
where (tenant_id, principal_id, operation, entity_id, key) in (
  select tenant_id, principal_id, operation, entity_id, key from holdfast.idempotency_keys
  where expires_at <= :before and tenant_id <> '#idempotency_keys_expiry' limit :limit)
