"""Describe the invalid parts of a request: the place of each part, and the expected value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pointsman.gateway.models import FILE_ID_PATTERN
from pointsman_schemas.ids import TOKEN_PATTERN

__all__ = ["CURSOR_PATTERN", "DIGEST_PATTERN", "EVENT_ID_PATTERN", "invalid_parts"]

CURSOR_PATTERN = "^[0-9]{1,18}$"
DIGEST_PATTERN = "^[0-9a-f]{64}$"
EVENT_ID_PATTERN = r"^[0-9]{1,18}\.[0-9]{1,9}$"

_MAX_PARTS = 5  # maximum number of invalid parts that a problem lists
_FORMS = {
    TOKEN_PATTERN: "a name is expected, of 1 to 64 letters, digits, - and _",
    FILE_ID_PATTERN: "the id of an upload is expected; POST /v1/files returns this id",
    CURSOR_PATTERN: "the `next_cursor` of the previous page is expected",
    DIGEST_PATTERN: "a SHA-256 is expected: 64 hexadecimal digits",
    EVENT_ID_PATTERN: "the id of an event of this stream is expected, such as 12.0",
}
_NO_BODY = "the body is empty; send a JSON object, such as {}, with the header Content-Type: application/json"


def invalid_parts(errors: Sequence[Mapping[str, Any]], body: object, content_type: str) -> list[dict[str, str]]:
    """Describe the errors of FastAPI's validation of a request.

    Args:
        errors: The errors.
        body: The body as FastAPI read it: JSON data, or bytes of another content type.
        content_type: The content type of the request.

    Returns:
        The first invalid parts, each with its place (`at`) and its fault (`message`). No part is listed twice.
    """
    parts = [{"at": ".".join(map(str, _place(each, body))), "message": _fault(each, content_type)} for each in errors]
    return list({tuple(each.values()): each for each in parts}.values())[:_MAX_PARTS]


def _place(error: Mapping[str, Any], body: object) -> Iterator[object]:
    """Yield the steps of the path to an invalid part.

    Pydantic adds names of types to the path. These names are not in the request, so they are left out.
    """
    source, *path = error["loc"]
    yield source
    if source != "body":
        yield from path
        return
    if error["type"] == "json_invalid":
        return
    value = body
    for part in path:
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes) and isinstance(part, int):
            value = value[part] if part < len(value) else None
        elif error["type"] != "missing" or part != path[-1]:
            continue
        yield part


def _fault(error: Mapping[str, Any], content_type: str) -> str:
    """Return the fault in plain words, with the expected value."""
    kind, details, whole = error["type"], error.get("ctx") or {}, tuple(error["loc"]) == ("body",)
    if kind == "json_invalid":
        return f"not JSON: {details.get('error', error['msg'])} at character {error['loc'][-1]}; send one JSON object"
    if whole and kind == "missing":
        return _NO_BODY
    if whole and kind in ("model_attributes_type", "dict_type") and not content_type.startswith("application/json"):
        seen = content_type or "missing"
        return f"the content type is {seen}; send a JSON object with the header Content-Type: application/json"
    if whole and kind in ("model_attributes_type", "dict_type"):
        return "a JSON object is expected"
    if kind == "string_pattern_mismatch" and (form := _FORMS.get(details.get("pattern", ""))):
        return form
    if kind == "string_unicode":
        return "the text has half of a surrogate pair, which UTF-8 cannot contain; send whole characters"
    if kind == "extra_forbidden":
        return "there is no such field"
    return str(error["msg"]).removeprefix("Value error, ")
