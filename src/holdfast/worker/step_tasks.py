"""The asyncio tasks in which handlers run: each is its own instance's, and no other instance's code cancels it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.engine.scope import Scope
from holdfast.store.tended import OwnTask

if TYPE_CHECKING:
    from holdfast.engine.replay import Call
    from holdfast.worker.turns import UnderClaim


class StepTask(OwnTask):
    __slots__ = ("instance_id",)
    instance_id: bytes

    def belongs_to(self, scope: Scope) -> bool:
        return scope[0].instance_id == self.instance_id


def launch(ex: UnderClaim, call: Call, work: Any) -> StepTask:
    ex.running[call.key] = task = StepTask(work, loop=ex.worker.loop, name="holdfast-step")
    task.instance_id = ex.id
    return task
