"""The AI task: asks a model once, once more if its answer cannot be used, and gives back a record of all of it.

The record is what the task's receipt stores; nobody acts on an answer that is not in one. What the answer may cause
is decided by `engine.ai.judge`. An answer that stays unusable is no error: its verdict is "needs_person".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Literal, assert_never

import msgspec

from holdfast.engine import ai
from holdfast.engine.ai import AiDefaults, AiOptions, Answer, Apply, Limits, NoEvent, Origin, Problem, Refused, Suggest
from holdfast.engine.codec import decode, encode
from holdfast.engine.effects import known_from
from holdfast.engine.errors import HoldfastError, NotApplied, PayloadTooLarge, Rejected
from holdfast.engine.retry import storable
from holdfast.engine.stacks import Asked
from holdfast.engine.tasks import TaskInfo
from holdfast.handlers.llm import BadReply, LlmFailed, OpenAiCompatible
from holdfast.handlers.ports import Llm, LlmReply, LlmRequest, TenantPolicies

REPEATED_LIMIT = 16 * 1024  # how much of a bad answer the model is shown again
SECONDS_MIN = 1.0  # with less time left, the second call would only cost
Verdict = Literal["apply", "suggest", "no_event", "needs_person", "refused"]


class AiHandler:
    """Serves AI tasks. `defaults` is the operator's word about models, prices and caps."""

    def __init__(
        self,
        llm: Llm,
        policies: TenantPolicies,
        *,
        defaults: AiDefaults | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._llm = llm
        self._policies = policies
        self._defaults = defaults or AiDefaults()
        self._now = now
        self.provider = "openai" if isinstance(llm, OpenAiCompatible) else type(llm).__name__  # as traces name it

    async def __call__(self, task: TaskInfo) -> dict[str, Any]:
        asking: _Asking | HoldfastError
        try:
            asking = _Asking(task, self._defaults)
        except HoldfastError as error:
            asking = error
        try:
            await self._check_switch(task)
            if isinstance(asking, HoldfastError):
                raise Rejected(f"the AI task {task.name!r} was not asked: {asking}")
            return await self._answered(task, asking)
        except Exception as error:
            if isinstance(asking, _Asking):  # kept like the record of an answer, also where nobody was asked
                error.asked = Asked(asking.asked(self._defaults.record_limit))  # type: ignore[attr-defined]
            raise

    async def _answered(self, task: TaskInfo, asking: _Asking) -> dict[str, Any]:
        if dear := ai.too_dear(asking.limits, 0, *asking.texts()):
            raise Rejected(f"the AI task {task.name!r} was not asked: {dear}")
        if task.not_after is not None and self._now() > task.not_after:
            raise NotApplied("the call was late before it began, so the model was not asked")
        ends_at = asyncio.get_running_loop().time() + asking.limits.timeout_seconds
        try:
            await self._ask(asking, ends_at)
        except Exception as error:
            raise asking.without_marked(error) from None
        if asking.problem is not None:
            await self._repair(asking, ends_at)
        return asking.record(self._defaults.record_limit)

    async def _check_switch(self, task: TaskInfo) -> None:
        try:
            policy = await self._policies.of(task.tenant_id)
        except Exception as error:
            raise NotApplied(
                f"the model was not asked: the tenant's policy cannot be read ({type(error).__name__})"
            ) from error
        if policy.ai_enabled is not True:
            raise Rejected(
                f"AI is switched off for tenant {task.tenant_id!r} (ai_enabled in its policy), so no model was asked: "
                "switch it on and run the task again, or let a person decide"
            )

    async def _ask(self, asking: _Asking, ends_at: float) -> None:
        left = ends_at - asyncio.get_running_loop().time()
        request = asking.request(left)
        try:
            async with asyncio.timeout(left):
                reply = await self._llm.complete(request)
        except BadReply as error:
            asking.take(request, error.reply, Problem(ai.clip(storable(str(error)), ai.PROBLEM_LIMIT)))
        except TimeoutError:
            raise LlmFailed(f"the model did not answer within {asking.limits.timeout_seconds:g} s") from None
        else:
            asking.take(request, reply, ai.read_answer(reply.text, asking.limits.max_output_bytes))

    async def _repair(self, asking: _Asking, ends_at: float) -> None:
        """Once, under the same caps. What fails here fails to help: the first answer is paid for, and is kept."""
        held = ai.too_dear(asking.limits, asking.spent, *asking.texts())
        if held is None and ends_at - asyncio.get_running_loop().time() < SECONDS_MIN:
            held = "no time is left"
        if held is None:
            try:
                await self._check_switch(asking.task)
            except (Rejected, NotApplied) as error:
                held = str(error)
        if held is None:
            try:
                await self._ask(asking, ends_at)
                return
            except Exception as error:
                asking.failed(error)
                held = "the model could not be asked again"
        asking.not_repaired = asking.redactor.text(held)


class _Asking:
    """One task's conversation with the model: what is sent, what came back, what it cost so far."""

    def __init__(self, task: TaskInfo, defaults: AiDefaults) -> None:
        self.task = task
        self.options: AiOptions = ai.read_options(task.options)
        self.limits: Limits = ai.limits_of(self.options, defaults)
        value, _ = ai.plain_input(task.input, self.limits.max_input_bytes)
        self.schema = ai.answer_schema(self.options.policy, self.options.schema)
        self.checker = ai.Checker(self.schema)
        self.redactor = ai.Redactor(self.options.redact, value)
        prompt, policy = self.options.prompt, self.options.policy
        self.sent = ai.rendered(prompt, policy, self.schema, value)
        self.input, input_hash = ai.plain_input(self.redactor.input(value), 2 * self.limits.max_input_bytes)
        self.stored = self._rendered_for_storing()
        self.origin = Origin(
            tenant_id=task.tenant_id,
            instance_id=task.instance_id,
            task_id=task.task_id,
            prompt_hash=ai.prompt_hash(prompt),
            input_hash=input_hash,
        )
        self.calls: list[dict[str, Any]] = []
        self.tokens = {"input": 0, "output": 0, "estimated": False}
        self.answer: Any = None
        self.problem: str | None = None
        self.not_repaired: str | None = None
        self._last: LlmReply | None = None
        self._last_value: Any = None

    def _rendered_for_storing(self) -> ai.Rendered:
        if not self.redactor:
            return self.sent
        prompt, policy = self.options.prompt, self.options.policy
        try:
            stored = ai.rendered(prompt, policy, self.schema, self.input)
        except HoldfastError:  # it reads inside a value that is redacted whole
            return ai.Rendered(self.redactor.text(self.sent.system), f"{ai.REDACTED} (it reads inside a marked field)")
        return ai.Rendered(self.redactor.text(stored.system), self.redactor.text(stored.user))

    @property
    def spent(self) -> int:
        price = self.limits.price
        return ai.cost_of(price, self.tokens["input"], self.tokens["output"]) if price else 0

    def messages(self) -> list[dict[str, str]]:
        asked = [{"role": "user", "content": self.sent.user}]
        if self._last is None or self.problem is None:
            return asked
        said = storable(self._last.text)[:REPEATED_LIMIT] if isinstance(self._last.text, str) else ""
        return [
            *asked,
            {"role": "assistant", "content": said or "(nothing)"},
            {"role": "user", "content": ai.repair_words(self.problem)},
        ]

    def texts(self) -> list[str]:
        """All that the next call would send and could be counted as tokens."""
        return [
            self.sent.system,
            *(one["content"] for one in self.messages()),
            msgspec.json.encode(self.schema).decode(),
        ]

    def request(self, seconds: float) -> LlmRequest:
        key = self.task.idempotency_key
        return LlmRequest(
            model=self.limits.model,
            system=self.sent.system,
            messages=self.messages(),
            schema=self.schema,
            max_tokens=self.limits.max_tokens,
            timeout_seconds=max(seconds, 0.001),
            idempotency_key=f"{key}.{len(self.calls) + 1}" if self.calls else key,
        )

    def take(self, request: LlmRequest, reply: LlmReply, read: Answer | Problem) -> None:
        problem = read.text if isinstance(read, Problem) else self._fault(read.value)
        raw = reply.text if isinstance(reply.text, str) else ""
        used = self._count(request, reply, raw)
        kept = self.redactor.raw(raw, read, self.options.policy)
        call: dict[str, Any] = {
            "raw": ai.clip_stored(kept, self.limits.max_output_bytes),
            "model": ai.clip_stored(str(reply.model), 400) or None,
            **used,
        }
        if problem is not None:
            call["error"] = self.redactor.text(problem)
        self.calls.append(call)
        self._last, self._last_value = reply, read.value if isinstance(read, Answer) else None
        self.problem = problem
        self.answer = self.redactor.output(self._last_value, self.options.policy) if problem is None else None

    def _fault(self, value: Any) -> str | None:
        if not isinstance(value, dict):
            return "the answer is not a JSON object"
        return self.checker.problem(value)

    def _count(self, request: LlmRequest, reply: LlmReply, raw: str) -> dict[str, int]:
        """The provider's counts; where it gives none that can be, the most it can have been."""
        counts = [reply.input_tokens, reply.output_tokens]
        if not all(type(one) is int and 0 <= one <= ai.TOKENS_MAX for one in counts) or not any(counts):
            wrote = min(ai.tokens_at_most(raw), request.max_tokens) if raw else request.max_tokens
            counts = [ai.tokens_at_most(*self.texts()), wrote]
            self.tokens["estimated"] = True
        self.tokens["input"] += counts[0]
        self.tokens["output"] += counts[1]
        return {"input_tokens": counts[0], "output_tokens": counts[1]}

    def failed(self, error: Exception) -> None:
        self.calls.append({
            "raw": None, "model": None, "input_tokens": 0, "output_tokens": 0,
            "error": str(self.without_marked(error)),
        })  # fmt: skip

    def without_marked(self, error: Exception) -> Exception:
        """The same news about the world, without values that must not be stored: a provider may quote what it got."""
        words = (
            str(error) if isinstance(error, (NotApplied, Rejected, LlmFailed)) else f"{type(error).__name__}: {error}"
        )
        words = ai.clip(self.redactor.text(storable(words)), ai.PROBLEM_LIMIT)
        match known_from(error):
            case "not_applied":
                return NotApplied(words)
            case "rejected":
                return Rejected(words)
            case "unknown":
                return LlmFailed(words)

    def asked(self, limit: int) -> dict[str, Any]:
        """What is kept of a call without an answer: an error is stored with it, so that it has half of the limit."""
        return _shortened(self._asked(), limit // 2)

    def _asked(self) -> dict[str, Any]:
        prompt = self.options.prompt
        return {
            "prompt": {"id": prompt.id, "version": prompt.version, "hash": self.origin.prompt_hash},
            "policy": decode(encode(self.options.policy)),
            "rendered": {"system": self.stored.system, "user": self.stored.user},
            "input": self.input,
            "model_asked": self.limits.model or None,
            "calls": self.calls,
        }

    def record(self, limit: int) -> dict[str, Any]:
        record: dict[str, Any] = {
            **self._asked(),
            "answer": self.answer,
            **self._judged(),
            "tokens": self.tokens,
            "cost": self._cost(),
        }
        return _fitted(record, limit)

    def _judged(self) -> dict[str, Any]:
        if self.problem is not None:
            return self._unusable(self.problem)
        match ai.judge(self.options.policy, self.answer, self.origin):
            case Apply(proposal=proposal):
                return _proposed("apply", proposal, "the task's policy lets the AI apply it")
            case Suggest(proposal, why):
                return _proposed("suggest", proposal, why)
            case NoEvent():
                return _nothing("no_event", "the task's policy allows no event")
            case Refused(reason):
                return _nothing("refused", reason)
            case unreachable:
                assert_never(unreachable)

    def _unusable(self, problem: str) -> dict[str, Any]:
        why = f"the model gave no answer that can be used: {self.redactor.text(problem)}"
        if self.not_repaired is not None:
            why = f"{why} (not asked again: {self.not_repaired})"
        policy = self.options.policy
        if policy.allowed_events and isinstance(self._last_value, dict):
            match ai.judge(policy, self._last_value, self.origin):
                case Refused(reason):
                    return _nothing("refused", self.redactor.text(reason))
        return _nothing("needs_person", why)

    def _cost(self) -> dict[str, Any] | None:
        if self.limits.price is None:
            return None
        cap = self.limits.max_cost
        return {
            "micros": self.spent,
            "currency": self.limits.price.currency,
            "max": cap,
            "exceeded": cap is not None and self.spent > cap,
        }


def _nothing(verdict: Verdict, why: str) -> dict[str, Any]:
    return {
        "verdict": verdict, "why": why, "event": None, "proposal": None, "confidence": None,
        "reason": why if verdict in ("needs_person", "refused") else None,
    }  # fmt: skip


def _proposed(verdict: Verdict, proposal: ai.Proposal, why: str) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "why": why,
        "event": proposal.event,
        "proposal": {**msgspec.to_builtins(proposal), "hash": ai.proposal_hash(proposal)},
        "confidence": proposal.confidence,
        "reason": proposal.reason,
    }


def _fitted(record: dict[str, Any], limit: int) -> dict[str, Any]:
    """Below the limit of one stored value. The parts' own limits see to it, unless the operator lowered that one."""
    shorter = _shortened(record, limit)
    if not _fits(shorter, limit):  # what a person cannot be shown whole is not proposed at all
        shorter |= {"answer": None} | _nothing("needs_person", "the answer is larger than what can be stored")
    return shorter


def _shortened(record: dict[str, Any], limit: int) -> dict[str, Any]:
    if _fits(record, limit):
        return record
    share = limit // 16
    shorter: dict[str, Any] = record | {
        "rendered": {name: ai.clip_stored(text, share) for name, text in record["rendered"].items()},
        "calls": [call | {"raw": ai.clip_stored(call["raw"] or "", share)} for call in record["calls"]],
        "shortened": True,
    }
    if not _fits(shorter, limit):
        shorter |= {"input": None, "policy": None}
    return shorter


def _fits(record: dict[str, Any], limit: int) -> bool:
    try:
        encode(record, "the record of an AI task", limit)
    except PayloadTooLarge:
        return False
    return True
