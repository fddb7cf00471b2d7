"""A claim is sent as one header value. Only a valid claim is read as a claim."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_schemas.claim_check import DATAREF_HEADER, Claim
from pointsman_schemas.envelope import decode
from pointsman_schemas.errors import BodyLostError, UndecodableEventError

DIGEST = "0123456789abcdef" * 4


@given(
    bucket=st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
    name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
    size=st.integers(0, 10**14),
)
def test_a_claim_is_read_as_it_was_written(bucket: str, name: str, size: int) -> None:
    claim = Claim(bucket, name, size, DIGEST)

    text = claim.encode()

    assert text.isascii()
    assert text.isprintable()
    assert Claim.decode(text) == claim


@pytest.mark.parametrize(
    "text",
    [
        "",
        "https://example.org/body",
        f"nats-object://A/b?size=-1&sha256={DIGEST}",
        f"nats-object://A/b?size=1&sha256={DIGEST}0",
        f"nats-object://A/b?size=1&sha256={DIGEST.upper()}",
        f"nats-object://A/b?sha256={DIGEST}&size=1",
        f"nats-object://A/b/c?size=1&sha256={DIGEST}",
        f"nats-object://A*/b?size=1&sha256={DIGEST}",
        f"nats-object://A/b?size={'9' * 16}&sha256={DIGEST}",
    ],
)
def test_another_reference_is_refused(text: str) -> None:
    with pytest.raises(UndecodableEventError, match="expected nats-object://"):
        Claim.decode(text)


def test_event_without_its_body_is_refused() -> None:
    headers = {"CE-DataRef": Claim("NS_ARTIFACTS", "x", 1, DIGEST).encode(), "ce-id": "1"}

    with pytest.raises(BodyLostError, match="NS_ARTIFACTS"):
        decode(headers, b"")
    assert DATAREF_HEADER == "ce-dataref"
