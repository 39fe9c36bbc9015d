"""Holdfast: durable workflows for processes that touch money and people."""

from holdfast.app.dead_letters import DeadLetterView
from holdfast.app.definitions import DefinitionView, MigrationView
from holdfast.app.effects import EffectView, Observation
from holdfast.app.instances import HistoryEntry, InstanceView
from holdfast.app.rehearsal import Rehearsed
from holdfast.app.tasks import TaskView
from holdfast.app.verify import Fault, Verdict
from holdfast.app.workers import WorkerView
from holdfast.engine.ai import AiDefaults, Price
from holdfast.engine.builder import BuiltBranch, BuiltStep, LoopExhausted, Workflow
from holdfast.engine.charts.document import BadChart, Problem
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
    DefinitionNotActive,
    DefinitionNotFound,
    EffectAborted,
    EffectFailed,
    EffectNotFound,
    EffectNotOpen,
    EventInLine,
    EventNotTaken,
    EventNotTakenYet,
    ForkRefused,
    FormRefused,
    HoldfastError,
    InstanceEnded,
    InstanceFailed,
    InstanceNotFound,
    Misplaced,
    NotApplied,
    NotInWorkflow,
    NotJson,
    PayloadTooLarge,
    Rejected,
    RestartRefused,
    ResultNotReady,
    StepFailed,
    StoreNotMigrated,
    StoreTooNew,
    StoreUnavailable,
    TaskNotFound,
    TaskNotOpen,
    WorkflowNotRegistered,
)
from holdfast.engine.retry import Backoff
from holdfast.engine.signatures import StepInfo
from holdfast.engine.steps import effect, step
from holdfast.engine.tasks import TaskInfo
from holdfast.engine.tenants import TenantPolicy
from holdfast.facade import Definitions, Effects, Handle, Holdfast, Tasks, Tenant
from holdfast.outside import Outside
from holdfast.version import __version__ as __version__

__all__ = [
    "AiDefaults", "Backlogged", "Backoff", "BadChart", "BadDefinition", "BadInput", "BuiltBranch",
    "BuiltStep", "BusinessKeyTaken", "ChildFailed",
    "ConcurrentName", "ConnectionRefused", "Context", "DeadLetterView", "DefinitionNotActive", "DefinitionNotFound",
    "Definitions", "DefinitionView", "effect", "EffectAborted", "EffectFailed", "EffectNotFound", "EffectNotOpen",
    "Effects", "EffectView", "EventInLine", "EventNotTaken", "EventNotTakenYet", "Fault", "ForkRefused", "FormRefused",
    "Found",
    "Handle", "HistoryEntry", "Holdfast", "HoldfastError", "InstanceEnded", "InstanceFailed", "InstanceNotFound",
    "InstanceView", "LoopExhausted", "MigrationView", "Misplaced", "NotApplied", "NotInWorkflow", "NotJson",
    "Observation", "Outside", "PayloadTooLarge", "Price", "Problem", "Rehearsed", "Rejected", "RestartRefused",
    "ResultNotReady", "step", "StepFailed", "StepInfo", "StoreNotMigrated", "StoreTooNew", "StoreUnavailable",
    "TaskInfo", "TaskNotFound", "TaskNotOpen", "Tasks", "TaskView", "Tenant", "TenantPolicy", "Verdict",
    "WorkerView", "Workflow", "WorkflowNotRegistered",
]  # fmt: skip
