-- Pre-fill Holdfast with :n completed 5-step instances, as a year-old installation would have (workload F).
with recursive numbers(i) as (select 1 union all select i + 1 from numbers where i < :n),
moments(i, t) as (select i, (unixepoch() - 86400) * 1000000 + i * 1000 from numbers)
insert into holdfast_instances (tenant_id, id, kind, definition_key, definition_version, business_key, status, fence,
                                input, result, seq, hash, created_at, started_at, completed_at)
select 'default', unhex(format('%012x7%03x%016x', t / 1000, i % 4096, i * 2654435761)), 'code', 'wf5', 1, 'old' || i,
       'completed', 1, cast('"old"' as blob), cast('"old"' as blob), 7, randomblob(32), t, t + 10, t + 50
from moments;
insert into holdfast_history (tenant_id, instance_id, seq, type, name, fence, at, payload, salt, hash)
select i.tenant_id, i.id, s.value,
       case s.value when 1 then 'INSTANCE_STARTED' when 7 then 'INSTANCE_COMPLETED' else 'STEP_COMPLETED' end,
       'step#' || s.value, 1, i.created_at + s.value, cast('{"args":["a000123",2],"result":23}' as blob), randomblob(16),
       randomblob(32)
from holdfast_instances i cross join json_each('[1,2,3,4,5,6,7]') s;
