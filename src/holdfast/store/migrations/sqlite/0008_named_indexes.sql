-- SQLite plans by the schema alone, so its indexes need no names in the statements as PostgreSQL's do (decision 16).

-- By business key there is one index in place of two: as many instances share one as there are definitions, at most.
drop index holdfast_instances_of_business_key;
drop index holdfast_instances_business_key;
create unique index holdfast_instances_business_key on holdfast_instances (tenant_id, business_key, definition_key)
  where business_key is not null;

-- Nothing asked for tasks by their moment, or for the API keys of a principal.
drop index holdfast_tasks_due;
drop index holdfast_api_keys_of_principal;

-- Workers stay in the table when they are gone, and sessions among the keys.
create index holdfast_workers_unfenced on holdfast_workers (tenant_id, id) where fenced_at is null;
create index holdfast_workers_by_start on holdfast_workers (tenant_id, started_at);
create index holdfast_api_keys_for_programs on holdfast_api_keys (tenant_id, id) where kind in ('live', 'test');
