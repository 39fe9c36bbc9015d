"""Effects that the journal has open and today's code does not ask for: a person settles them by the journal alone.

The code that asked for such an effect was changed by a deploy, or has not come there yet. What is on record says enough
to show it at the desk and to write down what became of it; to start it again takes the code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine import history as h
from holdfast.engine.journal import UNDO, Recorded
from holdfast.engine.replay import Call, Undoing
from holdfast.engine.steps import recorded_effect
from holdfast.worker import effects
from holdfast.worker.standing import EffectStanding

if TYPE_CHECKING:
    from holdfast.worker.execution import Execution


def show_at_desk(ex: Execution) -> None:
    """Into the turn that parks the instance: of a call whose worker was lost nobody else will say so."""
    for name, recorded in ex.replay.journal.unasked_effects().items():
        if recorded.opened_type == h.EFFECT_STARTED:
            call = _call(ex, name, recorded)
            call.state.escaped = True
            effects.unknown(ex, call, effects.LOST, quiet_at=call.state.opens_at)


def settle(ex: Execution) -> bool:
    """Take one person's word about such an effect. The body, should it ask later, is answered from the journal."""
    waiting = ex.replay.journal.unasked_effects()
    for event in ex.events.facts if waiting else ():
        recorded = waiting.get(event.name) if event.kind == "resolution" else None
        if recorded is not None:
            call = _call(ex, event.name, recorded)
            if effects.is_about(ex, call, event):
                recorded.opened_type = h.EFFECT_RESOLVED
            effects.resolved(ex, call, event)
            return True
    return False


def _call(ex: Execution, name: str, recorded: Recorded) -> Call:
    assert recorded.opened is not None
    spec = recorded_effect(recorded.opened.mode)
    undone = name.removeprefix(UNDO)
    call = Call("effect", undone, recorded.args, "", spec, None, 0, ex.replay.loop.create_future(), recorded)
    if undone != name:
        call = Undoing(call, recorded.args, spec, None, recorded)
    call.state = EffectStanding()
    effects.read_standing(call.state, recorded.opened)
    call.state.unknown = True  # it is open
    call.state.wait_until(None)
    return call
