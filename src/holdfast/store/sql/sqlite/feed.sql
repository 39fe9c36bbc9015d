-- name: feed_end
select max(rowid) from holdfast.history

-- name: feed_between
select h.rowid, h.instance_id, i.definition_key, h.seq, h.type, h.name, h.at from holdfast.history h
join holdfast.instances i on i.tenant_id = h.tenant_id and i.id = h.instance_id
where +h.tenant_id = :tenant_id and h.rowid > :low and h.rowid <= :high order by h.rowid limit :limit
