"""What an attempt has done that must not be done again, and what people have allowed it: whoever goes on with it learns
that from the journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import cast

from pydantic import JsonValue

from pointsman.authoring.ports import Journal, Ledger
from pointsman.errors import ERROR_LENGTH, OversizeEventError
from pointsman_schemas.events import ApprovalVerdict, EmittedEvent, Handoff, Step, StepToolCall
from pointsman_schemas.strict_json import compact_json, parse_json

__all__ = ["Kept"]

_CALL = "call-"  # how the steps are named that keep what a call from code gave
_EVENT = "event-"  # and those that keep what a tool has emitted


class Kept:
    """Of one attempt by `agent`, which gathers in `ledger`; shared by its context and those it hands to tools. Without
    a journal nothing outlives the attempt's process."""

    def __init__(
        self, handoff: Handoff, agent: str, journal: Journal | None, now: Callable[[], datetime], ledger: Ledger
    ) -> None:
        self._handoff = handoff
        self._agent = agent
        self._journal = journal
        self._now = now
        self._ledger = ledger
        self._recalled = False
        self._told: set[str] = set()
        """The steps of which the ledger has what they tell: those of this process, and those that were recalled."""
        self._made: dict[str, Step] = {}
        """What calls from code have given that a person had allowed, by key."""
        self._allowed: dict[str, tuple[str, Mapping[str, JsonValue]]] = {}
        """The calls of tools that were begun because a person allowed each of them, by key."""
        self._events: dict[str, EmittedEvent] = {}
        """What was emitted, by key: a try of a tool emits again what the one before did."""

    @property
    def events(self) -> tuple[EmittedEvent, ...]:
        """What the attempt has emitted so far."""
        return tuple(self._events.values())

    def verdict(
        self, tool: str, arguments: Mapping[str, JsonValue], ahead: Sequence[tuple[str, Mapping[str, JsonValue]]] = ()
    ) -> ApprovalVerdict | None:
        """What a person said to this call of a tool that needs approval; None when nobody was asked yet. A yes is for
        one call: an equal one that was begun, or is `ahead` of this one, has used up its own."""
        said = [each for each in self._handoff.verdicts if each.tool == tool and each.arguments == arguments]
        place = [*self._allowed.values(), *ahead].count((tool, arguments))
        return said[place] if place < len(said) else None

    def begin_allowed(self, key: str, tool: str, arguments: Mapping[str, JsonValue]) -> None:
        """The call is made, or was before, because a person allowed it."""
        self._allowed[key] = (tool, arguments)

    async def recall(self) -> Mapping[str, Step]:
        """What was kept of this attempt, and of those that it continues, by name. What code has called because a person
        allowed it has used up its yes from then on, and what any of it told goes with the result."""
        steps = await self._journal.recall() if self._journal is not None else {}
        for step in steps.values():
            if step.name in self._told:
                continue
            self._told.add(step.name)
            if step.attempt == self._handoff.attempt:  # what an earlier one used, its own result has told
                self._ledger.use(step.usage)
            self._ledger.say(confidence=step.confidence, replan_hint=step.replan_hint)
            if step.name.startswith(_CALL):
                self._know(step)
            elif step.name.startswith(_EVENT):
                self._events[step.name.removeprefix(_EVENT)] = EmittedEvent.model_validate(step.data)
        self._recalled = True
        return steps

    async def made(self, key: str) -> Step | None:
        """What the call `key` gave that code has made already, because a person allowed it; None when it was not."""
        if not self._recalled:
            await self.recall()
        return self._made.get(key)

    async def keep(self, step: Step) -> Step:
        """Store `step`, of which the ledger has what it tells, and return what counts: it, or what stands under its
        name already. Raises `OversizeEventError` when it does not fit into a message."""
        self._told.add(step.name)
        return await self._journal.keep(step) if self._journal is not None else step

    async def keep_made(
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
        step = self.step(f"{_CALL}{key}", calls=(call,), data=value, text=error, is_error=bool(error), **told)
        try:
            step = await self.keep(step)
        except OversizeEventError as oversize:
            why = f"what it gave is too large to be kept: {oversize}"[:ERROR_LENGTH]
            step = await self.keep(step.model_copy(update={"data": None, "text": why, "is_error": True}))
        self._know(step)
        return step

    async def keep_event(self, key: str, event: EmittedEvent, *, lasting: bool) -> None:
        """It was emitted under `key`. A `lasting` one is a tool's: where that is not run again, whoever goes on reports
        the event with the result all the same."""
        if lasting:
            await self.keep(self.step(f"{_EVENT}{key}", data=event.model_dump(mode="json")))
        self._events[key] = event

    def step(self, name: str, **fields: object) -> Step:
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

    def _know(self, step: Step) -> None:
        for call in step.calls:
            self._made[call.id] = step
            arguments = cast(dict[str, JsonValue], parse_json(call.arguments.encode()))
            self.begin_allowed(call.id, call.name, arguments)
