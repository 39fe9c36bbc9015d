"""The world outside the engine: a provider that books, and a ledger of all that it and the authors' code ever did.

The ledger is the judge. It is written by the provider at the moment of each call, never by the engine, and it forgets
nothing when a simulated process dies.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import Any

from holdfast import NotApplied, Rejected
from holdfast.engine.effects import GRACE
from holdfast.engine.journal import UNDO
from tests.simulate.loop import WORLD, SimLoop, context_of

LATE_MOST = GRACE / 1_000_000 - 1.0  # a call that timed out here is booked at most this much later, within the grace


class BadWords(Exception):
    """An exception that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Plain(Exception):
    """What authors' code raises when it simply fails."""


MISDEEDS: dict[str, Any] = {
    "cancelled": lambda: asyncio.CancelledError("raised by the author"),
    "stop": lambda: StopIteration("raised by the author"),
    "exit": lambda: SystemExit(3),
    "interrupt": lambda: KeyboardInterrupt(),
    "words": lambda: BadWords(),
}


@dataclass
class Call:
    """One call that reached the provider."""

    key: str
    instance: str
    step: str
    mode: str
    undo: bool  # whether the program names a compensation for it
    undoes: str  # the step that it undoes; empty: it is none's compensation
    request: Any
    at: float
    number: int  # among all calls of the seed
    behaviour: str = ""
    booked_at: float | None = None
    not_applied: bool = False  # the caller was told for certain that nothing happened


@dataclass
class Word:
    """What a person said about an effect, once it was acknowledged."""

    key: str
    choice: str
    at: float
    number: int
    accept_double: bool
    instance: str
    step: str


@dataclass
class Ledger:
    calls: list[Call] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    refunds: list[tuple[str, str]] = field(default_factory=list)  # instance and step that was undone, as it was done
    did: list[tuple[str, str]] = field(default_factory=list)  # steps that are owed an undo and ran to their end
    heard: set[tuple[str, str]] = field(default_factory=set)  # instance, id of a signal that its body was given
    naps: dict[tuple[str, str], float] = field(default_factory=dict)  # when a sleep was first asked for
    early: list[tuple[str, str]] = field(default_factory=list)  # instance, sleep

    def by_key(self) -> dict[str, list[Call]]:
        found: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            found[call.key].append(call)
        return found

    def booked(self, key: str) -> bool:
        return any(call.booked_at is not None for call in self.calls if call.key == key)


def drawn_rates(rng: Random, features: frozenset[str]) -> tuple[dict[str, float], dict[str, float]]:
    """How often a call does what, and how often look-ups and compensations fail."""
    weight = rng.choice((0.02, 0.06, 0.12))
    behaviours = ["not_applied", "rejected", "timeout_before", "timeout_after", "error_after"]
    behaviours += [name for name in ("refused", "slow", "hang") if name in features]
    rates = {name: weight * rng.random() for name in behaviours}
    if "handler_raises" in features:
        rates |= {name: 0.03 * rng.random() for name in sorted(MISDEEDS)}
    return rates, {"find_fails": rng.choice((0.0, 0.2)), "undo_fails": rng.choice((0.0, 0.3))}


class Provider:
    def __init__(self, seed: str, loop: SimLoop, rates: dict[str, float], more: dict[str, float]) -> None:
        self._seed = seed
        self._loop = loop
        self.rates = rates  # of what a call does; "ok" has what is left
        self.more = more  # how often look-ups and compensations fail
        self.ledger = Ledger()
        self.receipts: dict[str, Any] = {}
        self._count = 0
        self._on_their_way: list[Call] = []

    def heal(self) -> None:
        self.rates, self.more = {}, {}

    def next_number(self) -> int:
        self._count += 1
        return self._count

    def _draw(self, key: str, number: int, undoes: str = "") -> tuple[str, Random]:
        """What the call with that key does does not depend on which process was quicker."""
        rng = Random(f"{self._seed}/{key}/{number}")
        left = rng.random()
        if undoes and self.rates and rng.random() < self.more.get("undo_fails", 0.0):
            return rng.choice(list(self.rates)), rng  # compensations are few: else hardly any would go wrong
        for behaviour, weight in self.rates.items():
            left -= weight
            if left < 0:
                return behaviour, rng
        return "ok", rng

    def _note(self, info: Any, statement: dict[str, Any], request: Any) -> tuple[Call, Random]:
        ledger = self.ledger
        before = sum(call.key == info.idempotency_key for call in ledger.calls)
        step = getattr(info, "step", None) or info.name
        undoes = step if statement.get("undoes") else ""
        call = Call(
            info.idempotency_key, info.instance_id, UNDO + step if undoes else step, statement["mode"],
            bool(statement.get("undo")), undoes, request, self._loop.time(), self.next_number(),
        )  # fmt: skip
        call.behaviour, rng = self._draw(call.key, before, undoes)
        ledger.calls.append(call)
        return call, rng

    def _book(self, call: Call) -> Any:
        """One that dedupes by key books once; the others book whatever comes."""
        if call.mode == "keyed" and call.key in self.receipts:
            return self.receipts[call.key]
        call.booked_at = self._loop.time()
        if call.undoes:
            self.ledger.refunds.append((call.instance, call.undoes))
        receipt = {"receipt": call.key[-6:], "n": len(self.ledger.calls)}
        return self.receipts.setdefault(call.key, receipt)

    async def call(self, info: Any, statement: dict[str, Any], request: Any) -> Any:
        call, rng = self._note(info, statement, request)
        latency = rng.random() * (0.3 if rng.random() < 0.8 else 1.5)
        behaviour, timeout = call.behaviour, statement["timeout"]
        if behaviour == "slow" and call.mode != "keyed":
            self._later(timeout + rng.random() * LATE_MOST, call)
            await asyncio.sleep(10_000)
        if behaviour == "hang":
            if rng.random() < 0.5:
                self._later(latency, call)
            await asyncio.sleep(10_000)
        await asyncio.sleep(latency)
        return self._answer(call)

    def call_now(self, info: Any, statement: dict[str, Any], request: Any) -> Any:
        """From a thread of the simulation, where a call takes no time."""
        call, _ = self._note(info, statement, request)
        return self._answer(call)

    def _later(self, seconds: float, call: Call) -> None:
        """The request is on its way, and what becomes of its sender does not stop it."""
        self._on_their_way.append(call)
        self._loop.call_later(seconds, self._arrive, call, context=context_of(WORLD))

    def _arrive(self, call: Call) -> None:
        if call in self._on_their_way:
            self._on_their_way.remove(call)
            self._book(call)

    def time_passed(self) -> None:
        """The machine slept, or its clock jumped ahead: whatever was on its way has arrived meanwhile."""
        for call in list(self._on_their_way):
            self._arrive(call)

    def _answer(self, call: Call) -> Any:
        behaviour = call.behaviour
        if behaviour == "not_applied":
            call.not_applied = True
            raise NotApplied("the provider could not be reached")
        if behaviour == "rejected" and call.key not in self.receipts:
            call.not_applied = True
            raise Rejected("the provider said no")
        if behaviour == "timeout_before":
            raise TimeoutError("no answer")
        receipt = self._book(call)
        if behaviour == "timeout_after":
            raise TimeoutError("no answer")
        if behaviour == "error_after":
            raise Plain("the receipt could not be parsed")
        if behaviour == "refused":
            raise ConnectionRefusedError("the host of receipts is away")
        if behaviour in MISDEEDS:
            raise MISDEEDS[behaviour]()
        return receipt

    def find(self, key: str) -> Any:
        """What a look-up is told: the receipt, or None while nothing is booked."""
        if Random(f"{self._seed}/find/{key}/{self.next_number()}").random() < self.more.get("find_fails", 0.0):
            raise Plain("the search is out of order")
        return self.receipts.get(key)

    def refund(self, info: Any) -> None:
        """By a compensation that is a step: no call of it is on record, and none is judged."""
        self.ledger.refunds.append((info.instance_id, info.step))
