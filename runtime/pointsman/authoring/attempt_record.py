"""What an attempt has done that must not be done again, and what people have allowed it: whoever goes on with it learns
that from the journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import cast

from pydantic import JsonValue

from pointsman.authoring.ports import AttemptUsage, StepJournal
from pointsman.errors import MAX_ERROR_CHARS, OversizeEventError
from pointsman_schemas.events import ApprovalVerdict, EmittedEvent, Handoff, Step, StepToolCall
from pointsman_schemas.strict_json import compact_json, parse_json

__all__ = ["AttemptRecord"]

_CALL_PREFIX = "call-"  # how the steps are named that keep what a call from code gave
_EVENT_PREFIX = "event-"  # and those that keep what a tool has emitted


class AttemptRecord:
    """Of one attempt by `agent`, which gathers in `ledger`; shared by its context and those it hands to tools. Without
    a journal nothing outlives the attempt's process."""

    def __init__(
        self,
        handoff: Handoff,
        agent: str,
        journal: StepJournal | None,
        now: Callable[[], datetime],
        ledger: AttemptUsage,
    ) -> None:
        self._handoff = handoff
        self._agent = agent
        self._journal = journal
        self._now = now
        self._usage = ledger
        self._loaded = False
        self._replayed_usage: set[str] = set()
        """The steps of which the ledger has what they tell: those of this process, and those that were recalled."""
        self._calls: dict[str, Step] = {}
        """What calls from code have given that a person had allowed, by key."""
        self._approved: dict[str, tuple[str, Mapping[str, JsonValue]]] = {}
        """The calls of tools that were begun because a person allowed each of them, by key."""
        self._events: dict[str, EmittedEvent] = {}
        """What was emitted, by key: a try of a tool emits again what the one before did."""

    @property
    def events(self) -> tuple[EmittedEvent, ...]:
        """What the attempt has emitted so far."""
        return tuple(self._events.values())

    def approval_verdict(
        self, tool: str, arguments: Mapping[str, JsonValue], ahead: Sequence[tuple[str, Mapping[str, JsonValue]]] = ()
    ) -> ApprovalVerdict | None:
        """What a person said to this call of a tool that needs approval; None when nobody was asked yet. A yes is for
        one call: an equal one that was begun, or is `ahead` of this one, has used up its own."""
        said = [each for each in self._handoff.verdicts if each.tool == tool and each.arguments == arguments]
        place = [*self._approved.values(), *ahead].count((tool, arguments))
        return said[place] if place < len(said) else None

    def start_approved_call(self, key: str, tool: str, arguments: Mapping[str, JsonValue]) -> None:
        """The call is made, or was before, because a person allowed it."""
        self._approved[key] = (tool, arguments)

    async def load(self) -> Mapping[str, Step]:
        """What was kept of this attempt, and of those that it continues, by name. What code has called because a person
        allowed it has used up its yes from then on, and what any of it told goes with the result."""
        steps = await self._journal.load() if self._journal is not None else {}
        for step in steps.values():
            if step.name in self._replayed_usage:
                continue
            self._replayed_usage.add(step.name)
            if step.attempt == self._handoff.attempt:  # what an earlier one used, its own result has told
                self._usage.add(step.usage)
            self._usage.set_outcome_hints(confidence=step.confidence, replan_hint=step.replan_hint)
            if step.name.startswith(_CALL_PREFIX):
                self._apply(step)
            elif step.name.startswith(_EVENT_PREFIX):
                self._events[step.name.removeprefix(_EVENT_PREFIX)] = EmittedEvent.model_validate(step.data)
        self._loaded = True
        return steps

    async def recorded_call(self, key: str) -> Step | None:
        """What the call `key` gave that code has made already, because a person allowed it; None when it was not."""
        if not self._loaded:
            await self.load()
        return self._calls.get(key)

    async def append(self, step: Step) -> Step:
        """Store `step`, of which the ledger has what it tells, and return what counts: it, or what stands under its
        name already. Raises `OversizeEventError` when it does not fit into a message."""
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
        **told: object,
    ) -> Step:
        """Keep what such a call gave, or how it failed, with what it `told`, and return what counts."""
        call = StepToolCall(id=key, name=tool, arguments=compact_json(dict(arguments)).decode())
        step = self.new_step(
            f"{_CALL_PREFIX}{key}", calls=(call,), data=value, text=error, is_error=bool(error), **told
        )
        try:
            step = await self.append(step)
        except OversizeEventError as oversize:
            why = f"what it gave is too large to be kept: {oversize}"[:MAX_ERROR_CHARS]
            step = await self.append(step.model_copy(update={"data": None, "text": why, "is_error": True}))
        self._apply(step)
        return step

    async def record_event(self, key: str, event: EmittedEvent, *, lasting: bool) -> None:
        """It was emitted under `key`. A `lasting` one is a tool's: where that is not run again, whoever goes on reports
        the event with the result all the same."""
        if lasting:
            await self.append(self.new_step(f"{_EVENT_PREFIX}{key}", data=event.model_dump(mode="json")))
        self._events[key] = event

    def new_step(self, name: str, **fields: object) -> Step:
        """A step of this attempt, taken now."""
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
