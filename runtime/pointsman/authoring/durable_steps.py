"""Durable steps of an attempt's tool loop. A step is stored before it is used. A stored step is not repeated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from pointsman.authoring.attempt_state import AttemptState
from pointsman.errors import OversizeEventError, TaskError
from pointsman.ports.model import ModelReply, ToolCall
from pointsman_schemas.events import ErrorKind, Step, StepToolCall, Usage, UserMessage

__all__ = ["DurableSteps"]


class DurableSteps:
    """Steps of one attempt so far. Without a journal, nothing is restored and nothing is stored.

    If a stored answer has a call without a stored result, the tool may have been running when the process ended. So it
    is unknown whether the call had its effect.

    Args:
        state: State of the attempt.
    """

    def __init__(self, state: AttemptState) -> None:
        self._state = state
        self._steps: Mapping[str, Step] = {}
        self._continued: set[int] = set()  # turns whose tools another worker may have started
        self._lost = 0

    async def load(self) -> None:
        """Restore the steps of the workers that had this attempt before."""
        self._steps = await self._state.record.load()
        self._lost = self._state.deliveries - 1
        if self._steps:
            self._state.report_progress(f"continued after {len(self._steps)} recorded steps", {})

    async def model_reply(self, turn: int, ask: Callable[[AttemptState], Awaitable[ModelReply]]) -> ModelReply:
        """Return the model's stored answer of a turn. If no answer is stored, return the answer of `ask`.

        An answer without tool calls is not stored, because no tool acts on the answer. If the process ends before the
        attempt's result is stored, the next worker calls the model again.

        Args:
            turn: Number of the turn, from 1.
            ask: Function that calls the model. Its argument is the state of the call.

        Returns:
            The answer to use.

        Raises:
            TaskError: The answer does not fit into a message; kind `oversize`.
        """
        state = self._state
        if (step := self._steps.get(f"answer-{turn}")) is not None:
            if step.attempt != state.handoff.attempt:
                return await self._adopt_reply(turn, step)
            self._continued.add(turn)
            return _reply_of_step(step)
        call = state.for_call()
        reply = await ask(call)
        if state.journal is None or not reply.calls:
            return reply
        step = state.record.new_step(
            f"answer-{turn}",
            text=reply.text,
            calls=tuple(StepToolCall(id=each.id, name=each.name, arguments=each.arguments) for each in reply.calls),
            data=reply.data,
            finish=reply.finish,
            model=reply.model,
            provider_state=reply.provider_state,
            **call.call_fields,  # not `reply.usage`, because the fields include the usage of failed tries
        )
        try:
            stored = await state.record.append(step)
        except OversizeEventError as error:
            raise TaskError(f"the model's answer cannot be recorded: {error}", kind=ErrorKind.OVERSIZE) from None
        if stored is not step:  # another worker also has this attempt and stored its answer first, so use that answer
            self._steps = await state.record.load()
            self._continued.add(turn)
        return _reply_of_step(stored)

    async def _adopt_reply(self, turn: int, step: Step) -> ModelReply:
        """Return the answer of an earlier attempt that ended to ask a person, and store the answer for this attempt.

        The earlier attempt did not start the calls that have no result, so this attempt may start them. If another
        worker takes over this attempt, the new step shows that this attempt may have started the calls.
        """
        state = self._state
        if state.journal is not None:
            update = {"attempt": state.handoff.attempt, "usage": Usage(), "at": state.now()}
            own = step.model_copy(update=update)
            if await state.record.append(own) is not own:
                self._continued.add(turn)
        return _reply_of_step(step)

    async def new_messages(self, turn: int, *, fetch: bool) -> Sequence[UserMessage]:
        """Return the messages to the workflow that the model did not receive before this turn.

        Args:
            turn: Number of the turn, from 1.
            fetch: True to also read the messages that arrived after the handoff.

        Returns:
            The messages, in order. Another process of the attempt gets the same messages at the same turn.
        """
        step, answered = self._steps.get(f"messages-{turn}"), f"answer-{turn}" in self._steps
        return await self._state.messages.read_new(turn, step, answered=answered, fetch=fetch)

    def lost_calls(self) -> int:
        """Return the number of model calls that crashed workers may have had in progress, and set this number to 0."""
        lost, self._lost = self._lost, 0
        return lost

    def tool_result(self, turn: int, place: int) -> tuple[str, bool] | None:
        """Return the stored result of a tool call.

        Args:
            turn: Number of the turn, from 1.
            place: Place of the call in the turn, from 0.

        Returns:
            The text, and True if the text is an error. None if no result is stored.
        """
        step = self._steps.get(f"result-{turn}-{place}")
        return (step.text, step.is_error) if step is not None else None

    def interrupted_calls(self, turn: int, places: Sequence[int]) -> list[int]:
        """Return the calls that another worker may have started and whose effect is unknown.

        Args:
            turn: Number of the turn, from 1.
            places: Places of calls in the turn.

        Returns:
            The places of the calls.
        """
        if turn not in self._continued:
            return []
        return [place for place in places if self.tool_result(turn, place) is None]

    async def record_result(
        self, turn: int, place: int, text: str, is_error: bool, /, **fields: object
    ) -> tuple[str, bool]:
        """Store the result of a tool call.

        Args:
            turn: Number of the turn, from 1.
            place: Place of the call in the turn, from 0.
            text: Result as the model reads it.
            is_error: True if the call failed.
            **fields: Usage and hints of the call.

        Returns:
            The text and the error flag of the valid result. If another worker has stored a result first, that result is
            valid.
        """
        self._lost = 0  # the crashed worker had called this tool, so it had no model call in progress
        if self._state.journal is None:
            return text, is_error
        record, name = self._state.record, f"result-{turn}-{place}"
        try:
            step = await record.append(record.new_step(name, text=text, is_error=is_error, **fields))
        except OversizeEventError as error:
            text = f"the tool has run, but its result of {len(text)} characters is too large to be recorded: {error}"
            step = await record.append(record.new_step(name, text=text, is_error=True, **fields))
        return step.text, step.is_error


def _reply_of_step(step: Step) -> ModelReply:
    return ModelReply(
        text=step.text,
        calls=tuple(ToolCall(call.id, call.name, call.arguments) for call in step.calls),
        data=step.data,
        usage=step.usage,
        finish=step.finish,
        model=step.model,
        provider_state=step.provider_state,
    )
