"""Run the tool calls of an attempt, turn by turn. A turn is one answer of the model, with its tool calls.

Each call has exactly one result, and no finished call runs again.
"""

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
from pointsman.errors import AnswerRequiredError, TaskError
from pointsman.ports.model import ToolCall, Turn
from pointsman_schemas.events import Answer, ErrorKind, QuestionRequest

__all__ = ["MAX_PARALLEL_CALLS", "MAX_REPEATS", "ToolTurns", "truncate"]

MAX_REPEATS: Final = 2
"""Largest number of turns that may call a tool with equal arguments. A second call may read a value again. A third call
is refused, so that an endless loop of the model ends."""
MAX_PARALLEL_CALLS: Final = 32
"""Largest number of tool calls that run in one turn. Further calls are refused; the model may repeat them later."""
MAX_RESULT_CHARS: Final = 50_000
"""Largest number of characters of a tool's result that the model receives, some 12,000 tokens. The rest is cut off."""


@dataclass(slots=True)
class ToolTurns:
    """Tool calls of one attempt.

    Attributes:
        state: State of the attempt.
        tools: Tools of the agent, by name.
        steps: Recorded steps of the attempt.
        call_counts: For each tool name with arguments, the number of turns that called this tool with these arguments.
    """

    state: AttemptState
    tools: Mapping[str, Tool[..., Any]]
    steps: DurableSteps
    call_counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    async def run(self, calls: Sequence[ToolCall], turn: int) -> list[Turn]:
        """Run the calls of a turn concurrently and return their results in the order of the calls.

        Each result is recorded, even if another call fails or asks a person.

        Args:
            calls: Calls of the turn.
            turn: Number of the turn, from 1.

        Returns:
            One result for each call.

        Raises:
            AnswerRequiredError: A person must allow a call first, or a tool asks a person.
            TaskError: A tool that is not idempotent was running when its worker crashed; kind `outcome_unknown`.
        """
        self.call_counts.update({(call.name, call.arguments) for call in calls})
        for place in self.steps.interrupted_calls(turn, range(len(calls))):
            call = calls[place]
            if not self._refusal(call, place) and not self.tools[call.name].idempotent:
                raise TaskError(
                    f"the tool {call.name} was running when its worker crashed, and may have done its work or not; "
                    "check its effects, or declare it idempotent=True if it may run again",
                    kind=ErrorKind.OUTCOME_UNKNOWN,
                )
        if asked := self._calls_to_approve(calls, turn):
            raise AnswerRequiredError(asked)  # raised before any tool of this turn runs
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._run_call(call, (turn, place))) for place, call in enumerate(calls)]
        except ExceptionGroup as failed:  # ends the attempt; the error of a failed tool is a result, not an exception
            raise failed.exceptions[0] from None
        ended = [task.result() for task in running]
        if unasked := [call for end in ended if isinstance(end, AnswerRequiredError) for call in end.questions]:
            raise AnswerRequiredError(unasked)
        return [end for end in ended if isinstance(end, Turn)]

    def _calls_to_approve(self, calls: Sequence[ToolCall], turn: int) -> list[QuestionRequest]:
        """Return the calls that need an approval which was not requested yet."""
        wanted: list[QuestionRequest] = []
        allowed: list[tuple[str, Mapping[str, JsonValue]]] = []
        context = Context(self.state)
        for place, call in enumerate(calls):
            if self._refusal(call, place):
                continue
            match self.tools[call.name].approval_verdict(call.arguments, context, allowed):
                case QuestionRequest() as unasked if self.steps.tool_result(turn, place) is None:
                    wanted.append(unasked)
                case Answer(verdict="approved") as said:
                    allowed.append((said.tool, said.arguments))
                case _:
                    pass
        return wanted

    async def _run_call(self, call: ToolCall, place: tuple[int, int]) -> Turn | AnswerRequiredError:
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
        except AnswerRequiredError as asked:
            return asked  # not raised, because an exception would cancel the other calls, and they would run again
        text, is_error = await done.record_result(*place, truncate(result.text), result.is_error, **state.call_fields)
        return Turn("tool", text, call_id=call.id, is_error=is_error)

    def _refusal(self, call: ToolCall, place: int) -> str:
        """Return the reason to refuse the call; empty if the call may run."""
        if call.name not in self.tools:
            known = ", ".join(self.tools) or "none"
            return f"there is no tool {call.name[:64]!r} here; the tools are: {known}"
        if self.call_counts[call.name, call.arguments] > MAX_REPEATS:
            return f"{call.name} was called with these arguments {MAX_REPEATS} times already; answer with what you have"
        if place >= MAX_PARALLEL_CALLS:
            return f"not run: more than {MAX_PARALLEL_CALLS} calls in one turn; repeat this call if you need it"
        return ""


def truncate(text: str, length: int = MAX_RESULT_CHARS) -> str:
    """Return `text`. If it is longer than `length`, cut it there, and append the number of the missing characters."""
    return text if len(text) <= length else f"{text[:length]}... ({len(text) - length} characters more)"
