-- The moment of the newest event sent to an instance. The next one comes after it, whatever its sender's clock says:
-- events are taken in the order in which they were acknowledged.
alter table holdfast_instances add column last_sent_at integer not null default 0;
