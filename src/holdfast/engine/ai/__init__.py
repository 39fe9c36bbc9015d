"""What an AI may cause. A model's answer is hostile text until it is read, checked and judged here, and only `judge`
says that it may become an event: default deny, default suggest, and no event outside the author's allowlist.

It must not know who the model is, or how it was asked; that is the handler's.
"""

from holdfast.engine.ai.answers import ANSWER_LIMIT, PROBLEM_LIMIT, Answer, Problem, read_answer
from holdfast.engine.ai.limits import (
    TOKENS_MAX,
    AiDefaults,
    AiOptions,
    Limits,
    Price,
    cost_of,
    limits_of,
    tokens_at_most,
    too_dear,
)
from holdfast.engine.ai.options import COMMON, OPTIONS, read_options, read_policy, read_prompt
from holdfast.engine.ai.policy import (
    AiPolicy,
    Apply,
    NoEvent,
    Origin,
    Proposal,
    Refused,
    Suggest,
    check_applied,
    judge,
    proposal_hash,
    read_proposal,
)
from holdfast.engine.ai.prompts import (
    CLOSING,
    OPENING,
    Prompt,
    Rendered,
    escaped_json,
    plain_input,
    prompt_hash,
    rendered,
    repair_words,
)
from holdfast.engine.ai.redaction import REDACTED, Redactor
from holdfast.engine.ai.shape import Checker, answer_schema, read_schema
from holdfast.engine.ai.words import canonical_hash, clip, clip_stored, shown
from holdfast.engine.schemas import DIALECT

__all__ = [
    "ANSWER_LIMIT", "PROBLEM_LIMIT", "Answer", "Problem", "read_answer", "TOKENS_MAX", "AiDefaults", "AiOptions",
    "Limits", "Price", "cost_of", "limits_of", "tokens_at_most", "too_dear", "COMMON", "OPTIONS", "read_options",
    "read_policy", "read_prompt", "AiPolicy", "Apply", "NoEvent", "Origin", "Proposal", "Refused", "Suggest",
    "check_applied", "judge", "proposal_hash", "read_proposal", "CLOSING", "OPENING", "Prompt", "Rendered",
    "escaped_json", "plain_input", "prompt_hash", "rendered", "repair_words", "REDACTED", "Redactor", "DIALECT",
    "Checker", "answer_schema", "read_schema", "canonical_hash", "clip", "clip_stored", "shown",
]  # fmt: skip
