"""Refuse a request with an RFC 9457 problem, which has a type, a status, a title and a detail."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal

from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.responses import Response

from pointsman.batches.rows import RowsRefusedError
from pointsman.errors import PointsmanError
from pointsman.http.statuses import headers_of, status_of

__all__ = [
    "PROBLEM_TYPE",
    "OpenAIError",
    "Problem",
    "ProblemError",
    "openai_error",
    "openai_problems",
    "problem_of",
    "problem_response",
    "problems",
]

PROBLEM_TYPE = "application/problem+json"
_BASE = "https://pointsman.invalid/problems/"  # identifiers, not addresses (RFC 9457, section 3.1.1)


class Problem(BaseModel):
    """An RFC 9457 problem."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="A URI that identifies the kind of problem.")
    title: str = Field(description="The kind of problem in a few words.")
    status: int = Field(ge=400, le=599, description="The HTTP status.")
    detail: str = Field(description="The cause, and the remedy.")
    code: str = Field(description="The kind of problem as one word, for programs.")
    errors: list[dict[str, Any]] | None = Field(default=None, description="The invalid parts of the request.")


class ProblemError(HTTPException):
    """A request that is refused.

    The base class is HTTPException, because FastAPI replaces other exceptions that are raised while a body is read.

    Args:
        status: The HTTP status.
        code: The kind of problem as one word.
        detail: The cause, and the remedy.
        headers: Further headers of the response.
        errors: The invalid parts of the request.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        errors: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.detail: str = detail
        self.status = status
        self.code = code
        self.errors = errors


def problem_of(error: PointsmanError) -> ProblemError:
    """Return the problem for an error of Pointsman. The text of an unexpected error is not sent.

    Args:
        error: The error.

    Returns:
        The problem.
    """
    status = status_of(error)
    detail = str(error) if status < 500 else "the broker does not answer; try again later"
    if status == 500:
        detail = "the gateway could not serve the request; the log of the gateway has the reason"
    errors = [dict(each) for each in error.errors] if isinstance(error, RowsRefusedError) else []
    return ProblemError(status, error.kind, detail, headers=headers_of(error), errors=errors or None)


def problem_response(problem: ProblemError, shape: Literal["problem", "openai"] = "problem") -> Response:
    """Return the response for a problem.

    Args:
        problem: The problem.
        shape: `openai` for the errors of OpenAI's API.

    Returns:
        The response.
    """
    if shape == "openai":
        body = to_json(openai_error(problem))
        return Response(body, problem.status, dict(problem.headers or {}), media_type="application/json")
    shown = Problem(
        type=f"{_BASE}{problem.code.replace('_', '-')}",
        title=HTTPStatus(problem.status).phrase,
        status=problem.status,
        detail=problem.detail,
        code=problem.code,
        errors=problem.errors,
    )
    return Response(
        shown.model_dump_json(exclude_none=True), problem.status, dict(problem.headers or {}), media_type=PROBLEM_TYPE
    )


def openai_error(problem: ProblemError) -> dict[str, Any]:
    """Return the body of an error of OpenAI's API.

    Args:
        problem: The problem.

    Returns:
        The body.
    """
    error = {"message": problem.detail, "type": _openai_type(problem), "param": None, "code": problem.code}
    return {"error": error}


def _openai_type(problem: ProblemError) -> str:
    match problem.status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 404:
            return "not_found_error"
        case 429:
            return "insufficient_quota" if problem.code.startswith("daily") else "rate_limit_error"
        case status if status >= 500:
            return "server_error"
    return "invalid_request_error"


class OpenAIErrorDetail(BaseModel):
    """The details of an error of the OpenAI-compatible API."""

    message: str = Field(description="The cause, and the remedy.")
    type: str = Field(description="The class of errors, such as `invalid_request_error`.")
    param: str | None = Field(default=None, description="Always null.")
    code: str = Field(description="The kind of error as one word, for programs.")


class OpenAIError(BaseModel):
    """An error of the OpenAI-compatible API."""

    error: OpenAIErrorDetail = Field(description="The error.")


def openai_problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of an operation of the OpenAI-compatible API for the OpenAPI document.

    Args:
        *statuses: The statuses of this operation, in addition to the statuses that every operation has.

    Returns:
        The responses by status.
    """
    every = sorted({400, 401, 403, 413, 429, 500, 503, *statuses})
    return {status: {"description": HTTPStatus(status).phrase, "model": OpenAIError} for status in every}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the problems of an operation for the OpenAPI document.

    Args:
        *statuses: The statuses of this operation, in addition to the statuses that every operation has.

    Returns:
        The responses by status.
    """
    content = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    every = sorted({400, 401, 403, 413, 422, 429, 500, 503, *statuses})
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in every}
