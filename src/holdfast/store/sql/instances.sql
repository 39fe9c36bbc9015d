-- part: instance_columns
id, kind, definition_key, definition_version, business_key, status, waiting_on, queue, attempts, input,
  result, last_error, compensation, parent_id, parent_step, seq, current_state, created_at, started_at, completed_at,
  run_at, locked_by, woken, trace_id, created_by, epoch

-- part: instance_listed
id, kind, definition_key, definition_version, business_key, status, waiting_on, queue, attempts,
  case when length(input) <= :most then input end as input, case when length(result) <= :most then result end as result,
  case when length(last_error) <= :most then last_error end as last_error, compensation, parent_id, parent_step, seq,
  current_state, created_at, started_at, completed_at, run_at, locked_by, woken, trace_id, created_by, epoch,
  case when length(input) > :most then 'input ' else '' end
    || case when length(result) > :most then 'result ' else '' end
    || case when length(last_error) > :most then 'last_error ' else '' end as left_out

-- part: newest_entry
-- Of an instance `listed`: when its newest entry was written, and the call that its newest entries tell of. Entries that belong
-- to no call come in short runs; no more than twenty are passed over.
(select h.at from holdfast.history h where h.tenant_id = :tenant_id and h.instance_id = listed.id order by h.seq desc limit 1),
  (select e.name from (
    select h.seq, h.type, h.name from holdfast.history h where h.tenant_id = :tenant_id and h.instance_id = listed.id
    order by h.seq desc limit 20) e
   where e.type not like 'INSTANCE%' and e.type <> 'VALUE_RECORDED' order by e.seq desc limit 1)

-- part: instance_page
(created_at, id) < (:before_at, :before)
    and created_at >= :since order by created_at desc, id desc limit :limit

-- name: read_instance
select {instance_columns},
  (select coalesce(max(seq), 0) from holdfast.history h where h.tenant_id = listed.tenant_id and h.instance_id = listed.id),
  {newest_entry}
from holdfast.instances listed where tenant_id = :tenant_id and id = :id

-- name: list_instances
-- Newest first. Every status is a run of its own in the index; the page is merged from the heads of those asked for.
select listed.*, {newest_entry} from (select * from (
  select * from (select {instance_listed} from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_status' and status = 'pending' and cast(:statuses as text) like '%pending%' and {instance_page}) pending
  union all
  select * from (select {instance_listed} from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_status' and status = 'running' and cast(:statuses as text) like '%running%' and {instance_page}) running
  union all
  select * from (select {instance_listed} from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_status' and status = 'waiting' and cast(:statuses as text) like '%waiting%' and {instance_page}) waiting
  union all
  select * from (select {instance_listed} from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_status' and status = 'compensating' and cast(:statuses as text) like '%compensating%' and {instance_page}) compensating
  union all
  select * from (select {instance_listed} from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_status' and status = 'completed' and cast(:statuses as text) like '%completed%' and {instance_page}) completed
  union all
  select * from (select {instance_listed} from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_status' and status = 'failed' and cast(:statuses as text) like '%failed%' and {instance_page}) failed
  union all
  select * from (select {instance_listed} from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_status' and status = 'cancelled' and cast(:statuses as text) like '%cancelled%' and {instance_page}) cancelled
) found order by created_at desc, id desc limit :limit) listed order by listed.created_at desc, listed.id desc

-- name: list_instances_of_definition
select listed.*, {newest_entry} from (select * from (
  select * from (select {instance_listed} from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_definition' and definition_key = :definition_key and status = 'pending' and cast(:statuses as text) like '%pending%' and {instance_page}) pending
  union all
  select * from (select {instance_listed} from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_definition' and definition_key = :definition_key and status = 'running' and cast(:statuses as text) like '%running%' and {instance_page}) running
  union all
  select * from (select {instance_listed} from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_definition' and definition_key = :definition_key and status = 'waiting' and cast(:statuses as text) like '%waiting%' and {instance_page}) waiting
  union all
  select * from (select {instance_listed} from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_definition' and definition_key = :definition_key and status = 'compensating' and cast(:statuses as text) like '%compensating%' and {instance_page}) compensating
  union all
  select * from (select {instance_listed} from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_definition' and definition_key = :definition_key and status = 'completed' and cast(:statuses as text) like '%completed%' and {instance_page}) completed
  union all
  select * from (select {instance_listed} from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_definition' and definition_key = :definition_key and status = 'failed' and cast(:statuses as text) like '%failed%' and {instance_page}) failed
  union all
  select * from (select {instance_listed} from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_definition' and definition_key = :definition_key and status = 'cancelled' and cast(:statuses as text) like '%cancelled%' and {instance_page}) cancelled
) found order by created_at desc, id desc limit :limit) listed order by listed.created_at desc, listed.id desc

-- name: list_instances_of_business_key
-- A business key is shared by as many instances as there are definitions, at most.
select listed.*, {newest_entry} from (select {instance_listed} from holdfast.instances
where tenant_id = :tenant_id and business_key = cast(:business_key as text) and tenant_id <> '#instances_business_key'
  and (cast(:definition_key as text) is null or definition_key = cast(:definition_key as text))
  and cast(:statuses as text) like '%' || status || '%' and {instance_page}) listed
order by listed.created_at desc, listed.id desc

-- name: list_children
select listed.*, {newest_entry} from (select {instance_listed} from holdfast.instances
where tenant_id = :tenant_id and parent_id = :parent_id and tenant_id <> '#instances_of_parent' and {instance_page}) listed
order by listed.created_at desc, listed.id desc

-- name: child_ids
select id from holdfast.instances
where tenant_id = :tenant_id and parent_id = :parent_id and tenant_id <> '#instances_of_parent' limit :limit

-- name: find_business_key
select id, input, status from holdfast.instances
where tenant_id = :tenant_id and definition_key = :definition_key and business_key = :business_key
  and tenant_id <> '#instances_business_key'

-- name: read_ending
select status, result, last_error, waiting_on, completed_at from holdfast.instances
where tenant_id = :tenant_id and id = :id

-- name: read_stored
-- What a claim would bring beside the history, and how the instance stands.
select kind, definition_key, definition_version, status, waiting_on, input, fence, attempts, woken, created_at, epoch,
  epoch_seq, seq, hash, locked_by
from holdfast.instances where tenant_id = :tenant_id and id = :id

-- name: read_stored_tasks
-- The open tasks of a chart, as a claim would bring them.
select id, key, type, name, status, run_at, attempts, max_attempts, input, options, invoke_id, visit, standing_type,
  standing, created_at
from holdfast.tasks where tenant_id = :tenant_id and instance_id = :instance_id and closed_at is null
  and tenant_id <> '#tasks_of_instance'
order by created_at, key

-- name: read_history
select seq, type, name, fence, at, payload, salt, hash, payload_hash from holdfast.history
where tenant_id = :tenant_id and instance_id = :instance_id and seq > :after order by seq limit :limit

-- name: history_in_short
-- Payloads of these types only: the others say `instead`, and how long they are.
select seq, type, name, at, hash, length(payload) as bytes,
  case when cast(:types as text) like '% ' || type || ' %' then payload when length(payload) >= 0 then :instead end
from holdfast.history
where tenant_id = :tenant_id and instance_id = :instance_id and seq >= :since order by seq limit :limit

-- part: history_columns
seq, type, name, fence, at, payload, salt, hash, payload_hash

-- name: history_forward
-- How many bytes a page comes to is added up first, over lengths alone; the first entry is there in any case. Where the
-- page ends is said twice, or the rest of a long history is looked through, too.
with page as (
  select seq, sum(bytes) over (order by seq) - bytes as before_it from (
    select seq, coalesce(length(payload), 0) as bytes from holdfast.history
    where tenant_id = :tenant_id and instance_id = :instance_id and seq > :after
      and (cast(:types as text) is null or cast(:types as text) like '% ' || type || ' %')
    order by seq limit :limit) found
)
select {history_columns} from holdfast.history
where tenant_id = :tenant_id and instance_id = :instance_id and seq > :after
  and seq <= (select max(seq) from page where before_it <= :most)
  and seq in (select seq from page where before_it <= :most)
order by seq

-- name: history_back
with page as (
  select seq, sum(bytes) over (order by seq desc) - bytes as before_it from (
    select seq, coalesce(length(payload), 0) as bytes from holdfast.history
    where tenant_id = :tenant_id and instance_id = :instance_id and seq < :before
      and (cast(:types as text) is null or cast(:types as text) like '% ' || type || ' %')
    order by seq desc limit :limit) found
)
select {history_columns} from holdfast.history
where tenant_id = :tenant_id and instance_id = :instance_id and seq < :before
  and seq >= (select min(seq) from page where before_it <= :most)
  and seq in (select seq from page where before_it <= :most)
order by seq desc

-- name: wake_unless_moved
-- The row itself is the compare-and-set: whoever comes second finds it woken once more.
update holdfast.instances as i set woken = i.woken + 1,
  last_sent_at = case when i.last_sent_at < :sent_at then :sent_at else i.last_sent_at + 1 end,
  run_at = case when i.locked_by is not null then i.run_at
                when i.run_at is null or i.run_at > :now then :now else i.run_at end
where i.tenant_id = :tenant_id and i.id = :instance_id and i.completed_at is null and i.woken + (
    select coalesce(max(seq), 0) from holdfast.history h where h.tenant_id = :tenant_id and h.instance_id = :instance_id
  ) = :moved
  -- Said by the row too: a turn we had to wait for has moved it, and the look at its history is from before.
  and i.woken + i.seq <= :moved

-- name: add_event
insert into holdfast.events (tenant_id, instance_id, id, kind, name, payload, sent_at, sent_by)
select cast(:tenant_id as text), :instance_id, cast(:id as text), cast(:kind as text), cast(:name as text), :payload,
  i.last_sent_at, cast(:sent_by as text)
from holdfast.instances i where i.tenant_id = :tenant_id and i.id = :instance_id
on conflict do nothing

-- name: read_event
select kind, name, payload, sent_at, consumed_seq from holdfast.events
where tenant_id = :tenant_id and instance_id = :instance_id and id = :id

-- name: start_alone
-- One start on the caller's own connection. Casts, because not every library says what it sends.
insert into holdfast.instances (tenant_id, id, kind, definition_key, definition_version, business_key, status,
                                queue, priority, run_at, input, trace_id, created_at)
values (cast(:tenant_id as text), :id, cast(:kind as text), cast(:definition_key as text), :definition_version,
        cast(:business_key as text), 'pending', cast(:queue as text), :priority, cast(:run_at as bigint), :input,
        cast(:trace_id as text), cast(:created_at as bigint))
on conflict do nothing
returning id

-- name: count_backlog
-- Counts no further than the limit, so that a long queue costs no more than a short one.
select count(*) from (
  select 1 from holdfast.instances
  where queue = :queue and run_at is not null and locked_by is null and tenant_id <> '#instances_due'
    and status = 'pending' limit :limit
) waiting

-- name: read_snapshot
select snapshot, definition_key, definition_version, status from holdfast.instances
where tenant_id = :tenant_id and id = :id

-- part: matching
created_at < :until and created_at >= :since and definition_key not like 'holdfast.%' limit :limit

-- name: next_tenant
-- The first one after that which has instances: from one to the next by the primary key, however many instances each has.
select min(tenant_id) from holdfast.instances where tenant_id > :after

-- name: count_matching
-- Counts no further than the limit, and no statuses but those asked for.
select count(*) from (
  select * from (select 1 from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_status'
      and status = 'pending' and cast(:statuses as text) like '%pending%' and {matching}) pending
  union all
  select * from (select 1 from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_status'
      and status = 'running' and cast(:statuses as text) like '%running%' and {matching}) running
  union all
  select * from (select 1 from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_status'
      and status = 'waiting' and cast(:statuses as text) like '%waiting%' and {matching}) waiting
  union all
  select * from (select 1 from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_status'
      and status = 'compensating' and cast(:statuses as text) like '%compensating%' and {matching}) compensating
  union all
  select * from (select 1 from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_status'
      and status = 'completed' and cast(:statuses as text) like '%completed%' and {matching}) completed
  union all
  select * from (select 1 from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_status'
      and status = 'failed' and cast(:statuses as text) like '%failed%' and {matching}) failed
  union all
  select * from (select 1 from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_status'
      and status = 'cancelled' and cast(:statuses as text) like '%cancelled%' and {matching}) cancelled
  limit :limit
) found

-- name: count_matching_of_definition
select count(*) from (
  select * from (select 1 from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_definition' and definition_key = :definition_key
      and status = 'pending' and cast(:statuses as text) like '%pending%' and {matching}) pending
  union all
  select * from (select 1 from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_definition' and definition_key = :definition_key
      and status = 'running' and cast(:statuses as text) like '%running%' and {matching}) running
  union all
  select * from (select 1 from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_definition' and definition_key = :definition_key
      and status = 'waiting' and cast(:statuses as text) like '%waiting%' and {matching}) waiting
  union all
  select * from (select 1 from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_definition' and definition_key = :definition_key
      and status = 'compensating' and cast(:statuses as text) like '%compensating%' and {matching}) compensating
  union all
  select * from (select 1 from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_definition' and definition_key = :definition_key
      and status = 'completed' and cast(:statuses as text) like '%completed%' and {matching}) completed
  union all
  select * from (select 1 from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_definition' and definition_key = :definition_key
      and status = 'failed' and cast(:statuses as text) like '%failed%' and {matching}) failed
  union all
  select * from (select 1 from holdfast.instances
    where tenant_id = :tenant_id and tenant_id <> '#instances_of_definition' and definition_key = :definition_key
      and status = 'cancelled' and cast(:statuses as text) like '%cancelled%' and {matching}) cancelled
  limit :limit
) found

-- name: count_matching_of_business_key
select count(*) from (
  select 1 from holdfast.instances
  where tenant_id = :tenant_id and business_key = cast(:business_key as text) and tenant_id <> '#instances_business_key'
    and (cast(:definition_key as text) is null or definition_key = cast(:definition_key as text))
    and cast(:statuses as text) like '%' || status || '%' and {matching}
) found
