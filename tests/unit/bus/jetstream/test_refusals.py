"""The operation, the subject and the text of a refusal are parsed from the format of nats-server 2.15."""

from __future__ import annotations

import asyncio

import pytest

from pointsman.bus.jetstream.client import NatsClient
from pointsman.bus.jetstream.refusals import Refusal, is_login_refused
from pointsman.bus.jetstream.request_reply import ReplyInbox


@pytest.mark.parametrize(
    ("said", "operation", "subject"),
    [
        ('Permissions Violation for Publish to "own.Log.x"', "publish", "own.Log.x"),
        ('Permissions Violation for Publish with Reply of "$JS.ACK.x.y"', "reply", "$JS.ACK.x.y"),
        ('Permissions Violation for Subscription to "_INBOX.Abc.*"', "subscribe", "_INBOX.Abc.*"),
        ('Permissions Violation for Subscription to "Q.x" using queue "q"', "subscribe", "Q.x"),
        ('Permissions Violation for Publish to "a\\"b"', "publish", 'a"b'),
    ],
)
def test_each_form_of_a_refusal_is_read(said: str, operation: str, subject: str) -> None:
    refusal = Refusal.read(said)

    assert refusal is not None
    assert (refusal.operation, refusal.subject, refusal.said) == (operation, subject, said)


@pytest.mark.parametrize("said", ["Authorization Violation", "Unknown Protocol Operation", "Stale Connection", ""])
def test_other_errors_are_no_refusals_of_a_subject(said: str) -> None:
    assert Refusal.read(said) is None


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ("nats: 'Authorization Violation'", True),
        ("User Authentication Expired", True),
        ("User Authentication Revoked", True),
        ("Account Authentication Expired", True),
        ("Authentication Timeout", False),
        ("maximum connections exceeded", False),
    ],
)
def test_a_refused_login_is_told_from_what_may_pass(said: str, refused: bool) -> None:
    assert is_login_refused(said) is refused


async def test_a_refused_reply_subject_ends_its_request_alone() -> None:
    replies = ReplyInbox("_INBOX.x", 60.0)
    reply, answer = replies.register("a.subject")
    _, other = replies.register("a.subject")
    refusal = Refusal.read(f'Permissions Violation for Publish with Reply of "{reply}"')
    assert refusal is not None

    replies.refuse(refusal, PermissionError("refused"))

    assert isinstance(answer.exception(), PermissionError)
    assert not other.done()
    replies.fail_all()


async def test_the_words_of_the_broker_keep_their_letter_case() -> None:
    client, heard = NatsClient(), asyncio.Queue[Refusal]()
    client.on_refusal = heard.put_nowait

    await client._ps.parse(b"-ERR 'Permissions Violation for Publish to \"own.Log.X\"'\r\n")

    assert heard.get_nowait().subject == "own.Log.X"
