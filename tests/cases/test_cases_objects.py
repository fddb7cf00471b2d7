"""Data from which other programs would build objects is only data in Pointsman."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue
from support import factory
from support.broker import remove_streams
from support.crew import CREW, steps
from support.processes import System, wait_for

from pointsman.errors import PointsmanError
from pointsman.settings import Settings
from pointsman_schemas.card import AgentCard
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Control, DeadLetter, Handoff, Outcome, Progress, Request, Result
from pointsman_schemas.log import Commit, TaskSucceeded
from pointsman_schemas.strict_json import parse

pytestmark = pytest.mark.timeout(120)

FOREIGN = ("x-python-pickle", "x-msgpack", "yaml")
PAYER = """
from pointsman import Pipeline, Stage, Team, agent


@agent(name="payer", description="Pays", approval="required")
async def payer(order: str) -> str:
    return order


team = Team(name="refunds", agents=("payer",), strategy=Pipeline(stages=(Stage(agent="payer"),)))
"""


@dataclass(frozen=True, slots=True)
class Canary:
    """A file that must not be created, and a port that must get no connection."""

    file: Path
    port: int
    heard: list[object]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/x.json"

    @property
    def markers(self) -> dict[str, Any]:
        """Inputs from which jsonpickle, LangChain, YAML, JSON Schema and templates would build objects."""
        touch, call = f"touch {self.file}", [{"py/function": "socket.create_connection"}, [["127.0.0.1", self.port]]]
        return {
            "py/object": "os.system", "py/reduce": call, "py/repr": f"os/os.system({touch!r})",
            "__class__": "subprocess.Popen", "__reduce__": ["os.system", [touch]], "__proto__": {"a": 1},
            "lc": 1, "type": "constructor", "id": ["urllib", "request", "urlopen"], "kwargs": {"url": self.url},
            "yaml": f"!!python/object/apply:os.system [{touch!r}]", "$ref": self.url, "$schema": self.url,
            "url": f"!!python/object/apply:urllib.request.urlopen [{self.url!r}]", "file": f"file://{self.file}",
            "template": "{{ ''.__class__.__mro__ }} ${7*7} {0.__class__}",
            "pickle": [base64.b64encode(poison).decode() for poison in self.poisons],
        }  # fmt: skip

    @property
    def poisons(self) -> list[bytes]:
        """Pickles that create the file or open the connection when they are loaded."""
        return [
            pickle.dumps(_Call(Path.touch, self.file)),
            pickle.dumps(_Call(socket.create_connection, ("127.0.0.1", self.port))),
        ]


class _Call:
    """An object whose pickle calls a function when it is loaded."""

    def __init__(self, *what: Any) -> None:
        self._what = what

    def __reduce__(self) -> Any:
        return self._what[0], self._what[1:]


@contextmanager
def canary(folder: Path) -> Iterator[Canary]:
    """Listen in a thread, because a call that blocks this event loop would otherwise wait for ever."""
    heard: list[object] = []

    class Called(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            heard.append(self.client_address)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Called) as server:
        listening = threading.Thread(target=server.serve_forever)
        listening.start()
        try:
            yield Canary(folder / "canary", server.server_address[1], heard)
        finally:
            server.shutdown()
            listening.join()


async def test_data_that_looks_like_objects_stays_data_wherever_it_comes_from(
    settings: Settings, tmp_path: Path
) -> None:
    with canary(tmp_path) as bird:
        async with System(tmp_path, settings) as system:
            payer = system.write("payer.py", PAYER)
            services = await asyncio.gather(
                system.supervisor(CREW), system.worker(CREW), system.supervisor(payer), system.worker(payer)
            )
            await _cards(system, bird)
            await _events(system, bird)
            await _letters(system, bird)
            await _everything_else(system, bird)
            assert all(service.alive for service in services)
        quiet = list(bird.heard)
        socket.create_connection(("127.0.0.1", bird.port)).close()
        await wait_for(lambda: _any(bird.heard), "call that the canary heard")
    await remove_streams(settings)

    assert quiet == []
    assert not bird.file.exists()


async def _events(system: System, bird: Canary) -> None:
    """Check requests, plans, results and the log, with bodies in messages and in the object store."""
    markers, client = bird.markers, system.client
    asked = await client.submit("crew", steps("t1", times=1) | {"markers": markers}, metadata=markers)
    task = {"id": "t1", "agent": "worker", "intent": json.dumps(markers), "input": {"say": markers}}
    said = await client.submit("crew", {"tasks": [task], "final_instruction": json.dumps(markers)} | markers)
    large = await client.submit("crew", {"text": "x" * 1_100_000, **markers, "tasks": steps("t1")["tasks"]})
    many: JsonValue = {
        "id": "t1",
        "agent": "worker",
        "intent": "say it often",
        "input": {"say": [markers], "times": 1_000},
    }
    kept_apart = await client.submit("crew", {"tasks": [many]})

    assert {(await workflow.outcome(20)).status for workflow in (asked, said, large, kept_apart)} == {"completed"}
    for workflow, output in ((said, markers), (kept_apart, [markers] * 1_000)):
        entries = await client.entries(workflow.id)
        kept = [each for each in entries if isinstance(each, TaskSucceeded) and each.task_id == "t1"]
        assert [each.result.output for each in kept] == [output]
    assert (await client.trace(said.id)).status == "completed"
    assert bird.url in (await system.command("show", said.id, "--json")).output


async def _letters(system: System, bird: Canary) -> None:
    """Check messages that are refused, and then replayed by an operator."""
    client, request = system.client, system.client.subjects.request("crew", "anonymous")
    typed = encode(Envelope(id="x", type=Request.event_type, source="/test", time=datetime.now(UTC)))
    bodies = (*bird.poisons, b"\xc7\x05\x01cos\n.", b'{"input": "\\ud800"}')
    wrong = [
        *((body, headers) for body in bodies for headers in ({}, typed | {"ce-id": f"{bodies.index(body)}"})),
        *((json.dumps(bird.markers).encode(), {"Content-Type": f"application/{kind}"}) for kind in FOREIGN),
        (bird.poisons[1], typed | {"ce-id": "foreign", "ce-datacontenttype": "application/x-python-pickle"}),
        (b"", typed | {"ce-id": "elsewhere", "ce-dataref": bird.url, "ce-dataschema": bird.url}),
    ]
    published = [await client.bus.publish(request, body, headers) for body, headers in wrong]
    refused = [await client.workflow_from_sequence(sequence) for sequence in published]
    outcomes = await asyncio.gather(*(workflow.outcome(40) for workflow in refused))

    async def buried() -> list[DeadLetter]:
        stored = client.bus.read("dead", client.subjects.dead_letters_for())
        letters = [parse(DeadLetter, each.body) async for each in stored]
        return letters if len(letters) == len(wrong) else []

    letters = await wait_for(buried, f"{len(wrong)} dead letters")
    again = await system.command("dead", "replay", "--all", "--yes", "--json")
    sent_again = [factory.workflow_of(client, document["workflow"]) for document in again.documents]
    outcomes += await asyncio.gather(*(workflow.outcome(40) for workflow in sent_again))

    assert {outcome.status for outcome in outcomes} == {"failed"}
    assert {letter.workflow_id for letter in letters} == {workflow.id for workflow in refused}
    assert {letter.cause.kind for letter in letters} == {"undecodable", "body_lost"}
    assert len(sent_again) == len(refused), again.errors


async def _cards(system: System, bird: Canary) -> None:
    """Check the schema in a card, which is read when a person replaces the input."""
    client, schema = system.client, bird.markers | {"type": "string"}
    workflow = await client.submit("refunds", "o-17")

    async def asked() -> str | None:
        return next((each.id for each in await client.operations.questions(workflow.id)), None)

    async def seen() -> bool:
        return any(card.instance == foreign.instance for card in await client.operations.agents())

    approval = await wait_for(asked, "question to a person")
    foreign = AgentCard(name="payer", description=json.dumps(schema), input_schema=schema, output_schema=schema)
    foreign = foreign.model_copy(update={"instance": "foreign"})
    await client.bus.registry.announce(foreign)
    await wait_for(seen, "card of another payer")
    answer = await client.operations.approve(approval or "", input="o-18")

    assert answer.counted, answer.message
    assert (await workflow.outcome(20)).answer == "o-18"


async def _everything_else(system: System, bird: Canary) -> None:
    """Check logs, results, controls and reports of a missing workflow. Only an operator can publish these."""
    bus, subjects = system.client.bus, system.client.subjects
    for number, body in enumerate([*bird.poisons, json.dumps(bird.markers).encode()]):
        name = f"wf_{number}"
        for event_type, subject in (
            (Commit.event_type, subjects.log("crew", name)), (Outcome.event_type, subjects.outcome("crew", name)),
            (Result.event_type, subjects.result("crew", "worker", name, "t1", 1, "token")),
            (Handoff.event_type, subjects.handoff("worker", "crew", name, "t1", 1)),
            (Control.event_type, subjects.control("crew", name, "cancel", "ada", "c1")),
            (Progress.event_type, subjects.event("crew", name, "worker", "progress")),
        ):  # fmt: skip
            envelope = Envelope(id=f"{name}-{event_type}", type=event_type, source="/test", time=datetime.now(UTC))
            await bus.publish(subject, body, encode(envelope))
        for looked_at in (system.client.entries(name), system.client.trace(name)):
            with pytest.raises(PointsmanError):
                await looked_at
    (suite := system.folder / "suite.yaml").write_text(
        f"team: crew\ncases: [{{input: !!python/object/apply:os.system ['touch {bird.file}']}}]\n"
    )
    assert (await system.command("eval", str(suite))).code == 2


async def _any(values: list[object]) -> bool:
    return bool(values)


def test_nothing_installed_can_build_an_object_from_text() -> None:
    forbidden = re.compile(
        r"\b(?:import|from)\s+(?:pickle|marshal|shelve|dill|jsonpickle)\b|\byaml\.(?:unsafe_)?load\(|(?<![\w.])(?:eval|exec)\("
    )
    root = Path(__file__).parents[2]
    sources = [path for place in ("schemas", "runtime", "agents") for path in (root / place).rglob("*.py")]

    found = [f"{path.name}: {match[0]}" for path in sources for match in forbidden.finditer(path.read_text())]

    assert len(sources) > 50
    assert found == []
