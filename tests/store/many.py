"""Many rows in every table, made by the database itself, for tests of how a statement is answered as tables grow."""

from __future__ import annotations

from collections.abc import Iterator

SPELLED = {
    "postgres": {
        "series": "from generate_series(1::bigint, {size}) as series (n)",
        "id": "decode(lpad(to_hex({n}), 32, '0'), 'hex')",
        "blob": "'{value}'::bytea",
    },
    "sqlite": {
        "series": "from (with recursive s (n) as (select 1 union all select n + 1 from s where n < {size}) "
        "select n from s)",
        "id": "unhex(printf('%032x', {n}))",
        "blob": "cast('{value}' as blob)",
    },
}


NINE_OF_TEN = "case when n % 10 < 9 then 'acme' when n % 20 < 10 then 'abel' else 'zoe' end"


def rows_of(dialect: str, size: int, *, tenant: str = NINE_OF_TEN, few: int | None = None) -> Iterator[str]:
    """One insert for each table with lists, `few` rows where few are the rule. What a filter asks for is rare, or
    nearly all there is."""
    words = SPELLED[dialect]

    def id_(expression: str) -> str:
        return words["id"].format(n=expression)

    def series(count: int) -> str:
        return words["series"].format(size=count)

    def blob(value: str) -> str:
        return words["blob"].format(value=value)

    yield f"""insert into holdfast.instances (tenant_id, id, kind, definition_key, definition_version, business_key,
        status, queue, run_at, locked_by, fence, input, parent_id, created_at, completed_at)
      select {tenant}, {id_("n")}, 'code',
        case when n % 1000 = 3 then 'rare' when n % 50 = 4 then 'some' else 'main' end, 1,
        case when n % 2 = 0 then 'bk-' || n end,
        case when n % 10000 = 7 then 'compensating' when n % 100 < 90 then 'completed' when n % 100 < 95 then 'waiting'
          when n % 100 < 97 then 'failed' when n % 100 = 97 then 'cancelled' when n % 100 = 98 then 'pending'
          else 'running' end,
        case when n % 1000 = 998 then 'slow' else 'default' end,
        case when n % 100 = 98 then n when n % 100 = 92 then {1 << 60} + n end,
        case when n % 100 = 99 then {id_("1")} end, case when n % 100 = 99 then 1 else 0 end,
        {blob("{}")}, case when n % 10 = 1 then {id_("1")} end, n / 3 * 1000, case when n % 100 < 90 then n * 1000 end
      {series(size)}"""
    # One business key, of as many definitions as share it.
    yield f"""insert into holdfast.instances (tenant_id, id, kind, definition_key, definition_version, business_key,
        status, queue, input, created_at)
      select 'acme', {id_(f"{size} + n")}, 'code', 'def-' || n, 1, 'shared', 'waiting', 'default', {blob("{}")},
        n * 1000
      {series(20)}"""
    yield f"""insert into holdfast.history (tenant_id, instance_id, seq, type, name, fence, at, payload, hash)
      select {tenant}, case when n % 10 = 0 then {id_("1")} else {id_("n / 5 + 1")} end, n,
        case when n % 100 = 1 then 'STEP_FAILED' else 'STEP_COMPLETED' end, 's', 1, n * 1000000, {blob("{}")},
        {blob("x" * 32)}
      {series(size)}"""
    yield f"""insert into holdfast.tasks (tenant_id, id, instance_id, definition_key, key, type, name, status,
        idempotency_key, input, options, assignee, groups, priority, created_at, completed_at, closed_at)
      select {tenant}, {id_("n")}, {id_("n / 4")}, 'main', 't/' || n,
        case when n % 10 < 5 then 'SYSTEM' when n % 1000 = 6 then 'AI' when n % 100 = 8 then 'HTTP' else 'HUMAN' end,
        't',
        case when n % 7 < 2 then 'pending' when n % 700 = 2 then 'running' when n % 500 = 9 then 'failed'
          when n % 300 = 9 then 'cancelled' when n % 9000 = 9 then 'skipped' else 'succeeded' end,
        'k', {blob("{}")}, {blob("{}")}, case when n % 10000 = 7 then 'rarely' when n % 10 = 7 then 'ann' end,
        case when n % 10 < 5 then null when n % 1000 = 5 then '["rare","all"]' when n % 10 = 5 then '["all"]' end,
        case when n % 500 = 5 then 5 else 0 end, n / 3 * 1000, case when n % 7 < 2 then null else n * 1000 end,
        case when n % 7 < 2 or n % 700 = 2 then null else n * 1000 end
      {series(size)}"""
    yield f"""insert into holdfast.effects (tenant_id, id, instance_id, step, mode, state, attempt, idempotency_key,
        request_hash, request, fence, worker_id, first_started_at, started_at, not_after, opens_at)
      select {tenant}, {id_("n")}, {id_("n / 3")}, 's', 'manual',
        case when n % 1000 = 6 then 'outcome_unknown' when n % 1000 = 7 then 'failed' when n % 1000 = 8 then 'started'
          when n % 9000 = 9 then 'resolved' else 'succeeded' end,
        1, 'k', {blob("x")}, {blob("{}")}, 1, {blob("x")}, n, n / 3 * 1000, n, n
      {series(size)}"""
    yield f"""insert into holdfast.dead_letters (tenant_id, id, source, reason, payload, created_at)
      select {tenant}, {id_("n")}, 'instance', 'r', {blob("{}")}, n / 3 * 1000 {series(size)}"""
    yield f"""insert into holdfast.audit_events (tenant_id, id, at, actor, action, entity_type, entity_id, summary)
      select {tenant}, {id_("n")}, n, 'ann', 'a', case when n % 1000 = 5 then 'key' else 'task' end,
        case when n % 2 = 0 then 'one' else 'e' || n end, '{{}}'
      {series(size)}"""
    few = few or max(1000, size // 10)
    yield f"""insert into holdfast.definitions (tenant_id, key, version, id, kind, status, hash, spec, handlers,
        created_at, created_by, changed_at, changed_by)
      select {tenant}, case when n % 2 = 0 then 'busy' else 'def-' || n end, n, {id_("n")}, 'chart',
        case when n % 1000 = 8 then 'inactive' when n % 9000 = 14 then 'archived' else 'active' end, 'h' || n, '{{}}',
        '[]', n, 'ann', n, 'ann'
      {series(few)}"""
    yield f"""insert into holdfast.principals (tenant_id, id, kind, name, roles, status, created_at, created_by,
        changed_at, changed_by)
      select {tenant}, {id_("n")}, 'service', 'p' || n, '[]', 'active', n, 'ann', n, 'ann' {series(few)}"""
    yield f"""insert into holdfast.api_keys (tenant_id, id, principal_id, name, kind, hash, shown, created_at,
        created_by)
      select {tenant}, {id_("n")}, {id_("n")}, 'k', case when n % 1000 = 1 then 'live' else 'session' end, {id_("n")},
        'hf', n, 'ann' {series(few)}"""
    yield f"""insert into holdfast.task_comments (tenant_id, task_id, id, at, author, body)
      select 'acme', {id_("1")}, {id_("n")}, n, 'ann', 'b' {series(few)}"""


def other_rows_of(dialect: str, size: int, *, tenant: str = NINE_OF_TEN) -> Iterator[str]:
    """One insert for each table that `rows_of` leaves empty. The worker with id 1 holds the claims."""
    words = SPELLED[dialect]
    series = words["series"].format(size=size)
    payload = words["blob"].format(value="{}")

    def id_(expression: str) -> str:
        return words["id"].format(n=expression)

    yield f"""insert into holdfast.workers (tenant_id, id, host, pid, started_at, heartbeat_at, stopped_at, fenced_at,
        liveness, definitions)
      select '*', {id_("n")}, 'here', n, n, n, case when n > 3 then n end, case when n > 3 then n end, '0', 'main v1'
      {series}"""
    yield f"""insert into holdfast.events (tenant_id, instance_id, id, kind, name, payload, sent_at, consumed_seq)
      select {tenant}, {id_("n")}, 'e' || n, 'signal', 'go', {payload}, n, case when n % 100 < 95 then 1 end
      {series}"""
    yield f"""insert into holdfast.effect_observations (tenant_id, id, effect_id, instance_id, worker_id, fence,
        attempt, observed_at, outcome, payload)
      select {tenant}, {id_("n")}, {id_("n / 2")}, {id_("n / 3")}, {id_("1")}, 1, 1, n, 'late', {payload} {series}"""
    yield f"""insert into holdfast.idempotency_keys (tenant_id, principal_id, operation, entity_id, key, hash_version,
        request_hash, status, response, created_at, expires_at)
      select {tenant}, 'p' || n % 3, 'POST /x', '', 'k' || n, 1, {payload},
        case when n % 1000 = 1 then 'STARTED' else 'SUCCEEDED' end, case when n % 2 = 0 then {payload} end, n,
        case when n % 1000 = 2 then 5 else {1 << 60} + n end
      {series}"""
    yield f"""insert into holdfast.task_groups (tenant_id, name, urgency, made_at, task_key, task_id)
      select {tenant}, 'all', 0, n, 't/' || n, {id_(f"{size} + n")} {series}"""
    yield f"""insert into holdfast.tenants (tenant_id, changed_at, changed_by)
      select 'tenant-' || n, n, 'ann' {series}"""
