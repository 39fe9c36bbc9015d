-- name: read_to_fork
select kind, definition_key, definition_version, status, queue, input, trace_id, epoch_seq from holdfast.instances
where tenant_id = :tenant_id and id = :id

-- name: read_epoch
select epoch, epoch_seq from holdfast.instances where tenant_id = :tenant_id and id = :id

-- name: count_lifting_events
-- Words in line that end a standstill: whoever is told "it stands still" would be told wrong.
select count(*) from holdfast.events
where tenant_id = :tenant_id and instance_id = :instance_id and consumed_seq is null
  and kind <> 'signal' and tenant_id <> '#events_words' and kind in ('resume', 'retry', 'cancel')

-- name: count_unpausing_events
select count(*) from holdfast.events
where tenant_id = :tenant_id and instance_id = :instance_id and consumed_seq is null
  and kind <> 'signal' and tenant_id <> '#events_words' and kind in ('resume', 'cancel')

-- name: words_not_taken
-- Of an instance that has ended: what was asked for while its last turn was on its way to disk, and came too late.
select kind, payload, sent_at from holdfast.events
where tenant_id = :tenant_id and instance_id = :instance_id and consumed_seq is null
  and kind <> 'signal' and tenant_id <> '#events_words' and kind in ('pause', 'resume', 'retry', 'cancel')
order by sent_at, id limit 5
