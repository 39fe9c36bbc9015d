-- The moment of the newest event sent to an instance. The next one comes after it, whatever its sender's clock says:
-- events are taken in the order in which they were acknowledged.
alter table holdfast.instances add column last_sent_at bigint not null default 0;
update holdfast.rights set privileges = 'select, insert, update (woken, run_at, last_sent_at)'
where relation = 'instances' and role = 'holdfast_door';
