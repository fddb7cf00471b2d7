"""The invariants hold in many small random worlds, and a seed always gives the same world."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from pointsman.engine.log.reader import read_commit
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import Outcome
from pointsman_schemas.log import Commit, MessageReceived, QuestionAnswered, QuestionAsked, WorkflowEnded
from pointsman_schemas.retry import RetryPolicy
from pointsman_schemas.strict_json import parse
from pointsman_schemas.threads import ThreadRecord
from simulation.one_log import differences
from simulation.world import World

pytestmark = pytest.mark.timeout(180)  # worlds need only CPU, and a machine may be busy

_SEEDS = range(1, 41)
"""These take half a minute on a busy machine. `make simulate` plays more."""
_CHUNK = 10  # seeds in one test; more could exceed its time limit on a slow machine


@pytest.mark.parametrize("first", _SEEDS[::_CHUNK])
def test_acknowledged_request_reaches_exactly_one_outcome(first: int) -> None:
    for seed in range(first, first + _CHUNK):
        seen = World(seed).run()

        assert not seen.problems, (
            f"seed {seed}: {'; '.join(seen.problems)}\nrepeat with: make simulate SEEDS=1 FIRST={seed}\n"
            + "\n".join(line[:200] for line in seen.history[-40:])
        )


@pytest.mark.parametrize(("seed", "emitting"), [(10, False), (34, True)])
def test_a_seed_is_the_same_world_in_every_process(seed: int, emitting: bool) -> None:
    world = World(seed)

    here = world.run().digest
    elsewhere = [_digest_in_another_process(seed, hash_seed) for hash_seed in ("1", "2")]

    assert {here, *elsewhere} == {here}
    assert bool(world.broker.all_messages("results", "sim.event.*.*.*.news")) is emitting


def test_a_digest_does_not_depend_on_the_worlds_before() -> None:
    """The addresses of new objects depend on used memory and garbage collection; a digest must not."""
    alone = {seed: _digest_in_another_process(seed, "1") for seed in (29, 36, 74, 93)}
    chance, held = Random(1), deque[list[bytearray]](maxlen=20)
    thresholds = gc.get_threshold()

    try:
        for seed in list(alone) * 2:
            held.append([bytearray(chance.randint(16, 600)) for _ in range(chance.randint(0, 5_000))])
            gc.set_threshold(chance.choice([50, 100, 313]), chance.choice([2, 5, 10]), 5)
            assert World(seed).run().digest == alone[seed], f"seed {seed}"
    finally:
        gc.set_threshold(*thresholds)


def test_changed_decision_code_is_found_in_simulated_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs: dict[str, list[Commit]] = defaultdict(list)
    for seed in range(1, 9):
        world = World(seed)
        world.run()
        for stored in world.broker.all_messages("log", world.subjects.team_logs()):
            logs[f"{seed} {stored.subject}"].append(read_commit(stored))
    assert not [each for log in logs.values() for each in differences(log)]

    monkeypatch.setattr(RetryPolicy, "delay_after", lambda *_: 0.05)

    found = [each for log in logs.values() for each in differences(log)]
    assert any("kind='retry_scheduled'" in each for each in found)


def _likely_first(*seeds: int) -> Iterator[int]:
    """Yield the seeds of these tests. Likely seeds are first, only to save time."""
    yield from seeds
    yield from _SEEDS


def test_the_worlds_meet_every_kind_of_fault() -> None:
    met: set[str] = set()
    kinds = {
        "slow", "unavailable", "lost", "unanswered", "late", "unsettled", "repeated", "unheard", "outage", "crash",
        "power", "forgotten",
    }  # fmt: skip

    for seed in _likely_first(8, 21):
        met.update(World(seed).run().faults)
        if met >= kinds:
            break

    assert met == kinds


def test_some_worlds_nest_teams_and_end_in_every_way() -> None:
    ends: set[str] = set()
    wanted = {"completed", "partial", "failed", "cancelled"}

    for seed in _likely_first(17, 39):
        world = World(seed)
        world.run()
        below = world.broker.all_messages("log", world.subjects.team_outcomes("below"))
        ends |= {parse(Outcome, decode(stored.headers, stored.body)[1]).status for stored in below}
        if ends == wanted:
            break

    assert ends == wanted


def test_some_worlds_ask_people_about_everything_with_every_answer() -> None:
    about: set[str] = set()
    verdicts: set[str] = set()
    killed = False

    for seed in (seed for seed in _likely_first(30, 37) if World(seed).asks):
        world = World(seed)
        world.run()
        entries = [
            entry
            for stored in world.broker.all_messages("log", world.subjects.team_logs())
            for entry in read_commit(stored).entries
        ]
        about |= {entry.about for entry in entries if isinstance(entry, QuestionAsked)}
        verdicts |= {entry.verdict for entry in entries if isinstance(entry, QuestionAnswered)}
        killed |= any("processes were killed while wf_" in text for _, text in world.notes)
        if (len(about), len(verdicts), killed) == (4, 4, True):
            break

    assert killed
    assert about == {"task", "tool", "plan", "information"}
    assert verdicts == {"approved", "rejected", "answered", "expired"}


def test_some_worlds_send_messages_that_are_read_refused_or_become_turns() -> None:
    met: set[str] = set()

    for seed in _likely_first(3):
        world = World(seed)
        world.run()
        met |= {"read"} if any(world.crew.reads.values()) else set()
        entries = [
            entry
            for stored in world.broker.all_messages("log", world.subjects.team_logs())
            for entry in read_commit(stored).entries
        ]
        met |= {"recorded"} if any(isinstance(entry, MessageReceived) for entry in entries) else set()
        ends = [entry.outcome for entry in entries if isinstance(entry, WorkflowEnded)]
        met |= {"unread"} if any(outcome.unread_messages for outcome in ends) else set()
        requests = [stored for stored, _ in world.requests()]
        met |= {"turn"} if any(stored.body.startswith(b'{"input":"message tell') for stored in requests) else set()
        dead = world.broker.all_messages("dead", "sim.dead.>")
        met |= {"refused"} if any(b"workflow_ended" in stored.body for stored in dead) else set()
        if len(met) == 5:
            break

    assert met == {"read", "recorded", "unread", "turn", "refused"}


def _digest_in_another_process(seed: int, hash_seed: str) -> str:
    script = f"from simulation.world import World; print(World({seed}).run().digest)"
    # Use the packages under test, because the environment may have another copy installed.
    tree = Path(__file__).parents[2]
    sources = os.pathsep.join(str(tree / folder) for folder in ("tests", "schemas", "runtime", "agents"))
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": sources}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=50
    )
    return done.stdout.strip()


def test_some_worlds_talk_in_threads_with_every_policy_and_let_turns_wait() -> None:
    policies: set[str] = set()
    waited = False

    for seed in (seed for seed in _likely_first(3, 18, 32, 38) if World(seed).talks):
        world = World(seed)
        world.run()
        policies.add(world.team.threads.busy)
        for stored in world.broker.all_messages("log", world.subjects.threads()):
            record = parse(ThreadRecord, decode(stored.headers, stored.body)[1])
            waited |= any(entry.kind == "turn_granted" for entry in record.entries)
        if waited and len(policies) == 4:
            break

    assert waited
    assert policies == {"queue", "reject", "interrupt", "parallel"}
