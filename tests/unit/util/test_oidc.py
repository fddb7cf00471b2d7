"""The keys of an issuer are read only from the issuer, when a token needs them. They are cached for a bounded time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from support.issuer import CONFIGURATION, Issuer, issuing, new_key

from pointsman.errors import ConfigurationError, PeerError
from pointsman.util import oidc
from pointsman.util.oidc import IssuerKeys, TokenRefusedError, named_issuer


class Clock:
    """A replacement for the module's monotonic clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(oidc, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as made:
        yield made


DOWN: tuple[int, dict[str, str], bytes] = (503, {}, b"")


@pytest.mark.parametrize(
    ("issuer", "jwks"),
    [
        ("http://login.example.org", None),
        ("https://login.example.org", "http://login.example.org/keys"),
        ("ftp://127.0.0.1", None),
        ("login.example.org", None),
    ],
)
def test_an_address_that_is_neither_https_nor_loopback_is_refused(issuer: str, jwks: str | None) -> None:
    with pytest.raises(ConfigurationError, match="is not https"):
        IssuerKeys(issuer, jwks)


async def test_keys_are_read_once_for_many_tokens(issuer: Issuer) -> None:
    keys = IssuerKeys(issuer.url)

    claims = [await keys.verify(issuer.token(sub=name), "pointsman") for name in ("ada", "bob")]

    assert [each["sub"] for each in claims] == ["ada", "bob"]
    assert issuer.asked == [CONFIGURATION, "/keys"]


async def test_keys_are_read_at_the_address_that_was_given(issuer: Issuer) -> None:
    await IssuerKeys(issuer.url, f"{issuer.url}/keys").verify(issuer.token(), "pointsman")

    assert issuer.asked == ["/keys"]


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256"])
async def test_key_without_an_algorithm_fits_each_of_its_type(algorithm: str, issuer: Issuer) -> None:
    claims = await IssuerKeys(issuer.url).verify(issuer.token(algorithm=algorithm), "pointsman")

    assert claims["sub"] == "ada"


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ({"exp": 1}, "expired"),
        ({"exp": None}, 'missing the "exp" claim'),
        ({"aud": "another"}, "Audience doesn't match"),
        ({"iss": "https://another.example"}, "Invalid issuer"),
        ({"key": new_key()}, "Signature verification failed"),
        ({"key": "k" * 32, "algorithm": "HS256"}, "alg value is not allowed"),
        ({"key": "", "algorithm": "none"}, "alg value is not allowed"),
        ({"key": ec.generate_private_key(ec.SECP256R1()), "algorithm": "ES256"}, "Expecting a PEM-formatted key"),
    ],
)
async def test_token_that_does_not_fit_is_refused(token: dict[str, Any], reason: str, issuer: Issuer) -> None:
    with pytest.raises(TokenRefusedError, match=reason):
        await IssuerKeys(issuer.url).verify(issuer.token(**token), "pointsman")


async def test_key_with_an_algorithm_is_used_for_no_other(issuer: Issuer) -> None:
    issuer.jwk = {"alg": "PS256"}

    with pytest.raises(TokenRefusedError, match="does not match the key"):
        await IssuerKeys(issuer.url).verify(issuer.token(algorithm="RS256"), "pointsman")


@pytest.mark.parametrize("jwk", [{"use": "enc"}, {"kty": "oct", "k": "a2V5", "alg": "HS256"}])
async def test_keys_for_other_purposes_and_shared_secrets_are_not_used(jwk: dict[str, str], issuer: Issuer) -> None:
    issuer.jwk = jwk

    with pytest.raises(PeerError, match="has no key for signatures"):
        await IssuerKeys(issuer.url).verify(issuer.token(), "pointsman")


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        ("/keys", (302, {"location": "/elsewhere"}, b""), "302"),
        ("/keys", (200, {}, b" " * 1_000_001), "more than 1000000 bytes"),
        ("/keys", (200, {}, b"[]"), "is not a JSON object"),
        ("/keys", (200, {}, b'{"keys": 5}'), "has no key for signatures"),
        ("/keys", DOWN, "503"),
        (CONFIGURATION, (200, {}, b"{}"), "has no URL in jwks_uri"),
        (CONFIGURATION, (200, {}, json.dumps({"jwks_uri": "http://192.0.2.1/keys"}).encode()), "is not https"),
        (CONFIGURATION, (200, {}, json.dumps({"jwks_uri": "file:///etc/hostname"}).encode()), "is not https"),
    ],
)
async def test_answer_that_is_no_set_of_keys_is_the_issuers_fault(
    path: str, answer: tuple[int, dict[str, str], bytes], reason: str, issuer: Issuer
) -> None:
    issuer.answers[path] = answer

    with pytest.raises(PeerError, match=reason):
        await IssuerKeys(issuer.url).verify(issuer.token(), "pointsman")

    assert "/elsewhere" not in issuer.asked


async def test_a_new_key_is_read_after_a_pause(clock: Clock, issuer: Issuer) -> None:
    keys = IssuerKeys(issuer.url)
    await keys.verify(issuer.token(), "pointsman")
    issuer.key, issuer.kid = new_key(), "two"

    clock.now += 29.0
    with pytest.raises(TokenRefusedError, match="signing key 'two' is not known"):
        await keys.verify(issuer.token(), "pointsman")
    clock.now += 2.0
    claims = await keys.verify(issuer.token(), "pointsman")

    assert claims["sub"] == "ada"
    assert issuer.asked.count("/keys") == 2


async def test_old_keys_are_used_for_a_minute_while_the_issuer_is_away(clock: Clock, issuer: Issuer) -> None:
    keys = IssuerKeys(issuer.url)
    await keys.verify(issuer.token(), "pointsman")
    issuer.answers[CONFIGURATION] = DOWN

    clock.now += 301.0
    await keys.verify(issuer.token(), "pointsman")
    clock.now += 59.0
    await keys.verify(issuer.token(), "pointsman")
    clock.now += 2.0
    with pytest.raises(PeerError, match="503"):
        await keys.verify(issuer.token(), "pointsman")
    del issuer.answers[CONFIGURATION]
    clock.now += 6.0
    claims = await keys.verify(issuer.token(), "pointsman")

    assert claims["sub"] == "ada"


async def test_issuer_that_failed_is_not_asked_for_each_token(clock: Clock, issuer: Issuer) -> None:
    keys = IssuerKeys(issuer.url)
    issuer.answers[CONFIGURATION] = DOWN

    for seconds in (0.0, 1.0, 3.0):
        clock.now += seconds
        with pytest.raises(PeerError, match="503"):
            await keys.verify(issuer.token(), "pointsman")

    assert issuer.asked == [CONFIGURATION]


def test_issuer_of_a_token_is_read_before_the_token_is_verified(issuer: Issuer) -> None:
    assert [named_issuer(each) for each in (issuer.token(), issuer.token(iss=None), "a.b.c", "", "pmk_x")] == [
        issuer.url, None, None, None, None,
    ]  # fmt: skip
