"""The asyncio tasks of authors' code: each is its own instance's, and no other instance's code cancels it."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from holdfast.engine.scope import SCOPE, Scope
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


class HookTask(OwnTask):
    """An author's function that is told of something: no part of any instance, nor of the other functions told."""

    __slots__ = ("scope",)
    scope: Scope

    def belongs_to(self, scope: Scope) -> bool:
        return scope is self.scope  # its time-outs and task groups cancel the task that they run in


def tell(scope: Scope, work: Any) -> HookTask:
    context = copy_context()
    context.run(SCOPE.set, scope)
    task = HookTask(work, name="holdfast-hook", context=context)
    task.scope = scope
    return task
