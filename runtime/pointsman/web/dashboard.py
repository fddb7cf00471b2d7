"""Serve the pages, streams and actions of the dashboard with one client.

| Path | Content |
|---|---|
| `/`, `/workflows/ID`, `/agents`, `/questions`, `/dead-letters` | a page; its data comes from `/api/live/...` |
| `/threads`, `/threads/TEAM/CALLER/THREAD` | the page of all conversations; the page of one conversation |
| `/batches`, `/schedules` | the page of all callers' batches; the page of all callers' schedules |
| `/webhooks` | the page of webhook endpoints and their deliveries |
| `/api/live/workflows`, `/api/live/workflows/ID` | server-sent events with ids, to continue after a reconnect |
| `/api/live/agents`, `/api/live/questions`, `/api/live/dead-letters` | server-sent events with the current state |
| `/api/live/threads`, `/api/live/threads/TEAM/CALLER/THREAD` | server-sent events with the current state |
| `/api/live/batches`, `/api/live/schedules`, `/api/live/webhooks` | server-sent events with the current state |
| POST `/api/batches`, `/api/batches/ID/ACTION` | send the rows of a file; pause, resume or cancel a batch |
| `/api/batches/ID/results` | the results that the command `batch` writes |
| `/api/events/STREAM/SEQUENCE`, `/api/dead-letters/ID` | one complete event; one complete dead letter |
| `/api/workflows/ID/export` | the file that the command `export` writes |
| `/api/workflows/ID/files/DIGEST`, POST `/api/files` | download a file of a workflow; upload a file for a request |
| POST `/api/requests`, `/api/workflows/ID/cancel` | the actions of the commands `submit` and `cancel` |
| POST `/api/workflows/ID/resume`, `/api/workflows/ID/messages` | the actions of the commands `resume` and `tell` |
| POST `/api/questions/ID/ACTION` | the actions of the commands `answer`, `approve` and `reject` |
| POST `/api/dead-letters/ID/replay`, `/api/dead-letters/ID/discard` | the actions of `dead replay` and `dead discard` |
| POST `/api/dead-letters/replay`, `/api/dead-letters/discard` | replay or discard all letters that match a search |
| POST `/api/schedules`, `/api/schedules/TEAM/CALLER/NAME/ACTION` | the actions of the commands `schedules` |
| POST `/api/webhooks`, `/api/webhooks/ID/ACTION` | the actions of the commands `webhooks` |
| `/login`, POST `/logout`, `/api/me` | the login form; the end of the session; the name and role of the user |
"""

from __future__ import annotations

import asyncio
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
from pointsman.engine.operations.archive_export import export_workflow
from pointsman.errors import ContractError, NotFoundError, PointsmanError
from pointsman.index.workflows import WorkflowIndex
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman.settings import Settings
from pointsman.web.auth import AccessGuard, LoginThrottle
from pointsman.web.batch_actions import BatchActions
from pointsman.web.files import FileTransfers
from pointsman.web.letter_actions import LetterActions
from pointsman.web.projections.dead_letters import LetterIndex
from pointsman.web.projections.deliveries import DeliveryIndex
from pointsman.web.projections.schedules import ScheduleIndex
from pointsman.web.projections.threads import ThreadIndex
from pointsman.web.responses import error_response, json_response
from pointsman.web.schedule_actions import ScheduleActions
from pointsman.web.sessions import Sessions
from pointsman.web.sse import Chunks
from pointsman.web.streams import EventStreams
from pointsman.web.users import Users
from pointsman.web.webhook_actions import WebhookActions
from pointsman.web.webhook_stream import WebhookStream
from pointsman.web.workflow_actions import WorkflowActions
from pointsman_schemas.ids import token
from pointsman_schemas.strict_json import parse_json

__all__ = ["Dashboard"]

_STATIC = Path(__file__).with_name("static")
_UNBUFFERED = {"X-Accel-Buffering": "no"}
"""A header for proxies such as nginx, which would otherwise delay the events of a stream until a buffer is full."""
_EVENT_STREAMS: Mapping[str, StreamKind] = {"log": "log", "results": "results"}
"""The streams whose events a page shows, by the name of the stream in the path."""


class Dashboard:
    """The web application.

    Args:
        client: A connected client.
        settings: The settings.
        index: The index of the workflows, with details.
        batches: The batches of the namespace.
        users: The users that may log in; without users, there is no login.
        hosts: Host names that requests may use, in addition to addresses and `localhost`.
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
        self._letter_actions = LetterActions(client, self.letters)
        self._workflow_actions = WorkflowActions(client, self.streams.refresh)
        self._schedule_actions = ScheduleActions(client)
        self._batch_actions = BatchActions(client, self.batches, settings.batch_bytes)
        self._files = FileTransfers(client)
        known, throttle = users or Users(()), LoginThrottle()
        self._sessions = Sessions(client, known, throttle, plain_http=settings.dashboard_plain_http)
        self.app: ASGIApp = AccessGuard(
            Starlette(routes=self._routes(), exception_handlers={PointsmanError: error_response, 404: self._not_found}),
            users=known,
            hosts=hosts,
            throttle=throttle,
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
            hosts: Host names that requests may use, in addition to addresses and `localhost`.

        Returns:
            The dashboard.
        """
        index = WorkflowIndex(client.bus, client.subjects, details=True)
        return cls(client, settings, index, await open_batches(client, index, settings), users=users, hosts=hosts)

    async def run_projections(self) -> None:
        """Keep the data of the pages current, and run batches, until cancelled."""
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
            Route("/login", self._sessions.form, methods=["GET"]),
            Route("/login", self._sessions.log_in, methods=["POST"]),
            Route("/logout", self._sessions.log_out, methods=["POST"]),
            Route("/api/me", self._sessions.me),
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
            Route("/api/dead-letters/{id}", self._letter_actions.show),
            Route("/api/requests", self._workflow_actions.submit, methods=["POST"]),
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
            Route("/api/questions/{id}/{action}", self._workflow_actions.answer, methods=["POST"]),
            Route("/api/dead-letters/{id}/replay", self._letter_actions.replay, methods=["POST"]),
            Route("/api/dead-letters/{id}/discard", self._letter_actions.discard, methods=["POST"]),
            Route("/api/dead-letters/replay", self._letter_actions.replay_all, methods=["POST"]),
            Route("/api/dead-letters/discard", self._letter_actions.discard_all, methods=["POST"]),
        ]

    # Pages

    async def _page(self, request: Request) -> Response:
        return FileResponse(_STATIC / "index.html")

    async def _not_found(self, request: Request, error: Exception) -> Response:
        """Return a page, or a JSON error if the path belongs to the API."""
        path = request.url.path
        if path.startswith("/api/"):
            return json_response({"error": f"there is no page or action {path}", "kind": "not_found"}, 404)
        return FileResponse(_STATIC / "not-found.html", 404)

    def _event_stream(self, chunks: Callable[[Request], Chunks]) -> Callable[[Request], Awaitable[Response]]:
        async def streamed(request: Request) -> Response:
            for name, value in request.path_params.items():
                token(value, "workflow" if name == "id" else name)
            return StreamingResponse(
                self.streams.until_stopped(chunks(request)), media_type="text/event-stream", headers=_UNBUFFERED
            )

        return streamed

    # One complete event or workflow

    async def _event(self, request: Request) -> Response:
        stream, sequence = _EVENT_STREAMS.get(request.path_params["stream"]), request.path_params["sequence"]
        if stream is None:
            known = ", ".join(_EVENT_STREAMS)
            raise NotFoundError(f"there is no stream {request.path_params['stream']!r} of events; choose {known}")
        stored = await self.client.bus.get(stream, sequence) if 0 < sequence < 2**63 else None
        if stored is None:
            raise NotFoundError(f"the stream has no message {sequence}; the message may have expired")
        return json_response(
            {"subject": stored.subject, "at": stored.at, "headers": stored.headers, **_event_json(stored)}
        )

    async def _export(self, request: Request) -> Response:
        name = request.path_params["id"]
        token(name, "workflow")
        archive = await export_workflow(self.client.bus, self.client.subjects, name, datetime.now(UTC))
        headers = {"content-disposition": f'attachment; filename="{name}.json"'}
        return Response(archive.model_dump_json(indent=1) + "\n", headers=headers, media_type="application/json")


def _event_json(stored: StoredMessage) -> dict[str, Any]:
    """Return the body of an event as JSON data, or as text if the body is not JSON."""
    try:
        return {"body": parse_json(stored.body)}
    except ContractError:
        return {"body": stored.body.decode("utf-8", "replace")}
