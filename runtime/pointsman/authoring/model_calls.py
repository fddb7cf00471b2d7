"""Call the models of an agent within the budget. Retry a call after a transient failure, and count each call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from secrets import token_hex
from typing import Final

from pointsman.authoring.attempt_state import AttemptState, without_surrogates
from pointsman.authoring.context import Context
from pointsman.authoring.interceptor import ModelInvocation, intercept_model
from pointsman.authoring.ports import CallPermit, ReportedCall
from pointsman.errors import InvariantError, ModelError, TaskError
from pointsman.llm.output_budget import (
    affordable_output_tokens,
    estimate_input_tokens,
    estimate_interrupted_usage,
    min_answer_tokens,
)
from pointsman.llm.prices import has_price, with_known_cost
from pointsman.ports.clock import Clock
from pointsman.ports.model import Model, ModelReply, ModelRequest, ToolCall
from pointsman.telemetry import content_capture, get_logger, metrics, semconv
from pointsman_schemas.events import ErrorKind, Usage

__all__ = ["ESTIMATED_ANSWER_TOKENS", "MAX_TRIES", "MAX_WAIT_S", "ModelCalls"]

MAX_TRIES: Final = 3
"""Largest number of tries of one call if the provider fails transiently. If the last try fails, the attempt fails, and
the supervisor retries the task. A retry that waits at the supervisor survives a restart and occupies no slot of a
worker."""
MAX_WAIT_S: Final = 20.0
"""Longest pause between two tries. If a provider asks for a longer pause, the supervisor schedules the retry."""
MAX_ADAPTATIONS: Final = 8
"""Largest number of times that an adapter changes one request after a refusal. If the server refuses the last change,
the model has failed."""
ESTIMATED_ANSWER_TOKENS: Final = 300
"""Number of tokens that are reserved from the shared limits for the answer of a call. After the call, the actual usage
replaces the reservation."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ModelCalls:
    """Calls of an agent's models.

    Attributes:
        agent: Name of the agent.
        models: Models in the order in which they are tried.
        tokens: Largest number of tokens of one attempt, or None for no limit.
        clock: Clock of pauses and durations.
    """

    agent: str
    models: Sequence[Model]
    tokens: int | None
    clock: Clock

    async def complete(self, request: ModelRequest, state: AttemptState) -> ModelReply:
        """Return the reply of the first model that answers.

        The models are tried in turn. After a pause, the models that failed transiently are tried again. `request` and
        the remaining budget limit the length of an answer.

        Args:
            request: Request without the name of a model.
            state: State of the call.

        Returns:
            The reply.

        Raises:
            ModelError: No model answered. The error is from the model that can be called again first.
            TaskError: The budget is used up, or the rest of the budget is too small for this call; kind `limit`.
            InvariantError: The loop ended without a reply or an error, because of a bug in this code.
        """
        models = self.models
        for attempt in range(1, MAX_TRIES + 1):
            failed: dict[Model, ModelError] = {}
            short: _TooLittleError | None = None
            for model in models:
                try:
                    return await self._call_adapting(model, request, attempt, state)
                except _TooLittleError as error:  # try the next model, because it may cost less
                    short = error
                except ModelError as error:
                    failed[model] = error
            if short is not None and not any(error.retryable for error in failed.values()):
                raise short
            # Try only the models that failed transiently. A model that rejected the request would reject it again.
            models = tuple(model for model, error in failed.items() if error.retryable)
            errors = [failed[model] for model in models]
            first = min(errors, key=lambda each: each.retry_after or 0.0) if errors else next(iter(failed.values()))
            wait = first.retry_after if first.retry_after is not None else _backoff(attempt)
            too_late = self.clock.now() + timedelta(seconds=wait) >= state.handoff.deadline
            if not errors or attempt == MAX_TRIES or wait > MAX_WAIT_S or too_late:
                raise first
            await self.clock.sleep(wait)
        raise InvariantError("the last try of a model call neither returned nor raised")

    def record_lost_call(self, request: ModelRequest, state: AttemptState) -> None:
        """Count a call that was in progress when its worker crashed, because the provider may charge for the call.

        Args:
            request: Request of the call.
            state: State of the attempt.
        """
        model = self.models[0]
        if model.provider != "offline":
            state.usage.add(_interrupted_usage(model, request, None, []))

    async def _call_adapting(
        self, model: Model, request: ModelRequest, attempt: int, state: AttemptState
    ) -> ModelReply:
        """Return the answer of one model.

        If the model's adapter changes a refused request, the changed request is sent at once.

        Raises:
            ModelError: The model failed.
            TaskError: A limit is reached. Refused requests count as calls.
            InvariantError: The loop ended without a reply or an error, because of a bug in this code.
        """
        for left in range(MAX_ADAPTATIONS, -1, -1):
            self._check_limits(state)
            fitted = await self._fit_to_budget(model, request, state)
            try:
                return _check_not_truncated(await self._call(model, fitted, attempt, state), fitted, request)
            except ModelError as error:
                if not error.adapted or not left or self.clock.now() >= state.handoff.deadline:
                    raise
                _log.info("model_request_adapted", provider=model.provider, model=model.name, change=error.adapted)
        raise InvariantError("the last request to a model neither returned nor raised")

    async def _call(self, model: Model, request: ModelRequest, attempt: int, state: AttemptState) -> ModelReply:
        permit = await self._acquire_permit(model, request, state)
        used, retry_after = Usage(), None

        def use(usage: Usage) -> None:
            nonlocal used
            used += usage

        try:
            return await self._complete_once(model, request, attempt, state, use)
        except ModelError as error:
            retry_after = error.retry_after
            raise
        finally:
            if permit is not None:
                permit.release(used.tokens, retry_after)

    async def _acquire_permit(self, model: Model, request: ModelRequest, state: AttemptState) -> CallPermit | None:
        if state.rate_limiter is None:
            return None
        tokens = estimate_input_tokens(request) + min(ESTIMATED_ANSWER_TOKENS, request.max_tokens)
        patience = (state.handoff.deadline - self.clock.now()).total_seconds()
        return await state.rate_limiter.acquire(model, tokens, patience)

    async def _complete_once(
        self, model: Model, request: ModelRequest, attempt: int, state: AttemptState, use: Callable[[Usage], None]
    ) -> ModelReply:
        """Return the reply to one call. Pass the usage of each request to `use`, failed requests included."""
        state.handle.text_id = token_hex(4)  # a new text, because a repeated call streams from the beginning
        started = self.clock.monotonic()
        measured: dict[str, semconv.Value | None] = {
            semconv.OPERATION_NAME: "chat",
            semconv.PROVIDER_NAME: model.provider,
            semconv.REQUEST_MODEL: model.name,
            semconv.AGENT_NAME: self.agent,
        }
        try:
            async with state.report_chat(
                model.provider,
                model.name,
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                structured=request.output_schema is not None,
                attempt=attempt,
            ) as call:

                def count(usage: Usage) -> None:
                    call.record_usage(usage)
                    use(usage)
                    self._record_metrics(usage, measured)

                async def send(invocation: ModelInvocation) -> ModelReply:
                    limit = min(invocation.request.max_tokens, request.max_tokens)
                    return await _send(model, replace(invocation.request, max_tokens=limit), call, count)

                if not state.interceptors:
                    return await _send(model, request, call, count)
                invocation = ModelInvocation(model.provider, model.name, request, Context(state), attempt)
                return await intercept_model(state.interceptors, invocation, send)
        except ModelError as error:
            measured[semconv.ERROR_TYPE] = error.kind
            raise
        finally:
            metrics.observe(semconv.MODEL_DURATION, self.clock.monotonic() - started, measured)

    @staticmethod
    def _record_metrics(usage: Usage, measured: semconv.Attributes) -> None:
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            metrics.observe(semconv.TOKEN_USAGE, count, {**measured, semconv.TOKEN_TYPE: kind})
        if usage.cost:
            metrics.count(semconv.MODEL_COST, usage.cost, measured)

    def _check_limits(self, state: AttemptState) -> None:
        """Raise a `TaskError` if a limit is used up."""
        used, budget = state.attempt_usage.usage, state.handoff.budget
        limits = [("tokens", used.tokens, self.tokens)]
        if budget is not None:
            limits += [("calls", used.calls, budget.calls), ("tokens", used.tokens, budget.tokens)]
            if budget.cost is not None and used.cost >= budget.cost:
                raise TaskError(f"${used.cost:g} used of ${budget.cost:g} allowed", kind=ErrorKind.LIMIT)
        for name, spent, limit in limits:
            if limit is not None and spent >= limit:
                counted = name.removesuffix("s") if spent == 1 else name
                raise TaskError(f"{spent} {counted} used of {limit} allowed", kind=ErrorKind.LIMIT)

    async def _fit_to_budget(self, model: Model, request: ModelRequest, state: AttemptState) -> ModelRequest:
        """Return `request` for `model` with the longest answer that the budget allows, or raise a `TaskError`."""
        asked, budget, used = replace(request, model=model.name), state.handoff.budget, state.attempt_usage.usage
        bounds = [bound for bound in (self.tokens, budget.tokens if budget else None) if bound is not None]
        cost = budget.cost if budget else None
        if model.provider == "offline" or not (bounds or cost is not None):  # the offline model is free
            return asked
        taken = estimate_input_tokens(asked)
        rooms = [(bound - used.tokens - taken, f"{bound - used.tokens} tokens are left of {bound}") for bound in bounds]
        if cost is not None:
            dollars = cost - used.cost
            if not await has_price(model.provider, model.name):
                raise _TooLittleError(
                    f"the price of {model.provider}:{model.name} is not known, so the cost limit of ${cost:g} cannot "
                    f"be kept; set pointsman.llm.prices.PRICES[{model.name!r}] to dollars for a million input and "
                    "output tokens, or limit tokens instead",
                    kind=ErrorKind.LIMIT,
                )
            if (room := await affordable_output_tokens(model.provider, model.name, taken, dollars)) is not None:
                rooms.append((room, f"${dollars:.4g} is left of ${cost:g}"))
        if not rooms:
            return asked
        room, left = min(rooms)
        if room < min_answer_tokens(asked):
            message = f"the input of the next call of {model.name} takes some {taken} tokens, and {left}"
            raise _TooLittleError(message, kind=ErrorKind.LIMIT)
        return replace(asked, max_tokens=min(room, asked.max_tokens))


class _TooLittleError(TaskError):
    """The budget is too small for a call of one model. A call of a cheaper model may still be possible."""


async def _send(model: Model, request: ModelRequest, call: ReportedCall, count: Callable[[Usage], None]) -> ModelReply:
    """Send one request, and describe it on the call's span. Count the usage, also after a failure."""
    call.set_attributes(content_capture.request_attributes(request))
    received: list[str] = []
    try:
        reply = _with_usage(
            model, request, _reply_without_surrogates(await model.complete(_with_text_capture(request, received)))
        )
    except ModelError as error:
        # The server refused a parameter, so the model did not read the input, and no tokens are estimated.
        if error.adapted and error.usage is not None:
            count(error.usage)
        elif error.usage is not None or received:
            error.usage = _interrupted_usage(model, request, error.usage, received)
            count(error.usage)
        raise
    except asyncio.CancelledError:  # counted, because the provider may finish the answer and charge for the call
        count(_interrupted_usage(model, request, None, received))
        raise
    count(reply.usage)
    call.set_attributes(content_capture.reply_attributes(reply))
    call.set_attributes(
        semconv.chat_reply(
            model=reply.model,
            response_id=reply.id,
            finish=reply.finish,
            input_tokens=reply.usage.input_tokens,
            output_tokens=reply.usage.output_tokens,
            cost=reply.usage.cost,
        )
    )
    return reply


def _check_not_truncated(reply: ModelReply, fitted: ModelRequest, request: ModelRequest) -> ModelReply:
    """Return the reply, or raise a `TaskError` if the budget cut it off."""
    if reply.finish == "length" and fitted.max_tokens < request.max_tokens:
        message = f"the answer was cut off after {fitted.max_tokens} tokens; the budget has no more tokens"
        raise TaskError(message, kind=ErrorKind.LIMIT)
    return reply


def _with_text_capture(request: ModelRequest, received: list[str]) -> ModelRequest:
    """Return a copy of `request` that also appends the streamed text to `received`."""
    if (on_text := request.on_text) is None:
        return request

    def receive(text: str) -> None:
        received.append(text)
        on_text(text)

    return replace(request, on_text=receive)


def _interrupted_usage(model: Model, request: ModelRequest, reported: Usage | None, received: list[str]) -> Usage:
    if model.provider == "offline":
        return reported or Usage(calls=1)
    usage = estimate_interrupted_usage(request, reported, "".join(received))
    return with_known_cost(model.provider, model.name, usage)


def _with_usage(model: Model, request: ModelRequest, reply: ModelReply) -> ModelReply:
    """Return the reply. If its server reports no usage, estimate the usage, because the limits need a number."""
    if reply.usage.tokens:
        return reply
    texts = [reply.text, *(call.arguments for call in reply.calls)]
    return replace(reply, usage=_interrupted_usage(model, request, reply.usage if reply.usage.calls else None, texts))


def _reply_without_surrogates(reply: ModelReply) -> ModelReply:
    """Return the reply without halves of surrogate pairs, because JSON in the next request cannot contain a half."""
    calls = tuple(
        ToolCall(without_surrogates(call.id), without_surrogates(call.name), without_surrogates(call.arguments))
        for call in reply.calls
    )
    return replace(reply, text=without_surrogates(reply.text), calls=calls)


def _backoff(attempt: int) -> float:
    """Return the pause in seconds before try `attempt` + 1: 1, 2, 4 and so on, minus a random part of up to half."""
    return float(2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
