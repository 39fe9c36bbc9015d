"""A turn: everything one event causes, committed together or not at all.

Workers' turns (code or chart) carry the fence of their claim and at least one history row; that row, seq n+1,
is the compare-and-set. A door's turn has no claim: it commits facts only (a start, an event), and the fact's
own key is its compare-and-set. The store knows no other way to write.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from holdfast.engine.history import HistoryRow


class NewInstance(NamedTuple):
    """A row to be born. `by` names the instance whose turn starts it; a door's start has none.

    `claimed_by`: a worker in the starter's own process that has room for it: unless fenced, it has the claim from
    birth, which saves the commit of claiming."""

    tenant_id: str
    id: bytes
    kind: str
    definition_key: str
    definition_version: int
    business_key: str | None
    queue: str
    priority: int
    run_at: int
    input: bytes
    parent_id: bytes | None
    parent_step: str | None
    trace_id: str | None
    created_at: int
    by: bytes | None = None
    claimed_by: bytes | None = None
    created_by: str | None = None


class NewEvent(NamedTuple):
    """A fact for an instance. The same id twice is one event."""

    tenant_id: str
    instance_id: bytes
    id: str
    kind: str  # signal | cancel | child | resolution | pause | resume | retry | task | migrate | fork
    name: str
    payload: bytes
    sent_at: int
    by: bytes | None = None
    task_id: bytes | None = None  # a person's word on this task: it counts only if the task is still open
    sent_by: str | None = None  # whoever sent it, where a door knows


ALWAYS = 1 << 62  # `woken` of a change that hands the claim back whatever arrived meanwhile: the instance ends


class Change(NamedTuple):
    """What becomes of the instance row: status, wait and claim. Step turns leave the row alone."""

    tenant_id: str
    id: bytes
    fence: int
    status: str
    waiting_on: str | None
    run_at: int | None
    release: bool  # hand the claim back, unless an event arrived that this turn has not seen
    woken: int  # how many events this turn has seen
    seq: int
    hash: bytes
    result: bytes | None
    last_error: bytes | None
    compensation: str | None
    snapshot: bytes | None
    current_state: str | None
    completed_at: int | None
    definition_version: int | None = None  # another one from here on: the instance was migrated
    epoch_seq: int | None = None  # the row of this turn with which the next epoch begins: the instance restarts

    def ends(self) -> bool:
        """Whether the instance ends, in the version it has, and nothing that came meanwhile can keep it."""
        return self.woken == ALWAYS and self.completed_at is not None and self.definition_version is None


class EffectRow(NamedTuple):
    tenant_id: str
    id: bytes
    instance_id: bytes
    step: str
    mode: str
    state: str
    attempt: int
    idempotency_key: str
    request_hash: bytes
    request: bytes
    fence: int
    worker_id: bytes
    first_started_at: int
    started_at: int
    not_after: int
    opens_at: int
    settled_at: int | None
    receipt: bytes | None
    last_error: bytes | None
    resolution: str | None
    resolved_by: str | None
    reason: str | None


class NewTask(NamedTuple):
    """A task to be born with the turn that asks for it."""

    tenant_id: str
    id: bytes
    instance_id: bytes
    definition_key: str
    key: str
    type: str
    name: str
    title: str | None
    status: str
    run_at: int | None
    attempts: int
    max_attempts: int
    locked_by: bytes | None
    locked_at: int | None
    fence: int
    idempotency_key: str
    input: bytes
    options: bytes
    trace_id: str | None
    assignee: str | None
    groups: str | None
    priority: int
    due_at: int | None
    follow_up_at: int | None
    invoke_id: str | None
    visit: int
    created_at: int
    started_at: int | None = None
    standing_type: str | None = None
    standing: bytes | None = None
    output: bytes | None = None
    error: bytes | None = None
    completed_at: int | None = None
    closed_at: int | None = None


class TaskChange(NamedTuple):
    """What becomes of an open task. One that is settled stays as it is: the first commit wins."""

    tenant_id: str
    id: bytes
    instance_id: bytes
    status: str
    run_at: int | None
    attempts: int
    locked_by: bytes | None
    fence: int
    output: bytes | None
    error: bytes | None
    standing_type: str | None
    standing: bytes | None
    at: int
    completed_at: int | None
    completed_by: str | None
    by: bytes | None  # the instance whose turn this is; None: a door's
    input: bytes | None = None  # what is kept of it once marked fields are taken out
    version: int | None = None  # the one a person saw: whose task it is must not have changed since; None: a worker's


class DeadLetter(NamedTuple):
    tenant_id: str
    id: bytes
    source: str
    instance_id: bytes
    definition_key: str
    reason: str
    payload: bytes
    created_at: int


class Consumed(NamedTuple):
    """An event this turn has taken, and the history row that says so."""

    tenant_id: str
    instance_id: bytes
    id: str
    seq: int


class Turn(msgspec.Struct):
    tenant_id: str
    instance_id: bytes
    fence: int = 0  # 0: a door's turn
    history: list[HistoryRow] = []
    change: Change | None = None
    starts: list[NewInstance] = []
    events: list[NewEvent] = []
    consumed: list[Consumed] = []
    effects: list[EffectRow] = []
    dead_letters: list[DeadLetter] = []
    tasks: list[NewTask] = []
    task_changes: list[TaskChange] = []
    after: bytes = bytes(32)  # the hash of the row that its first history row follows on


class Outcome(Enum):
    """What became of one turn. Its neighbours in the batch have outcomes of their own."""

    COMMITTED = "committed"
    CLAIMED = "claimed"  # a start, committed, and the worker it names holds the claim
    WOKEN = "woken"  # committed, but an unseen event arrived: the claim is kept, look at the events
    FENCED = "fenced"  # the claim is somebody else's now: nothing was written
    MOVED = "moved"  # seq n+1 was taken, or the fact was there already: nothing was written
    GONE = "gone"  # the row it follows on, or the claim it is made under, was there and is not: nothing was written
