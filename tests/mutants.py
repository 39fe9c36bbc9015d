"""Plants one fault at a time in a copy of the source and shows that the suite notices: `make mutants`.

Each mutant removes one guard. The tests named with it must pass on the untouched source and fail on the mutant;
a mutant that lives means that the guard is not tested, and the command fails.

A mutant that died is written down (`tests/.mutants`) with a digest of what it says, of the file that it changes and of
the tests named with it. The next run passes it over while all three are the same, so a run may be interrupted and taken
up again; `--fresh` begins anew.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
DIED = ROOT / "tests" / ".mutants"  # one empty file for each mutant that died, named by its digest


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: str  # pytest arguments


CRASH = "tests/crash/test_crash_anywhere.py"
BIRTH = "tests/flows/test_claimed_from_birth.py"
CONTROL = "tests/flows/test_control.py -k sqlite"
MUTANTS = [
    Mutant("a parked instance may say what no database holds", "worker/execution.py",
           "difference = storable(mistake or", "difference = str(mistake or",
           "tests/flows/test_mistakes.py -k 'sqlite and no_database'"),
    Mutant("an effect may say what no database holds", "worker/effects.py",
           "    reason = storable(reason)", "    reason = reason",
           "tests/flows/test_mistakes.py -k 'sqlite and no_database'"),
    Mutant("a body that comes late takes the place of another", "worker/kept.py",
           "        self.drop(id_)  # of an earlier claim", "        pass  # of an earlier claim",
           "tests/flows/test_kept.py -k 'sqlite and handed_back_late'"),
    Mutant("a signal that is sent again at the same moment counts as new", "app/service.py",
           "        if event in self._sent:", "        if False:",
           "tests/flows/test_waits.py -k 'sqlite and same_signal_id'"),
    Mutant("a handler in a thread ends the process", "handlers/calls.py",
           "copy_context().run, _contained, function, args", "copy_context().run, function, *args",
           "tests/flows/test_stacks.py -k 'sqlite and exits_fails_alone'"),
    Mutant("errors that led to another keep their secrets", "engine/stacks.py",
           "without_secrets(message_of(one))[:CAUSE_MESSAGE_MAX]", "message_of(one)[:CAUSE_MESSAGE_MAX]",
           "tests/engine/test_stacks.py -k without_secrets"),
    Mutant("a secret is looked for after the text was cut", "engine/stacks.py",
           "without_secrets(message_of(one))[:CAUSE_MESSAGE_MAX]",
           "without_secrets(message_of(one)[:CAUSE_MESSAGE_MAX])",
           "tests/engine/test_stacks.py -k without_secrets"),
    Mutant("a secret that source code spells out is logged", "engine/hiding.py",
           'NAMED.sub(rf"\\g<before>{HIDDEN}", text)', "text",
           "tests/flows/test_stacks.py -k 'sqlite and source_line'"),
    Mutant("a retry that starts nothing says nothing", "cli/instances.py",
           "    if before is not None:", "    if False:",
           "tests/cli/test_instances.py -k 'sqlite and tried_again_already'"),
    Mutant("a business key of another workflow counts as taken", "cli/instances.py",
           "for one in (view for view in there if view.id == handle.id):", "for one in there:",
           "tests/cli/test_instances.py -k 'sqlite and key_that_is_taken'"),
    Mutant("a result is awaited for ever on a clock that stands still", "app/instances.py",
           "if left is None and (advice := service.waiters.in_vain(began)):", "if False:",
           "tests/flows/test_instances.py -k 'sqlite and no_clock_will_bring'"),
    Mutant("a result is given up while the test's clock moves", "testing.py",
           "if seen != self._seen or", "if self._seen_at == 0.0 or",
           "tests/flows/test_instances.py -k 'sqlite and moves_the_clock'"),
    Mutant("a start joins Django's connection outside a transaction", "app/joining.py",
           "if not connection.in_atomic_block:", "if False:", "tests/test_web_frameworks.py -k sqlite_is_refused"),
    Mutant("what a fork takes over is counted again", "metrics.py",
           "if execution.copied and rows[0][2] == 1:", "if False:", "tests/test_metrics.py -k 'sqlite and fork'"),
    Mutant("a body's log speaks in replay", "engine/body_log.py", "if self._replaying():", "if False:",
           "tests/flows/test_body_log.py -k sqlite"),
    Mutant("a body that is put away still logs", "engine/replay.py",
           "bool(self._released or self.closed or journal.ending_type)", "bool(self._released or journal.ending_type)",
           "tests/flows/test_body_log.py -k sqlite"),
    Mutant("a plain step's fields stay on what follows from its result", "worker/running.py",
           "    SCOPE.set(None)\n    try:", "    try:", "tests/test_logs.py"),
    Mutant("a handler's fields stay on what follows from its result", "worker/running.py",
           "    SCOPE.set(None)  # what", "    pass  # what", "tests/test_logs.py"),
    Mutant("an error may be of any size", "engine/stacks.py",
           "while causes and _size(found, stack, causes) > ERROR_BYTES:", "while False:",
           "tests/engine/test_stacks.py"),
    Mutant("an error keeps every frame", "engine/stacks.py", "if len(chosen) > limit:", "if False:",
           "tests/engine/test_stacks.py"),
    Mutant("a ring of causes is walked again and again", "engine/stacks.py",
           "        if id(one) in seen:", "        if False:", "tests/engine/test_stacks.py"),
    Mutant("a kept exception keeps the values of its frames", "app/service.py",
           "if not self.keep_locals:", "if False:", "tests/flows/test_stacks.py -k 'sqlite and keeps_no_values'"),
    Mutant("a chart is told the stack of a task", "worker/tasks.py",
           "result = result if done else without_stack(result)", "",
           "tests/flows/test_stacks.py -k 'sqlite and without_its_stack'"),
    Mutant("a SQLite file that was open at a fork is opened anew in the child", "store/inherited.py",
           "_refused.add(file)", "pass", "tests/flows/test_fork.py -k sqlite_file_open_is_refused"),
    Mutant("a forked child keeps the lock files and sessions of its parent's worker", "store/inherited.py",
           "os.dup2(nothing, descriptor, inheritable=False)", "pass", "tests/flows/test_fork.py -k killed_worker"),
    Mutant("a forked child uses the loop of its parent", "sync.py",
           "    for sync in list(ALL):\n        sync.left_behind()", "    pass",
           "tests/flows/test_fork.py -k opens_it_anew"),
    Mutant("a store of the parent is not refused in a child", "facade.py",
           "inherited.leave_behind(self._service.store)", "pass", "tests/flows/test_fork.py -k handle_of_the_parent"),
    Mutant("hf.sync is left open at the end of a process", "sync.py", "atexit.register(_at_exit)", "pass",
           "tests/flows/test_fork.py -k ends_in_silence"),
    Mutant("the end of one block closes what others use", "sync.py",
           "if self._blocks <= 0 and not self._stays:", "if True:", "tests/flows/test_sync.py -k end_of_one_block"),
    Mutant("the library does not read the settings file", "facade.py",
           "self.url = url or found.database_url or DEFAULT_URL", "self.url = url or DEFAULT_URL",
           "tests/test_settings_of_the_library.py"),
    Mutant("a command takes a variable before what the app gives as an argument", "cli/app.py",
           "if not hf.url_is_given or self._flagged():", "if self.found.values.database_url:",
           "tests/test_cli.py -k the_apps_own"),
    Mutant("a relative path in a settings file elsewhere follows the working directory", "settings.py",
           "if path.parent != folder.absolute():", "if False:", "tests/test_settings_of_the_library.py"),
    Mutant("the worker's fence is not looked at in a commit (SQLite)", "store/sqlite.py",
           'if connection.execute(live, (worker_id,)).fetchone() is None:\n                raise _Lost',
           'if False:\n                raise _Lost', "tests/store tests/spine -k sqlite"),
    Mutant("the worker's fence is not looked at in a commit (PostgreSQL)", "store/sql/postgres/commit.sql",
           "where tenant_id = '*' and id = :worker_id and fenced_at is null\n  for key share",
           "where tenant_id = '*' and id = :worker_id\n  for key share", "tests/store tests/spine -k postgres"),
    Mutant("the claim's fence is not compared (SQLite)", "store/sql/sqlite/commit.sql",
           "and i.locked_by = :worker_id and i.fence = h.fence", "and :worker_id is not null",
           "tests/store tests/spine -k sqlite"),
    Mutant("the claim's fence is not compared (PostgreSQL)", "store/sql/postgres/commit.sql",
           "and i.fence = h.fence\n      and i.locked_by is not distinct from me.id", "",
           "tests/store tests/spine -k postgres"),
    Mutant("a fenced worker is given claims from birth (SQLite)", "store/sql/sqlite/commit.sql",
           "and w.id = s.claimed_by and w.fenced_at is null", "and w.id = s.claimed_by", "tests/store -k sqlite"),
    Mutant("a fenced worker is given claims from birth (PostgreSQL)", "store/sql/postgres/commit.sql",
           "id = named.id and fenced_at is null", "id = named.id",
           "tests/store -k postgres"),
    Mutant("a birth does not wait for the fencing of its worker (PostgreSQL)", "store/sql/postgres/commit.sql",
           "id = named.id and fenced_at is null\n    for key share", "id = named.id and fenced_at is null",
           "tests/store"),
    Mutant("a list's index is open to every statement (PostgreSQL)", "store/migrations/postgres/0008_named_indexes.sql",
           "status, created_at, id)\n  where tenant_id <> '#instances_of_definition'", "status, created_at, id)",
           "tests/store/test_plans.py -k empty_tables"),
    Mutant("a statement does not name its index (SQLite)", "store/sql/effects.sql",
           "instance_id = :instance_id and tenant_id <> '#effects_of_instance'\norder by started_at",
           "instance_id = :instance_id\norder by started_at", "tests/store/test_plans.py -k sqlite"),
    Mutant("a list of keys is joined as the planner likes (PostgreSQL)", "store/sql/postgres/commit.sql",
           "t.tenant_id = any(array[c.tenant_id])", "t.tenant_id = c.tenant_id",
           "tests/store/test_plans.py -k empty_tables"),
    Mutant("the feed goes through the tenant's whole history (PostgreSQL)", "store/sql/postgres/feed.sql",
           "tenant_id || '' = :tenant_id", "tenant_id = :tenant_id", "tests/store/test_plans.py -k empty_tables"),
    Mutant("the feed leaves the newest history to a vacuum (PostgreSQL)", "app/feed.py",
           'await self.service.store.fetch("summarize_history", tenant_id=self.tenant_id)', "pass",
           "tests/store/test_walls.py -k feed"),
    Mutant("the wall is a way into a tenant's rows (PostgreSQL)", "store/migrations/postgres/0008_named_indexes.sql",
           " collate \"C\"'", "'", "tests/store/test_plans.py -k 'empty_tables or statistics'"),
    Mutant("a fencing does not wait for the batch under way (PostgreSQL)", "store/postgres.py",
           'await connection.execute(statement("lock_worker", "postgres").sql, worker_id)', "pass", "tests/store"),
    Mutant("a claim on its way is taken for a lost one", "worker/worker.py",
           "if in_doubt and id_ not in self._expected:", "if in_doubt:", BIRTH),
    Mutant("a doubt raised while claims are looked at is forgotten", "worker/worker.py",
           "        except BaseException:\n            self._claims_in_doubt |= in_doubt\n            raise",
           "        finally:\n            self._claims_in_doubt = False", BIRTH),
    Mutant("a worker runs what it was born with under an older name", "worker/worker.py",
           "if born.claimed_by == self.id and not self.stopping and not self._is_fenced():", "if not self.stopping:",
           BIRTH),
    Mutant("a stopping worker keeps what is born to it", "worker/worker.py",
           "self.spawn(self._decline(born))", "pass", BIRTH),
    Mutant("births do not count against the room of claims", "worker/worker.py",
           "self.concurrency - len(self.executions) - len(self._expected), CLAIM_MAX",
           "self.concurrency - len(self.executions), CLAIM_MAX", BIRTH),
    Mutant("births take the room that a claim has asked for", "worker/worker.py",
           "self._more_likely = True  # until we know", "pass  # until we know", BIRTH),
    Mutant("a full worker lets its own process overtake all others", "worker/worker.py",
           "self._more_likely = True  # for all we know", "pass  # for all we know", BIRTH),
    Mutant("a suspect runs beside a birth", "worker/worker.py",
           "return bool(self._expected) or any(", "return any(", BIRTH),
    Mutant("a new name is used before its committer is there", "worker/worker.py",
           "        worker_id = uuid4().bytes\n", "        worker_id = self.id = uuid4().bytes\n", BIRTH),
    Mutant("a batch with a taken seq is not taken apart (PostgreSQL)", "store/postgres.py",
           "            return await self._run(worker_id, batch, now, careful=True)\n\n    async def join",
           "            raise\n\n    async def join", "tests/store/test_commit.py -k postgres"),
    Mutant("an instance that was handed back is left to the garbage collector", "worker/execution.py",
           "        self.replay.close()\n        self.context.let_go()", "        self.replay.close()",
           "tests/flows/test_freed.py"),
    Mutant("a taken seq is not noticed (version, PostgreSQL)", "store/postgres.py",
           "if won == len(batch.first) and started", "if started", "tests/store tests/spine -k postgres"),
    Mutant("a taken seq is not noticed (version, SQLite)", "store/sqlite.py",
           "except apsw.ConstraintError as error:\n                raise _Lost from error",
           "except apsw.ConstraintError:\n                pass", "tests/store tests/spine -k sqlite"),
    Mutant("the row count of claims' guards is not checked", "store/sqlite.py",
           "!= len(guards):\n                raise _Lost", "< 0:\n                raise _Lost",
           "tests/store tests/spine -k sqlite"),
    Mutant("an effect is called before it is on record", "worker/effects.py",
           'call.args + b"," + codec.encode(standing_words(call))[1:])',
           'call.args + b"," + codec.encode(standing_words(call))[1:], hard=False)',
           f"{CRASH} -k 'sqlite and before and manual'"),
    Mutant("every attempt has a key of its own", "worker/running.py",
           '("undo:" if undoing else "") + call.key, ex.epoch)',
           '("undo:" if undoing else "") + call.key + str(call.state.attempt), ex.epoch)',
           "tests/flows -k 'sqlite and (effect or key)'"),
    Mutant("a manual effect of unknown outcome is simply repeated", "engine/effects.py",
           'if mode == "keyed":', 'if mode in ("keyed", "manual"):', "tests/engine tests/flows -k 'not postgres'"),
    Mutant("an unknown outcome counts as not having happened", "engine/effects.py",
           'return "unknown"', 'return "not_applied"', "tests/engine tests/flows -k 'not postgres'"),
    Mutant("a call found late is sent all the same", "worker/running.py",
           "elif worker.now() >= call.state.not_after:", "elif False:",
           "tests/flows tests/spine -k 'sqlite and late'"),
    Mutant("a person may start it again at once", "engine/effects.py",
           'if resolution != "did_not_happen" or accept_double or second_person:', "if True:",
           "tests/engine tests/flows -k 'not postgres'"),
    Mutant("attempts are not counted in the claim (SQLite)", "store/sql/sqlite/claims.sql",
           "attempts = attempts + 1", "attempts = attempts", "tests/store tests/flows -k sqlite"),
    Mutant("attempts are not counted in the claim (PostgreSQL)", "store/sql/postgres/claims.sql",
           "attempts = i.attempts + 1", "attempts = i.attempts", "tests/store tests/flows -k postgres"),
    Mutant("attempts are never forgiven", "store/sql/workers.sql",
           "and h.instance_id = i.id and h.fence = i.fence) then 0 else", "and false) then 0 else",
           "tests/store tests/flows -k sqlite"),
    Mutant("compensations run in forward order", "engine/saga.py", "reverse=True", "reverse=False",
           "tests/engine tests/flows -k 'not postgres'"),
    Mutant("only what surely happened is undone, not what was aborted", "engine/saga.py",
           "return call.outcome == h.EFFECT_FAILED and call.words is not None and call.words.aborted", "return False",
           "tests/engine tests/flows -k 'not postgres'"),
    Mutant("a started step is forgotten by a cancel", "worker/undo.py",
           'return call.kind == "step" and call.spec.compensate is not None and begun', "return False",
           "tests/crash/test_found.py -k 'sqlite and settled'"),
    Mutant("a signal nobody waits for is dropped", "worker/turns.py",
           "self.events.fill(events, asked", "self.events.fill([e for e in events if e.kind != 'signal'], asked",
           f"{CRASH} tests/flows -k 'sqlite and signal'"),
    Mutant("on SQLite a start comes with the claim of a worker that is fenced", "store/sqlite.py",
           "if start.claimed_by in claimants)", "if start.claimed_by)", "tests/store/test_claimed_from_birth.py"),
    Mutant("a signal that was not read is taken for one that was not sent", "worker/inbox.py",
           "return name in self._more or not (self._whole or name in self._asked)", "return False",
           "tests/flows/test_long_lines.py -k sqlite"),
    Mutant("names of signals that were not read are taken for names of none", "worker/inbox.py",
           "self._whole, self._more = len(read) < NAMES_READ,", "self._whole, self._more = True,",
           "tests/flows/test_long_lines.py -k 'sqlite and names'"),
    Mutant("a chart takes what was read of one name before what was not of another", "worker/inbox.py",
           "line = [e for e in line if sent(e) <= last]", "pass",
           "tests/flows/test_long_lines.py -k 'sqlite and chart'"),
    Mutant("a long line of signals is taken in one turn", "worker/execution.py",
           "if len(self.entries) >= ENTRIES_OF_TURN:", "if False:", "tests/flows/test_long_lines.py -k sqlite"),
    Mutant("every event is read for itself", "worker/worker.py",
           "        if execution in self._reading:\n            self._reading[execution] = True\n            return\n",
           "",
           "tests/flows/test_long_lines.py -k sqlite"),
    Mutant("a long line for one instance fills every batch", "store/committer.py",
           "(limit + 1) // 2 if pending else limit", "limit", "tests/store/test_letting_go.py -k long_line"),
    Mutant("a turn overtakes another in one of its lines", "store/committer.py",
           "if any(lines[other][0] is not item for other in touched) or not", "if not",
           "tests/store/test_letting_go.py -k keeps_its_order"),
    Mutant("a restart leaves work under way behind", "engine/saga.py",
           '        return f"{named}{more} has no result yet: await everything first"', "        pass",
           "tests/flows/test_restart.py -k 'sqlite and under_way'"),
    Mutant("a restart forgets what may have to be undone", "engine/saga.py",
           "if owed(call) and replay.journal.owes(call.recorded)]", "if False]",
           "tests/flows/test_restart.py -k 'sqlite and undone'"),
    Mutant("an effect of the next epoch has the key of the one before", "engine/ids.py",
           'derived("effect", tenant_id, instance_id, step, *([str(epoch)] if epoch else ()))',
           'derived("effect", tenant_id, instance_id, step)', "tests/flows/test_restart.py -k 'sqlite and as_itself'"),
    Mutant("a restart can be caught, and the body goes on", "engine/context.py",
           "        if self._replay.restart is not None:\n            raise Restarting\n", "",
           "tests/flows/test_restart.py -k 'sqlite and catches'"),
    Mutant("a claim reads what was before the epoch", "store/sql/sqlite/claims.sql",
           "and seq >= :epoch_seq order by seq", "and :epoch_seq >= 0 order by seq",
           "tests/flows/test_restart.py -k 'sqlite and what_was_before'"),
    Mutant("a body that is thrown away is not unwound", "worker/kept.py",
           "            self._bytes -= found[1]\n            found[0].close()", "            self._bytes -= found[1]",
           "tests/flows/test_kept.py -k 'sqlite and evicted'"),
    Mutant("every body is kept, however seldom it wakes", "worker/kept.py",
           "if not busy or size > BYTES_MAX", "if size > BYTES_MAX",
           "tests/flows/test_kept.py -k 'sqlite and once_in_a'"),
    Mutant("a body goes on whoever wrote meanwhile (SQLite)", "store/sqlite.py",
           "kept = bool(past) and (past[0].seq, past[0].hash) == (head.seq, head.hash)", "kept = True",
           "tests/store/test_claims.py -k 'sqlite and where_it_was_left'"),
    Mutant("a body goes on under any later claim", "store/port.py",
           "row[8] == self.fence + 1 and ", "", "tests/store/test_claims.py -k 'sqlite and where_it_was_left'"),
    Mutant("an event that arrives while parking is overlooked", "store/sql/sqlite/commit.sql",
           "locked_by = case when c.release and i.woken <= c.woken then null else i.locked_by end",
           "locked_by = case when c.release then null else i.locked_by end", "tests/store tests/spine -k sqlite"),
    Mutant("a signal's id does not dedupe", "facade.py",
           "    if given is None:\n", "    if True:\n",
           "tests/flows tests/spine -k 'sqlite'"),
    Mutant("a timer fires early", "worker/execution.py",
           "standing.at is not None and standing.at <= now", "standing.at is not None",
           "tests/flows -k sqlite"),
    Mutant("a chart's timer fires early", "worker/charts.py",
           "if due_at is not None and due_at <= self.worker.now():", "if due_at is not None:",
           "tests/charts/test_instances.py -k sqlite"),
    Mutant("an answer to an earlier visit of a state counts", "engine/charts/interpreter.py",
           "return child is None or child.visit != answer.visit or child.answered", "return child is None",
           "tests/engine/charts/test_interpreter.py"),
    Mutant("an AI's event outside the allowlist is applied", "worker/ai.py",
           "        and event in policy.allowed_events\n", "", "tests/charts/test_ai.py -k sqlite"),
    Mutant("a guard that gives no truth value counts as false", "engine/charts/nodes.py",
           "if type(answer) is not bool:", "if False:", "tests/engine/charts/test_interpreter.py"),
    Mutant("data may name a secret", "engine/charts/nodes.py",
           "if type(value) in (dict, list) and _names_a_secret(value):", "if False:",
           "tests/engine/charts/test_document.py"),
    Mutant("an effect that may have happened is dropped with its state", "worker/settling.py",
           "    if must_settle(ex, call):\n", "    if False:\n",
           "tests/charts/test_instances.py -k 'sqlite and under_way'"),
    Mutant("a form is not checked", "app/tasks.py",
           "        if problems:\n            raise FormRefused([",
           "        if False:\n            raise FormRefused([",
           "tests/charts/test_instances.py -k 'sqlite and form'"),
    Mutant("two people claim one task", "store/sql/tasks.sql",
           "set assignee = cast(:who as text), version = version + 1\n"
           "where tenant_id = :tenant_id and id = :id and version = :version",
           "set assignee = cast(:who as text), version = version + 1\n"
           "where tenant_id = :tenant_id and id = :id and :version >= 0",
           "tests/charts/test_claims.py -k 'sqlite and two_people'"),
    Mutant("a chart is claimed without its handlers", "app/definitions.py",
           "if needs <= known or self._fits(place[0], needs - known)]", "]",
           "tests/charts/test_claims.py -k 'sqlite and without_the_handler'"),
    Mutant("a task's answer is lost with a crash after its transaction", "worker/settling.py",
           "inbox = [*ex.inbox, *answer]", "inbox = [*ex.inbox]",
           f"{CRASH} -k 'sqlite and kinds and before_or_after'"),
    Mutant("a person's word on a settled task is taken for said", "store/sqlite.py",
           "if connection.total_changes() - before != len(people):", "if False:",
           "tests/charts tests/store -k sqlite"),
    Mutant("a person completes what another has claimed meanwhile (SQLite)", "store/sql/sqlite/commit.sql",
           "and (c.version is null or t.version = c.version)", "", "tests/charts/test_found.py -k sqlite"),
    Mutant("a person completes what another has claimed meanwhile (PostgreSQL)", "store/sql/postgres/commit.sql",
           "and (c.version is null or t.version = c.version)", "", "tests/charts/test_found.py -k postgres"),
    Mutant("what nobody waits for is begun anew", "worker/effects.py",
           "case RetryAt(at) if not ex.unwanted(call):", "case RetryAt(at):",
           "tests/charts/test_edges.py -k 'sqlite and hears_no_more'"),
    Mutant("answers beyond one turn are forgotten", "worker/charts.py",
           "return self.more or bool(self.lacking()) or super().has_more()",
           "return bool(self.lacking()) or super().has_more()",
           "tests/charts/test_edges.py -k 'sqlite and (fit_into or hundred)'"),
    Mutant("a strict sender is told that the instance ended, by its own event", "app/instances.py",
           "            ended = status\n            continue\n",
           "            raise InstanceEnded(ids.instance_word(id_), status, name)\n",
           "tests/charts/test_claims.py -k 'sqlite and too_late'"),
    Mutant("a kill switch is undone by a neighbour", "store/sql/tasks.sql",
           "coalesce(cast(:ai_enabled as boolean), holdfast.tenants.ai_enabled)",
           "coalesce(cast(:ai_enabled as boolean), true)", "tests/charts/test_tenants.py -k sqlite"),
    Mutant("what a name leads to is not looked at", "handlers/egress.py",
           'refuse_if_not_public(address, f", one of the addresses of {target.host},", private)', "pass",
           "tests/handlers/test_egress.py"),
    Mutant("secret headers follow a redirect elsewhere", "handlers/egress.py",
           "if target.origin != before.origin:", "if False:", "tests/handlers"),
    Mutant("an event to itself is lost", "worker/children.py",
           "        ex.inbox.append(Waiting({**event}, sent_at=ex.worker.now()))\n", "",
           "tests/charts/test_instances.py -k 'sqlite and itself'"),
    Mutant("a restored database is claimed from", "worker/worker.py",
           "if self.stopping or self._is_fenced() or self.quarantine.holds:", "if self.stopping or self._is_fenced():",
           "tests/cli/test_quarantine.py -k 'sqlite and copy'"),
    Mutant("a worker that is held back is handed claims from birth", "worker/worker.py",
           "            and not self.quarantine.holds\n", "",
           "tests/cli/test_quarantine.py -k 'sqlite and person'"),
    Mutant("what is new is begun during a pause", "worker/execution.py",
           "if self.paused is not None and call.recorded is None:", "if False:", CONTROL),
    Mutant("a pause does not keep what is ready from starting", "worker/execution.py",
           "        if self.paused is not None:\n            ready = []\n        elif", "        if", CONTROL),
    Mutant("a paused chart works off what is in line", "worker/charts.py",
           "        if self.paused is not None:\n            return False\n        if self.undo is not None:",
           "        if self.undo is not None:", "tests/charts/test_pause.py -k sqlite"),
    Mutant("a retry starts an effect of unknown outcome", "worker/control.py",
           'call.state.next == "start" and not call.state.unknown and', 'call.state.next == "start" and', CONTROL),
    Mutant("a retry is forgotten with its worker", "engine/journal.py",
           "found.opened.retry_at = min(found.opened.retry_at, at)", "pass", CONTROL),
    Mutant("a fork takes over what was undone, or may have happened", "engine/forks.py",
           "refused = _undone(rows, seq) or _under_way(rows, seq)", "refused = None", CONTROL),
    Mutant("a fork undoes what another completed", "engine/journal.py",
           "return recorded is None or not 0 < recorded.answer_seq <= self.settled_seq", "return True", CONTROL),
    Mutant("the chain skips the payload", "engine/history.py",
           "return sha256(salt + payload).digest()", "return sha256(salt).digest()", "tests/engine"),
    Mutant("the chain skips the row before", "engine/history.py",
           "return sha256(previous + payload_hash + header).digest()", "return sha256(payload_hash + header).digest()",
           "tests/engine"),
    Mutant("a lost reply is taken for a failure", "store/committer.py",
           "            left = [n for n, outcome in zip(left, there, strict=True) if outcome is None]",
           "            outcomes.update((n, Outcome.MOVED) for n in left)\n            break",
           f"{CRASH} tests/store -k 'sqlite and (lost or nth)'"),
    Mutant("claims whose reply was lost are kept", "worker/worker.py",
           "self._claims_in_doubt = True  # it may have been done all the same", "pass",
           "tests/crash/test_found.py -k 'sqlite and reply'"),
    Mutant("cancel overwrites completed", "store/sql/sqlite/commit.sql",
           "and i.completed_at is null\nwhere true", "\nwhere true", "tests/flows tests/store -k sqlite"),
    Mutant("a business key is not looked at across inputs", "app/instances.py",
           "    if there != given:", "    if False:", "tests/flows -k sqlite"),
    Mutant("one tenant's backlog starves the others", "store/sqlite.py",
           "max(limit // len(heads), 1)", "limit", "tests/store -k sqlite"),
    Mutant("the tenant with the oldest work goes first", "store/sqlite.py",
           "heads = heads[:limit]", "heads = heads[:1]", "tests/processes/test_fair.py -k sqlite"),
    Mutant("a word about an earlier attempt decides the later one", "worker/effects.py",
           'if words.get("attempt", standing.attempt) != standing.attempt or not', "if not",
           "tests/flows/test_desk.py -k sqlite"),
    Mutant("a hand-back forgets a later claim of the same instance", "worker/worker.py",
           "if self.executions.get(execution.id) is execution:", "if execution.id in self.executions:",
           "tests/flows/test_workers.py -k 'sqlite and claimed_again'"),
    Mutant("two people's words on one question are both accepted", "app/effects.py",
           'f"{question}{taken + 1}"', 'f"{question}{actor}"', "tests/flows/test_desk.py -k sqlite"),
    Mutant("a contradiction is overlooked", "engine/journal.py",
           "if recorded.args and args and recorded.args != args:", "if False:",
           "tests/engine tests/flows -k 'not postgres'"),
    Mutant("results are released in the order of asking", "engine/replay.py",
           "heapq.heappush(self._released, (recorded.answer_seq, call.order, call))",
           "heapq.heappush(self._released, (call.order, call.order, call))", "tests/engine"),
    Mutant("a transaction's row is committed without its handler's writes", "store/sqlite.py",
           "raise HandlerRaised(error) from error\n            finally:",
           "connection.execute('rollback')\n                raise RuntimeError(str(error)) from error\n"
           "            finally:",
           "tests/flows -k 'sqlite and transaction'"),
    Mutant("a door sees every tenant", "store/migrations/postgres/0008_named_indexes.sql",
           """mine constant text := 'tenant_id = current_setting(''holdfast.tenant'', true) collate "C"';""",
           "mine constant text := 'true';", "tests/store/test_walls.py"),
    Mutant("a door may ask anything without a tenant", "store/doors.py", "if name not in UNBOUND:", "if False:",
           "tests/store/test_walls.py"),
    Mutant("a start on the caller's connection does not say its tenant", "app/joining.py",
           'if service.store.dialect == "postgres":\n        await run("bind_tenant", values)',
           "if False:\n        pass", "tests/store/test_walls.py"),
    Mutant("two who migrate at once do not take turns", "store/migrate.py",
           'if await connection.execute(row, number, name) != "INSERT 0 1":',
           'if await connection.execute(row, number, name) == "":', "tests/store/test_walls_are_put_up.py"),
    Mutant("a worker without a lock is taken for dead before its lease is over", "worker/liveness.py",
           "if not self.store.session_locks or word == BY_LEASE:\n            return False",
           "if not self.store.session_locks or word == BY_LEASE:\n            return True",
           "tests/store/test_plain_postgres.py"),
    Mutant("a change goes on though its first statement changed nothing (SQLite)", "store/sqlite.py",
           "if number < guards and connection.total_changes() == before:", "if False:", "tests/store/test_changes.py"),
    Mutant("a change goes on though its first statement changed nothing (PostgreSQL)", "store/postgres.py",
           "if number < guards and not changed(status):", "if False:", "tests/store/test_changes.py"),
    Mutant("a role may do what another may", "api/requests.py",
           "and not caller.may(endpoint.capability):", "and False:", "tests/api/test_w10.py -k sqlite"),
    Mutant("a key answers for another request", "app/idempotency.py",
           "if bytes(hashed) != request_hash:", "if False:", "tests/api/test_idempotency.py -k sqlite"),
    Mutant("a change that was made is refused to who asks again", "app/idempotency.py",
           "request_hash, True, marked_at is not None)", "request_hash, True, False)",
           "tests/api/test_found.py -k sqlite"),
    Mutant("a version in If-Match is not looked at", "api/endpoints.py",
           'if self.if_match is None or self.if_match == "*":', "if True:", "tests/api/test_if_match.py -k sqlite"),
    Mutant("of two who change a principal, the second undoes the first", "store/sql/access.sql",
           "changed_by = cast(:actor as text)\nwhere tenant_id = :tenant_id and id = :id and version = :version",
           "changed_by = cast(:actor as text)\nwhere tenant_id = :tenant_id and id = :id and :version >= 0",
           "tests/api/test_if_match.py -k principals"),
    Mutant("a login link opens many sessions", "store/sql/access.sql",
           "where tenant_id = :tenant_id and id = :id and revoked_at is null and expires_at > :now",
           "where tenant_id = :tenant_id and id = :id and expires_at > :now",
           "tests/api/test_found.py -k login"),
    Mutant("a task of another group is taken", "engine/access.py",
           "return not wanted or not wanted.isdisjoint(groups)", "return True",
           "tests/api/test_found.py -k 'sqlite and group'"),
    Mutant("an agent may settle", "engine/access.py", "        found -= NOT_FOR_AGENTS\n", "        pass\n",
           "tests/api/test_access.py -k 'sqlite or table'"),
    Mutant("a key's scopes are not looked at", "engine/access.py",
           "return found if scopes is None else found & frozenset(scopes)", "return found",
           "tests/api/test_access.py -k sqlite"),
    Mutant("a login link is a key", "app/api_keys.py",
           'if found is None or found[5] is not None or found[2] == "login":',
           "if found is None or found[5] is not None:", "tests/api/test_found.py -k 'sqlite and login'"),
    Mutant("a key that is over is taken", "app/api_keys.py",
           "if expires_at is not None and self._service.store.now() >= expires_at:", "if False:",
           "tests/api/test_access.py -k sqlite"),
    Mutant("a disabled principal's key is taken", "app/api_keys.py",
           'if owner.status != "active":\n            return None, None', "if False:\n            return None, None",
           "tests/api/test_access.py -k sqlite"),
    Mutant("a session acts for other sites", "api/auth.py",
           "if request.method not in SAFE and sender_of(", "if False and sender_of(",
           "tests/api/test_readme.py tests/api/test_browsing.py"),
    Mutant("a form without an origin is taken for ours", "api/auth.py",
           "    ours = _site(origin) is not None and (", "    ours = origin == 'null' or (",
           "tests/api/test_browsing.py -k sandboxed"),
    Mutant("what another site of this host sends is believed", "api/auth.py",
           'if site not in (None, "none"):', 'if site not in (None, "none", "same-site"):',
           "tests/api/test_browsing.py -k 'follows_from'"),
    Mutant("another site's form logs in and out", "api/browsing.py",
           "return sender_of(call.headers, call.doors.settings.public_url)", "return Sender.US",
           "tests/api/test_browsing.py -k another_site"),
    Mutant("the login page's form is sent without its origin", "api/browsing.py",
           '"Referrer-Policy": "same-origin"', '"Referrer-Policy": "no-referrer"',
           "tests/api/test_browsing.py -k plain_network"),
    Mutant("everybody who waits for an issuer's keys asks for them", "handlers/oidc.py",
           "if self._at == fetched_at:", "if True:", "tests/handlers/test_oidc.py"),
    Mutant("a token for somebody else is taken", "api/oidc.py", "audience=settings.oidc_audience,\n",
           "\n", "tests/api/test_oidc.py -k sqlite"),
    Mutant("the server listens to everybody", "api/server.py",
           "if is_loopback(doors.settings.host) or doors.oidc is not None:", "if True:", "tests/api/test_oidc.py"),
    Mutant("a route asks for nothing it was not told", "api/endpoints.py",
           "if capability not in CAPABILITIES and capability not in (PUBLIC, ANYONE):", "if False:",
           "tests/api/test_access.py -k declared"),
    Mutant("everybody is let in at once", "api/server.py",
           "if here.full:", "if False:", "tests/api/test_overload.py -k sqlite"),
    Mutant("a place at the gate is not given back", "api/server.py", "        self.inside -= 1\n",
           "        pass\n", "tests/api/test_overload.py tests/api/test_found.py -k sqlite"),
    Mutant("a key that stands twice is read once", "engine/strict_json.py",
           'problems.append(Misplaced(_pointer(place), "this key stands twice in its object"))', "pass",
           "tests/api/test_hostile.py -k sqlite"),
    Mutant("a body is read however long it is", "api/wire.py", "            if size > limit:", "            if False:",
           "tests/api/test_found.py -k 'sqlite and without_a_length'"),
    Mutant("a new key is kept with its answer", "api/requests.py",
           'kept = {**msgspec.to_builtins(reply.body), "key": None}', "pass",
           "tests/api/test_idempotency.py -k sqlite"),
    Mutant("two carry out one request", "app/idempotency.py", "if locked_at > now - LEASE:", "if False:",
           "tests/api/test_idempotency.py -k sqlite"),
    Mutant("an id does not follow from its request", "app/idempotency.py",
           'return ids.derived("request", *where, self.request_hash, *parts)', "return uuid4().bytes",
           "tests/api/test_idempotency.py -k sqlite"),
    Mutant("a dry run acts", "api/bulk.py", "    if body.dry_run:\n", "    if False:\n",
           "tests/api/test_more.py -k sqlite"),
    Mutant("the feed runs ahead of those who commit late (PostgreSQL)", "store/sql/postgres/feed.sql",
           "select pg_snapshot_xmin(", "select pg_snapshot_xmax(", "tests/flows/test_feed.py"),
    Mutant("whoever listens goes on listening", "api/streams.py", "if not await call.still_may():", "if False:",
           "tests/api/test_found.py -k sqlite"),
    Mutant("where two inputs of one business key differ is not said", "api/starting.py",
           "except BusinessKeyTaken as taken:\n        raise _taken(call, taken) from None",
           "except BusinessKeyTaken as taken:\n        raise", "tests/api/test_w10.py -k sqlite"),
    Mutant("charts are published under Holdfast's own names", "app/definitions.py",
           "        if key.startswith(OURS):", "        if False:", "tests/api/test_found.py -k sqlite"),
    Mutant("a failure that nobody awaited completes in silence", "engine/mistakes.py",
           'return bool(getattr(future, "_log_traceback", False))', "return False",
           "tests/flows/test_mistakes.py -k sqlite"),
    Mutant("a mistake in the code fails and compensates the instance", "worker/execution.py",
           "if (mistake := replay.mistake(error)) is not None:", "if (mistake := None) is not None:",
           "tests/flows/test_mistakes.py -k sqlite"),
    Mutant("an instance is parked while its handlers run", "worker/execution.py",
           "if not self.running:\n            self._park(mistake)", "if True:\n            self._park(mistake)",
           "tests/flows/test_mistakes.py -k sqlite"),
    Mutant("a workflow's body may open sockets", "worker/world.py",
           "if event in REFUSED and isinstance(_get_running_loop(), TurnLoop):", "if False:",
           "tests/flows/test_mistakes.py -k sqlite"),
    Mutant("sockets are refused outside of bodies too", "worker/world.py",
           "if event in REFUSED and isinstance(_get_running_loop(), TurnLoop):", "if event in REFUSED:",
           "tests/flows/test_mistakes.py -k sqlite"),
    Mutant("an unknown field is not told the expected ones", "engine/misfits.py",
           'f": expected {\', \'.join(expected)}" if expected else ""', '""', "tests/engine/test_misfits.py"),
    Mutant("the values of pydantic's errors are shown", "engine/misfits.py",
           "return list(listed(include_url=False, include_context=False, include_input=False))",
           'return [{**one, "msg": str(one)} for one in listed()]', "tests/engine/test_misfits.py"),
    Mutant("raised events of a chart's step have no limit", "engine/charts/interpreter.py",
           "if self.raised >= RAISED_LIMIT:", "if False:", "tests/engine/charts/test_interpreter.py"),
    Mutant("a fork makes a payment again without a named person", "cli/instances.py",
           "if source not in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):", "if False:",
           "tests/cli/test_instances.py -k sqlite"),
    Mutant("a fork makes a payment again without an explicit yes", "cli/instances.py",
           "elif missing := [name for name in point.again if name not in again]:", "elif missing := []:",
           "tests/cli/test_instances.py -k sqlite"),
    Mutant("a retry in bulk makes effects again", "app/bulk.py",
           "actor=order.actor, again=False)", "actor=order.actor)", "tests/cli/test_instances.py -k sqlite"),
    Mutant("a dead letter is replayed twice", "app/dead_letters.py",
           "    if view.resolution is not None:", "    if False:", "tests/cli/test_dead_letters.py -k sqlite"),
    Mutant("an effect happened without the result it needs", "app/effects.py",
           "    if result is None and faults:", "    if False:",
           "tests/flows/test_expected_results.py -k sqlite"),
    Mutant("an effect happened with a result that does not fit", "app/effects.py",
           "    if faults:\n", "    if False:\n", "tests/flows/test_expected_results.py -k sqlite"),
    Mutant("an answer that is returned without await fails its instance", "worker/execution.py",
           "                if (mistake := mistake_in(refused)) is not None:", "                if mistake := None:",
           "tests/flows/test_mistakes.py -k 'sqlite and without_await'"),
    Mutant("an answer that is used without await fails its instance", "engine/mistakes.py",
           """and "'_asyncio.Future'" in message_of(link)""", "and False",
           "tests/flows/test_mistakes.py -k 'sqlite and without_await'"),
    Mutant("dev makes a database where its port is taken", "cli/dev.py",
           "        _check_free(wanted)", "        pass", "tests/cli/test_dev.py -k in_use"),
    Mutant("an author's text steers the terminal", "logs.py",
           "CONTROL.sub(lambda found: repr(found[0])[1:-1], text)", "text", "tests/test_logs.py -k steer"),
    Mutant("a person's word on an effect counts for the next epoch's", "worker/effects.py",
           "!= standing.attempt or not _is_about(ex, call, event):", "!= standing.attempt:",
           "tests/flows/test_restart.py -k 'sqlite and word'"),
    Mutant("events read under an earlier claim are taken again", "worker/worker.py",
           "if execution.fence == fence:", "if True:", "tests/flows/test_kept.py -k 'sqlite and was_read'"),
    Mutant("events that are read after the hand-back move a kept body", "worker/worker.py",
           "if self.executions.get(execution.id) is not execution:\n                    return  # handed back",
           "if False:\n                    return  # handed back",
           "tests/flows/test_kept.py -k 'sqlite and is_read'"),
    Mutant("steps in place share the committer's context", "worker/running.py",
           "copy_context().run(_in_place, ex.scope(call), function, args)", "_in_place(ex.scope(call), function, args)",
           "tests/flows/test_steps_apart.py -k sqlite"),
    Mutant("transactions share the writer's context", "worker/transactions.py",
           "return variables.run(in_thread, tx)", "return in_thread(tx)",
           "tests/flows/test_steps_apart.py -k sqlite"),
    Mutant("verify does not look at epochs", "app/verify.py",
           "if (epoch, epoch_seq) != (len(began), began[-1] if began else 0):", "if False:",
           "tests/flows/test_restart.py -k 'sqlite and another_epoch'"),
    Mutant("a history may begin in the middle", "worker/execution.py",
           "assert not past or past[0][1] in (h.INSTANCE_STARTED, h.INSTANCE_RESTARTED)", "assert True",
           "tests/flows/test_restart.py -k 'sqlite and another_epoch'"),
    Mutant("a type that breaks over a recorded result buries its instance", "engine/replay.py",
           "except Exception as error:  # of any kind", "except ValueError as error:  # of any kind",
           "tests/flows/test_mistakes.py -k 'sqlite and breaks_over'"),
    Mutant("a type that breaks over its input buries its instance", "app/registry.py",
           "except Exception as error:  # of any kind", "except ValueError as error:  # of any kind",
           "tests/flows/test_mistakes.py -k 'sqlite and breaks_over'"),
    Mutant("a worker's batch locks instances in any order", "store/postgres.py",
           "if len(batch.changes) > 1:", "if False:", "tests/store/test_lock_order.py"),
    Mutant("a door's batch locks instances in any order", "store/sql/postgres/commit.sql",
           "order by instance_id) w", "order by instance_id desc) w", "tests/store/test_lock_order.py"),
    Mutant("what a kept body is told is not counted", "worker/execution.py",
           "self._told_since += len(words.result)", "pass", "tests/flows/test_kept.py -k 'sqlite and gathers'"),
    Mutant("the results of steps that a kept body is told are not counted", "worker/execution.py",
           "self._told_since += len(result)", "pass", "tests/flows/test_kept.py -k 'sqlite and gathers'"),
    Mutant("a body ends without an effect of unknown outcome", "worker/execution.py",
           "replay.difference = replay.forgotten()", "pass",
           "tests/flows/test_mistakes.py -k 'sqlite and unknown_outcome'"),
    Mutant("an effect that did not happen cannot be taken out of the code", "engine/journal.py",
           "return self.opened.unknown or self.opened_type in (h.EFFECT_STARTED, h.EFFECT_UNKNOWN)", "return True",
           "tests/flows/test_mistakes.py -k 'sqlite and taken_out'"),
    Mutant("a child of an earlier epoch answers for the next one's", "worker/execution.py",
           "if event.id == ids.child_event(ids.child_id(self.tenant_id, self.id, call.key, self.epoch)):", "if True:",
           "tests/flows/test_restart.py -k 'sqlite and answer_for'"),
    Mutant("a worker that stops leaves its next incarnation behind", "worker/worker.py",
           "if self._renewal is not None:", "if False:", "tests/flows/test_workers.py -k 'sqlite and leaves_nobody'"),
    Mutant("a body that awaits what it cancelled ends its worker's loop", "engine/replay.py",
           "except asyncio.CancelledError as cancelled:", "except ZeroDivisionError as cancelled:",
           "tests/flows/test_odd_failures.py -k 'sqlite and body'"),
]  # fmt: skip


def run_tests(folder: Path, tests: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", "60"]
    env = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    if CRASH in tests:  # a sample of the crash points may miss the one that the guard is for
        env["HOLDFAST_TEST_SIZE"] = "full"
    done = subprocess.run([*command, *shlex.split(tests)], cwd=folder, env=env, capture_output=True, text=True)
    last = [line for line in done.stdout.strip().splitlines() if line.strip()]
    return done.returncode, last[-1] if last else done.stderr.strip()[-300:]


def planted(mutant: Mutant | None) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-mutant-"))
    for name in ("src", "tests", "examples", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".mutants"))
    for name in ("pyproject.toml", "README.md", "Makefile"):
        shutil.copy(ROOT / name, folder)
    if mutant is not None:
        path = folder / "src" / "holdfast" / mutant.file
        source = path.read_text()
        if source.count(mutant.old) < 1:
            raise SystemExit(f"mutant {mutant.name!r}: its text is not in {mutant.file} any more: mend the mutant")
        path.write_text(source.replace(mutant.old, mutant.new))
    return folder


def died_with(mutant: Mutant) -> Path:
    """Where it is written down that this mutant died, its file and its tests being what they are now."""
    digest = hashlib.sha256(repr(mutant).encode())
    named = [ROOT / word.partition("::")[0] for word in shlex.split(mutant.tests) if word.startswith("tests")]
    for path in [ROOT / "src" / "holdfast" / mutant.file, *named]:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return DIED / digest.hexdigest()[:32]


def tried(mutant: Mutant | None, tests: str) -> tuple[int, str]:
    folder = planted(mutant)
    try:
        return run_tests(folder, tests)
    finally:
        shutil.rmtree(folder)


def tried_with(tests: str, mutants: list[Mutant], say: Callable[[str], None]) -> list[str]:
    """Plant each mutant that is watched by these tests, and give the names of those that lived."""
    code, words = tried(None, tests)
    if code != 0:
        say(f"[red]the untouched source does not pass[/] {escape(tests)}: {escape(words)}")
        return [mutant.name for mutant in mutants]
    lived = []
    for mutant in mutants:
        note = died_with(mutant)
        code, words = tried(mutant, tests)
        if code == 1:
            note.touch()
            say(f"killed  {escape(mutant.name)}")
        else:
            lived.append(mutant.name)
            say(f"[red]LIVED[/]   {escape(mutant.name)} (pytest said {code}: {escape(words)})")
    return lived


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutants whose name holds one of these words")
    parser.add_argument(
        "--fresh", action="store_true", help="also those that died before, and whose files are the same"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (default: 2)")
    asked = parser.parse_args()
    chosen = [m for m in MUTANTS if not asked.words or any(word in m.name for word in asked.words)]
    DIED.mkdir(exist_ok=True)
    watched: dict[str, list[Mutant]] = {}
    for mutant in chosen:
        if asked.fresh or not died_with(mutant).exists():
            watched.setdefault(mutant.tests, []).append(mutant)
    left = sum(map(len, watched.values()))
    console = Console(highlight=False)
    if left < len(chosen):
        console.print(f"{len(chosen) - left} died in an earlier run and are passed over; --fresh plants them again")
    lived: list[str] = []
    with Progress(console=console, transient=True) as progress, ThreadPoolExecutor(asked.jobs) as pool:
        bar = progress.add_task("mutants", total=left)

        def say(line: str) -> None:
            console.print(line)
            progress.advance(bar)

        for found in pool.map(lambda item: tried_with(*item, say), watched.items()):
            lived += found
    console.print(f"{len(chosen) - len(lived)} of {len(chosen)} mutants killed")
    return 1 if lived else 0


if __name__ == "__main__":
    raise SystemExit(main())
