"""Read the task of a workflow from the log, and convert new log entries to events of the task."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from a2a.types.a2a_pb2 import Artifact, Task, TaskArtifactUpdateEvent
from a2a.utils.errors import TaskNotFoundError

from pointsman.client.workflow import Workflow
from pointsman.engine.operations.queued_requests import QueuedRequest, find_queued_request
from pointsman.errors import ContractError, NotFoundError
from pointsman.gateway.a2a.answer_text import AnswerText
from pointsman.gateway.a2a.parts import metadata_of, parts_of, struct_of
from pointsman.gateway.a2a.tasks import ORIGIN, TaskEvent, TaskFold, file_number, new_task, state_of
from pointsman.gateway.callers import Caller
from pointsman.gateway.context import Context
from pointsman.gateway.feed import StreamResetError
from pointsman.gateway.problems import ProblemError
from pointsman.gateway.streams import LogEvent, Position
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import Delta, Progress, Request
from pointsman_schemas.files import File
from pointsman_schemas.ids import is_token
from pointsman_schemas.log import WorkflowResumed
from pointsman_schemas.strict_json import parse

__all__ = ["TaskReader", "queued_task"]

_MAX_INLINE_BYTES = 1_000_000  # largest file whose content is in an artifact; otherwise the artifact has its address
_MAX_ALL_INLINE_BYTES = 4_000_000  # maximum number of bytes of all files whose contents are in one response


class TaskReader:
    """Reads the tasks of one team for one caller.

    Args:
        context: The parts of the gateway.
        caller: The caller.
        team: The team.
        origin: The URL of the gateway.
    """

    def __init__(self, context: Context, caller: Caller, team: str, origin: str) -> None:
        self._context = context
        self._caller = caller
        self._team = team
        self._origin = origin

    async def find(self, id: str) -> Workflow:
        """Find the workflow of a task.

        Args:
            id: The task.

        Returns:
            The workflow.

        Raises:
            TaskNotFoundError: The caller has no task with this id at the team.
        """
        if is_token(id):
            try:
                workflow = await self._context.find(self._caller, id)
            except (NotFoundError, ProblemError):
                workflow = None
            if workflow is not None and workflow.team == self._team:
                return workflow
        raise TaskNotFoundError(f"you have no task {id[:100]!r} with this team; ListTasks lists your tasks")

    def empty(self, workflow: Workflow) -> TaskFold:
        """Return the empty task of a workflow, before any entry of the log is applied.

        Args:
            workflow: The workflow.
        """
        return TaskFold(workflow.id, workflow.team, self._origin)

    async def fold(self, workflow: Workflow, *, up_to: Position | None = None) -> TaskFold:
        """Read a task.

        Args:
            workflow: The workflow of the task.
            up_to: The position of the last entry to apply. Default: apply all entries.

        Returns:
            The present task, or the task at the position.
        """
        fold = self.empty(workflow)
        if await self._read(fold, workflow, up_to):
            return fold
        client = self._context.client
        queued = await find_queued_request(client.bus, client.subjects, workflow.id)
        if queued is not None:
            fold.task.CopyFrom(queued_task(queued))
        else:  # the request was admitted after the log was read, so read the log again
            await self._read(fold, workflow, up_to)
        return fold

    async def _read(self, fold: TaskFold, workflow: Workflow, up_to: Position | None) -> bool:
        """Apply the log of a workflow to the task. Return False if there is no log."""
        found = False
        async for event in self._context.streams.history(workflow):
            found = True
            if up_to is not None and event.position > up_to:
                break
            fold.apply(event)
        return found

    async def follow(
        self, workflow: Workflow, fold: TaskFold, *, inline: bool = True, text: AnswerText | None = None
    ) -> AsyncGenerator[Sequence[TaskEvent], None]:
        """Follow a task from the position of `fold` to the end of the task, or until the gateway stops.

        Args:
            workflow: The workflow of the task.
            fold: The task so far. Each new entry of the log is applied to it.
            inline: Put the content of small files into artifacts.
            text: The part of the answer that the client already has. The rest is streamed while a model writes it.
                Default: None, and the whole answer is an event at the end of the task.

        Yields:
            The events for one entry or for one piece of text. An empty sequence if there was no event for some seconds.
        """
        position = _position(fold.task)
        try:
            async with aclosing(self._context.streams.follow(workflow, after=position, text=text is not None)) as items:
                async for item in items:
                    pieces: Sequence[Progress | Delta] = ()
                    if isinstance(item, Delta):
                        pieces = () if fold.early.keep(item) else [item]
                    else:
                        events: Sequence[TaskEvent] = ()
                        if isinstance(item, LogEvent):
                            if text is not None and isinstance(item.entry, WorkflowResumed):
                                text = AnswerText()
                            events = fold.apply(item)
                        for event in events:
                            if isinstance(event, TaskArtifactUpdateEvent) and inline:
                                await self._fill([event.artifact], fold.files())
                            if text is not None:
                                _place(event, text)
                        yield events
                        pieces = fold.early.take()
                    for each in pieces:
                        if text is not None and isinstance(each, Delta) and fold.writes_answer(each):
                            if (piece := text.add(each)) is None:
                                continue
                            update = fold.piece_of_answer(piece.text, append=piece.append)
                            _place(update, text)
                            yield [update]
        except StreamResetError:
            return  # the client subscribes again, at any gateway

    async def snapshot(self, fold: TaskFold) -> Task:
        """Return a copy of a task with the content of its small files.

        Args:
            fold: The task.

        Returns:
            The copy.
        """
        task = Task()
        task.CopyFrom(fold.task)
        await self._fill(task.artifacts, fold.files())
        return task

    async def _fill(self, artifacts: Any, files: Any) -> None:
        """Replace the address of each small file with the content of the file."""
        room = _MAX_ALL_INLINE_BYTES
        for artifact in artifacts:
            number = file_number(artifact)
            if not number:
                continue
            file: File = files[number - 1]
            room -= file.size
            if file.size <= _MAX_INLINE_BYTES and room >= 0:
                await self._inline(artifact, file)

    async def _inline(self, artifact: Artifact, file: File) -> None:
        pieces: list[bytes] = []
        try:
            async with aclosing(self._context.client.read_file(file)) as reading:
                async for piece in reading:
                    pieces.append(piece)  # noqa: PERF401  # a comprehension would not close the reading
        except (NotFoundError, ContractError):
            return  # the file was removed; a request to the address of the file gets the reason
        artifact.parts[0].raw = b"".join(pieces)


def queued_task(queued: QueuedRequest) -> Task:
    """Return the task of a request that waits for admission.

    Args:
        queued: The request.

    Returns:
        The task.
    """
    task = new_task(queued.workflow, queued.workflow, state_of("queued"), queued.request.at)
    try:
        request = parse(Request, decode(queued.request.headers, queued.request.body)[1])
    except ContractError:
        return task
    task.context_id = request.thread or queued.workflow
    origin = request.metadata.get(ORIGIN)
    given = origin.get("message") if isinstance(origin, dict) else None
    message = task.history.add(
        message_id=str(given or f"{queued.workflow}-request"), context_id=task.context_id, task_id=task.id,
        role="ROLE_USER",
    )  # fmt: skip
    message.parts.extend(parts_of(request.input))
    return task


def _place(event: TaskEvent, text: AnswerText) -> None:
    """Shorten a stored answer to the part that the client does not have.

    Then add the length and the digest of the client's text to the position of the event.
    """
    if isinstance(event, TaskArtifactUpdateEvent) and event.last_chunk and not file_number(event.artifact):
        (part,) = event.artifact.parts
        if part.HasField("text"):
            part.text, event.append = text.end(part.text)
    if text.mark:
        event.metadata.MergeFrom(struct_of({"position": f"{metadata_of(event, 'position')}{text.mark}"}))


def _position(task: Task) -> Position | None:
    return Position.parse(str(metadata_of(task, "position") or ""))
