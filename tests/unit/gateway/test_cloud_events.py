"""The text of an event is decoded only with a known charset."""

from __future__ import annotations

import pytest
from support.memory_gateway import gateway

HEADERS = {"ce-id": "1", "ce-source": "/", "ce-type": "t", "ce-specversion": "1.0"}


@pytest.mark.timeout(20)  # the codec punycode would block the gateway for minutes with this text
@pytest.mark.parametrize("charset", ["punycode", "idna", "unicode_escape", "rot13", "utf-7", "none"])
async def test_other_codecs_of_python_are_refused(charset: str) -> None:
    text = b"a" * 400_000 + b"-" + b"9a" * 200_000
    async with gateway() as door:
        headers = {**HEADERS, "content-type": f"text/plain; charset={charset}"}
        refused = await door.send("bob", "POST", "/v1/events/crew", text, **headers)

    assert (refused.status, refused.json["code"]) == (422, "invalid_event")


@pytest.mark.parametrize("charset", ["utf-8", "iso-8859-1", "Windows-1252", "UTF-16"])
async def test_text_in_a_known_charset_is_the_request(charset: str) -> None:
    async with gateway() as door:
        headers = {**HEADERS, "content-type": f"text/plain; charset={charset}"}
        sent = await door.send("bob", "POST", "/v1/events/crew", "Grüße".encode(charset), **headers)
        shown = await door.send("bob", "GET", sent.headers["location"])

    assert (sent.status, shown.json["input"]) == (202, "Grüße")
