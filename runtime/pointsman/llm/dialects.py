"""Tables of the values and texts with which providers report the end of an answer, errors, quotas and token counts.

Every adapter reads the same tables. So a value that one provider has introduced is also valid for all other providers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from pointsman_schemas.events import ErrorKind

__all__ = [
    "DAILY_QUOTA_WORDS",
    "FAULT_WORDS",
    "FINISH_REASONS",
    "STATUS_BY_CODE",
    "USAGE_NAMES",
    "Fault",
    "Finish",
    "finish_of",
    "normalized_code",
]

Finish: TypeAlias = Literal["stop", "length", "refusal", "error"]

FINISH_REASONS: Final[Mapping[str, Finish]] = {
    # OpenAI, Azure and most compatible servers
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",
    "function_call": "stop",
    "content_filter": "refusal",
    # Anthropic, Bedrock, Vertex
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",
    "refusal": "refusal",
    "guardrail_intervened": "refusal",
    "content_filtered": "refusal",
    # OpenAI's responses
    "completed": "stop",
    "max_output_tokens": "length",
    "incomplete": "length",
    "failed": "error",
    "cancelled": "error",
    # Gemini
    "safety": "refusal",
    "recitation": "refusal",
    "language": "refusal",
    "blocklist": "refusal",
    "prohibited_content": "refusal",
    "spii": "refusal",
    "image_safety": "refusal",
    "model_armor": "refusal",
    "malformed_function_call": "error",
    "unexpected_tool_call": "error",
    "too_many_tool_calls": "error",
    "other": "error",
    # Mistral, Cohere, DeepSeek, GLM, OpenRouter
    "model_length": "length",
    "complete": "stop",
    "error_limit": "length",
    "error_toxic": "refusal",
    "insufficient_system_resource": "error",
    "sensitive": "refusal",
    "network_error": "error",
    "error": "error",
    # Text Generation Inference, vLLM, SGLang, llama.cpp, Ollama
    "eos": "stop",
    "eos_token": "stop",
    "limit": "length",
    "abort": "error",
    "load": "error",
    "unload": "error",
}
"""The way in which an answer ended, by the provider's value in lower case. `Finish` has no value for an answer with
tool calls, because several servers write `stop` for such an answer. So adapters look for the calls themselves."""

_FINISH_PATTERNS: Final[tuple[tuple[re.Pattern[str], Finish], ...]] = (
    (re.compile(r"length|max|limit|trunc|token|budget|context|incomplete"), "length"),
    (re.compile(r"filter|safe|block|polic|refus|prohibit|guardrail|moderat|toxic"), "refusal"),
    (re.compile(r"err|fail|abort|cancel|interrupt|time_?out|malformed|unavail|overload"), "error"),
)
"""Parts of the provider's value, for values that `FINISH_REASONS` does not have. If a value has none of these parts,
the answer is treated as whole."""


def finish_of(word: str) -> Finish:
    """Return the way in which an answer ended, from the provider's value, such as `FinishReason.MAX_TOKENS`."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word.strip().rpartition(".")[2])
    name = re.sub(r"[^a-z]+", "_", snake.lower()).strip("_").removeprefix("finish_reason_")
    if (known := FINISH_REASONS.get(name)) is not None:
        return known
    for pattern, finish in _FINISH_PATTERNS:
        if pattern.search(name):
            return finish
    return "stop"


class UsageNames(NamedTuple):
    """The names of the members of a reply that count tokens. `containers` are members that contain such members."""

    containers: tuple[str, ...]
    input: tuple[str, ...]
    output: tuple[str, ...]
    total: tuple[str, ...]
    cached: tuple[str, ...]


USAGE_NAMES: Final = UsageNames(
    containers=("usage", "x_groq", "usageMetadata", "usage_metadata", "amazon-bedrock-invocationMetrics", "timings"),
    input=(
        "prompt_tokens", "input_tokens", "inputTokens", "promptTokenCount", "inputTokenCount", "prompt_eval_count",
        "prompt_n",
    ),
    output=(
        "completion_tokens", "output_tokens", "outputTokens", "candidatesTokenCount", "outputTokenCount", "eval_count",
        "predicted_n",
    ),
    total=("total_tokens", "totalTokens", "totalTokenCount"),
    cached=("cache_read_input_tokens", "cache_creation_input_tokens"),
)  # fmt: skip
"""The `cached` counts are added to `input` only for Anthropic's messages API. In other APIs, `input` includes them."""


# Errors

_STATUSES: Final[Mapping[str, int]] = {
    # OpenAI
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "insufficient_quota": 402,
    "rate_limit_exceeded": 429,
    "server_error": 500,
    # Anthropic
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
    # Google
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
    # Bedrock
    "ValidationException": 400,
    "ServiceQuotaExceededException": 402,
    "AccessDeniedException": 403,
    "UnrecognizedClientException": 401,
    "ResourceNotFoundException": 404,
    "ThrottlingException": 429,
    "ModelNotReadyException": 429,
    "TooManyRequestsException": 429,
    "InternalServerException": 500,
    "ModelErrorException": 500,
    "ModelStreamErrorException": 500,
    "ServiceUnavailableException": 503,
    "ModelTimeoutException": 504,
    # LiteLLM
    "BadRequestError": 400,
    "AuthenticationError": 401,
    "PermissionDeniedError": 403,
    "NotFoundError": 404,
    "Timeout": 408,
    "UnprocessableEntityError": 422,
    "InternalServerError": 500,
    "APIConnectionError": 500,
    "ServiceUnavailableError": 503,
    # others
    "unauthorized": 401,
    "forbidden": 403,
    "too_many_requests": 429,
    "exceed_context_size_error": 400,
    "model_max_prompt_tokens_exceeded": 400,
    "string_above_max_length": 400,
    "tokens_limit_reached": 413,
}


def normalized_code(code: str) -> str:
    """Return an error code in lower case, with only letters and digits. `RateLimitError` equals `rate_limit_error`."""
    return re.sub(r"[^a-z0-9]", "", code.lower())


STATUS_BY_CODE: Final[Mapping[str, int]] = {normalized_code(code): status for code, status in _STATUSES.items()}
"""The HTTP status for an error code in the body of a reply that itself has status 200. An unknown code is treated as
status 500."""


class Fault(NamedTuple):
    """The class of a permanent error (None for no special class), and the advice for the reader of the message."""

    kind: ErrorKind | None
    advice: str


_OVERFLOW: Final = Fault(ErrorKind.CONTEXT_OVERFLOW, "the input is too long for this model")
_FILTERED: Final = Fault(ErrorKind.REFUSED, "the provider's content filter turned the request down")
_BAD_KEY: Final = Fault(None, "check the provider's API key")
_UNPAID: Final = Fault(None, "the account has no credit or quota left: check the provider's plan and billing")

_CONTEXT_NAMES: Final = r"context(?:[ _-]?(?:length|window|size|limit)s?)"
_INPUT_NAMES: Final = r"(?:prompts?|inputs?|messages?|requests?|conversation|`inputs`|decoder prompt)"

FAULT_WORDS: Final[tuple[tuple[frozenset[str], re.Pattern[str] | None, Fault], ...]] = (
    (
        frozenset(map(normalized_code, (
            "context_length_exceeded", "exceed_context_size_error", "model_max_prompt_tokens_exceeded",
            "string_above_max_length", "request_too_large", "tokens_limit_reached", "ContextWindowExceededError",
            "context_window_exceeded", "prompt_too_long", "input_too_long",
        ))),
        re.compile(
            rf"""
            context_length_exceeded | ContextWindowExceeded
            | maximum\ (?:{_CONTEXT_NAMES}|prompt\ length|input\ length|model\ length)
            | (?:exceed|overflow|longer|larger|greater|too\ (?:long|large|big|many)|beyond)\w*\b
              [^.]{{0,80}}{_CONTEXT_NAMES}
            | {_CONTEXT_NAMES}[^.]{{0,60}}(?:exceed|overflow|too\ (?:long|small))
            | context\ the\ overflows | beyond\ the\ context
            | \b{_INPUT_NAMES}\b[^.]{{0,60}}\btoo\ (?:long|large|big)\b
            | \bbody\ too\ large\b
            | \b{_INPUT_NAMES}`?\ must\ have\ (?:less|fewer|at\ most)\b
            | \b{_INPUT_NAMES}\b[^.]{{0,60}}\btokens?\b[^.]{{0,60}}
              (?:exceed|must\ have\ less|greater\ than|more\ than|larger)
            | \btokens?\ (?:in|of|from)\ (?:the\ )?{_INPUT_NAMES}\b[^.]{{0,40}}(?:exceed|must|greater|more\ than)
            | (?:exceeds?|cannot\ exceed)\b[^.]{{0,40}}\bmaximum\ number\ of\ tokens
            | \b(?:prompt|input)\ (?:token\ count|tokens?|length)\b[^.]{{0,40}}exceed
            | exceed\w*\ (?:max(?:imum)?\ (?:prompt\ |input\ )?length|model\ token\ limit)
            | `?inputs`?\ tokens\ \+\ `?max_new_tokens`?\ must\ be
            | total\ tokens\ limit | too\ many\ (?:input\ |prompt\ )?tokens(?!,\ please\ wait)
            | reduce\ (?:the|your)\ (?:length|prompt|message\ size|input)
            | range\ of\ input\ length\ should\ be | max\ input\ (?:characters|tokens|length)
            | request\ too\ large\ for | string\ too\ long
            """,
            re.IGNORECASE | re.VERBOSE,
        ),
        _OVERFLOW,
    ),
    (
        frozenset(map(normalized_code, (
            "content_filter", "content_policy_violation", "ContentPolicyViolationError", "data_inspection_failed",
            "moderation_blocked",
        ))),
        re.compile(
            r"content[ _](?:management[ _])?(?:policy|filter)|safety system|flagged as|inappropriate content",
            re.IGNORECASE,
        ),
        _FILTERED,
    ),
    (
        frozenset(map(normalized_code, (
            "invalid_api_key", "API_KEY_INVALID", "incorrect_api_key", "account_deactivated",
        ))),
        re.compile(
            r"api[ _-]?key (?:is )?(?:not valid|invalid|expired|missing)|(?:invalid|incorrect|expired) api[ _-]?key",
            re.IGNORECASE,
        ),
        _BAD_KEY,
    ),
    (
        frozenset(map(normalized_code, (
            "insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "insufficient_balance",
            "quota_exceeded", "credit_exhausted", "arrearage", "ServiceQuotaExceededException",
        ))),
        re.compile(
            r"credit balance is too low|insufficient (?:balance|credits?|funds|quota)|more credits|out of credits?"
            r"|billing (?:hard )?limit|requires? (?:more|at least) [^.]{0,40}credits"
            r"|account is (?:in arrears|not active)",
            re.IGNORECASE,
        ),
        _UNPAID,
    ),
)  # fmt: skip
"""Permanent errors: for each, the codes, a pattern of the text, and the class. The first match counts."""

DAILY_QUOTA_WORDS: Final = re.compile(
    r"per[ _-]?(?:day|month|week)|(?:daily|monthly|weekly)[ _](?:limit|quota|request|token|usage|allowance|cap)"
    r"|\b(?:RPD|TPD)\b|quota for (?:today|the day)|today's (?:limit|quota)|until tomorrow",
    re.IGNORECASE,
)
"""The text of an error about a quota for a day or longer. Such a call is not retried, because an attempt lasts only
minutes."""
