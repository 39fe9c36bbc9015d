-- name: queues_of_tenant
-- Through a function (0005_lists): what a door may see is one tenant's, and the way from queue to queue leads past others.
select queue, due, oldest from holdfast.queues_of_tenant(:tenant_id::text, :now::bigint, :counted::bigint, :heads::integer)
