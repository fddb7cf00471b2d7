"""The tool calls of an attempt, turn by turn: each call has exactly one result, and what was done is not done again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import JsonValue

from pointsman.authoring.attempt_state import AttemptState
from pointsman.authoring.context import Context
from pointsman.authoring.durable_steps import DurableSteps
from pointsman.authoring.tools import Tool
from pointsman.errors import ApprovalRequiredError, TaskError
from pointsman.ports.model import ToolCall, Turn
from pointsman_schemas.events import ApprovalVerdict, ErrorKind, ToolApprovalRequest

__all__ = ["MAX_PARALLEL_CALLS", "MAX_REPEATS", "ToolTurns", "truncate"]

MAX_REPEATS: Final = 2
"""Turns in which the same tool may be called with the same arguments: a poll or a second look, not a loop."""
MAX_PARALLEL_CALLS: Final = 32
"""Tool calls run in one turn; what a model asks for beyond is refused, and it may ask again."""
MAX_RESULT_CHARS: Final = 50_000
"""Characters of a tool's result that a model is shown: some 12,000 tokens."""


@dataclass(slots=True)
class ToolTurns:
    """One attempt in work: its context, its tools, what was done, and how often each call was asked for."""

    state: AttemptState
    tools: Mapping[str, Tool[..., Any]]
    steps: DurableSteps
    call_counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    async def run(self, calls: Sequence[ToolCall], turn: int) -> list[Turn]:
        """The results of `calls`, in their order, run side by side. None is lost when another fails, or when code in
        one asks a person first."""
        self.call_counts.update({(call.name, call.arguments) for call in calls})
        for place in self.steps.interrupted_calls(turn, range(len(calls))):
            call = calls[place]
            if not self._refusal(call, place) and not self.tools[call.name].idempotent:
                raise TaskError(
                    f"the tool {call.name} was under way when its worker died, and may have done its work or not; find "
                    "out, or declare it idempotent=True if it may run again",
                    kind=ErrorKind.OUTCOME_UNKNOWN,
                )
        if asked := self._calls_to_approve(calls, turn):
            raise ApprovalRequiredError(asked)  # before any tool of this turn has run
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._run_call(call, (turn, place))) for place, call in enumerate(calls)]
        except ExceptionGroup as failed:  # none of them is the model's to read: the attempt ends by the first
            raise failed.exceptions[0] from None
        ended = [task.result() for task in running]
        if unasked := [call for end in ended if isinstance(end, ApprovalRequiredError) for call in end.calls]:
            raise ApprovalRequiredError(unasked)
        return [end for end in ended if isinstance(end, Turn)]

    def _calls_to_approve(self, calls: Sequence[ToolCall], turn: int) -> list[ToolApprovalRequest]:
        """The calls that a person must allow first, and was not asked about."""
        wanted: list[ToolApprovalRequest] = []
        allowed: list[tuple[str, Mapping[str, JsonValue]]] = []
        context = Context(self.state)
        for place, call in enumerate(calls):
            if self._refusal(call, place):
                continue
            match self.tools[call.name].approval_verdict(call.arguments, context, allowed):
                case ToolApprovalRequest() as unasked if self.steps.tool_result(turn, place) is None:
                    wanted.append(unasked)
                case ApprovalVerdict(verdict="approved") as said:
                    allowed.append((said.tool, said.arguments))
                case _:
                    pass
        return wanted

    async def _run_call(self, call: ToolCall, place: tuple[int, int]) -> Turn | ApprovalRequiredError:
        state, done = self.state, self.steps
        if (kept := done.tool_result(*place)) is not None:
            if (tool := self.tools.get(call.name)) is not None:
                tool.count_skipped(call.arguments, Context(state))
            return Turn("tool", kept[0], call_id=call.id, is_error=kept[1])
        if problem := self._refusal(call, place[1]):
            async with state.report_tool(call.name[:64], call_id=call.id) as refused:
                refused.fail("refused_call", problem)
            return Turn("tool", problem, call_id=call.id, is_error=True)
        state = state.for_call()
        try:
            result = await self.tools[call.name].call(call.arguments, Context(state), call_id=call.id)
        except ApprovalRequiredError as asked:
            return asked  # not raised: what runs beside it would be cancelled, and begun again by the next attempt
        text, is_error = await done.record_result(*place, truncate(result.text), result.is_error, **state.call_fields)
        return Turn("tool", text, call_id=call.id, is_error=is_error)

    def _refusal(self, call: ToolCall, place: int) -> str:
        """Why the call is not made; nothing where it is."""
        if call.name not in self.tools:
            known = ", ".join(self.tools) or "none"
            return f"there is no tool {call.name[:64]!r} here; the tools are: {known}"
        if self.call_counts[call.name, call.arguments] > MAX_REPEATS:
            return f"{call.name} was called with these arguments {MAX_REPEATS} times already; answer with what you have"
        if place >= MAX_PARALLEL_CALLS:
            return f"not run: more than {MAX_PARALLEL_CALLS} calls at once; ask again for this one if you need it"
        return ""


def truncate(text: str, length: int = MAX_RESULT_CHARS) -> str:
    """The first `length` characters of `text`, and how many more there were."""
    return text if len(text) <= length else f"{text[:length]}... ({len(text) - length} characters more)"
