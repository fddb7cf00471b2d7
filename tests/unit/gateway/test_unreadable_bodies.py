"""A body that cannot be read is refused with the reason."""

from __future__ import annotations

import pytest
from support.memory_gateway import gateway

NOT_UTF_8 = b'{"team": "crew", "input": "\xff"}'
DEEP = b'{"team": "crew", "input": {"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}}"


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (NOT_UTF_8, "the body is not UTF-8: invalid start byte at byte 27; send one JSON object in UTF-8"),
        (DEEP, "the body is nested too deeply; send a JSON object with fewer levels"),
    ],
)
async def test_unreadable_body_is_refused_with_the_reason(body: bytes, detail: str) -> None:
    async with gateway() as door:
        answer = await door.send("bob", "POST", "/v1/workflows", body, **{"content-type": "application/json"})

    assert (answer.status, answer.json["detail"]) == (400, detail)


async def test_half_of_a_surrogate_pair_is_named() -> None:
    body = b'{"team": "crew", "input": "\\ud800"}'

    async with gateway() as door:
        answer = await door.send("bob", "POST", "/v1/workflows", body, **{"content-type": "application/json"})

    assert answer.status == 422
    assert answer.json["errors"][0] == {
        "at": "body.input",
        "message": "the text has half of a surrogate pair, which UTF-8 cannot contain; send whole characters",
    }
