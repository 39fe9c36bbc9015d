-- Pre-fill Holdfast with :n completed 5-step instances, as a year-old installation would have (workload F).
insert into holdfast.instances (tenant_id, id, kind, definition_key, definition_version, business_key, status, fence,
                                input, result, seq, hash, created_at, started_at, completed_at)
select 'default', decode(lpad(to_hex(t / 1000), 12, '0') || '7' || substr(md5(i::text), 1, 19), 'hex'), 'code', 'wf5', 1,
       'old' || i, 'completed', 1, '"old"', '"old"', 7, decode(md5('h' || i) || md5('g' || i), 'hex'), t, t + 10, t + 50
from (select i, (extract(epoch from now()) * 1000000)::bigint - 86400000000 + i * 1000 as t
      from generate_series(1, :n) i) x;
insert into holdfast.history (tenant_id, instance_id, seq, type, name, fence, at, payload, salt, hash)
select tenant_id, id, s, case s when 1 then 'INSTANCE_STARTED' when 7 then 'INSTANCE_COMPLETED' else 'STEP_COMPLETED' end,
       'step#' || s, 1, created_at + s, '{"args":["a000123",2],"result":23}', decode(md5(s::text), 'hex'),
       decode(md5('a' || s) || md5('b' || s), 'hex')
from holdfast.instances, generate_series(1, 7) s;
