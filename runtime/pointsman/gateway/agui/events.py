"""Convert the events of a workflow to the events of an AG-UI run.

| Workflow | AG-UI |
|---|---|
| plan accepted, task status | `STATE_SNAPSHOT`, then `STATE_DELTA` |
| start of an attempt | `SUBAGENT_STARTED`, `STEP_STARTED` |
| end of an attempt | `STEP_FINISHED`, then `SUBAGENT_FINISHED` or `SUBAGENT_ERROR` |
| tool call of an agent | `TOOL_CALL_START`, `TOOL_CALL_ARGS`, `TOOL_CALL_END`, `TOOL_CALL_RESULT` |
| text that a model writes | `TEXT_MESSAGE_*` of the attempt's subagent |
| answer | `TEXT_MESSAGE_*`, then `RUN_FINISHED` with the usage |
| questions and approvals | `RUN_FINISHED` with the outcome `interrupt` |
| failure | `RUN_ERROR` |

Each run ends each subagent, step and message that the run has begun.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ag_ui.core import (
    BaseEvent,
    Interrupt,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StateDeltaEvent,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    SubagentErrorEvent,
    SubagentFinishedEvent,
    SubagentFinishedSuspendedOutcome,
    SubagentStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TokenUsage,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from pointsman.gateway.early_items import EarlyItems
from pointsman.gateway.openai.messages import answer_text
from pointsman_schemas.events import Delta, Outcome, Progress, Question, Usage
from pointsman_schemas.log import (
    AttemptFailed,
    Entry,
    PlanAccepted,
    TaskAbandoned,
    TaskDispatched,
    TaskSucceeded,
    WorkflowEnded,
)

__all__ = ["RunEvents", "interrupt_of"]

_PROTOCOL_VERSION = "1.0"
_PIECE_CHARS = 400  # characters of the answer in one event


class RunEvents:
    """The events of one run.

    Args:
        thread: The id of the thread, as the client named it.
        run: The id of the run, as the client named it.
        workflow: The workflow.
        team: The team.
    """

    def __init__(self, thread: str, run: str, workflow: str, team: str) -> None:
        self._thread = thread
        self._run = run
        self._workflow = workflow
        self._tasks: dict[str, dict[str, str]] = {}
        self._state: dict[str, Any] = {
            "workflow_id": workflow, "team": team, "status": "running", "tasks": self._tasks,
        }  # fmt: skip
        self._open: dict[str, str] = {}  # the subagent of the open attempt, by task
        self._texts: dict[str, str] = {}  # the text of an open message, by subagent
        self._early = EarlyItems()
        self._tools = 0

    def recall(self, entry: Entry) -> None:
        """Apply an entry without events, because an earlier run of the thread has already sent the events.

        Args:
            entry: The entry.
        """
        for _ in self.entry(entry):
            pass
        self._open.clear()

    def start(self) -> Iterator[BaseEvent]:
        """Yield the first events of the run."""
        yield RunStartedEvent(thread_id=self._thread, run_id=self._run, protocol_version=_PROTOCOL_VERSION)
        yield StateSnapshotEvent(snapshot=copy.deepcopy(self._state))

    def entry(self, entry: Entry) -> Iterator[BaseEvent]:
        """Yield the events for an entry of the log.

        Args:
            entry: The entry.

        Yields:
            The events.
        """
        match entry:
            case PlanAccepted():
                for task in entry.plan.tasks:
                    yield self._set(task.id, agent=task.agent or "", intent=task.intent, status="planned")
            case TaskDispatched():
                yield from self._close(entry.task_id)
                yield from self._begin(entry)
            case TaskSucceeded():
                yield from self._close(entry.task_id)
                yield self._set(entry.task_id, status="succeeded")
            case AttemptFailed():
                yield from self._close(entry.task_id, error=entry.error.message, code=entry.error.kind)
                yield self._set(entry.task_id, status="failed")
            case TaskAbandoned():
                yield from self._close(entry.task_id, error=entry.reason or "abandoned", code=entry.cause)
                yield self._set(entry.task_id, status="abandoned")
            case WorkflowEnded():
                yield from self._end(entry.outcome)
            case _:
                pass

    def live(self, item: Progress | Delta) -> Iterator[BaseEvent]:
        """Yield the events for a report of an agent, or for a piece of text.

        Args:
            item: The report or the text.

        Yields:
            The events.
        """
        if self._early.keep(item):
            return
        subagent = f"{item.task_id}-{item.attempt}"
        # Ignore the item if the attempt has ended, or if an agent reports about an attempt of another agent.
        if self._open.get(item.task_id) != subagent or self._tasks[item.task_id]["agent"] != item.agent:
            return
        if isinstance(item, Delta):
            if subagent not in self._texts:
                self._texts[subagent] = ""
                yield TextMessageStartEvent(message_id=subagent, role="assistant", subagent_run_id=subagent)
            self._texts[subagent] += item.text
            if item.text:
                yield TextMessageContentEvent(message_id=subagent, delta=item.text, subagent_run_id=subagent)
        elif item.kind == "tool":
            self._tools += 1
            call = f"{subagent}-{self._tools}"
            yield ToolCallStartEvent(tool_call_id=call, tool_call_name=item.name, subagent_run_id=subagent)
            yield ToolCallArgsEvent(tool_call_id=call, delta="{}", subagent_run_id=subagent)
            yield ToolCallEndEvent(tool_call_id=call, subagent_run_id=subagent)
            result = "The tool failed." if item.error else "The tool succeeded."
            yield ToolCallResultEvent(
                message_id=f"{call}-result", tool_call_id=call, content=result, role="tool", subagent_run_id=subagent
            )

    def interrupt(self, questions: Sequence[Question]) -> Iterator[BaseEvent]:
        """Yield the last events of a run that waits for answers.

        Args:
            questions: The open questions of the workflow, at least one.

        Yields:
            The events.
        """
        for task in tuple(self._open):
            yield from self._close(task, suspended=True)
        yield self._set_status("waiting_for_answer")
        yield RunFinishedEvent(
            thread_id=self._thread,
            run_id=self._run,
            outcome=RunFinishedInterruptOutcome(interrupts=[interrupt_of(each) for each in questions]),
        )

    def fail(self, message: str, code: str) -> Iterator[BaseEvent]:
        """Yield the last events of a run that ends before its workflow.

        Args:
            message: The reason, and the next step.
            code: The kind of the reason.

        Yields:
            The events.
        """
        for task in tuple(self._open):
            yield from self._close(task, suspended=True)
        yield RunErrorEvent(message=message, code=code)

    def _begin(self, entry: TaskDispatched) -> Iterator[BaseEvent]:
        subagent = f"{entry.task_id}-{entry.attempt}"
        self._open[entry.task_id] = subagent
        yield SubagentStartedEvent(subagent_run_id=subagent, name=entry.agent, description=entry.task_id)
        yield StepStartedEvent(step_name=subagent, subagent_run_id=subagent)
        yield self._set(entry.task_id, agent=entry.agent, status="running")
        self._early.start(entry.task_id, entry.attempt)
        for item in self._early.take():
            yield from self.live(item)

    def _close(self, task: str, *, error: str = "", code: str = "", suspended: bool = False) -> Iterator[BaseEvent]:
        """Close the open attempt of a task, if there is one, and its open message.

        The attempt has failed if there is an `error`. It has not ended if `suspended` is True. Otherwise, it has
        succeeded.

        Yields:
            The events.
        """
        subagent = self._open.pop(task, "")
        if not subagent:
            return
        if self._texts.pop(subagent, None) is not None:
            yield TextMessageEndEvent(message_id=subagent, subagent_run_id=subagent)
        yield StepFinishedEvent(step_name=subagent, subagent_run_id=subagent)
        if error:
            yield SubagentErrorEvent(subagent_run_id=subagent, message=error, code=code)
        else:
            outcome = SubagentFinishedSuspendedOutcome() if suspended else None
            yield SubagentFinishedEvent(subagent_run_id=subagent, outcome=outcome)

    def _end(self, outcome: Outcome) -> Iterator[BaseEvent]:
        for task in tuple(self._open):
            yield from self._close(task)
        yield self._set_status(outcome.status)
        usage = [_usage(outcome.usage)]
        if outcome.status == "failed":
            yield RunErrorEvent(
                message=f"workflow {self._workflow} failed: {outcome.reason}", code="workflow_failed", usage=usage
            )
            return
        text = answer_text(outcome)
        if text:
            yield TextMessageStartEvent(message_id=self._workflow, role="assistant")
            for start in range(0, len(text), _PIECE_CHARS):
                yield TextMessageContentEvent(message_id=self._workflow, delta=text[start : start + _PIECE_CHARS])
            yield TextMessageEndEvent(message_id=self._workflow)
        cancelled = outcome.status == "cancelled"
        yield RunFinishedEvent(
            thread_id=self._thread,
            run_id=self._run,
            result=outcome.answer,
            outcome=RunFinishedCancelledOutcome() if cancelled else RunFinishedSuccessOutcome(),
            usage=usage,
        )

    def _set(self, task: str, **fields: str) -> BaseEvent:
        """Change the state of a task, and return the event for this change."""
        shown = self._tasks.setdefault(task, {"agent": "", "intent": "", "status": ""})
        shown.update(fields)
        path = "/tasks/" + task.replace("~", "~0").replace("/", "~1")  # the escapes of a JSON Pointer (RFC 6901)
        return _patch("add", path, dict(shown))

    def _set_status(self, status: str) -> BaseEvent:
        self._state["status"] = status
        return _patch("replace", "/status", status)


def interrupt_of(question: Question) -> Interrupt:
    """Return the interrupt for a question.

    Args:
        question: The question.

    Returns:
        The interrupt. The id of the interrupt is the id of the question.
    """
    subjects: Mapping[str, str] = {
        "task": f"Allow the task {question.task_id!r} of {question.agent}?",
        "tool": f"Allow {question.agent} to use the tool {question.tool}?",
        "plan": "Allow the plan?",
    }
    schema: dict[str, Any] = dict(question.input_schema or {})
    if question.about != "information":
        schema = {
            "type": "object",
            "properties": {
                "approved": {"type": "boolean"},
                "reason": {"type": "string"},
                "input": question.input_schema or {},
            },
            "required": ["approved"],
        }
    return Interrupt(
        id=question.id,
        reason="question" if question.about == "information" else f"approval_of_{question.about}",
        message=subjects.get(question.about, question.text),
        response_schema=schema or None,
        expires_at=question.expires_at.isoformat(),
    )


def _usage(usage: Usage) -> TokenUsage:
    return TokenUsage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, total_tokens=usage.tokens)


def _patch(operation: str, path: str, value: object) -> BaseEvent:
    return StateDeltaEvent.model_validate({"delta": [{"op": operation, "path": path, "value": value}]})
