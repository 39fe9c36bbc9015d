"""A workflow walked by hand: the test plays the worker, and sees everything the workflow asked and was told."""

import random
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.engine import history as h
from holdfast.engine.codec import PAYLOAD_LIMIT, encode
from holdfast.engine.context import Context
from holdfast.engine.journal import read, words_from
from holdfast.engine.replay import Call, Replay

MONDAY = 1_767_603_600_000_000  # microseconds of the store's clock
OPENED_BY = {"sleep": h.TIMER_STARTED, "signal": h.WAIT_STARTED, "child": h.CHILD_STARTED, "effect": h.EFFECT_STARTED}
ANSWERED_BY = {
    "step": h.STEP_COMPLETED,
    "transaction": h.TRANSACTION_COMMITTED,
    "effect": h.EFFECT_SUCCEEDED,
    "sleep": h.TIMER_FIRED,
    "signal": h.SIGNAL_RECEIVED,
    "child": h.CHILD_COMPLETED,
}
Row = tuple[int, str, str, bytes]


class Watched(Replay):
    """A replay that notes the path it walks: what was asked, and what was released in between."""

    def __init__(self, journal: Any) -> None:
        super().__init__(journal)
        self.path: list[tuple[str, ...]] = []

    def ask(self, kind: str, key: str, args: bytes, args_hash: str, spec: Any, type_: Any = None) -> Call:
        self.path.append(("asked", kind, key, args.decode(), args_hash))
        return super().ask(kind, key, args, args_hash, spec, type_)

    def _settle(self, call: Call, type_: str, words: Any) -> None:
        self.path.append(("released", call.key))
        super()._settle(call, type_, words)


class Play:
    """One instance. `rows` is its history so far; what it does next is appended to it."""

    def __init__(
        self, workflow: Callable[..., Any], rows: Iterable[Row] = (), entropy: Any = None, limit: int = PAYLOAD_LIMIT
    ) -> None:
        self.rows = list(rows)
        self.replay = Watched(read(self.rows))
        self.ctx = Context(
            self.replay, tenant_id="acme", instance_id="ins_1", workflow="order", version=1, clock=lambda: MONDAY,
            entropy=entropy or random.Random(7), payload_limit=limit,
        )  # fmt: skip
        self.open: dict[str, Call] = {}
        self.replay.begin(workflow, self.ctx)
        self._collect()

    def _collect(self) -> None:
        for type_, key, payload in self.ctx.soft:
            self._record(type_, key, payload)
        self.ctx.soft.clear()
        for call in self.replay.asked:
            self.open[call.key] = call
            opened = call.recorded is not None and call.recorded.opened is not None
            if call.kind in OPENED_BY and not opened:
                self._record(OPENED_BY[call.kind], call.key, self._head(call) + b"}")
        self.replay.asked.clear()

    def _head(self, call: Call) -> bytes:
        return b'{"args_hash":"%s"' % call.args_hash.encode() + (b',"args":' + call.args if call.args else b"")

    def _record(self, type_: str, name: str, payload: bytes) -> None:
        self.rows.append((len(self.rows) + 1, type_, name, payload))

    def answer(self, key: str, result: Any = None) -> None:
        """The call is done: its row is committed, then released."""
        call = self.open.pop(key)
        self._settle(call, ANSWERED_BY[call.kind], self._head(call) + b',"result":' + encode(result) + b"}")

    def fail(self, key: str, message: str = "no", type_: str = h.STEP_FAILED, **words: Any) -> None:
        call = self.open.pop(key)
        said = encode({"error": {"type": "ValueError", "message": message}, **words})
        self._settle(call, type_, self._head(call) + b"," + said[1:])

    def _settle(self, call: Call, type_: str, payload: bytes) -> None:
        self._record(type_, call.key, payload)
        self.replay.answer(call, type_, words_from(payload))
        self._collect()

    @property
    def asked(self) -> list[str]:
        """What waits for an answer, in the order of being asked."""
        return list(self.open)

    @property
    def path(self) -> list[tuple[str, ...]]:
        return self.replay.path

    @property
    def result(self) -> Any:
        value, error = self.replay.outcome()
        if error is not None:
            raise error
        return value

    @property
    def error(self) -> BaseException | None:
        return self.replay.outcome()[1]

    def again(self, workflow: Callable[..., Any], **options: Any) -> "Play":
        """Another process takes over: the coroutine is gone, the history is there."""
        self.replay.close()
        return Play(workflow, self.rows, **options)
