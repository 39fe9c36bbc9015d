-- Parked instances, which are few, for a scrape and for `doctor`: counted without a look at those that sleep.
update holdfast_instances set waiting_on = 'parked: ' || waiting_on
where status = 'waiting' and waiting_on like 'the code contradicts its journal: %';
update holdfast_instances set waiting_on = 'parked: ' || substr(waiting_on, 11)
where status = 'waiting' and kind = 'chart' and waiting_on like 'a person: %';
create index holdfast_instances_parked on holdfast_instances (tenant_id, id)
  where substr(waiting_on, 1, 8) = 'parked: ';
