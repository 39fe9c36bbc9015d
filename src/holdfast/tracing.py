"""OpenTelemetry, where an application has set it up; without it nothing here is imported and nothing happens.

A stretch of work is a span: from the claim of an instance to the wait, or the end, that hands it back. No span is open
while an instance waits, which may be for months. The next stretch is linked to the one before it: to its span if that
was in this process, else to the `traceparent` the instance was started with. Attempts of steps, effects and tasks are
the children of their stretch.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import WeakKeyDictionary

import structlog

from holdfast.engine import ids
from holdfast.engine.effects import known_from
from holdfast.engine.hiding import without_secrets
from holdfast.engine.journal import UNDO
from holdfast.engine.replay import Call, Undoing
from holdfast.engine.trace import TraceParent, format_traceparent, parse_traceparent

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, TracerProvider

    from holdfast.worker.tasks import TaskCall
    from holdfast.worker.turns import UnderClaim

log = structlog.get_logger("holdfast.tracing")
LINKS_LIMIT = 10_000  # instances whose last stretch is remembered; the others are linked to their traceparent
WORDS_LIMIT = 300
NAME = "holdfast"
OUTWARD = ("HTTP", "EMAIL", "AI")


def tracing_by(provider: TracerProvider | None = None) -> Tracing | None:
    """Spans by this provider, or by the process's own. None where there is none: then tracing costs nothing."""
    found = _provider(provider)
    return None if found is None else Tracing(found)


def _provider(given: TracerProvider | None) -> TracerProvider | None:
    if given is not None:
        return given
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:  # nobody here has imported it, so nobody can have set one
        return None
    found: Any = trace.get_tracer_provider()
    return None if isinstance(found, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)) else found


def current_traceparent() -> str | None:
    """Of the span that the caller is in, if it is in one."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    return None if trace is None else _written(trace.get_current_span().get_span_context())


def _written(context: SpanContext) -> str | None:
    if not context.is_valid:
        return None
    place = TraceParent(f"{context.trace_id:032x}", f"{context.span_id:016x}", int(context.trace_flags))
    return format_traceparent(place)


class Tracing:
    """The spans of one worker."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import context, trace

        self._context, self._trace = context, trace
        self._tracer = provider.get_tracer(NAME)
        self._stretches: WeakKeyDictionary[UnderClaim, Span] = WeakKeyDictionary()
        self._attempts: dict[Call, Span] = {}
        self._last: OrderedDict[bytes, SpanContext] = OrderedDict()

    # -- stretches

    def began(self, ex: UnderClaim) -> None:
        try:
            claimed = ex.claimed
            stored = self._stored(claimed.trace_id)
            before = self._last.get(claimed.id) or (stored if claimed.fence > 1 else None)
            self._stretches[ex] = self._tracer.start_span(
                f"instance {claimed.definition_key}",
                context=self._under(stored),
                links=[self._trace.Link(before)] if before is not None else (),
                attributes={**_whose(ex), "holdfast.definition_version": claimed.definition_version},
            )
        except Exception as error:
            log.warning("span_lost", **_named(ex), error=repr(error))

    def ended(self, ex: UnderClaim, outcome: str) -> None:
        span = self._stretches.pop(ex, None)
        if span is None:
            return
        try:
            self._last.pop(ex.id, None)
            if outcome in ("waiting", "let_go"):
                self._last[ex.id] = span.get_span_context()
                while len(self._last) > LINKS_LIMIT:
                    self._last.popitem(last=False)
            span.set_attribute("holdfast.outcome", outcome)
            if outcome == "failed":
                span.set_status(self._trace.StatusCode.ERROR)
            span.end()
        except Exception as error:
            log.warning("span_lost", **_named(ex), error=repr(error))

    def _stored(self, text: str | None) -> SpanContext | None:
        place = parse_traceparent(text)
        if place is None:
            return None
        flags = self._trace.TraceFlags(place.flags)
        return self._trace.SpanContext(int(place.trace_id, 16), int(place.span_id, 16), True, flags)

    def _under(self, parent: SpanContext | None) -> Any:
        """A context that holds this parent alone, whatever span the worker itself may be in."""
        empty = self._context.Context()
        if parent is None:
            return empty
        return self._trace.set_span_in_context(self._trace.NonRecordingSpan(parent), empty)

    # -- attempts

    @contextmanager
    def attempt(self, ex: UnderClaim, call: Call) -> Iterator[None]:
        """The span of one attempt, current in whatever is started in this block. It ends when the handler is back."""
        span = None if call.kind == "transaction" and ex.committing else self._begin(ex, call)
        if span is None:  # one that has to wait for its turn is started once more
            yield
            return
        token = self._context.attach(self._trace.set_span_in_context(span))
        try:
            yield
        finally:
            self._context.detach(token)
            task = ex.running.get(call.key)
            if task is not None:  # one cancelled before its first line, or a transaction that failed, does not report
                task.add_done_callback(lambda _: self._end(ex, call, span, "not_reported", {}))
            else:
                self._end(ex, call, span, "not_started", {})

    def _begin(self, ex: UnderClaim, call: Call) -> Span | None:
        try:
            span = self._tracer.start_span(
                _title(ex, call),
                context=self._trace.set_span_in_context(
                    self._stretches.get(ex, self._trace.INVALID_SPAN), self._context.Context()
                ),
                kind=self._trace.SpanKind.CLIENT if _outward(call) else self._trace.SpanKind.INTERNAL,
                attributes={**_whose(ex), **_which(ex, call)},
            )
        except Exception as error:
            log.warning("span_lost", **_named(ex), error=repr(error))
            return None
        self._attempts[call] = span
        return span

    def returned(self, ex: UnderClaim, call: Call, value: Any, error: BaseException | None) -> None:
        span = self._attempts.get(call)
        if span is None:
            return
        try:
            outcome = "succeeded" if error is None else _failure(call, error)
            found = _of_model(value) if _is_task(call) and call.task.type == "AI" else {}
            if error is not None:
                found["error.type"] = type(error).__name__
                span.set_status(self._trace.StatusCode.ERROR, without_secrets(str(error))[:WORDS_LIMIT])
        except Exception as broken:
            outcome, found = "succeeded" if error is None else "failed", {}
            log.warning("span_lost", **_named(ex), error=repr(broken))
        self._end(ex, call, span, outcome, found)

    def _end(self, ex: UnderClaim, call: Call, span: Span, outcome: str, found: Mapping[str, Any]) -> None:
        if self._attempts.get(call) is not span:
            return  # it has ended
        del self._attempts[call]
        try:
            if outcome == "not_reported" and call.kind == "transaction":
                outcome = "failed"
                span.set_status(self._trace.StatusCode.ERROR)
            span.set_attribute("holdfast.outcome", outcome)
            span.set_attributes(found)
            span.end()
        except Exception as error:
            log.warning("span_lost", **_named(ex), error=repr(error))

    def traceparent(self) -> str | None:
        return _written(self._trace.get_current_span().get_span_context())


class RequestSpan:
    """The span of one request to the server. `traceparent` names it to whatever the request starts."""

    def __init__(self, tracing: RequestTracing, span: Span) -> None:
        self._tracing, self._span = tracing, span
        self.traceparent = _written(span.get_span_context())

    def answered(self, status: int, tenant_id: str) -> None:
        self._span.set_attribute("http.response.status_code", status)
        if tenant_id:
            self._span.set_attribute("holdfast.tenant_id", tenant_id)
        if status >= 500:
            self._span.set_status(self._tracing.trace.StatusCode.ERROR)
        self._span.end()


class RequestTracing:
    """The spans of a server: each a child of what the caller's traceparent names."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import context, trace

        self.context, self.trace = context, trace
        self._tracer = provider.get_tracer(NAME)

    def began(self, method: str, route: str, traceparent: str | None) -> RequestSpan | None:
        try:
            place, above = parse_traceparent(traceparent), self.context.Context()
            if place is not None:
                flags = self.trace.TraceFlags(place.flags)
                parent = self.trace.SpanContext(int(place.trace_id, 16), int(place.span_id, 16), True, flags)
                above = self.trace.set_span_in_context(self.trace.NonRecordingSpan(parent), above)
            span = self._tracer.start_span(
                f"{method} {route}", context=above, kind=self.trace.SpanKind.SERVER,
                attributes={"http.request.method": method, "http.route": route},
            )  # fmt: skip
            return RequestSpan(self, span)
        except Exception as error:
            log.warning("span_lost", route=route, error=repr(error))
            return None


def request_tracing_by(provider: TracerProvider | None = None) -> RequestTracing | None:
    """Spans of requests by this provider, or by the process's own; None where there is none."""
    found = _provider(provider)
    return None if found is None else RequestTracing(found)


def _named(ex: UnderClaim) -> dict[str, str]:
    return {"tenant_id": ex.tenant_id, "instance_id": ids.instance_word(ex.id)}


def _whose(ex: UnderClaim) -> dict[str, str]:
    return {
        "holdfast.tenant_id": ex.tenant_id,
        "holdfast.instance_id": ids.instance_word(ex.id),
        "holdfast.definition": ex.claimed.definition_key,
    }


def _outward(call: Call) -> bool:
    return _is_task(call) and call.task.type in OUTWARD


def _title(ex: UnderClaim, call: Call) -> str:
    if _is_task(call):
        return f"{call.task.type} {call.task.name}"
    step = call.key.partition("#")[0]
    if ex.undoing(call) or isinstance(call, Undoing):
        return f"compensation {step.removeprefix(UNDO)}"
    if call.kind == "effect" and call.state.next == "lookup":
        return f"lookup {step}"
    return f"{call.kind} {step}"


def _which(ex: UnderClaim, call: Call) -> dict[str, Any]:
    attempt = ex.undo.attempt if ex.undo is not None and ex.undoing(call) else call.state.attempt
    found: dict[str, Any] = {"holdfast.step": call.key, "holdfast.kind": call.kind, "holdfast.attempt": attempt}
    if _is_task(call):
        found |= {"holdfast.task_id": call.task.word, "holdfast.task_type": call.task.type}
        if call.task.type == "AI":
            found |= _asked(call)
    return found


def _is_task(call: Call) -> TypeGuard[TaskCall]:
    from holdfast.worker.tasks import TaskCall

    return isinstance(call, TaskCall)


def _asked(call: TaskCall) -> dict[str, str]:
    found = {"gen_ai.operation.name": "chat"}
    provider, model = getattr(call.spec.function, "provider", None), call.task.options.get("model")
    if isinstance(provider, str):
        found |= {"gen_ai.provider.name": provider, "gen_ai.system": provider}  # the second is the older name of it
    if isinstance(model, str) and model:
        found["gen_ai.request.model"] = model
    return found


def _of_model(record: Any) -> dict[str, Any]:
    """What the record of an AI task says about the calls that were made for it."""
    if not isinstance(record, dict) or not isinstance(record.get("tokens"), dict):
        return {}
    found: dict[str, Any] = {
        "gen_ai.usage.input_tokens": record["tokens"]["input"],
        "gen_ai.usage.output_tokens": record["tokens"]["output"],
    }
    if record.get("model_asked"):
        found["gen_ai.request.model"] = record["model_asked"]
    answered = [one["model"] for one in record.get("calls", ()) if one.get("model")]
    if answered:
        found["gen_ai.response.model"] = answered[-1]
    return found


def _failure(call: Call, error: BaseException) -> str:
    """Of an effect, what the error says about the world."""
    return str(known_from(error)) if call.kind == "effect" else "failed"
