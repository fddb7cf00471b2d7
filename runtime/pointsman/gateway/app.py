"""Assemble the HTTP application of the gateway."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp

from pointsman.batches.service import Batches
from pointsman.errors import PointsmanError
from pointsman.gateway import (
    catalog,
    cloud_events,
    dead_letters,
    health,
    hooks,
    questions,
    schedules,
    webhooks,
    workflows,
)
from pointsman.gateway.a2a.endpoint import a2a_mount
from pointsman.gateway.access import Access, is_openai_path
from pointsman.gateway.agui import runs
from pointsman.gateway.batches import routes as batch_routes
from pointsman.gateway.batches.models import BatchRequest, BatchResult
from pointsman.gateway.cloud_events import CloudEvent
from pointsman.gateway.context import Context
from pointsman.gateway.events import WorkflowEvent
from pointsman.gateway.files import routes as files
from pointsman.gateway.invalid_requests import invalid_parts
from pointsman.gateway.mcp.endpoint import mcp_routes
from pointsman.gateway.openai import chat, models, responses
from pointsman.gateway.page import draw_page
from pointsman.gateway.problems import Problem, ProblemError, problem_of, problem_response
from pointsman.telemetry import get_logger

__all__ = ["make_app", "openapi_document"]

_log = get_logger(__name__)

_TITLE = "Pointsman gateway"
_DESCRIPTION = (
    "Requests to teams of agents over HTTP. Send an API key or a bearer token as `Authorization: Bearer KEY`; on "
    "loopback no key is needed. Errors are RFC 9457 problems; errors of the OpenAI-compatible paths have OpenAI's "
    "shape."
)
_OPENAI_NAMES = re.compile(
    r"/(assistants|audio|chat|completions|conversations|embeddings|fine_tuning|images|models|moderations|realtime|"
    r"responses|vector_stores)(/|$)"
)
"""Paths of OpenAI's API that the gateway does not serve, and paths that clients with a wrong base URL request."""
_ROUTERS: Sequence[APIRouter] = (
    workflows.router,
    files.router,
    batch_routes.router,
    questions.router,
    schedules.router,
    cloud_events.router,
    hooks.router,
    webhooks.router,
    catalog.router,
    dead_letters.router,
    models.router,
    chat.router,
    responses.router,
    runs.router,
    health.router,
)
_CORS_METHODS = ("GET", "POST", "DELETE")
_CORS_HEADERS = ("authorization", "content-type", "idempotency-key", "if-none-match", "if-range", "last-event-id",
                 "prefer", "range", "x-api-key",
                 "mcp-protocol-version", "mcp-method", "mcp-name", "a2a-version", "a2a-extensions")  # fmt: skip
_CORS_EXPOSED = (
    "accept-ranges",
    "content-disposition",
    "content-range",
    "etag",
    "location",
    "preference-applied",
    "retry-after",
    "www-authenticate",
)


def make_app(context: Context, batches: Batches, *, hosts: Sequence[str] = (), open: bool) -> ASGIApp:
    """Assemble the application of a gateway.

    Args:
        context: The parts of the gateway.
        batches: The batches of the namespace.
        hosts: Names of hosts that requests without a key may use.
        open: True if the gateway listens only on loopback, and admits requests without a key.

    Returns:
        The application.
    """
    app = _routes()
    app.router.routes.extend([*mcp_routes(context), a2a_mount(context, open=open)])
    app.state.context = context
    app.state.batches = batches
    guarded: ASGIApp = Access(app, context, hosts=list(hosts), open=open)
    origins = [each.strip() for each in (context.settings.gateway_origins or "").split(",") if each.strip()]
    if origins:
        guarded = CORSMiddleware(
            guarded,
            allow_origins=origins,
            allow_methods=_CORS_METHODS,
            allow_headers=_CORS_HEADERS,
            expose_headers=_CORS_EXPOSED,
            max_age=600,
        )
    return guarded


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of the gateway. The document does not depend on a namespace or on settings."""
    return _document()


def _routes() -> FastAPI:
    app = FastAPI(title=_TITLE, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    for router in _ROUTERS:
        app.include_router(router)

    @app.get("/", include_in_schema=False)
    async def to_page() -> Response:
        return RedirectResponse("/docs")

    @app.get("/docs", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(_page())

    @app.get("/openapi.json", include_in_schema=False)
    async def document() -> Response:
        return JSONResponse(_document())

    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(PointsmanError, _on_pointsman_error)
    app.add_exception_handler(Exception, _on_crash)
    return app


@lru_cache(1)
def _document() -> dict[str, Any]:
    app = FastAPI()
    for router in _ROUTERS:
        app.include_router(router)
    document = get_openapi(
        title=_TITLE, version="1", description=_DESCRIPTION, routes=app.routes, openapi_version="3.1.0"
    )
    components = document["components"]
    for model in (Problem, WorkflowEvent, CloudEvent, BatchRequest, BatchResult):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        components["schemas"] |= schema.pop("$defs", {})
        components["schemas"][model.__name__] = schema
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    components["schemas"]["JsonValue"] = {"description": "Any JSON value."}
    components["schemas"] = dict(sorted(components["schemas"].items()))
    components["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "An API key, or a token of the issuer. On loopback, no key is needed.",
        }
    }
    for path, methods in document["paths"].items():
        if path.startswith("/v1/"):
            for operation in methods.values():
                operation.setdefault("security", [{"key": []}])
                if is_openai_path(path):
                    operation["responses"].pop("422", None)  # FastAPI adds 422, but these paths answer 400
    return document


@lru_cache(1)
def _page() -> str:
    return draw_page(_document())


def _respond(request: Request, problem: ProblemError) -> Response:
    return problem_response(problem, "openai" if is_openai_path(request.url.path) else "problem")


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return _respond(request, error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, headers = request.url.path, error.headers
    openai = is_openai_path(path) or (error.status_code == 404 and _OPENAI_NAMES.search(path) is not None)
    match error.status_code:
        case 404 if openai:
            detail = f"there is no path {path[:200]}; the paths of this API are {_openai_paths()}"
        case 404:
            detail = f"there is no path {path[:200]}; GET /openapi.json lists the paths"
        case 405:
            allowed = _allowed(path) or (error.headers or {}).get("Allow", "")
            headers = {"allow": allowed}
            detail = f"{request.method} is not allowed for {path[:200]}; use {allowed.replace(', ', ' or ')}"
        case _:
            detail = _unreadable_body(error.__cause__) or str(error.detail)
    code = HTTPStatus(error.status_code).name.lower()
    problem = ProblemError(error.status_code, code, detail, headers=headers)
    return problem_response(problem, "openai" if openai else "problem")


def _unreadable_body(cause: BaseException | None) -> str:
    """Return the reason why FastAPI cannot read a body; empty for another error."""
    if isinstance(cause, UnicodeDecodeError):
        return f"the body is not UTF-8: {cause.reason} at byte {cause.start}; send one JSON object in UTF-8"
    if isinstance(cause, RecursionError):
        return "the body is nested too deeply; send a JSON object with fewer levels"
    return ""


@lru_cache(1)
def _openai_paths() -> str:
    """Return the methods and paths of the OpenAI-compatible API, for a client with a wrong base URL or endpoint."""
    return ", ".join(
        f"{method.upper()} {path}"
        for path, methods in _document()["paths"].items()
        if is_openai_path(path)
        for method in methods
    )


def _allowed(path: str) -> str:
    """Return the methods of all routes of a path. The list of Starlette has only the methods of one route."""
    methods = [each for pattern, each in _path_methods() if pattern.fullmatch(path)]
    return ", ".join(sorted({method for each in methods for method in each}))


@lru_cache(1)
def _path_methods() -> list[tuple[re.Pattern[str], list[str]]]:
    return [
        (re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), [method.upper() for method in methods])
        for path, methods in _document()["paths"].items()
    ]


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = invalid_parts(error.errors(), error.body, request.headers.get("content-type", ""))
    shown = "; ".join(f"{each['at']}: {each['message']}" for each in errors)
    status = 400 if is_openai_path(request.url.path) else 422
    return _respond(request, ProblemError(status, "invalid_request", shown, errors=errors))


async def _on_pointsman_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PointsmanError)
    problem = problem_of(error)
    if problem.status == 422 and is_openai_path(request.url.path):
        problem = ProblemError(400, problem.code, problem.detail)
    if problem.status >= 500:
        _log.warning("gateway_request_failed", path=request.url.path, status=problem.status, error=str(error))
    return _respond(request, problem)


async def _on_crash(request: Request, error: Exception) -> Response:
    _log.error("gateway_request_crashed", path=request.url.path, exc_info=error)
    detail = "the gateway could not serve the request; the log of the gateway has the reason"
    return _respond(request, ProblemError(500, "internal_error", detail))
