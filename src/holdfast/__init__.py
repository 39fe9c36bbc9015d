"""Holdfast: durable workflows for processes that touch money and people."""

from holdfast.app.dead_letters import DeadLetterView
from holdfast.app.effects import EffectView, Observation
from holdfast.app.instances import HistoryEntry, InstanceView
from holdfast.app.verify import Fault, Verdict
from holdfast.app.workers import WorkerView
from holdfast.engine.builder import LoopExhausted, Workflow
from holdfast.engine.context import Context
from holdfast.engine.effects import Found
from holdfast.engine.errors import (
    Backlogged,
    BadDefinition,
    BadInput,
    BusinessKeyTaken,
    ChildFailed,
    ConcurrentName,
    ConnectionRefused,
    EffectAborted,
    EffectFailed,
    EffectNotFound,
    EffectNotOpen,
    HoldfastError,
    InstanceEnded,
    InstanceFailed,
    InstanceNotFound,
    NotApplied,
    NotInWorkflow,
    NotJson,
    PayloadTooLarge,
    Rejected,
    ResultNotReady,
    StepFailed,
    StoreNotMigrated,
    StoreTooNew,
    StoreUnavailable,
    WorkflowNotRegistered,
)
from holdfast.engine.retry import Backoff
from holdfast.engine.signatures import StepInfo
from holdfast.engine.steps import effect
from holdfast.facade import Effects, Handle, Holdfast, Tenant

__all__ = [
    "Backlogged", "Backoff", "BadDefinition", "BadInput", "BusinessKeyTaken", "ChildFailed", "ConcurrentName",
    "ConnectionRefused", "Context", "DeadLetterView", "EffectAborted", "EffectFailed", "EffectNotFound",
    "EffectNotOpen", "EffectView",
    "Effects", "Fault", "Found", "Handle", "HistoryEntry", "Holdfast", "HoldfastError", "InstanceEnded",
    "InstanceFailed", "InstanceNotFound", "InstanceView", "LoopExhausted", "NotApplied", "NotInWorkflow", "NotJson",
    "Observation", "PayloadTooLarge", "Rejected", "ResultNotReady", "StepFailed", "StepInfo", "StoreNotMigrated",
    "StoreTooNew", "StoreUnavailable", "Tenant", "Verdict", "WorkerView", "Workflow", "WorkflowNotRegistered", "effect",
]  # fmt: skip
