"""Convert the log of a workflow to an A2A task, and to the events of the task.

| Workflow | A2A |
|---|---|
| request that waits for admission | `SUBMITTED` |
| running | `WORKING`, with a line about each step |
| question or approval | `INPUT_REQUIRED`, with the question as the message |
| answer of a person, message to the workflow | a message in the history |
| answer, file that a task returned | an artifact |
| completed, also with gaps | `COMPLETED` |
| failed | `FAILED` |
| failed before its first task, because it was refused | `REJECTED` |
| cancelled | `CANCELED` |

The result depends only on the entries of the log, so each gateway returns the same task and the same events.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

from a2a.types.a2a_pb2 import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from pydantic import JsonValue

from pointsman.client.files import WorkflowFile
from pointsman.gateway.a2a.parts import metadata_of, parts_of, struct_of
from pointsman.gateway.early_items import EarlyItems
from pointsman.gateway.openai.commentary import Commentary
from pointsman.gateway.streams import LogEvent
from pointsman_schemas.card import Role as TaskRole
from pointsman_schemas.events import Delta
from pointsman_schemas.files import File
from pointsman_schemas.log import (
    Entry,
    MessageReceived,
    QuestionAnswered,
    QuestionAsked,
    TaskAbandoned,
    TaskAdded,
    TaskDispatched,
    TaskSucceeded,
    WorkflowEnded,
    WorkflowResumed,
    WorkflowStarted,
)

__all__ = [
    "INTERRUPTED",
    "ORIGIN",
    "TERMINAL",
    "TaskEvent",
    "TaskFold",
    "file_number",
    "new_task",
    "state_of",
]

ORIGIN = "pointsman.a2a"
"""The key in the workflow's metadata for the id of the message that began the task."""
TERMINAL = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_REJECTED,
    }
)
"""The states after which a task does not change."""
INTERRUPTED = TaskState.TASK_STATE_INPUT_REQUIRED
"""The state of a task that waits for a message."""

TaskEvent: TypeAlias = TaskStatusUpdateEvent | TaskArtifactUpdateEvent

_MAX_HISTORY = 200  # maximum number of messages in the history of a task, which keeps the newest messages
_STATES = {
    "queued": TaskState.TASK_STATE_SUBMITTED,
    "cancelling": TaskState.TASK_STATE_SUBMITTED,
    "running": TaskState.TASK_STATE_WORKING,
    "waiting_for_answer": TaskState.TASK_STATE_INPUT_REQUIRED,
    "completed": TaskState.TASK_STATE_COMPLETED,
    "partial": TaskState.TASK_STATE_COMPLETED,
    "failed": TaskState.TASK_STATE_FAILED,
    "cancelled": TaskState.TASK_STATE_CANCELED,
}
_SUBJECTS = {"plan": "Allow the plan?", "task": "Allow the task?", "tool": "Allow the use of the tool?"}


def state_of(status: str, *, refused: bool = False) -> TaskState:
    """Return the state of a task for the status of its workflow.

    Args:
        status: The status.
        refused: True for a workflow that failed without a task.

    Returns:
        The state.
    """
    if refused:
        return TaskState.TASK_STATE_REJECTED
    return _STATES.get(status, TaskState.TASK_STATE_UNSPECIFIED)


def new_task(id: str, context_id: str, state: TaskState, at: datetime) -> Task:
    """Return a task without a history.

    Args:
        id: The id of the task, which is the id of its workflow.
        context_id: The id of the A2A context of the task.
        state: The state.
        at: The timestamp of the status of the task.

    Returns:
        The task.
    """
    task = Task(id=id, context_id=context_id, status=TaskStatus(state=state))
    task.status.timestamp.FromDatetime(at)
    return task


def file_number(artifact: Artifact) -> int:
    """Return the number of the file in an artifact, from 1. Return 0 for an artifact without a file.

    Args:
        artifact: The artifact.
    """
    return int(metadata_of(artifact, "file") or 0)


class TaskFold:
    """The task of one workflow, built from the entries that `apply` has got.

    Args:
        workflow: The workflow.
        team: The team.
        origin: The URL of the gateway, for the addresses of files.
    """

    def __init__(self, workflow: str, team: str, origin: str) -> None:
        self.task = Task(id=workflow, context_id=workflow)
        self.questions: dict[str, QuestionAsked] = {}
        """The open questions, the oldest first."""
        self.early = EarlyItems()
        """The pieces of text whose attempts the entries so far do not start."""
        self._team = team
        self._origin = origin
        self._commentary = Commentary()
        self._files: dict[WorkflowFile, None] = {}
        self._round = 1
        self._writers: dict[str, tuple[int, str]] = {}  # by synthesis task: the newest attempt and its agent
        self._task_state = TaskState.TASK_STATE_SUBMITTED

    @property
    def state(self) -> TaskState:
        """The state of the task."""
        return self._task_state

    def apply(self, event: LogEvent) -> list[TaskEvent]:
        """Apply an entry of the log.

        Args:
            event: The next entry, after the entries of earlier calls.

        Returns:
            The events that a stream of the task sends for the entry.
        """
        entry, position = event.entry, str(event.position)
        line = self._commentary.line(entry)
        events: list[TaskEvent] = []
        match entry:
            case WorkflowStarted():
                self._start(entry)
                events.append(self._set(TaskState.TASK_STATE_WORKING, entry, position))
            case QuestionAsked():
                self.questions[entry.question] = entry
                events.append(self._wait(entry, position))
            case QuestionAnswered():
                self.questions.pop(entry.question, None)
                self._answered(entry, position)
                events.append(self._go_on(entry, position, line))
            case TaskAbandoned() if any(each.task_id == entry.task_id for each in self.questions.values()):
                self.questions = {id: each for id, each in self.questions.items() if each.task_id != entry.task_id}
                events.append(self._go_on(entry, position, line))
            case MessageReceived():
                said = self._say(Role.ROLE_USER, f"{self.task.id}-{position}", parts_of(entry.text))
                said.metadata.CopyFrom(struct_of({"by": entry.by}))
            case WorkflowResumed():
                self._round = entry.round
                kept = [each for each in self.task.artifacts if file_number(each)]
                del self.task.artifacts[:]
                self.task.artifacts.extend(kept)
                events.append(self._set(TaskState.TASK_STATE_WORKING, entry, position, line))
            case WorkflowEnded():
                events += self._end(entry, position)
            case _:
                self._note_writer(entry)
                if isinstance(entry, TaskSucceeded):
                    events += self._add_files(entry, position)
                if line and not self.questions:
                    events.append(self._set(TaskState.TASK_STATE_WORKING, entry, position, line))
        self.task.metadata.MergeFrom(struct_of({"position": position, "team": self._team}))
        return events

    def writes_answer(self, delta: Delta) -> bool:
        """Return True if a piece of text is from the agent that the log names as the writer of the answer.

        The role and the task in a piece prove nothing, because each agent may broadcast text with any role and any
        task. But an agent can only use its own name, so the name is compared.

        Args:
            delta: The piece.
        """
        return self._writers.get(delta.task_id) == (delta.attempt, delta.agent)

    def piece_of_answer(self, text: str, *, append: bool) -> TaskArtifactUpdateEvent:
        """Return the event for a piece of an unfinished answer. `task` gets only the whole answer, at the end.

        Args:
            text: The piece.
            append: True if the piece continues the earlier pieces, False if the piece replaces the earlier pieces.

        Returns:
            The event, with the position of the newest applied entry.
        """
        part = Part(text=text, media_type="text/plain")
        artifact = Artifact(artifact_id=self._answer_id, name="answer", parts=[part])
        update = self._update(artifact, str(metadata_of(self.task, "position") or ""))
        update.append, update.last_chunk = append, False
        return update

    def _note_writer(self, entry: Entry) -> None:
        if isinstance(entry, TaskDispatched):
            self.early.start(entry.task_id, entry.attempt)
        if isinstance(entry, TaskAdded) and entry.role is TaskRole.SYNTHESIZE:
            self._writers[entry.task_id] = (0, entry.agent)
        elif isinstance(entry, TaskDispatched) and entry.task_id in self._writers:
            self._writers[entry.task_id] = (entry.attempt, entry.agent)

    @property
    def _answer_id(self) -> str:
        return f"{self.task.id}-{self._round}-answer"

    def _add_files(self, entry: TaskSucceeded, position: str) -> list[TaskEvent]:
        """Add the files of a task that has succeeded as artifacts."""
        events: list[TaskEvent] = []
        for file in entry.result.files:
            known = len(self._files)
            self._files[WorkflowFile(file, entry.task_id)] = None
            if (number := len(self._files)) == known:
                continue
            id = f"{self.task.id}-file-{number}"
            artifact = Artifact(artifact_id=id, name=file.name, parts=[self._file_part(file)])
            artifact.metadata.CopyFrom(struct_of({"file": number}))
            self.task.artifacts.append(artifact)
            events.append(self._update(artifact, position))
        return events

    def _update(self, artifact: Artifact, position: str) -> TaskArtifactUpdateEvent:
        update = TaskArtifactUpdateEvent(
            task_id=self.task.id, context_id=self.task.context_id, artifact=artifact, last_chunk=True
        )
        update.metadata.CopyFrom(struct_of({"position": position}))
        return update

    def _start(self, entry: WorkflowStarted) -> None:
        if entry.thread is not None:
            self.task.context_id = entry.thread.thread
        self._files |= dict.fromkeys(WorkflowFile(file, "request") for file in entry.files)
        origin = entry.metadata.get(ORIGIN)
        given = origin.get("message") if isinstance(origin, dict) else None
        parts = parts_of(entry.input)
        parts += [self._file_part(file) for file in entry.files]
        del self.task.history[:]  # delete the message that `queued_task` added before the admission
        self._say(Role.ROLE_USER, str(given or f"{entry.workflow_id}-request"), parts)

    def _answered(self, entry: QuestionAnswered, position: str) -> None:
        if entry.verdict == "expired":
            return
        parts = parts_of(entry.input)
        if not parts:
            parts = [Part(text=": ".join(filter(None, (entry.verdict, entry.reason))))]
        message = self._say(Role.ROLE_USER, f"{self.task.id}-{position}", parts)
        message.metadata.CopyFrom(struct_of({"question": entry.question, "by": entry.by}))

    def _wait(self, entry: QuestionAsked, position: str) -> TaskEvent:
        message = Message(
            message_id=f"{self.task.id}-{position}", context_id=self.task.context_id, task_id=self.task.id,
            role=Role.ROLE_AGENT, parts=_question_parts(entry),
        )  # fmt: skip
        message.metadata.CopyFrom(
            struct_of(
                {
                    "question": entry.question,
                    "about": entry.about,
                    "schema": entry.input_schema,
                    "expires_at": entry.expires_at.isoformat(),
                }
            )
        )
        self._keep(message)
        return self._set(INTERRUPTED, entry, position, message)

    def _go_on(self, entry: Entry, position: str, line: str) -> TaskEvent:
        """Return the event for a closed question. It shows the next open question, or that the work continues."""
        if not self.questions:
            return self._set(TaskState.TASK_STATE_WORKING, entry, position, line)
        waiting = next(iter(self.questions.values()))
        message = next(
            each for each in reversed(self.task.history) if metadata_of(each, "question") == waiting.question
        )
        return self._set(INTERRUPTED, entry, position, message)

    def _end(self, entry: WorkflowEnded, position: str) -> list[TaskEvent]:
        outcome = entry.outcome
        self.questions.clear()
        events: list[TaskEvent] = []
        if outcome.status in ("completed", "partial") and (parts := parts_of(outcome.answer)):
            answer = Artifact(artifact_id=self._answer_id, name="answer", parts=parts)
            self.task.artifacts.append(answer)
            events.append(self._update(answer, position))
        text = "" if outcome.status == "completed" else outcome.reason
        if outcome.gaps:
            text += "".join(f"\n- {gap.task_id} ({gap.agent}): {gap.reason}" for gap in outcome.gaps)
        last = self._set(
            state_of(outcome.status, refused=outcome.status == "failed" and not outcome.tasks),
            entry,
            position,
            text.strip(),
        )
        last.metadata.MergeFrom(
            struct_of({"usage": outcome.usage.model_dump(), "partial": True if outcome.status == "partial" else None})
        )
        return [*events, last]

    def _file_part(self, file: File) -> Part:
        url = f"{self._origin}/v1/workflows/{self.task.id}/files/{file.sha256}"
        part = Part(url=url, filename=file.name, media_type=file.media_type)
        part.metadata.CopyFrom(struct_of({"size": file.size, "sha256": file.sha256}))
        return part

    def files(self) -> Sequence[File]:
        """Return the files of the workflow, in the order of their numbers."""
        return [each.file for each in self._files]

    def _say(self, role: Role, id: str, parts: Sequence[Part]) -> Message:
        message = Message(message_id=id, context_id=self.task.context_id, task_id=self.task.id, role=role, parts=parts)
        return self._keep(message)

    def _keep(self, message: Message) -> Message:
        self.task.history.append(message)
        if len(self.task.history) > _MAX_HISTORY:
            del self.task.history[0]
        return self.task.history[-1]

    def _set(self, state: TaskState, entry: Entry, position: str, message: Message | str = "") -> TaskStatusUpdateEvent:
        self._task_state = state
        status = self.task.status
        status.Clear()
        status.state = state
        status.timestamp.FromDatetime(entry.at)
        if isinstance(message, Message):
            status.message.CopyFrom(message)
        elif message:
            status.message.CopyFrom(
                Message(
                    message_id=f"{self.task.id}-{position}",
                    context_id=self.task.context_id,
                    task_id=self.task.id,
                    role=Role.ROLE_AGENT,
                    parts=[Part(text=message, media_type="text/plain")],
                )
            )
        event = TaskStatusUpdateEvent(task_id=self.task.id, context_id=self.task.context_id, status=status)
        event.metadata.CopyFrom(struct_of({"position": position}))
        return event


def _question_parts(entry: QuestionAsked) -> list[Part]:
    """Return the text of a question. For an approval, also return the data that a person must read."""
    if entry.about == "information":
        return [Part(text=entry.text or "The team asks for information.", media_type="text/plain")]
    text = _SUBJECTS[entry.about]
    if entry.about == "tool":
        text = f"Allow {entry.agent} to use the tool {entry.tool}?"
    elif entry.about == "task":
        text = f"Allow the task {entry.task_id} of {entry.agent}?"
    parts = [Part(text=text, media_type="text/plain")]
    shown: JsonValue = entry.plan.model_dump(mode="json", exclude_none=True) if entry.plan else entry.input
    return parts + parts_of(shown)
