"""Start, cancel and resume workflows, send messages, and answer questions, with the same calls as the command line."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from pointsman.client.client import Client
from pointsman.client.known_teams import check_team
from pointsman.errors import ContractError, NotFoundError
from pointsman.web.auth import actor_of, client_of
from pointsman.web.files import read_files
from pointsman.web.responses import json_response, read_json_object
from pointsman_schemas.events import MAX_MESSAGE_CHARS
from pointsman_schemas.ids import caller_id, token

__all__ = ["WorkflowActions"]

_REQUEST_FIELDS = (
    "team",
    "input",
    "request_id",
    "correlation_id",
    "deadline",
    "budget",
    "metadata",
    "files",
    "thread",
)
_MAX_TELL_BYTES = 12 * MAX_MESSAGE_CHARS + 10_000  # in JSON, a character takes at most 12 bytes


class WorkflowActions:
    """The actions on workflows and their questions.

    Args:
        client: The client of the dashboard.
        refresh: Function that polls the questions and the queued requests now. Called after an action.
    """

    def __init__(self, client: Client, refresh: Callable[[], None]) -> None:
        self._client = client
        self._refresh = refresh

    async def submit(self, request: Request) -> Response:
        """Send a request in the name of the user.

        Returns:
            The id of the workflow and the team.

        Raises:
            ContractError: The request or a file is not valid, or there is no such team. Nothing was sent.
        """
        given = await read_json_object(request, _REQUEST_FIELDS, self._client.bus.max_body)
        team, client = str(given.get("team", "")), client_of(request, self._client)
        await check_team(client, team)
        name = given.get("request_id")
        workflow = await client.submit(
            team,
            given.get("input", ""),
            request_id=name,
            correlation_id=given.get("correlation_id"),
            deadline=given.get("deadline"),
            budget=given.get("budget"),
            metadata=given.get("metadata"),
            files=read_files(given.get("files"), client, team, name),
            thread=given.get("thread"),
        )
        return json_response({"id": workflow.id, "team": workflow.team})

    async def cancel(self, request: Request) -> Response:
        """Cancel a workflow.

        Returns:
            The id; an error with status 409 if the workflow has ended.
        """
        given = await read_json_object(request, ("reason",))
        workflow = await self._client.workflow(request.path_params["id"])
        ended = await workflow.cancel(str(given.get("reason", "")), actor=actor_of(request))
        self._refresh()
        if ended is not None:
            return json_response({"error": f"the workflow has ended already: {ended.status}"}, 409)
        return json_response({"id": workflow.id})

    async def resume(self, request: Request) -> Response:
        """Do the failed tasks of an ended workflow again.

        Returns:
            The result.
        """
        given = await read_json_object(request, ("reason",))
        name = token(request.path_params["id"], "workflow")
        reason = str(given.get("reason", ""))
        resumed = await self._client.operations.resume(name, reason=reason, actor=actor_of(request))
        self._refresh()
        return json_response(resumed)

    async def tell(self, request: Request) -> Response:
        """Send a message to a running workflow, in the name of the user.

        Returns:
            The result in one sentence, and the number of the message. If the message began the next turn of a thread,
            the result has the workflow of this turn.

        Raises:
            ContractError: The message is not text.
        """
        given = await read_json_object(request, ("text", "message_id"), _MAX_TELL_BYTES)
        name, text, id = token(request.path_params["id"], "workflow"), given.get("text"), given.get("message_id")
        if not isinstance(text, str):
            raise ContractError("the body has no text `text`; expected the message")
        message_id = None if id is None else caller_id(str(id), "message id")
        told = await client_of(request, self._client).operations.tell(name, text, message_id=message_id)
        return json_response({"said": told.message, "number": told.number, "next_turn": told.next_turn})

    async def answer(self, request: Request) -> Response:
        """Answer, approve or reject a question.

        Returns:
            The result in one sentence, and a flag that is true if the answer counts.

        Raises:
            NotFoundError: There is no such action, or no such question.
        """
        given = await read_json_object(request, ("answer", "input", "reason"), self._client.bus.max_body)
        question, actor, operations = request.path_params["id"], actor_of(request), self._client.operations
        match request.path_params["action"]:
            case "approve":
                answer = await operations.approve(question, input=given.get("input"), actor=actor)
            case "answer":
                answer = await operations.answer(question, given.get("answer"), actor=actor)
            case "reject":
                reason = str(given.get("reason", ""))
                answer = await operations.reject(question, reason=reason, actor=actor)
            case other:
                raise NotFoundError(f"{other!r} is not an answer; expected approve, reject or answer")
        self._refresh()
        return json_response({"counted": answer.counted, "said": answer.message})
