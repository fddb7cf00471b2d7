"""Print a workflow with its live events, the text that its agents write, and its outcome."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console
from rich.text import Text

from pointsman.cli.render.outcome import render_answer, render_outcome
from pointsman.cli.render.output import (
    console,
    one_line,
    print_event,
    print_hint,
    print_json,
    print_prose,
    with_connection_options,
)
from pointsman.client.client import Client, Workflow, WorkflowEvent
from pointsman.core.views import timeline
from pointsman.core.views.formatting import request_text
from pointsman.errors import PermissionDeniedError
from pointsman_schemas.events import Delta, Outcome, Progress
from pointsman_schemas.log import (
    AttemptFailed,
    PlanAccepted,
    QuestionAsked,
    TaskFailed,
    TaskSucceeded,
    WorkflowEnded,
    WorkflowStarted,
)
from pointsman_schemas.plan import PlannedTask

__all__ = [
    "EVENT_TEXT_COLUMN",
    "EventLine",
    "EventPrinter",
    "describe_question",
    "follow",
    "print_outcome",
    "print_streamed_text",
]

_NAME_WIDTH = 16  # columns for the name of an agent or a team; `customer-service` fits
EVENT_TEXT_COLUMN = 13 + _NAME_WIDTH  # the column of the text, after the time, the mark and the name
_MAX_TEXT_WIDTH = 72  # largest number of characters in a line of streamed text
_TONE_STYLES = {"plain": "", "good": "green", "bad": "red", "warn": "yellow", "busy": "cyan"}
_PROMINENT_MARKS = "▶≡■?"  # lines with these marks are highlighted, because readers look for them first
_UNCUT_MARKS = "✗?!‖-"  # failures and questions: their lines are wrapped and not cut, as a person must read them whole


@dataclass(frozen=True, slots=True)
class EventLine:
    """A line about an event. A line that is wider than the terminal is wrapped if `whole` is true, else it is cut."""

    prefix: Text
    text: Text
    whole: bool = False

    def print(self, terminal: Console) -> None:
        print_event(terminal, self.prefix, self.text, EVENT_TEXT_COLUMN, whole=self.whole)


class EventPrinter:
    """Render the events of one workflow as lines, in the order in which they happen."""

    def __init__(self, text_width: int = _MAX_TEXT_WIDTH) -> None:
        """Create a printer for one workflow.

        Args:
            text_width: Largest number of characters in a line of streamed text. Default: 72.
        """
        self._text_width = text_width
        self._start: datetime | None = None
        self._timeline = timeline.Timeline()
        # The streamed text that is not printed yet, because its line is not complete; by task, attempt and agent.
        self._partial_text: dict[tuple[str, int, str], str] = {}

    def text_lines(self, delta: Delta) -> Iterator[EventLine]:
        """Add a piece of streamed text, and yield the lines that are complete now."""
        attempt = delta.task_id, delta.attempt, delta.agent
        if delta.call and delta.offset == 0:  # the agent begins a new text, so its earlier text gets no further piece
            yield from self.rest_of_text(delta.task_id, delta.agent)
        text = self._partial_text.pop(attempt, "") + delta.text
        while (end := self._line_end(text)) > 0:
            yield _text_line(delta.agent, text[:end])
            text = text[end:]
        if text:
            self._partial_text[attempt] = text

    def rest_of_text(self, task_id: str | None = None, agent: str | None = None) -> Iterator[EventLine]:
        """Yield the streamed text that has no line end yet. None stands for all tasks or all agents."""
        for attempt in [each for each in self._partial_text if task_id in (None, each[0]) and agent in (None, each[2])]:
            text = self._partial_text.pop(attempt)
            if text.strip():
                yield _text_line(attempt[2], text)

    def lines(self, event: WorkflowEvent) -> Iterator[EventLine]:
        """Yield the lines about an event. There is no line, one line, or one line for each task of a plan."""
        if isinstance(event, TaskSucceeded | AttemptFailed | TaskFailed):
            yield from self.rest_of_text(event.task_id)
        line = self._timeline.render(event)
        if not line.mark:
            return
        text = line.detail
        match event:
            case WorkflowStarted():
                self._start = event.at
                text = f"{event.workflow_id}  {request_text(event.input)}"
            case QuestionAsked():
                text = describe_question(event, text)
        colour = _TONE_STYLES[line.tone]
        style = f"bold {colour}".strip() if line.mark in _PROMINENT_MARKS else colour or "dim"
        yield self._line(line.at, line.mark, line.actor, text, style, whole=line.mark in _UNCUT_MARKS)
        if isinstance(event, PlanAccepted):
            for task in event.plan.tasks:
                notes = [f"after {', '.join(task.depends_on)}"] if task.depends_on else []
                notes += [f"if {task.when}"] if task.when else []
                notes += [f"for each of {task.for_each.items}"] if task.for_each else []
                after = f"  ({', '.join(notes)})" if notes else ""
                yield self._line(event.at, " ", task.id, f"{_task_target(task)}: {task.intent}{after}", "", whole=True)

    def _line(self, at: datetime, mark: str, name: str, text: str, style: str, *, whole: bool) -> EventLine:
        seconds = (at - self._start).total_seconds() if self._start else 0.0
        prefix = Text().append(f"{seconds:8.3f}s ", style="dim")
        prefix.append(f"{mark} {one_line(name, limit=80):<{_NAME_WIDTH}} ", style=style)
        return EventLine(prefix, Text(one_line(text, limit=400)), whole)

    def _line_end(self, text: str) -> int:
        """Return the length of the first complete line of text; 0 if no line is complete."""
        width = self._text_width
        if (end := text.find("\n", 0, width + 1) + 1) > 0:
            return end
        return (text.rfind(" ", 0, width + 1) + 1 or width) if len(text) > width else 0


def describe_question(event: QuestionAsked, detail: str) -> str:
    """Return the text of a question with the command that answers it.

    Args:
        event: The question.
        detail: The question, or the subject of the approval, as the timeline renders it.

    Returns:
        The text. It is printed after the name of the agent or the team.
    """
    approve = with_connection_options(f"`pointsman approve {event.question}`")
    answer = with_connection_options(f"`pointsman answer {event.question} ANSWER`")
    if event.about == "information":
        return f"asks: {detail} Answer with {answer}"
    return f"waits for approval of {detail}: {approve} or `reject`"


def _text_line(agent: str, text: str) -> EventLine:
    prefix = Text(f"{'':10}┊ {one_line(agent, limit=80):<{_NAME_WIDTH}} ", style="dim")
    return EventLine(prefix, Text(one_line(text, limit=len(text) + 10), style="italic"), whole=True)


def _task_target(task: PlannedTask) -> str:
    return f"any agent with the skill {task.skill}" if task.skill else task.agent


def _text_width(terminal: Console) -> int:
    room = terminal.width - EVENT_TEXT_COLUMN
    return min(_MAX_TEXT_WIDTH, room) if terminal.is_terminal and room > 0 else _MAX_TEXT_WIDTH


async def follow(workflow: Workflow, *, json: bool) -> Outcome:
    """Print the events of a workflow, and the text that its agents write, until the workflow has ended.

    Args:
        workflow: The workflow.
        json: Print JSON, one document on each line, instead of text.

    Returns:
        The outcome.
    """
    terminal = console()
    printer = EventPrinter(_text_width(terminal))

    async def print_delta(delta: Delta) -> None:
        if json:
            print_json({"delta": delta})
            return
        for line in printer.text_lines(delta):
            line.print(terminal)

    outcome: Outcome | None = None
    async with await workflow.stream_text(print_delta):
        async for event in workflow.events():
            if json:
                print_json(_with_type(event))
            else:
                for line in printer.lines(event):
                    line.print(terminal)
            if isinstance(event, WorkflowEnded):
                outcome = event.outcome  # not returned yet, because a resumed workflow has further events
    return outcome or await workflow.outcome()


async def print_streamed_text(workflow: Workflow, terminal: Console) -> Outcome:
    """Print the text that the agents of a workflow write, until the workflow has ended.

    Args:
        workflow: The workflow.
        terminal: The console of the waiting user.

    Returns:
        The outcome.
    """
    printer = EventPrinter(_text_width(terminal))

    async def print_delta(delta: Delta) -> None:
        for line in printer.text_lines(delta):
            line.print(terminal)

    async with await workflow.stream_text(print_delta):
        outcome = await workflow.outcome()
    for line in printer.rest_of_text():
        line.print(terminal)
    return outcome


async def print_outcome(client: Client, outcome: Outcome, workflow: str) -> None:
    """Print the answer to standard output. Print the gaps, the status and the next steps to standard error.

    Args:
        client: The client.
        outcome: The outcome of the workflow.
        workflow: The id of the workflow.
    """
    print_prose(console(), render_answer(outcome))
    terminal = console(stderr=True)
    terminal.print()
    terminal.print(render_outcome(outcome))
    print_hint(terminal, f"`pointsman trace {workflow}` shows the tasks and their times.")
    if outcome.status in ("failed", "partial") and outcome.tasks:  # a refused request has no tasks
        print_hint(terminal, f"`pointsman resume {workflow}` does the failed tasks again.")
    if outcome.status == "failed" and await _has_dead_letters(client, workflow):
        print_hint(terminal, f"`pointsman dead list --workflow {workflow}` shows the dead letters.")


async def _has_dead_letters(client: Client, workflow: str) -> bool:
    """Return True if the workflow has a dead letter. Return False if the user may not read dead letters."""
    try:
        with client.bus.optional_requests(""):
            return bool(await client.operations.dead_letters(workflow=workflow, limit=1))
    except PermissionDeniedError:
        return False


def _with_type(event: WorkflowEvent) -> Mapping[str, WorkflowEvent]:
    return {"progress": event} if isinstance(event, Progress) else {"log": event}
