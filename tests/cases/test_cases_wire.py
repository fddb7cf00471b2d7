"""Hostile names cannot add commands to the traffic with a broker. The test records and parses all traffic."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support import factory
from support.crew import CREW, steps
from support.processes import System
from support.proxy import Proxy

from pointsman.errors import InvalidTokenError, PointsmanError
from pointsman.settings import Settings
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Request
from pointsman_schemas.ids import workflow_id_for
from pointsman_schemas.strict_json import dump

pytestmark = pytest.mark.timeout(120)

HARMLESS = ("a.b", "x" * 65)  # invalid as names, but valid as reply subjects
EVIL = "x 0\r\n\r\nPUB evil 1\r\nz\r\n"
NAMES = (EVIL, "a\tb", "a b", "a\0b", "*", ">", "evil.>", "ü", *HARMLESS)
# Subjects to publish on. Only the filter of a read or of a consumer may end with a wildcard.
WORD = r"[A-Za-z0-9_$=/-]+"
SUBJECT = re.compile(rf"{WORD}(\.{WORD})*|\$JS\.API\.(CONSUMER\.CREATE|DIRECT\.GET)(\.{WORD})+\.[*>]")
VERBS = ("CONNECT", "INFO", "PING", "PONG", "SUB", "UNSUB", "PUB", "HPUB", "MSG", "HMSG", "-ERR", "+OK")
# Subjects to subscribe to: the own inbox, the own handoffs, and one kind of message of the namespace.
HEARD = rf"_INBOX\.\w{{22}}(\..+)?|NAMESPACE\.handed\.\w{{32}}\.>|(\$SRV|NAMESPACE)\.{WORD}(\.({WORD}|\*))*"


async def test_hostile_names_put_only_intended_commands_on_the_wire(settings: Settings, tmp_path: Path) -> None:
    at = urlsplit(settings.url)
    async with Proxy(at.hostname or "", at.port or 0, record=True) as proxy:
        through = settings.model_copy(update={"url": proxy.url})
        async with System(tmp_path, Settings(**through.model_dump(exclude_unset=True))) as system:
            services = await asyncio.gather(system.supervisor(CREW), system.worker(CREW))
            await _try_all_names(system)
            assert all(service.alive for service in services)
            assert (await system.ask("crew", steps("after"))).answer == "after"
        wire = list(proxy.wire)

    names = [re.findall(rb'"name": "(.*?)"', bytes(upward))[0] for upward, _ in wire]
    lasting = [name for name in names if name != b"pointsman-client"]  # without the short connections of commands
    assert sorted(lasting) == [b"planner-synthesizer-worker", b"supervisor-crew", b"test"]  # nothing reconnected
    said = [command for upward, _ in wire for command in _commands(bytes(upward))]
    published = {subject for verb, subject in said if verb in ("PUB", "HPUB")}
    heard = {subject for verb, subject in said if verb == "SUB"}
    allowed = re.compile(HEARD.replace("NAMESPACE", settings.namespace))
    assert len(published) > 30
    assert [subject for subject in published if not SUBJECT.fullmatch(subject) or "evil" in subject] == []
    assert heard
    assert [subject for subject in heard if not allowed.fullmatch(subject)] == []
    got = [command for _, downward in wire for command in _commands(bytes(downward))]
    assert [command for command in got if command[0] == "-ERR" or "evil" in command[1]] == []


async def _try_all_names(system: System) -> None:
    client, bus = system.client, system.client.bus
    to = client.subjects.request("crew", "anonymous")
    for subject, headers in ((EVIL, {}), (f"{to}.{EVIL}", {}), (to, {"X-Name": EVIL}), (to, {EVIL: "x"})):
        with pytest.raises(PointsmanError):
            await bus.publish(subject, b"{}", headers)
    for name in NAMES:
        for refused in (client.submit(name, "hello"), client.workflow(name)):
            with pytest.raises(InvalidTokenError):
                await refused
        for reply in (name, f"_INBOX.{name}"):
            at = await bus.publish(to, json.dumps({"input": steps("t1"), "reply_to": reply}).encode(), {})
            outcome = await (await client.workflow_from_sequence(at)).outcome(20)
            is_inbox = reply.startswith("_INBOX.")  # outcomes are sent only to inboxes of callers
            assert outcome.status == ("completed" if name in HARMLESS and is_inbox else "failed")
        request = Request(input=steps("t1"), metadata={name: name}, correlation_id=name)
        envelope = Envelope(id=name, type=Request.event_type, source=name, time=datetime.now(UTC), subject=name)
        await bus.publish(to, dump(request), encode(envelope))
        outcome = await factory.workflow_of(client, workflow_id_for(to, name, name)).outcome(20)
        assert (outcome.status, outcome.correlation_id) == ("completed", name)
    task = {"id": "t1", "agent": "worker", "intent": "do", "input": {"say": 1}}
    plans = [{"tasks": [task | {what: name}]} for what in ("id", "agent") for name in NAMES]
    for outcome in await asyncio.gather(*(system.ask("crew", plan) for plan in plans)):
        assert outcome.status == "failed"
        assert "no valid plan" in outcome.reason
    agents = "from pointsman import agent\n\n@agent(name=NAME, description='d')\nasync def evil(): ...\n"
    module = system.write("evil.py", agents.replace("NAME", repr(EVIL)))
    space = ("--namespace", EVIL)
    commands = (("show", EVIL), ("cancel", EVIL), ("submit", EVIL, "hello"), ("submit", "crew", "x", *space))
    for finished in await asyncio.gather(*(system.command(*each) for each in (*commands, ("worker", module)))):
        assert (finished.code, len(finished.errors.splitlines())) == (2, 1), finished.errors
        assert f"{EVIL!r}" in finished.errors or f"{EVIL.strip()!r}" in finished.errors  # settings are stripped
        assert "1 to 64" in finished.errors


def _commands(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield each command of the NATS protocol in `data` with its subject. Raise `AssertionError` for other text. The
    last command may be incomplete."""
    while data and b"\r\n" in data:
        line, _, data = data.partition(b"\r\n")
        verb, *words = line.decode().split(" ")
        assert verb in VERBS, line
        if verb in ("PUB", "HPUB", "MSG", "HMSG"):
            size = int(words[-1])
            assert data[size : size + 2] in (b"\r\n", b"\r", b""), line
            data = data[size + 2 :]
        yield verb, " ".join(words) if verb == "-ERR" else words[0] if words else ""
