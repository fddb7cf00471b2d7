"""Record of the actions that an attempt must not repeat, and of the actions that people allowed.

A worker that takes over the attempt restores the record from the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import cast

from pydantic import JsonValue

from pointsman.authoring.ports import AttemptUsage, StepJournal
from pointsman.errors import MAX_ERROR_CHARS, OversizeEventError
from pointsman_schemas.events import Answer, EmittedEvent, Handoff, QuestionRequest, Step, StepToolCall
from pointsman_schemas.strict_json import compact_json, parse_json

__all__ = ["AttemptRecord"]

_CALL_PREFIX = "call-"  # prefix of the name of a step with the result of a tool call from code
_EVENT_PREFIX = "event-"  # prefix of the name of a step with an event that a tool emitted


class AttemptRecord:
    """Emitted events and approved calls of one attempt. All copies of the attempt's state share the record.

    Without a journal, the record is lost when the process ends.

    Args:
        handoff: Handoff that the attempt works on.
        agent: Name of the agent.
        journal: Store of steps, or None.
        now: Function that returns the time of a new step.
        usage: Usage and hints (confidence, reason to plan again) of the attempt. Restored steps add theirs.
    """

    def __init__(
        self,
        handoff: Handoff,
        agent: str,
        journal: StepJournal | None,
        now: Callable[[], datetime],
        usage: AttemptUsage,
    ) -> None:
        self._handoff = handoff
        self._agent = agent
        self._journal = journal
        self._now = now
        self._usage = usage
        self._loaded = False
        self._replayed_usage: set[str] = set()
        """Names of the steps that were counted, so that a further `load` does not count their usage and hints again."""
        self._steps: Mapping[str, Step] = {}
        self._calls: dict[str, Step] = {}
        """Steps of the approved calls from code that have ended, by idempotency key."""
        self._approved: dict[str, tuple[str, Mapping[str, JsonValue]]] = {}
        """Tool and arguments of each call that was started after a person's approval, by idempotency key."""
        self._questions: list[QuestionRequest] = []
        self._events: dict[str, EmittedEvent] = {}
        """Emitted events by key. A repeated try of a tool emits events with equal keys, so each event is here once."""

    @property
    def questions(self) -> tuple[QuestionRequest, ...]:
        """Questions for information that the attempt has asked and that have no answer yet."""
        return tuple(self._questions)

    @property
    def events(self) -> tuple[EmittedEvent, ...]:
        """Events that the attempt has emitted so far."""
        return tuple(self._events.values())

    def approval_verdict(
        self, tool: str, arguments: Mapping[str, JsonValue], ahead: Sequence[tuple[str, Mapping[str, JsonValue]]] = ()
    ) -> Answer | None:
        """Return a person's verdict on a call, or None if no approval was requested yet.

        Each verdict is for one call. Equal calls get the verdicts in this order: first the calls that were started
        earlier, then the calls in `ahead`, and then this call.

        Args:
            tool: Name of the tool.
            arguments: Arguments of the call.
            ahead: Approved calls of the same turn that will be started before this call.

        Returns:
            The verdict, or None.
        """
        answers = self._handoff.answers
        verdicts = [each for each in answers if not each.key and each.tool == tool and each.arguments == arguments]
        place = [*self._approved.values(), *ahead].count((tool, arguments))
        return verdicts[place] if place < len(verdicts) else None

    def answer(self, key: str) -> Answer | None:
        """Return a person's answer to a question for information, or None if the question has no answer yet.

        Args:
            key: Key of the question.

        Returns:
            The answer, or None.
        """
        return next((each for each in self._handoff.answers if each.key == key), None)

    def record_question(self, question: QuestionRequest) -> None:
        """Record a question of the attempt. When the attempt ends, all recorded questions are sent.

        Args:
            question: Question to a person.
        """
        if question not in self._questions:
            self._questions.append(question)

    def start_approved_call(self, key: str, tool: str, arguments: Mapping[str, JsonValue]) -> None:
        """Use up a person's verdict for the call `key`.

        Args:
            key: Idempotency key of the call.
            tool: Name of the tool.
            arguments: Arguments in the request for approval.
        """
        self._approved[key] = (tool, arguments)

    async def load(self) -> Mapping[str, Step]:
        """Restore the record from the journal.

        Restored calls use up their verdicts. Restored steps add their hints to the result, and the steps of this
        attempt also add their usage.

        Returns:
            The steps of this attempt and of the attempts that it continues, by name.
        """
        steps = await self._journal.load() if self._journal is not None else {}
        for step in steps.values():
            if step.name in self._replayed_usage:
                continue
            self._replayed_usage.add(step.name)
            if step.attempt == self._handoff.attempt:  # an earlier attempt has reported its usage in its result
                self._usage.add(step.usage)
            self._usage.set_outcome_hints(confidence=step.confidence, replan_hint=step.replan_hint)
            if step.name.startswith(_CALL_PREFIX):
                self._apply(step)
            elif step.name.startswith(_EVENT_PREFIX):
                self._events[step.name.removeprefix(_EVENT_PREFIX)] = EmittedEvent.model_validate(step.data)
        self._loaded, self._steps = True, steps
        return steps

    async def recorded_step(self, name: str) -> Step | None:
        """Return a step that an earlier process of this attempt stored, or None.

        Args:
            name: Name of the step.

        Returns:
            The step, or None.
        """
        if not self._loaded:
            await self.load()
        return self._steps.get(name)

    async def recorded_call(self, key: str) -> Step | None:
        """Return the step of an approved call from code, or None if the call has not ended.

        Args:
            key: Idempotency key of the call.

        Returns:
            The step, or None.
        """
        if not self._loaded:
            await self.load()
        return self._calls.get(key)

    async def append(self, step: Step) -> Step:
        """Store a step whose usage and hints the caller has counted already.

        Args:
            step: Step to store.

        Returns:
            The valid step: `step`, or the earlier step if a step with this name was stored earlier.

        Raises:
            OversizeEventError: The step does not fit into a message.
        """
        self._replayed_usage.add(step.name)
        return await self._journal.append(step) if self._journal is not None else step

    async def record_call(
        self,
        key: str,
        tool: str,
        arguments: Mapping[str, JsonValue],
        value: JsonValue,
        error: str = "",
        /,
        **fields: object,
    ) -> Step:
        """Record the end of an approved call from code.

        Args:
            key: Idempotency key of the call.
            tool: Name of the tool.
            arguments: Arguments that the code gave.
            value: Value that the tool returned; None if the tool failed.
            error: Reason of the failure; empty if the call succeeded.
            **fields: Usage and hints of the call.

        Returns:
            The valid step. See `append`.
        """
        call = StepToolCall(id=key, name=tool, arguments=compact_json(dict(arguments)).decode())
        step = self.new_step(
            f"{_CALL_PREFIX}{key}", calls=(call,), data=value, text=error, is_error=bool(error), **fields
        )
        try:
            step = await self.append(step)
        except OversizeEventError as oversize:
            reason = f"its result is too large to be recorded: {oversize}"[:MAX_ERROR_CHARS]
            step = await self.append(step.model_copy(update={"data": None, "text": reason, "is_error": True}))
        self._apply(step)
        return step

    async def record_event(self, key: str, event: EmittedEvent, *, lasting: bool) -> None:
        """Record an event that the attempt has emitted.

        Args:
            key: Key of the event.
            event: The event.
            lasting: True for an event of a tool. The event is stored as a step, so a worker that continues the attempt
                can report the event without another run of the tool.
        """
        if lasting:
            await self.append(self.new_step(f"{_EVENT_PREFIX}{key}", data=event.model_dump(mode="json")))
        self._events[key] = event

    def new_step(self, name: str, **fields: object) -> Step:
        """Return a step of this attempt with the present time.

        Args:
            name: Name of the step, unique within the attempt.
            **fields: Other fields of the step.

        Returns:
            The step.
        """
        return Step.model_validate(
            {
                "workflow_id": self._handoff.workflow_id,
                "task_id": self._handoff.task_id,
                "attempt": self._handoff.attempt,
                "agent": self._agent,
                "name": name,
                "at": self._now(),
                **fields,
            }
        )

    def _apply(self, step: Step) -> None:
        for call in step.calls:
            self._calls[call.id] = step
            arguments = cast(dict[str, JsonValue], parse_json(call.arguments.encode()))
            self.start_approved_call(call.id, call.name, arguments)
