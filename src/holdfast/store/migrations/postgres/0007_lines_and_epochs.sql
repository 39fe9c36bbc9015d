-- Events that no turn has taken, without those that were: signals in a line for each name, everything else in one.
create index events_words on holdfast.events (tenant_id, instance_id, sent_at, id)
  where consumed_seq is null and kind <> 'signal';
create index events_signals on holdfast.events (tenant_id, instance_id, name, sent_at, id)
  where consumed_seq is null and kind = 'signal';

-- The history row with which this epoch of the instance began; 0: its first, which began with its history.
alter table holdfast.instances add column epoch_seq bigint not null default 0;
