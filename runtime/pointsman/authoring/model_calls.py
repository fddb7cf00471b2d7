"""One answer of a chain of models: asked for within what may be used, tried again while that may help, and measured."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from pointsman.authoring.attempt_state import AttemptState, without_surrogates
from pointsman.authoring.ports import CallPermit
from pointsman.errors import ModelError, TaskError
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
"""Times one model call is made when the provider fails in passing. More is the supervisor's business: its retries are
durable and hold no slot."""
MAX_WAIT_S: Final = 20.0
"""Seconds that a try is waited for here; a provider that asks for more is left to the supervisor's schedule."""
MAX_ADAPTATIONS: Final = 8
"""Requests to one model that may be refused for a parameter each before the model counts as failed."""
ESTIMATED_ANSWER_TOKENS: Final = 300
"""Tokens that shared limits are asked for an answer before it is there; set right when it is."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ModelCalls:
    """How `agent` asks its `models`, the first one first. `tokens` is what one attempt may use, None for any."""

    agent: str
    models: Sequence[Model]
    tokens: int | None
    clock: Clock

    async def complete(self, request: ModelRequest, state: AttemptState) -> ModelReply:
        """What the first model says that can; the others are asked in turn, and again what failed in passing. The
        answer may be as long as `request` and what is left of the allowance let it be.

        Raises:
            ModelError: none of them could answer; the one that may be asked again soonest tells why.
            TaskError: of kind `limit`: what there was to use is used up, or too little for this call.
        """
        models = self.models
        for attempt in range(1, MAX_TRIES + 1):
            failed: dict[Model, ModelError] = {}
            short: _TooLittleError | None = None
            for model in models:
                try:
                    return await self._call_adapting(model, request, attempt, state)
                except _TooLittleError as error:  # the next model may cost less
                    short = error
                except ModelError as error:
                    failed[model] = error
            if short is not None and not any(error.retryable for error in failed.values()):
                raise short
            # A model that turned the request down would do so again; what failed in passing may be asked again.
            models = tuple(model for model, error in failed.items() if error.retryable)
            errors = [failed[model] for model in models]
            told = min(errors, key=lambda each: each.retry_after or 0.0) if errors else next(iter(failed.values()))
            wait = told.retry_after if told.retry_after is not None else _backoff(attempt)
            too_late = self.clock.now() + timedelta(seconds=wait) >= state.handoff.deadline
            if not errors or attempt == MAX_TRIES or wait > MAX_WAIT_S or too_late:
                raise told
            await self.clock.sleep(wait)
        raise AssertionError("unreachable: the last try returns or raises")

    def record_lost_call(self, request: ModelRequest, state: AttemptState) -> None:
        """Count a call of the first model that was under way when its worker died, for it was paid for."""
        model = self.models[0]
        if model.provider != "offline":
            state.usage.add(_interrupted_usage(model, request, None, []))

    async def _call_adapting(
        self, model: Model, request: ModelRequest, attempt: int, state: AttemptState
    ) -> ModelReply:
        """Return the answer of one model. A request that the adapter writes in another way is made again at once.

        Raises:
            ModelError: The model failed.
            TaskError: A limit is reached. Each request counts as a call, those that were refused included.
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
        raise AssertionError("unreachable: the last request returns or raises")

    async def _call(self, model: Model, request: ModelRequest, attempt: int, state: AttemptState) -> ModelReply:
        admission = await self._acquire_permit(model, request, state)
        used, retry_after = Usage(), None

        def use(usage: Usage) -> None:
            nonlocal used
            used = usage

        try:
            return await self._complete_once(model, request, attempt, state, use)
        except ModelError as error:
            retry_after = error.retry_after
            raise
        finally:
            if admission is not None:
                admission.release(used.tokens, retry_after)

    async def _acquire_permit(self, model: Model, request: ModelRequest, state: AttemptState) -> CallPermit | None:
        if state.rate_limiter is None:
            return None
        tokens = estimate_input_tokens(request) + min(ESTIMATED_ANSWER_TOKENS, request.max_tokens)
        patience = (state.handoff.deadline - self.clock.now()).total_seconds()
        return await state.rate_limiter.acquire(model, tokens, patience)

    async def _complete_once(
        self, model: Model, request: ModelRequest, attempt: int, state: AttemptState, use: Callable[[Usage], None]
    ) -> ModelReply:
        """The reply. What it used, or what a call used that broke off, is told to `use` and counted for the attempt."""
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
                call.set_attributes(content_capture.request_attributes(request))
                heard: list[str] = []

                def count(usage: Usage) -> None:
                    call.record_usage(usage)
                    use(usage)
                    self._record_metrics(usage, measured)

                try:
                    reply = _with_usage(
                        model,
                        request,
                        _reply_without_surrogates(await model.complete(_with_text_capture(request, heard))),
                    )
                except ModelError as error:
                    if error.adapted and error.usage is not None:  # refused before the model read anything
                        count(error.usage)
                    elif error.usage is not None or heard:
                        error.usage = _interrupted_usage(model, request, error.usage, heard)
                        count(error.usage)
                    raise
                except asyncio.CancelledError:  # the provider goes on, or has begun: it is paid for in any case
                    count(_interrupted_usage(model, request, None, heard))
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
        except ModelError as error:
            measured[semconv.ERROR_TYPE] = error.kind
            raise
        finally:
            metrics.observe(semconv.MODEL_DURATION, self.clock.monotonic() - started, measured)
        return reply

    @staticmethod
    def _record_metrics(usage: Usage, measured: semconv.Attributes) -> None:
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            metrics.observe(semconv.TOKEN_USAGE, count, {**measured, semconv.TOKEN_TYPE: kind})
        if usage.cost:
            metrics.count(semconv.MODEL_COST, usage.cost, measured)

    def _check_limits(self, state: AttemptState) -> None:
        """Before each model call: nothing is left, whatever the call would take."""
        used, budget = state.attempt_usage.usage, state.handoff.budget
        limits = [("tokens", used.tokens, self.tokens)]
        if budget is not None:
            limits += [("calls", used.calls, budget.calls), ("tokens", used.tokens, budget.tokens)]
            if budget.cost is not None and used.cost >= budget.cost:
                raise TaskError(f"the budget of ${budget.cost:g} is used up", kind=ErrorKind.LIMIT)
        for what, spent, limit in limits:
            if limit is not None and spent >= limit:
                raise TaskError(f"{spent} {what} are used up of the {limit} there were", kind=ErrorKind.LIMIT)

    async def _fit_to_budget(self, model: Model, request: ModelRequest, state: AttemptState) -> ModelRequest:
        """`request` to `model`, with an answer no longer than what is left allows. Raises where it allows none."""
        asked, budget, used = replace(request, model=model.name), state.handoff.budget, state.attempt_usage.usage
        bounds = [bound for bound in (self.tokens, budget.tokens if budget else None) if bound is not None]
        cost = budget.cost if budget else None
        if model.provider == "offline" or not (bounds or cost is not None):  # what is offline uses neither
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
    """The allowance is too small for a call of one model. A cheaper model may still be asked."""


def _check_not_truncated(reply: ModelReply, fitted: ModelRequest, request: ModelRequest) -> ModelReply:
    """The reply, unless it was cut off where the allowance ends."""
    if reply.finish == "length" and fitted.max_tokens < request.max_tokens:
        message = f"the answer was cut off after {fitted.max_tokens} tokens, all that the allowance left for it"
        raise TaskError(message, kind=ErrorKind.LIMIT)
    return reply


def _with_text_capture(request: ModelRequest, heard: list[str]) -> ModelRequest:
    """`request`, whose answer is kept in `heard` while it is said to whoever listens."""
    if (on_text := request.on_text) is None:
        return request

    def hear(text: str) -> None:
        heard.append(text)
        on_text(text)

    return replace(request, on_text=hear)


def _interrupted_usage(model: Model, request: ModelRequest, told: Usage | None, heard: list[str]) -> Usage:
    if model.provider == "offline":
        return told or Usage(calls=1)
    return with_known_cost(model.provider, model.name, estimate_interrupted_usage(request, told, "".join(heard)))


def _with_usage(model: Model, request: ModelRequest, reply: ModelReply) -> ModelReply:
    """The reply with what it used, as estimated where its server does not tell: no limit would hold otherwise."""
    if reply.usage.tokens:
        return reply
    said = [reply.text, *(call.arguments for call in reply.calls)]
    return replace(reply, usage=_interrupted_usage(model, request, reply.usage if reply.usage.calls else None, said))


def _reply_without_surrogates(reply: ModelReply) -> ModelReply:
    """The reply without halves of surrogate pairs: the next request repeats it, and could not carry them."""

    calls = tuple(
        ToolCall(without_surrogates(call.id), without_surrogates(call.name), without_surrogates(call.arguments))
        for call in reply.calls
    )
    return replace(reply, text=without_surrogates(reply.text), calls=calls)


def _backoff(attempt: int) -> float:
    """Seconds before try `attempt` + 1: 1, 2, 4 and so on, less up to a half, so that many do not come back at once."""
    return float(2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
