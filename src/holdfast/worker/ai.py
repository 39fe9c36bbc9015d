"""What an AI task's answer leads to: an event it may cause, a person who decides, or plain data.

The handler has judged the answer already. It is judged here again, by the policy in the definition: whatever a
record, a handler or an operator's word says, no event outside `allowed_events` comes out of an AI task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.engine import codec
from holdfast.engine import history as h
from holdfast.engine.ai import AiPolicy, check_applied, proposal_hash, read_policy, read_proposal
from holdfast.engine.charts.snapshots import Waiting
from holdfast.engine.errors import HoldfastError
from holdfast.engine.schemas import check_schema
from holdfast.engine.spans import span
from holdfast.engine.tasks import task_plan
from holdfast.worker import tasks
from holdfast.worker.tasks import REVIEW

if TYPE_CHECKING:
    from holdfast.worker.charts import ChartExecution
    from holdfast.worker.tasks import TaskCall


def answered(ex: ChartExecution, call: TaskCall, record: Any) -> list[Waiting]:
    """What follows from the record of a finished AI task. Nothing yet, if a person has to look first."""
    record = record if isinstance(record, dict) else {}
    policy = _policy(call)
    verdict = record.get("verdict")
    if verdict == "no_event" and not policy.allowed_events:
        return [_done(call, record.get("answer"))]
    if verdict == "apply" and _may_apply(policy, record):
        words = {"event": record["event"], "by": "ai", "confidence": record.get("confidence")}
        ex.record(h.DECISION_RECORDED, call.key, codec.encode(words | {"hash": record["proposal"].get("hash")}))
        return _with_event(call, record["event"], record["proposal"].get("data"), {"by": "ai"})
    _ask(ex, call, record, policy)
    return []


def _policy(call: TaskCall) -> AiPolicy:
    try:
        return read_policy(call.task.options.get("policy"))
    except HoldfastError:
        return AiPolicy()


def _may_apply(policy: AiPolicy, record: dict[str, Any]) -> bool:
    event, confidence = record.get("event"), record.get("confidence")
    return (
        policy.mode == "apply"
        and event in policy.allowed_events
        and event not in policy.human_only
        and isinstance(record.get("proposal"), dict)
        and record["proposal"].get("event") == event
        and isinstance(confidence, (int, float))
        and not isinstance(confidence, bool)
        and confidence >= policy.confidence_min
    )


def _ask(ex: ChartExecution, call: TaskCall, record: dict[str, Any], policy: AiPolicy) -> None:
    """A HUMAN task that shows exactly what is proposed, bound by its hash."""
    task, options = call.task, call.task.options
    proposal = record.get("proposal") if isinstance(record.get("proposal"), dict) else None
    hash_ = None
    if proposal is not None and proposal.get("event") in policy.allowed_events:
        try:
            hash_ = proposal_hash(read_proposal({k: v for k, v in proposal.items() if k != "hash"}))
        except HoldfastError:
            hash_ = None
    if hash_ is None:
        proposal = None
    shown = {
        "proposal": None if proposal is None else proposal | {"hash": hash_}, "why": record.get("why"),
        "reason": record.get("reason"), "verdict": record.get("verdict"), "ai_task": task.word,
    }  # fmt: skip
    due = span(options["due_in"]) if options.get("due_in") is not None else None
    place = call.key.rpartition("/")[2]
    review: dict[str, Any] = {
        "form": _form(policy, hash_, options.get("schema")),
        REVIEW: {"task": task.word, "name": task.name, "hash": hash_},
        **{k: options[k] for k in ("completion_event", "failure_event", "policy", "@deadline") if k in options},
    }  # fmt: skip
    plan = task_plan(
        "HUMAN", f"{task.name}.review", f"Apply or override: {task.name}"[:500], None, 1, options.get("assignee"),
        _groups(options.get("groups")), options.get("priority", 0),
        ex.worker.now() + due if isinstance(due, int) else None, None, shown, review, ex.worker.payload_limit,
    )  # fmt: skip
    tasks.create(ex, plan, place, task.invoke_id, task.visit, ex.worker.now())


def _groups(given: Any) -> list[str] | None:
    return [given] if isinstance(given, str) else given


def _form(policy: AiPolicy, hash_: str | None, schema: Any) -> dict[str, Any]:
    """What a person may say: apply what is shown, choose another allowed event, or reject. Where the model was asked
    for data only, the person gives it instead."""
    choices = (["apply"] if hash_ else []) + (["override"] if policy.allowed_events else ["answer"]) + ["reject"]
    form: dict[str, Any] = {
        "type": "object", "required": ["decision"], "additionalProperties": False,
        "properties": {
            "decision": {"enum": choices}, "reason": {"type": "string", "maxLength": 2000},
            "data": {"type": "object"} if policy.allowed_events else {},
        },
        "allOf": [],
    }  # fmt: skip
    needed = {"apply": "hash", "override": "event", "answer": "data"}
    for choice in choices[:-1]:
        said = {"properties": {"decision": {"const": choice}}}
        form["allOf"].append({"if": said, "then": {"required": [needed[choice]]}})
    if hash_:
        form["properties"]["hash"] = {"const": hash_, "description": "the proposal that was shown"}
    if policy.allowed_events:
        form["properties"]["event"] = {"enum": list(policy.allowed_events)}
    elif isinstance(schema, dict) and check_schema(inlined := form | {"properties": form["properties"] | {
        "data": schema}}) is None:  # fmt: skip
        form = inlined
    return form


def reviewed(ex: ChartExecution, call: TaskCall, output: Any, said: dict[str, Any]) -> list[Waiting]:
    """A person has decided about a proposal."""
    output = output if isinstance(output, dict) else {}
    policy, decision, actor = _policy(call), output.get("decision"), said.get("actor")
    event, data = None, output.get("data")
    if decision == "apply":
        proposal = read_proposal({k: v for k, v in call.task.input["proposal"].items() if k != "hash"})
        problem = check_applied(proposal, output.get("hash"))
        assert problem is None, problem  # the form has checked it
        event, data = proposal.event, proposal.data
    elif decision == "override":
        event = output.get("event")
    if event is not None and event not in policy.allowed_events:
        event = None
    words = {
        "decision": decision, "event": event, "by": actor, "reason": output.get("reason") or said.get("reason"),
        "about": call.task.options[REVIEW]["task"], "hash": call.task.options[REVIEW]["hash"],
    }  # fmt: skip
    ex.record(h.DECISION_RECORDED, call.key, codec.encode(words))
    told = {"by": actor, "decision": decision}
    if decision == "answer" and not policy.allowed_events:
        return [_done(call, data)]
    if event is None:
        return [_done(call, {"decision": decision, "by": actor})]
    return _with_event(call, event, data, told)


def _with_event(call: TaskCall, event: str, data: Any, told: dict[str, Any]) -> list[Waiting]:
    """The event itself, then the task's own answer, which is stale if the event led out of its state."""
    given = data if isinstance(data, dict) else {}
    found = [Waiting({**given, "type": event, "output": data, "decided": told, "task": call.task.words()})]
    if call.task.invoke_id is not None or "completion_event" in call.task.options:
        found.append(_done(call, {"event": event, "data": data, **told}))
    return found


def _done(call: TaskCall, output: Any) -> Waiting:
    return tasks.answer_of(call, True, output)
