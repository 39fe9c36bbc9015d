-- name: list_tasks_of_group
-- Open ones only: those are filed under their groups. Each is looked up by itself: a join would be free to read them all.
select {task_listed}, place, case when {task_wanted} and status in ('pending', 'running') then 1 else 0 end as wanted from (
  {members}
) members cross join lateral (
  select {task_columns} from holdfast.tasks where tenant_id = :tenant_id and id = task_id limit 1
) member
where ({task_wanted} and status in ('pending', 'running')) or place = :looked
order by place limit :limit
