"""Keys and JWTs have the formats of NATS."""

from __future__ import annotations

from base64 import urlsafe_b64encode

import pytest

from pointsman.errors import ConfigurationError
from pointsman.grants.jwt import operator_jwt, permission_claims, read_jwt, user_jwt
from pointsman.grants.permissions import Permissions
from pointsman.util.nkeys import KeyKind, NKey, is_public_key, verify

# A key from the documentation of NATS.
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


def test_known_seed_has_its_known_public_key() -> None:
    key = NKey.from_seed(SEED)

    assert (key.kind, key.public, key.seed) == ("user", PUBLIC, SEED)
    assert is_public_key(PUBLIC, "user")
    assert not is_public_key(PUBLIC, "account")
    assert verify(PUBLIC, key.sign(b"text"), b"text")
    assert not verify(PUBLIC, key.sign(b"text"), b"other")


@pytest.mark.parametrize(("kind", "letter"), [("operator", "O"), ("account", "A"), ("user", "U"), ("server", "N")])
def test_key_begins_with_the_letter_of_its_kind(kind: KeyKind, letter: str) -> None:
    key = NKey.generate(kind)

    assert key.public.startswith(letter)
    assert key.seed.startswith(f"S{letter}")
    assert NKey.from_seed(key.seed).public == key.public


@pytest.mark.parametrize(
    ("seed", "reason"),
    [
        ("", "is damaged"),
        (SEED[:-1] + ("A" if SEED[-1] != "A" else "B"), "is damaged"),
        (PUBLIC, "is damaged"),
        ("not base32!", "cannot be read"),
    ],
)
def test_text_that_is_no_seed_is_refused(seed: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        NKey.from_seed(seed)


def test_jwt_is_read_and_a_changed_jwt_is_refused() -> None:
    issuer, user = NKey.generate("account"), NKey.generate("user")
    jwt = user_jwt(issuer, "ada", user.public, rights=Permissions(("a",), ()), expires=9)
    head, body, signature = jwt.split(".")
    forged = urlsafe_b64encode(b'{"iss":"%s","nats":{}}' % issuer.public.encode()).decode().rstrip("=")

    claims = read_jwt(jwt)

    assert (claims["name"], claims["sub"], claims["exp"]) == ("ada", user.public, 9)
    assert claims["nats"]["sub"] == {"deny": [">"]}  # an empty list of allowed subjects would allow every subject
    for changed in (f"{head}.{forged}.{signature}", f"{head}.{body}.{signature[:-4]}AAAA"):
        with pytest.raises(ConfigurationError, match="is not signed by its issuer"):
            read_jwt(changed)
    for text in ("", "a.b", "a.b.c", f"{head}.{body}"):
        with pytest.raises(ConfigurationError, match="is not a JWT of NATS"):
            read_jwt(text)


def test_jwt_with_another_algorithm_is_refused() -> None:
    operator = NKey.generate("operator")
    _, body, _ = operator_jwt(operator, "op", system_account="A").split(".")
    head = urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    signature = urlsafe_b64encode(operator.sign(f"{head}.{body}".encode())).decode().rstrip("=")

    with pytest.raises(ConfigurationError, match="is not signed"):
        read_jwt(f"{head}.{body}.{signature}")


def test_worker_may_answer_and_others_may_not() -> None:
    assert "resp" in permission_claims(Permissions((), (), responses=True))
    assert "resp" not in permission_claims(Permissions(("a",), ("b",)))
