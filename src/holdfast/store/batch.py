"""A batch of turns as the rows they write, gathered once for whichever database commits them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.history import HistoryRow
from holdfast.engine.turns import (
    Change,
    Consumed,
    DeadLetter,
    EffectRow,
    NewEvent,
    NewInstance,
    NewTask,
    Outcome,
    TaskChange,
    Turn,
)


class Batch:
    __slots__ = (
        "after", "changes", "consumed", "dead_letters", "effects", "events", "first", "more", "starts", "task_changes",
        "tasks", "turns",
    )  # fmt: skip

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.turns = turns
        self.first: list[HistoryRow] = []  # one row per worker's turn: its compare-and-set
        self.after: list[bytes] = []  # the hash that each of them follows on
        self.more: list[HistoryRow] = []
        self.changes: list[Change] = []
        self.starts: list[NewInstance] = []
        self.events: list[NewEvent] = []
        self.consumed: list[Consumed] = []
        self.effects: list[EffectRow] = []
        self.dead_letters: list[DeadLetter] = []
        self.tasks: list[NewTask] = []
        self.task_changes: list[TaskChange] = []
        for turn in turns:
            if turn.history:
                self.first.append(turn.history[0])
                self.after.append(turn.after)
                if len(turn.history) > 1:
                    self.more.extend(turn.history[1:])
            if turn.change is not None:
                self.changes.append(turn.change)
            if turn.starts:
                self.starts.extend(turn.starts)
            if turn.events:
                self.events.extend(turn.events)
            if turn.consumed:
                self.consumed.extend(turn.consumed)
            if turn.effects:
                self.effects.extend(turn.effects)
            if turn.dead_letters:
                self.dead_letters.extend(turn.dead_letters)
            if turn.tasks:
                self.tasks.extend(turn.tasks)
            if turn.task_changes:
                self.task_changes.extend(turn.task_changes)


def lost_its_ground(turn: Turn, fence: int | None, before: bytes | None) -> bool:
    """Whether a turn that was refused stands on what is gone. Fences only grow and rows of a history stay, so a lower
    fence than its claim's, or another row before it than the one it follows on, is an earlier or damaged state."""
    return fence is None or fence < turn.fence or (turn.history[0][2] > 1 and before != turn.after)


def with_claim(turn: Turn) -> Outcome:
    """What a committed turn is told whose instance is found claimed: a start has its worker, a release its reason."""
    if turn.change is not None:
        return Outcome.WOKEN if turn.change.release else Outcome.COMMITTED
    return Outcome.CLAIMED if not turn.history and turn.starts else Outcome.COMMITTED
