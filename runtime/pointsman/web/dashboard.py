"""Serve the pages, streams and actions of the dashboard with one client.

| Path | Content |
|---|---|
| `/`, `/workflows/ID`, `/agents`, `/questions`, `/dead-letters` | the page, which is drawn from the streams |
| `/threads`, `/threads/TEAM/CALLER/THREAD` | the conversations, one of them |
| `/batches`, `/schedules` | the batches and the schedules of all callers |
| `/webhooks` | the endpoints of webhooks, and their deliveries |
| `/api/live/workflows`, `/api/live/workflows/ID` | server-sent events with the log's sequences as ids |
| `/api/live/agents`, `/api/live/questions`, `/api/live/dead-letters` | server-sent events with the current state |
| `/api/live/threads`, `/api/live/threads/TEAM/CALLER/THREAD` | the same for conversations |
| `/api/live/batches`, `/api/live/schedules`, `/api/live/webhooks` | the same for batches, schedules and webhooks |
| POST `/api/batches`, `/api/batches/ID/ACTION` | send the rows of a file; pause, resume or cancel them |
| `/api/batches/ID/results` | the results that the command `batch` writes |
| `/api/events/STREAM/SEQUENCE`, `/api/dead-letters/ID` | one complete event, one complete dead letter |
| `/api/workflows/ID/export` | the file that the command `export` writes |
| `/api/workflows/ID/files/DIGEST`, POST `/api/files` | a file of a workflow, a file for a request |
| POST `/api/requests`, `/api/workflows/ID/cancel` | the action of the commands `submit` and `cancel` |
| POST `/api/workflows/ID/resume`, `/api/workflows/ID/messages` | the action of the commands `resume` and `tell` |
| POST `/api/questions/ID/ACTION` | the action of the commands `answer`, `approve` and `reject` |
| POST `/api/dead-letters/ID/replay`, `/api/dead-letters/ID/discard` | the action of `dead replay` and `dead discard` |
| POST `/api/dead-letters/replay`, `/api/dead-letters/discard` | the same for all letters that match a search |
| POST `/api/schedules`, `/api/schedules/TEAM/CALLER/NAME/ACTION` | the actions of the commands `schedules` |
| POST `/api/webhooks`, `/api/webhooks/ID/ACTION` | the actions of the commands `webhooks` |
| `/login`, POST `/logout`, `/api/me` | the session of the browser, the name and the role of its user |
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from pointsman.batches.service import Batches, open_batches
from pointsman.client.client import Client
from pointsman.client.known_teams import check_team
from pointsman.engine.operations.archive_export import export_workflow
from pointsman.engine.operations.dead_letters import (
    MAX_CONCURRENT_REPLAYS,
    DeadLetterEntry,
    NotReplayableError,
)
from pointsman.errors import ContractError, NotFoundError, PointsmanError
from pointsman.index.workflows import WorkflowIndex
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman.settings import Settings
from pointsman.web import views
from pointsman.web.auth import (
    SESSION_COOKIE,
    AccessGuard,
    LoginThrottle,
    actor_of,
    client_of,
    is_plain_http,
    user_of,
)
from pointsman.web.batch_actions import BatchActions
from pointsman.web.files import FileTransfers, read_files
from pointsman.web.projections.dead_letters import LetterIndex
from pointsman.web.projections.deliveries import DeliveryIndex
from pointsman.web.projections.schedules import ScheduleIndex
from pointsman.web.projections.threads import ThreadIndex
from pointsman.web.responses import error_response, json_response, read_json_object
from pointsman.web.schedule_actions import ScheduleActions
from pointsman.web.sse import Chunks
from pointsman.web.streams import EventStreams
from pointsman.web.users import SESSION_HOURS, Users, new_session
from pointsman.web.webhook_actions import WebhookActions
from pointsman.web.webhook_stream import WebhookStream
from pointsman.web.workflow_actions import WorkflowActions
from pointsman_schemas.ids import token
from pointsman_schemas.strict_json import parse_json

__all__ = ["Dashboard"]

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
_STATIC = Path(__file__).with_name("static")
_UNBUFFERED = {"X-Accel-Buffering": "no"}
"""For proxies such as nginx, which would keep the events of a stream back until their buffer is full."""


_EVENT_STREAMS: Mapping[str, StreamKind] = {"log": "log", "results": "results"}
"""The streams whose events a page shows, by their token in a path."""


class Dashboard:
    """The web application.

    Args:
        client: A connected client.
        settings: The settings.
        index: The index of the workflows, with details.
        batches: The batches of the namespace.
        users: The users that may log in; without users, there is no login.
        hosts: Host names that requests may use, beside addresses and `localhost`.
    """

    def __init__(
        self,
        client: Client,
        settings: Settings,
        index: WorkflowIndex,
        batches: Batches,
        *,
        users: Users | None = None,
        hosts: Sequence[str] = (),
    ) -> None:
        self.client = client
        self.index = index
        self.batches = batches
        self.letters = LetterIndex(client.bus, client.subjects)
        self.threads = ThreadIndex(client.bus, client.subjects)
        self.schedules = ScheduleIndex(client.bus, client.subjects)
        self.deliveries = DeliveryIndex(client.bus, client.subjects)
        self.streams = EventStreams(client, self.index, self.letters, self.threads, self.schedules, self.batches)
        self._webhooks = WebhookStream(client, self.deliveries, self.streams.status)
        self._webhook_actions = WebhookActions(
            client, private_networks=settings.webhook_private_networks, refresh=self._webhooks.refresh
        )
        self._workflow_actions = WorkflowActions(client, self.streams.refresh)
        self._schedule_actions = ScheduleActions(client)
        self._batch_actions = BatchActions(client, self.batches, settings.batch_bytes)
        self._files = FileTransfers(client)
        self._users = users or Users(())
        self._throttle = LoginThrottle()
        self._plain_http = settings.dashboard_plain_http
        self._store = client.operations
        self.app: ASGIApp = AccessGuard(
            Starlette(routes=self._routes(), exception_handlers={PointsmanError: error_response, 404: self._not_found}),
            users=self._users,
            hosts=hosts,
            throttle=self._throttle,
        )

    @classmethod
    async def open(
        cls, client: Client, settings: Settings, *, users: Users | None = None, hosts: Sequence[str] = ()
    ) -> Dashboard:
        """Return a dashboard of a namespace.

        Args:
            client: A connected client.
            settings: The settings.
            users: The users that may log in; without users, there is no login.
            hosts: Host names that requests may use, beside addresses and `localhost`.

        Returns:
            The dashboard.
        """
        index = WorkflowIndex(client.bus, client.subjects, details=True)
        return cls(client, settings, index, await open_batches(client, index, settings), users=users, hosts=hosts)

    async def run_projections(self) -> None:
        """Keep the data of the pages current, and batches running, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.index.run())
            group.create_task(self.letters.run())
            group.create_task(self.threads.run())
            group.create_task(self.schedules.run())
            group.create_task(self.deliveries.run())
            group.create_task(self.batches.run())

    def stop(self) -> None:
        """End all streams."""
        self.streams.stopping.set()

    def _routes(self) -> list[Route | Mount]:
        streams = self.streams
        pages = (
            "/",
            "/workflows/{id}",
            "/threads",
            "/threads/{team}/{caller}/{thread}",
            "/batches",
            "/schedules",
            "/webhooks",
            "/agents",
            "/questions",
            "/dead-letters",
        )
        return [
            *(Route(path, self._page) for path in pages),
            Mount("/static", StaticFiles(directory=_STATIC)),
            Route("/login", self._login_form, methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
            Route("/api/me", self._me),
            Route("/api/live/workflows", self._event_stream(streams.workflows)),
            Route("/api/live/workflows/{id}", self._event_stream(streams.workflow)),
            Route("/api/live/threads", self._event_stream(streams.threads)),
            Route("/api/live/threads/{team}/{caller}/{thread}", self._event_stream(streams.thread)),
            Route("/api/live/batches", self._event_stream(streams.batches)),
            Route("/api/live/schedules", self._event_stream(streams.schedules)),
            Route("/api/live/webhooks", self._event_stream(self._webhooks.chunks)),
            Route("/api/live/agents", self._event_stream(streams.agents)),
            Route("/api/live/questions", self._event_stream(streams.questions)),
            Route("/api/live/dead-letters", self._event_stream(streams.dead_letters)),
            Route("/api/events/{stream}/{sequence:int}", self._event),
            Route("/api/dead-letters/{id}", self._letter),
            Route("/api/requests", self._submit, methods=["POST"]),
            Route("/api/files", self._files.upload, methods=["POST"]),
            Route("/api/batches", self._batch_actions.start, methods=["POST"]),
            Route("/api/batches/{id}/results", self._batch_actions.results),
            Route("/api/batches/{id}/{action}", self._batch_actions.change, methods=["POST"]),
            Route("/api/schedules", self._schedule_actions.create, methods=["POST"]),
            Route("/api/schedules/{team}/{caller}/{name}/{action}", self._schedule_actions.act, methods=["POST"]),
            Route("/api/webhooks", self._webhook_actions.create, methods=["POST"]),
            Route("/api/webhooks/{id}/resend", self._webhook_actions.resend, methods=["POST"]),
            Route("/api/webhooks/{id}/{action}", self._webhook_actions.act, methods=["POST"]),
            Route("/api/workflows/{id}/export", self._export),
            Route("/api/workflows/{id}/files/{digest}", self._files.download),
            Route("/api/workflows/{id}/cancel", self._workflow_actions.cancel, methods=["POST"]),
            Route("/api/workflows/{id}/resume", self._workflow_actions.resume, methods=["POST"]),
            Route("/api/workflows/{id}/messages", self._workflow_actions.tell, methods=["POST"]),
            Route("/api/questions/{id}/{action}", self._decide, methods=["POST"]),
            Route("/api/dead-letters/{id}/replay", self._replay, methods=["POST"]),
            Route("/api/dead-letters/{id}/discard", self._discard, methods=["POST"]),
            Route("/api/dead-letters/replay", self._replay_all, methods=["POST"]),
            Route("/api/dead-letters/discard", self._discard_all, methods=["POST"]),
        ]

    # Pages

    async def _page(self, request: Request) -> Response:
        return FileResponse(_STATIC / "index.html")

    async def _not_found(self, request: Request, error: Exception) -> Response:
        """Return a page for a person, and an error for a program."""
        path = request.url.path
        if path.startswith("/api/"):
            return json_response({"error": f"there is no {path} here", "kind": "not_found"}, 404)
        return FileResponse(_STATIC / "not-found.html", 404)

    async def _login_form(self, request: Request) -> Response:
        return FileResponse(_STATIC / "login.html")

    async def _login(self, request: Request) -> Response:
        address = request.client.host if request.client else ""
        if (wait := self._throttle.wait_of(address)) > 0:
            response = json_response({"error": "Too many wrong tokens. Wait a minute."}, 429)
            response.headers["retry-after"] = str(int(wait) + 1)
            return response
        if is_plain_http(request.scope) and not self._plain_http:
            return json_response({"error": "This page came over plain HTTP, where others can read the token. Open the "
                                  "dashboard by https://, or set POINTSMAN_DASHBOARD_PLAIN_HTTP."}, 403)  # fmt: skip
        given = (await read_json_object(request, ("token",))).get("token")
        user = self._users.of_token(given) if isinstance(given, str) else None
        if user is None:
            self._throttle.record_failure(address)
            return json_response({"error": "The token is wrong."}, 401)
        response = json_response({"name": user.name, "role": user.role})
        response.set_cookie(
            SESSION_COOKIE,
            new_session(user, time.time()),
            max_age=int(SESSION_HOURS * 3600),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
            path="/",
        )
        return response

    async def _log_out(self, request: Request) -> Response:
        response = json_response({"ok": True})
        response.delete_cookie(SESSION_COOKIE, path="/")
        return response

    async def _me(self, request: Request) -> Response:
        user = user_of(request.scope)
        name, role = (user.name, user.role) if user else ("", "operate")
        return json_response({"name": name, "role": role, "caller": client_of(request, self.client).user})

    def _event_stream(self, chunks: Callable[[Request], Chunks]) -> Callable[[Request], Awaitable[Response]]:
        async def streamed(request: Request) -> Response:
            for name, value in request.path_params.items():
                token(value, "workflow" if name == "id" else name)
            return StreamingResponse(
                self.streams.until_stopped(chunks(request)), media_type="text/event-stream", headers=_UNBUFFERED
            )

        return streamed

    # One complete event, dead letter or workflow

    async def _event(self, request: Request) -> Response:
        stream, sequence = _EVENT_STREAMS.get(request.path_params["stream"]), request.path_params["sequence"]
        stored = await self.client.bus.get(stream, sequence) if stream and 0 < sequence < 2**63 else None
        if stored is None:
            raise NotFoundError(f"the stream has no message {sequence}: it may have expired")
        return json_response(
            {"subject": stored.subject, "at": stored.at, "headers": stored.headers, **_event_json(stored)}
        )

    async def _letter(self, request: Request) -> Response:
        return json_response(views.dead_letter_json(await self._find_letter(request.path_params["id"])))

    async def _export(self, request: Request) -> Response:
        name = request.path_params["id"]
        token(name, "workflow")
        archive = await export_workflow(self.client.bus, self.client.subjects, name, datetime.now(UTC))
        headers = {"content-disposition": f'attachment; filename="{name}.json"'}
        return Response(archive.model_dump_json(indent=1) + "\n", headers=headers, media_type="application/json")

    # Actions, by the same calls as the command line

    async def _submit(self, request: Request) -> Response:
        given = await read_json_object(request, _REQUEST_FIELDS, self.client.bus.max_body)
        team, client = str(given.get("team", "")), client_of(request, self.client)
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

    async def _decide(self, request: Request) -> Response:
        given = await read_json_object(request, ("answer", "input", "reason"), self.client.bus.max_body)
        question, actor, operations = request.path_params["id"], actor_of(request), self.client.operations
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
        self.streams.refresh()
        return json_response({"counted": answer.counted, "said": answer.message})

    async def _replay(self, request: Request) -> Response:
        given = await read_json_object(request, ("as_new",))
        letter = await self._find_letter(request.path_params["id"])
        done = await client_of(request, self.client).operations.replay(letter, as_new=given.get("as_new") is True)
        return json_response(done)

    async def _discard(self, request: Request) -> Response:
        await read_json_object(request)
        letter = await self._find_letter(request.path_params["id"])
        gone = await client_of(request, self.client).operations.discard(letter)
        return json_response({"discarded": gone})

    async def _replay_all(self, request: Request) -> Response:
        return await self._apply_to_letters(request, client_of(request, self.client).operations.replay)

    async def _discard_all(self, request: Request) -> Response:
        return await self._apply_to_letters(request, client_of(request, self.client).operations.discard)

    async def _apply_to_letters(
        self, request: Request, act: Callable[[DeadLetterEntry], Awaitable[object]]
    ) -> Response:
        """Apply `act` to the letters that match `text` and have a sequence up to `until`, both from the body."""
        given = await read_json_object(request, ("text", "until"))
        text, until = str(given.get("text", "")).casefold(), given.get("until")
        if not isinstance(until, int):
            raise ContractError(
                "the body has no number `until`; expected the sequence of the newest letter on the page"
            )
        chosen = self.letters.matching(text, until=until)
        done = 0
        for start in range(0, len(chosen), MAX_CONCURRENT_REPLAYS):
            some = chosen[start : start + MAX_CONCURRENT_REPLAYS]
            done += sum(await asyncio.gather(*(self._apply_to_letter(row.id, act) for row in some)))
        return json_response({"done": done, "of": len(chosen)})

    async def _apply_to_letter(self, name: str, act: Callable[[DeadLetterEntry], Awaitable[object]]) -> bool:
        try:
            await act(await self._find_letter(name))
        except (NotReplayableError, NotFoundError):
            return False
        return True

    async def _find_letter(self, name: str) -> DeadLetterEntry:
        try:
            return await self._store.dead_letter(name)
        except NotFoundError:
            self.letters.remove(name)
            raise


def _event_json(stored: StoredMessage) -> dict[str, Any]:
    """Return the body of an event as JSON data, or as text if the body is not JSON."""
    try:
        return {"body": parse_json(stored.body)}
    except ContractError:
        return {"body": stored.body.decode("utf-8", "replace")}
