"""Serve the operations of A2A from the log, so any gateway can answer for each task, also after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    InvalidParamsError,
    TaskNotCancelableError,
    UnsupportedOperationError,
)
from a2a.utils.task import apply_history_length, validate_history_length, validate_page_size
from google.protobuf.json_format import MessageToDict
from starlette.requests import Request

from pointsman.client.workflow import Workflow
from pointsman.engine.operations.messages import MessageRefusedError
from pointsman.errors import BusUnavailableError
from pointsman.gateway.a2a.answer_text import AnswerText, Place
from pointsman.gateway.a2a.calls import Call, translated, translated_stream
from pointsman.gateway.a2a.cards import CardMaker
from pointsman.gateway.a2a.lists import list_tasks
from pointsman.gateway.a2a.messages import answer_in, check_parts, input_in, metadata_in
from pointsman.gateway.a2a.parts import metadata_of
from pointsman.gateway.a2a.push import check_config, config_of, find_receiver, register
from pointsman.gateway.a2a.push_store import PushStore
from pointsman.gateway.a2a.reading import TaskReader
from pointsman.gateway.a2a.tasks import INTERRUPTED, ORIGIN, TERMINAL, TaskEvent, TaskFold, new_task, state_of
from pointsman.gateway.context import Context, derived_key
from pointsman.gateway.files.uploads import store_bytes
from pointsman.telemetry import get_logger
from pointsman_schemas.ids import derive_id, is_token
from pointsman_schemas.strict_json import compact_json

__all__ = ["TeamHandler"]

_log = get_logger(__name__)

_ANSWER_TIMEOUT_S = 10.0  # seconds to wait until a supervisor has read an answer
_CANCEL_TIMEOUT_S = 10.0  # seconds to wait for the end of a cancelled task
_MAX_ID_CHARS = 256


class TeamHandler(RequestHandler):
    """The operations for all teams. The `ServerCallContext` of a call has the caller and the team.

    Args:
        context: The parts of the gateway.
        cards: The maker of agent cards.
        push: The receivers of push notifications.
    """

    def __init__(self, context: Context, cards: CardMaker, push: PushStore) -> None:
        self._context = context
        self._cards = cards
        self._push = push

    @validate_request_params
    @translated
    async def on_message_send(self, params: pb.SendMessageRequest, context: ServerCallContext) -> pb.Task:
        """Accept a message, and wait for the end of its task or for the next question of the task."""
        call, reader = self._reader(context)
        validate_history_length(params.configuration)
        workflow, fold, answered = await self._accept(call, reader, params)
        if not params.configuration.return_immediately:
            await self._until_settled(call, reader, workflow, fold, answered)
        return apply_history_length(await reader.snapshot(fold), params.configuration)

    @validate_request_params
    @translated_stream
    async def on_message_send_stream(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[pb.Task | TaskEvent, None]:
        """Accept a message, and stream its task up to the end of the task or to its next question."""
        call, reader = self._reader(context)
        validate_history_length(params.configuration)
        workflow, fold, answered = await self._accept(call, reader, params, from_start=True)
        yield apply_history_length(await reader.snapshot(fold), params.configuration)
        if _is_settled(fold, answered):
            return
        async with aclosing(reader.follow(workflow, fold, text=AnswerText())) as steps:
            async for events in steps:
                for event in events:
                    yield event
                if events and _is_settled(fold, answered):
                    return

    @validate_request_params
    @translated_stream
    async def on_subscribe_to_task(
        self, params: pb.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[pb.Task | TaskEvent, None]:
        """Stream a task to its end, from now or from the position in the header `Last-Event-ID`."""
        call, reader = self._reader(context)
        workflow = await reader.find(params.id)
        place = Place.parse(call.request.headers.get("last-event-id", ""))
        fold = await reader.fold(workflow, up_to=place and place.position)
        if fold.task.status.state in TERMINAL:
            raise UnsupportedOperationError(
                f"task {params.id} has ended: {pb.TaskState.Name(fold.task.status.state)}; read the task with GetTask"
            )
        yield await reader.snapshot(fold)
        async with aclosing(reader.follow(workflow, fold, text=AnswerText(place))) as steps:
            async for events in steps:
                for event in events:
                    yield event

    @validate_request_params
    @translated
    async def on_get_task(self, params: pb.GetTaskRequest, context: ServerCallContext) -> pb.Task:
        """Read a task."""
        _, reader = self._reader(context)
        validate_history_length(params)
        workflow = await reader.find(params.id)
        return apply_history_length(await reader.snapshot(await reader.fold(workflow)), params)

    @validate_request_params
    @translated
    async def on_list_tasks(self, params: pb.ListTasksRequest, context: ServerCallContext) -> pb.ListTasksResponse:
        """List the caller's own tasks of the team, the last changed task first."""
        call, reader = self._reader(context)
        validate_history_length(params)
        if params.HasField("page_size"):
            validate_page_size(params.page_size)
        return await list_tasks(self._context, call.caller, call.team, reader, params)

    @validate_request_params
    @translated
    async def on_cancel_task(self, params: pb.CancelTaskRequest, context: ServerCallContext) -> pb.Task:
        """Cancel a task, and wait for its end."""
        call, reader = self._reader(context)
        workflow = await reader.find(params.id)
        fold = await reader.fold(workflow)
        if fold.task.status.state in TERMINAL:
            raise TaskNotCancelableError(f"task {params.id} has ended already")
        reason = str(MessageToDict(params.metadata).get("reason", "")) or "cancelled over A2A"
        if await workflow.cancel(reason[:1_000], actor=call.caller.name) is not None:
            raise TaskNotCancelableError(f"task {params.id} has ended already")
        try:
            async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                await self._until(reader, workflow, fold, lambda: fold.state in TERMINAL)
        except TimeoutError:
            _log.info(
                "a2a_cancel_not_confirmed", workflow=workflow.id, hint="the workflow ends as soon as a supervisor runs"
            )
        return await reader.snapshot(fold)

    @validate_request_params
    @translated
    async def on_get_extended_agent_card(
        self, params: pb.GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> pb.AgentCard:
        """Return the card with the schemas of the team, signed if the gateway has a key for signatures."""
        call = Call.of(context)
        return await self._cards.extended(call.caller, call.team, call.url)

    @validate_request_params
    @translated
    async def on_create_task_push_notification_config(
        self, params: pb.TaskPushNotificationConfig, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        """Register a receiver of the future events of a task."""
        call, reader = self._reader(context)
        fold = await reader.fold(await reader.find(params.task_id))
        position = str(metadata_of(fold.task, "position") or "")
        return config_of(await register(self._context, self._push, call, params.task_id, params, position))

    @validate_request_params
    @translated
    async def on_get_task_push_notification_config(
        self, params: pb.GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        """Read a receiver of the events of a task."""
        _, reader = self._reader(context)
        await reader.find(params.task_id)
        return config_of(find_receiver(await self._push.of_task(params.task_id), params.id))

    @validate_request_params
    @translated
    async def on_list_task_push_notification_configs(
        self, params: pb.ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> pb.ListTaskPushNotificationConfigsResponse:
        """List the receivers of the events of a task. A task has at most ten receivers."""
        _, reader = self._reader(context)
        await reader.find(params.task_id)
        found = await self._push.of_task(params.task_id)
        return pb.ListTaskPushNotificationConfigsResponse(configs=[config_of(each) for each in found])

    @validate_request_params
    @translated
    async def on_delete_task_push_notification_config(
        self, params: pb.DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Delete a receiver of the events of a task. A missing receiver is not an error."""
        _, reader = self._reader(context)
        await reader.find(params.task_id)
        for each in await self._push.of_task(params.task_id):
            if each.id == params.id:
                await self._push.delete(each.key)

    def _reader(self, context: ServerCallContext) -> tuple[Call, TaskReader]:
        call = Call.of(context)
        return call, TaskReader(self._context, call.caller, call.team, call.origin)

    async def _accept(
        self, call: Call, reader: TaskReader, params: pb.SendMessageRequest, *, from_start: bool = False
    ) -> tuple[Workflow, TaskFold, str]:
        """Accept a message, which begins a task, answers a question, or gives a running task more information.

        Args:
            call: The call.
            reader: The reader of tasks.
            params: The message and its configuration.
            from_start: True to return the empty task for a message that begins a task, or that repeats such a message.
                The stream of the task then has all its events.

        Returns:
            The workflow, the task, and the question that the message answers; empty if the message answers no question.

        Raises:
            InvalidParamsError: The message does not fit the task.
            UnsupportedOperationError: The task has ended.
        """
        message = params.message
        check_parts(message)
        wanted = params.configuration.HasField("task_push_notification_config")
        config = params.configuration.task_push_notification_config
        if wanted:
            check_config(self._context, config)
        if message.role == pb.Role.ROLE_AGENT:
            raise InvalidParamsError("the role of the message is ROLE_AGENT; a client sends ROLE_USER")
        if message.task_id:
            workflow = await reader.find(message.task_id)
            fold = await reader.fold(workflow)
            if message.context_id and message.context_id != fold.task.context_id:
                raise InvalidParamsError(
                    f"task {message.task_id} belongs to the context {fold.task.context_id}, and not to "
                    f"{message.context_id[:100]}; omit the contextId"
                )
            if wanted:
                position = str(metadata_of(fold.task, "position") or "")
                await register(self._context, self._push, call, workflow.id, config, position)
            if fold.task.status.state in TERMINAL:
                raise UnsupportedOperationError(
                    f"task {fold.task.id} has ended; begin a new task with the same contextId and without a taskId"
                )
            question = ""
            if fold.questions or metadata_of(message, "question"):
                question = await self._answer(call, fold, message)
            else:
                workflow = await self._tell(call, reader, workflow, message)
            return workflow, await reader.fold(workflow), question
        workflow, context_id = await self._submit(call, params)
        if wanted:
            await register(self._context, self._push, call, workflow.id, config, "")
        fold = reader.empty(workflow) if from_start else await reader.fold(workflow)
        if not fold.task.HasField("status"):  # the log has no entry yet, or a replica lags, so show a waiting request
            fold.task.CopyFrom(new_task(workflow.id, context_id, state_of("queued"), datetime.now(UTC)))
            fold.task.history.add().CopyFrom(message)
        return workflow, fold, ""

    async def _submit(self, call: Call, params: pb.SendMessageRequest) -> tuple[Workflow, str]:
        """Publish the request of a message. Return the workflow and the context."""
        message = params.message
        if len(message.message_id) > _MAX_ID_CHARS:
            raise InvalidParamsError(f"the messageId has more than {_MAX_ID_CHARS} characters; use a UUID")
        if message.context_id and not is_token(message.context_id):
            raise InvalidParamsError(
                f"the contextId is {message.context_id[:100]!r}; use 1 to 64 letters, digits, - and _, such as a UUID"
            )
        given = input_in(message)
        metadata: Mapping[str, Any] = metadata_in(message, MessageToDict(params.metadata))
        reused = self._context.settings.gateway_a2a_reused_message_ids
        seed = uuid4().hex if reused else message.message_id
        key = None if reused else derived_key("a2a", call.team, seed)
        thread = message.context_id or derive_id("a2a-context", call.caller.name, call.team, seed, length=32)
        submitted = await self._context.submit(
            call.caller,
            call.team,
            given.input,
            key=key,
            metadata=metadata,
            internal={ORIGIN: {"message": message.message_id}},
            thread=thread,
            files=[await store_bytes(self._context.files, call.caller, *each) for each in given.files],
        )
        return submitted.workflow, thread

    async def _answer(self, call: Call, fold: TaskFold, message: pb.Message) -> str:
        """Answer the question that a message names, by default the oldest. Return the id of the answered question."""
        named = str(metadata_of(message, "question") or "")
        question = fold.questions.get(named) if named else next(iter(fold.questions.values()), None)
        if question is None:
            raise UnsupportedOperationError(
                f"task {fold.task.id} has no open question {named[:100]}; omit io.pointsman/question from the metadata"
            )
        given = answer_in(message, question)
        operations, actor = self._context.client.operations, call.caller.name
        match given.action:
            case "answer":
                await operations.answer(question.question, given.value, actor=actor, timeout=_ANSWER_TIMEOUT_S)
            case "approve":
                await operations.approve(question.question, input=given.value, actor=actor, timeout=_ANSWER_TIMEOUT_S)
            case "reject":
                await operations.reject(question.question, reason=given.reason, actor=actor, timeout=_ANSWER_TIMEOUT_S)
        return question.question

    async def _tell(self, call: Call, reader: TaskReader, workflow: Workflow, message: pb.Message) -> Workflow:
        """Send a message to a running workflow.

        Args:
            call: The call.
            reader: The reader of tasks.
            workflow: The workflow.
            message: The message.

        Returns:
            The workflow; the workflow of the next turn if the workflow has ended.

        Raises:
            InvalidParamsError: The message has files.
            UnsupportedOperationError: The workflow accepts no message.
        """
        given = input_in(message)
        if given.files:
            raise InvalidParamsError("a running task accepts only text; send files with a message that begins a task")
        text = given.input if isinstance(given.input, str) else compact_json(given.input).decode()
        key = derived_key("a2a-message", call.team, message.message_id)
        try:
            told = await self._context.tell(call.caller, workflow, text, key=key, timeout=_ANSWER_TIMEOUT_S)
        except MessageRefusedError as error:
            raise UnsupportedOperationError(str(error)) from None
        return workflow if told.next_turn is None else await reader.find(told.next_turn)

    async def _until_settled(
        self, call: Call, reader: TaskReader, workflow: Workflow, fold: TaskFold, answered: str
    ) -> None:
        """Wait until the task has ended, or has an open question other than `answered`.

        Return earlier if the client disconnects or the gateway stops.
        """
        if not _is_settled(fold, answered):
            await self._until(reader, workflow, fold, lambda: _is_settled(fold, answered), call.request)

    async def _until(
        self,
        reader: TaskReader,
        workflow: Workflow,
        fold: TaskFold,
        settled: Callable[[], bool],
        request: Request | None = None,
    ) -> None:
        try:
            async with aclosing(reader.follow(workflow, fold, inline=False)) as steps:
                async for events in steps:
                    if settled() or (not events and request is not None and await request.is_disconnected()):
                        return
        except BusUnavailableError:
            return  # the client can read the task again


def _is_settled(fold: TaskFold, answered: str) -> bool:
    """Return True if a task has ended, or if it waits for an answer and the question `answered` is closed."""
    state = fold.task.status.state
    return state in TERMINAL or (state == INTERRUPTED and answered not in fold.questions)
