"""The dashboard's pages, streams and actions over one client, and the server that answers for them.

| Path | What it is |
|---|---|
| `/`, `/workflows/ID`, `/agents`, `/approvals`, `/dead-letters` | the page, which draws itself from the streams |
| `/api/live/workflows`, `/api/live/workflows/ID` | server-sent events with the log's sequences as ids |
| `/api/live/agents`, `/api/live/approvals`, `/api/live/dead-letters` | server-sent events: all of it, as it is now |
| `/api/events/SEQUENCE`, `/api/dead-letters/ID` | one event, one dead letter, whole |
| POST `/api/requests`, `/api/workflows/ID/cancel` | what `submit` and `cancel` of the command line do |
| POST `/api/approvals/ID/approve`, `/api/approvals/ID/reject` | what `approve` and `reject` do |
| POST `/api/dead-letters/ID/replay`, `/api/dead-letters/ID/discard` | what `dead replay` and `dead discard` do |
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias

import uvicorn
from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from pointsman.client import Client
from pointsman.engine.dead_letters import DeadLetters, NotReplayable
from pointsman.engine.history import closeable, commit_of
from pointsman.errors import BusUnavailable, ConfigurationError, ContractError, NotFound, PointsmanError
from pointsman.ports import QueueDepth, Stored
from pointsman.telemetry import get_logger
from pointsman.web import views
from pointsman.web.guard import COOKIE, Guard, is_loopback, same, session_of
from pointsman.web.index import Search, WorkflowIndex
from pointsman.web.live import IDLE, Polled, batches, sse
from pointsman.web.story import Story
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import Progress
from pointsman_schemas.ids import token
from pointsman_schemas.log import Entry, WorkflowStarted
from pointsman_schemas.strict_json import parse, parse_json

__all__ = ["Dashboard", "serve"]

Chunks: TypeAlias = AsyncGenerator[bytes, None]

_log = get_logger(__name__)
_STATIC = Path(__file__).with_name("static")

_TICK = 0.2  # seconds in which changes are gathered before they are sent: a person sees no difference
_LONGEST_PAUSE = 1.0  # seconds between two drawings of a plan, however large it is
_LOOK = 2.0  # seconds between two looks at queues, cards and dead letters, while a page shows them
_PAGE = 100  # rows of a page
_TOO_MANY = 200  # changed rows at once: then the page is sent anew
_LETTERS = 500  # dead letters that are shown
_LEAVING = 3  # seconds open answers get at the end
_SHORTEST_TOKEN = 16  # characters: what `openssl rand -hex 8` prints cannot be tried out

_STATUS: Sequence[tuple[type[PointsmanError], int]] = (
    (NotFound, 404),
    (ContractError, 422),
    (NotReplayable, 409),
    (BusUnavailable, 503),
    (PointsmanError, 500),
)


class Dashboard:
    """The application over `client`. With a `token`, visitors must know it; `hosts` are names it may be opened by."""

    def __init__(self, client: Client, *, token: str | None = None, hosts: Sequence[str] = ()) -> None:
        self.client = client
        self.index = WorkflowIndex(client.bus, client.subjects)
        self.stopping = asyncio.Event()
        self._token = token
        self._letters = DeadLetters(client.bus, client.subjects)
        self._agents_seen: Polled[list[dict[str, Any]]] = Polled(self._look_at_agents, _LOOK)
        self._approvals_seen: Polled[list[dict[str, Any]]] = Polled(self._look_at_approvals, _LOOK)
        self._letters_seen: Polled[list[dict[str, Any]]] = Polled(self._look_at_letters, _LOOK)
        self.app: ASGIApp = Guard(
            Starlette(routes=self._routes(), exception_handlers={PointsmanError: _explained}), token=token, hosts=hosts
        )

    def _routes(self) -> list[Route | Mount]:
        pages = ("/", "/workflows/{id}", "/agents", "/approvals", "/dead-letters")
        return [
            *(Route(path, self._page) for path in pages),
            Mount("/static", StaticFiles(directory=_STATIC)),
            Route("/login", self._login_form, methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
            Route("/api/live/workflows", self._live(self._workflows)),
            Route("/api/live/workflows/{id}", self._live(self._workflow)),
            Route("/api/live/agents", self._live(self._agents)),
            Route("/api/live/approvals", self._live(self._approvals)),
            Route("/api/live/dead-letters", self._live(self._dead_letters)),
            Route("/api/events/{sequence:int}", self._event),
            Route("/api/dead-letters/{id}", self._letter),
            Route("/api/requests", self._submit, methods=["POST"]),
            Route("/api/workflows/{id}/cancel", self._cancel, methods=["POST"]),
            Route("/api/approvals/{id}/{action}", self._decide, methods=["POST"]),
            Route("/api/dead-letters/{id}/replay", self._replay, methods=["POST"]),
            Route("/api/dead-letters/{id}/discard", self._discard, methods=["POST"]),
        ]

    # Pages

    async def _page(self, request: Request) -> Response:
        return FileResponse(_STATIC / "index.html")

    async def _login_form(self, request: Request) -> Response:
        return FileResponse(_STATIC / "login.html")

    async def _login(self, request: Request) -> Response:
        given = (await _json(request, 10_000)).get("token")
        if self._token is None or not isinstance(given, str) or not same(given, self._token):
            return _answer({"error": "that is not the token"}, 401)
        response = _answer({"ok": True})
        response.set_cookie(COOKIE, session_of(self._token), httponly=True, samesite="strict", path="/")
        return response

    # Streams

    def _live(self, chunks: Callable[[Request], Chunks]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            if (name := request.path_params.get("id")) is not None:
                token(name, "workflow")
            return StreamingResponse(self._until_stopped(chunks(request)), media_type="text/event-stream")

        return answer

    async def _until_stopped(self, chunks: Chunks) -> AsyncIterator[bytes]:
        """`chunks`, and the status whenever it has changed, until the dashboard ends."""
        stopping = asyncio.ensure_future(self.stopping.wait())
        coming = asyncio.ensure_future(anext(chunks))
        told: Mapping[str, Any] = {}
        try:
            async with self._agents_seen.watched(), self._approvals_seen.watched(), self._letters_seen.watched():
                yield b"retry: 1000\n\n"
                while not stopping.done():
                    await asyncio.wait({coming, stopping}, timeout=_TICK * 2, return_when=asyncio.FIRST_COMPLETED)
                    if coming.done():
                        try:
                            yield coming.result()
                        except StopAsyncIteration:
                            return
                        except PointsmanError as error:  # the browser comes back, and says what it saw last
                            _log.info("stream_ended", error=str(error))
                            return
                        coming = asyncio.ensure_future(anext(chunks))
                    elif (status := await self._status()) != told:
                        told = status
                        yield sse("status", status)
        finally:
            for waiting in (coming, stopping):
                waiting.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration, PointsmanError):
                await coming
            await chunks.aclose()

    async def _workflows(self, request: Request) -> Chunks:
        """The page that is asked for, then the rows that change, each with whether it still fits."""
        index, search, offset = self.index, _search(request), _number(request.query_params.get("offset", ""))
        seen, epoch = _last_event_id(request), index.epoch
        if not 0 < seen <= index.sequence:  # new here, or what it saw is gone
            seen = -1
        while True:
            changed = [] if seen < 0 else _at_most(index.changed_since(seen), _TOO_MANY)
            if seen < 0 or changed is None or epoch != index.epoch:
                epoch = index.epoch
                page = index.page(search, offset=offset, limit=_PAGE)
                content: dict[str, Any] = {
                    "rows": [row.shown() for row in page.rows],
                    "totals": page.totals,
                    "size": _PAGE,
                }
                yield sse("page", {**content, **await self._status()}, id=page.sequence)
            elif changed:
                page = index.page(search, limit=0)
                rows = [{**row.shown(), "fits": search.fits(row)} for row in changed]
                yield sse("rows", {"rows": rows, "totals": page.totals, **await self._status()}, id=page.sequence)
            else:
                yield sse("status", await self._status())
            seen = index.sequence
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE):
                    while index.sequence == seen and epoch == index.epoch:
                        await index.news()
            await asyncio.sleep(_TICK)

    async def _workflow(self, request: Request) -> Chunks:
        """One workflow from its beginning: its lines, and after each batch how it stands then."""
        name, seen = request.path_params["id"], _last_event_id(request)
        bus, subjects = self.client.bus, self.client.subjects
        if await bus.last("log", subjects.log_anywhere(name)) is None:
            yield sse("absent", {"id": name, **await self._status()})
        story, pause = Story(), _TICK / 2
        entries: list[Entry] = []
        reports: list[Progress] = []
        followed = closeable(bus.follow("log", [subjects.log_anywhere(name), subjects.events_of(name)]))
        async with aclosing(batches(followed, lambda: pause)) as grouped:
            async for batch in grouped:
                lines = []
                for stored in batch:
                    try:
                        lines += self._fold(stored, story, entries, reports)
                    except ContractError as error:
                        yield sse("broken", {"error": str(error)})
                        return
                if new := [line for line in lines if line.sequence > seen]:
                    yield sse("lines", new, id=batch[-1].sequence)
                began = monotonic()
                if batch and entries and isinstance(entries[0], WorkflowStarted):
                    yield sse("view", {**views.workflow(entries, reports), **await self._status()})
                else:
                    yield sse("status", await self._status())
                # A large plan costs more to draw: the page gets it less often.
                pause = min(_LONGEST_PAUSE, max(_TICK / 2, 3 * (monotonic() - began)))

    def _fold(self, stored: Stored, story: Story, entries: list[Entry], reports: list[Progress]) -> list[Any]:
        if stored.subject.startswith(f"{self.client.subjects.namespace}.event."):
            report = _report(stored)
            if report is None:
                return []
            reports.append(report)
            return [story.of_report(stored, report)]
        found = commit_of(stored).entries
        entries.extend(found)
        return list(story.of_commit(stored, found))

    async def _agents(self, request: Request) -> Chunks:
        async for chunk in self._polled("agents", self._agents_seen):
            yield chunk

    async def _approvals(self, request: Request) -> Chunks:
        async for chunk in self._polled("approvals", self._approvals_seen):
            yield chunk

    async def _dead_letters(self, request: Request) -> Chunks:
        async for chunk in self._polled("letters", self._letters_seen):
            yield chunk

    async def _polled(self, event: str, seen: Polled[list[dict[str, Any]]]) -> Chunks:
        async with aclosing(batches(seen.changes(), lambda: 0.0)) as grouped:
            async for batch in grouped:
                if batch:
                    yield sse(event, {event: batch[-1], **await self._status()})
                else:
                    yield sse("status", await self._status())

    async def _status(self) -> dict[str, Any]:
        letters = self._letters_seen.value
        return {
            "live": {
                "namespace": self.client.subjects.namespace,
                "broker": self.client.bus.connected,
                "teams": sorted({*self.index.teams, *(card.name for card in await self.client.teams())}),
                "read": round(self.index.read, 3),
                "approvals": len(self._approvals_seen.value or ()),
                "letters": len(letters) if letters is not None else None,
                "stuck": sum(agent["health"] in ("stuck", "failing") for agent in self._agents_seen.value or ()),
            }
        }

    async def _look_at_agents(self) -> list[dict[str, Any]]:
        cards = await self.client.agents()
        names = sorted({*(card.name for card in cards), *self.index.agents})
        depths: Sequence[QueueDepth | None] = await asyncio.gather(*(self.client.queue(name) for name in names))
        return views.agents(cards, dict(zip(names, depths, strict=True)), self.index.agents)

    async def _look_at_approvals(self) -> list[dict[str, Any]]:
        return [approval.model_dump(mode="json") for approval in await self.client.approvals()]

    async def _look_at_letters(self) -> list[dict[str, Any]]:
        return views.letters(await self._letters.list(limit=_LETTERS))

    # One thing whole

    async def _event(self, request: Request) -> Response:
        sequence = request.path_params["sequence"]
        stored = await self.client.bus.get("log", sequence) if 0 < sequence < 2**63 else None
        if stored is None:
            raise NotFound(f"the log holds no message {sequence}: it has aged out")
        return _answer({"subject": stored.subject, "at": stored.at, "headers": stored.headers, **_body(stored)})

    async def _letter(self, request: Request) -> Response:
        return _answer(views.letter(await self._letters.get(request.path_params["id"])))

    # Actions: what the command line does, by the same calls

    async def _submit(self, request: Request) -> Response:
        asked = await _json(request, self.client.bus.max_payload)
        workflow = await self.client.submit(
            str(asked.get("team", "")),
            asked.get("input", ""),
            request_id=asked.get("request_id"),
            deadline=asked.get("deadline"),
        )
        return _answer({"id": workflow.id, "team": workflow.team})

    async def _cancel(self, request: Request) -> Response:
        asked = await _json(request, 10_000)
        workflow = await self.client.workflow(request.path_params["id"])
        ended = await workflow.cancel(str(asked.get("reason", "")), by="the dashboard")
        if ended is not None:
            return _answer({"error": f"it has ended already: {ended.status}"}, 409)
        return _answer({"id": workflow.id})

    async def _decide(self, request: Request) -> Response:
        asked, approval = await _json(request, self.client.bus.max_payload), request.path_params["id"]
        match request.path_params["action"]:
            case "approve":
                answer = await self.client.approve(approval, input=asked.get("input"), by="the dashboard")
            case "reject":
                reason = str(asked.get("reason", ""))
                answer = await self.client.reject(approval, reason=reason, by="the dashboard")
            case other:
                raise NotFound(f"{other!r} is no answer; there are approve and reject")
        self._approvals_seen.look_again()
        return _answer({"counted": answer.counted, "said": answer.said})

    async def _replay(self, request: Request) -> Response:
        asked = await _json(request, 10_000)
        letter = await self._letters.get(request.path_params["id"])
        done = await self._letters.replay(letter, as_new=asked.get("as_new") is True)
        self._letters_seen.look_again()
        return _answer(done)

    async def _discard(self, request: Request) -> Response:
        await _json(request, 10_000)
        gone = await self._letters.discard(await self._letters.get(request.path_params["id"]))
        self._letters_seen.look_again()
        return _answer({"discarded": gone})


async def serve(
    client: Client,
    *,
    host: str,
    port: int,
    token: str | None,
    hosts: Sequence[str],
    stop: asyncio.Event,
    ready: Callable[[str], None],
) -> None:
    """Answer on `host` and `port` (0: a free one) until `stop`; `ready` is told the address.

    Raises:
        ConfigurationError: others could reach it and there is no token, or the port cannot be had.
    """
    if token is not None and len(token) < _SHORTEST_TOKEN:
        raise ConfigurationError(
            f"the dashboard's token has {len(token)} characters; give it at least {_SHORTEST_TOKEN}, such as "
            "`openssl rand -hex 16` prints"
        )
    if token is None and not is_loopback(host):
        raise ConfigurationError(
            f"the dashboard would answer on {host}, where others can reach it; give it a --token, or "
            "POINTSMAN_DASHBOARD_TOKEN, or leave it on 127.0.0.1"
        )
    named = [] if is_loopback(host) else [host]
    dashboard = Dashboard(client, token=token, hosts=[*hosts, *named])
    with _listening(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{listener.getsockname()[1]}")
        server = _Server(
            uvicorn.Config(
                dashboard.app,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                ws="none",
                timeout_graceful_shutdown=_LEAVING,
            )
        )
        async with asyncio.TaskGroup() as group:
            folding = group.create_task(dashboard.index.run())
            serving = group.create_task(server.serve(sockets=[listener]))
            await stop.wait()
            dashboard.stopping.set()
            server.should_exit = True
            await serving
            folding.cancel()


class _Server(uvicorn.Server):
    """Signals are the business of whoever runs it."""

    @contextmanager
    def capture_signals(self) -> Any:
        yield


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"the dashboard cannot be had on {host}:{port}: {error.strerror or error}; choose another --port, 0 for a "
            "free one"
        ) from None


def _search(request: Request) -> Search:
    asked = request.query_params
    minutes = asked.get("minutes", "")
    since = datetime.now(UTC) - timedelta(minutes=int(minutes)) if minutes.isdigit() and len(minutes) < 8 else None
    return Search(asked.get("team", ""), asked.get("status", ""), asked.get("text", "")[:200].casefold(), since)


def _last_event_id(request: Request) -> int:
    return _number(request.headers.get("last-event-id", ""))


def _number(given: str) -> int:
    """What a browser says of a place; 0 for what is no number of ours."""
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 19 else 0


def _at_most(rows: Any, most: int) -> list[Any] | None:
    """All of them; None when there are more than `most`."""
    found: list[Any] = []
    for row in rows:
        if len(found) == most:
            return None
        found.append(row)
    return found


def _report(stored: Stored) -> Progress | None:
    try:
        return parse(Progress, decode(stored.headers, stored.body)[1])
    except ContractError:
        return None


def _body(stored: Stored) -> dict[str, Any]:
    """The event as JSON data where it is JSON; a log's other releases are shown as they are."""
    try:
        return {"body": parse_json(stored.body)}
    except ContractError:
        return {"body": stored.body.decode("utf-8", "replace")}


async def _json(request: Request, most: int) -> dict[str, Any]:
    """The body, a JSON object of at most `most` bytes. Raises `ContractError` for anything else."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ContractError("the body is not declared as application/json")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise ContractError(f"the body has more than {most} bytes")
    asked = parse_json(bytes(body)) if body else {}
    if not isinstance(asked, dict):
        raise ContractError("the body is not a JSON object")
    return asked


def _answer(content: Any, status: int = 200) -> Response:
    return Response(to_json(content), status, media_type="application/json")


async def _explained(request: Request, error: Exception) -> Response:
    assert isinstance(error, PointsmanError)
    status = next(code for kind, code in _STATUS if isinstance(error, kind))
    return _answer({"error": str(error), "kind": error.kind}, status)
