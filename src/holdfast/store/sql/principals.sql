-- name: find_api_key
-- By its hash alone: a request shows its key before anybody knows its tenant.
select k.tenant_id, k.id, k.kind, k.scopes, k.expires_at, k.revoked_at, k.principal_id
from holdfast.api_keys k where k.hash = :hash and k.tenant_id <> '#api_keys_found'
