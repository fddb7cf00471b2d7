"""The routes of A2A: a card, JSON-RPC and HTTP+JSON for each team, in the versions 1.0 and 0.3."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.server.routes import create_jsonrpc_routes, create_rest_routes
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE
from a2a.utils.errors import VersionNotSupportedError
from google.protobuf.json_format import MessageToDict
from pydantic_core import to_json
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp

from pointsman.gateway.a2a.calls import Call
from pointsman.gateway.a2a.cards import CardMaker
from pointsman.gateway.a2a.handler import TeamHandler
from pointsman.gateway.a2a.push_store import PushStore
from pointsman.gateway.a2a.refusals import checked, refuse_body, refuse_type
from pointsman.gateway.a2a.signatures import KEY_SET_NAME, CardSigner
from pointsman.gateway.catalog import is_known_team
from pointsman.gateway.context import Context
from pointsman.gateway.problems import ProblemError
from pointsman_schemas.ids import is_token, stable_digest

__all__ = ["make_a2a_app"]

Endpoint = Callable[[Request], Awaitable[Response]]

_CARD_PATH = "/.well-known/agent-card.json"
_JSON_TYPE = "application/json"
_JSON_TYPES = (_JSON_TYPE, A2A_JSON_MEDIA_TYPE)
_CARD_MAX_AGE_S = 60  # seconds for which a client may cache a card; a card changes when an agent starts or stops
_MAX_CARDS = 1_000  # maximum number of cards whose last change is in memory
_VERSION = re.compile(r"(0\.3|1\.0)(\.[0-9]+)?")


class _CallContexts(ServerCallContextBuilder):
    """Adds the caller and the team to the context of each call."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def build(self, request: Request) -> ServerCallContext:
        call, version = _call_of(self._context, request), _version_of(request)
        if version and not _VERSION.fullmatch(version):  # checked here, because the SDK compares only major versions
            raise VersionNotSupportedError(
                f"the A2A-Version is {version[:20]!r}; the gateway supports 1.0 and 0.3; send one of these versions"
            )
        return ServerCallContext(state={"call": call, "headers": {**request.headers, "a2a-version": version}})


def make_a2a_app(context: Context, push: PushStore, *, open: bool) -> ASGIApp:
    """Make the application that serves the paths below `/a2a`.

    Args:
        context: The parts of the gateway.
        push: The receivers of push notifications.
        open: True if the gateway admits requests without a key.

    Returns:
        The application.

    Raises:
        ConfigurationError: The key file for signatures has no private key of the curve P-256.
    """
    logging.getLogger("a2a").setLevel(logging.CRITICAL)  # because the SDK logs a traceback for each invalid request
    path = context.settings.gateway_a2a_signing_key
    signer = None if path is None else CardSigner(path)
    cards = CardMaker(context, signer, open=open)
    handler = TeamHandler(context, cards, push)
    contexts = _CallContexts(context)
    routes: list[BaseRoute] = []
    if signer is not None:
        routes.append(Route(f"/{KEY_SET_NAME}", _key_set_endpoint(signer.key_set), methods=["GET"]))
    changes = _CardChanges()
    for path, new in (("/{team}", False), ("/{team}/1.0", True)):
        endpoint = _known_team(context, _card_endpoint(context, cards, changes, new=new))
        routes.append(Route(f"{path}{_CARD_PATH}", endpoint, methods=["GET"]))
    for rpc_url in ("/{team}", "/{team}/"):
        made = create_jsonrpc_routes(handler, rpc_url, context_builder=contexts, enable_v0_3_compat=True)
        routes += [_guarded(context, route, rpc=True) for route in made]
    made_rest = create_rest_routes(handler, context_builder=contexts, enable_v0_3_compat=True, path_prefix="/{team}")
    routes += [_guarded(context, route, rpc=False) for route in made_rest if isinstance(route, Route)]
    return Router(routes, redirect_slashes=False)


def _call_of(context: Context, request: Request) -> Call:
    return Call(request.state.caller, request.path_params["team"], _origin(context, request), request)


def _origin(context: Context, request: Request) -> str:
    """Return the URL under which clients reach the gateway."""
    given = context.settings.gateway_public_url
    return given.rstrip("/") if given else str(URL(scope=request.scope).replace(path="", query=""))


def _version_of(request: Request) -> str:
    """Return the version of A2A that a client asks for; empty if it names no version, as clients of 0.3 do."""
    return request.headers.get("a2a-version") or request.query_params.get("A2A-Version", "")


def _guarded(context: Context, route: Route, *, rpc: bool) -> Route:
    """Wrap a route of the SDK, to serve only teams that the caller may use, and to raise problems of the gateway."""
    endpoint: Endpoint = route.endpoint

    async def serve(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.method == "POST" and kind not in _JSON_TYPES and (kind or await request.body()):
            return refuse_type(kind, rpc=rpc)
        if (refusal := await refuse_body(request, rpc=rpc)) is not None:
            return refusal
        response = await checked(await endpoint(request), request, rpc=rpc)
        # raise the problem of a refused call, because the SDK's response has a different HTTP status
        if (problem := getattr(request.state, "problem", None)) is not None:
            raise problem
        if response.media_type == A2A_JSON_MEDIA_TYPE and _takes_plain_json(request, kind):
            response.headers["content-type"] = _JSON_TYPE
        return response

    methods = sorted((route.methods or set()) - {"HEAD"})
    return Route(route.path, _known_team(context, serve), methods=methods)


def _takes_plain_json(request: Request, kind: str) -> bool:
    """Return True if a client accepts or sends `application/json`, and does not accept the media type of A2A."""
    accepted = request.headers.get("accept", "").lower()
    return A2A_JSON_MEDIA_TYPE not in accepted and (_JSON_TYPE in accepted or kind == _JSON_TYPE)


def _known_team(context: Context, endpoint: Endpoint) -> Endpoint:
    """Return an endpoint that refuses a team that does not exist or that the caller may not use."""

    async def serve(request: Request) -> Response:
        team, caller = request.path_params["team"], request.state.caller
        if not (is_token(team) and caller.may_use(team) and await is_known_team(context, team)):
            raise ProblemError(
                404,
                "team_not_found",
                f"there is no team {team[:80]!r} that you may use; GET /v1/teams lists the teams that you may use",
            )
        return await endpoint(request)

    return serve


class _CardChanges:
    """The time of the last change of each card that this gateway has served."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[str, datetime]] = OrderedDict()

    def since(self, card: str, tag: str) -> datetime:
        """Return the time at which this gateway first served the present content of a card.

        Args:
            card: The address of the card.
            tag: The tag of the present content of the card.

        Returns:
            The time.
        """
        known = self._known.pop(card, None)
        if known is None or known[0] != tag:
            known = (tag, datetime.now(UTC))
        self._known[card] = known
        if len(self._known) > _MAX_CARDS:
            self._known.popitem(last=False)
        return known[1]


def _card_endpoint(context: Context, cards: CardMaker, changes: _CardChanges, *, new: bool) -> Endpoint:
    """Return the endpoint of cards. With `new`, cards have only the fields of the version 1.0."""

    async def serve(request: Request) -> Response:
        call = _call_of(context, request)
        card = await cards.card(call.caller, call.team, call.url)
        old = not new and not _version_of(request).startswith("1.")
        # An old card has the fields of both versions, because a client ignores fields that it does not know.
        shown = agent_card_to_dict(card) if old else MessageToDict(card)
        # Two signatures of one card differ, so the tag is computed without the signatures.
        rest = {name: value for name, value in shown.items() if name != "signatures"}
        tag = f'W/"{stable_digest(to_json(rest))}"'
        changed = changes.since(f"{call.url} {old}", tag)
        headers = {
            "etag": tag,
            "last-modified": format_datetime(changed, usegmt=True),
            "cache-control": f"private, max-age={_CARD_MAX_AGE_S}",
            "vary": "a2a-version, authorization, x-api-key",
        }
        known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
        if tag.removeprefix("W/") in known:
            return Response(status_code=304, headers=headers)
        return JSONResponse(shown, headers=headers)

    return serve


def _key_set_endpoint(key_set: dict[str, Any]) -> Endpoint:
    async def serve(request: Request) -> Response:
        return JSONResponse(key_set, headers={"cache-control": "public, max-age=3600"})

    return serve
