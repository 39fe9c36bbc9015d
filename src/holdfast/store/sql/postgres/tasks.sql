-- name: list_tasks_of_group
-- Open ones only: those are filed under their groups. Each is looked up by itself: a join would be free to read them all.
select {task_listed}, place, case when {task_wanted} and status in ('pending', 'running') then 1 else 0 end as wanted from (
  {members}
) members cross join lateral (
  select {task_columns} from holdfast.tasks where tenant_id = :tenant_id and id = task_id limit 1
) member
where ({task_wanted} and status in ('pending', 'running')) or place = :looked
order by place limit :limit

-- name: before_a_word
with recursive names (name, place) as (
  select cast('' as text), 0
  union all
  select ({next_name}), n.place + 1 from names n where n.name is not null and n.place < :limit
)
select * from (
  {first_order}
) orders
union all
select * from (
  select s.kind, s.name, s.payload, s.sent_at from names n cross join lateral (
    select e.kind, e.name, e.payload, e.sent_at, e.id from holdfast.events e
    where e.tenant_id = :tenant_id and e.instance_id = :instance_id and e.consumed_seq is null and e.kind = 'signal'
      and e.tenant_id <> '#events_signals' and e.name = n.name
    order by e.sent_at, e.id limit :limit
  ) s
  where n.place > 0 and n.name is not null
  order by s.sent_at, s.id limit :limit
) signals
