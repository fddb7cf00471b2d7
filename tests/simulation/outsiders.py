"""Actors outside the system: callers, operators, approvers, senders of stray messages, and the power supply."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from pointsman.engine.log.reader import read_commit
from pointsman.engine.operations.dead_letter_replay import NotReplayableError
from pointsman.engine.operations.dead_letters import DeadLetters
from pointsman.engine.operations.resume import NotResumableError, resume_workflow
from pointsman.errors import BusUnavailableError, ContractError, NotFoundError
from pointsman.ports.bus import StoredMessage
from pointsman.testing.faults import FaultyBus
from pointsman.testing.simulation import SimulatedProcess
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Control, Handoff, Result
from pointsman_schemas.log import QuestionAsked, WorkflowEnded
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import HandoffAddress
from simulation.draws import answers, request

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["Outsiders"]

_LAST_CANCEL_S = 17.0  # simulated seconds until the search for a waiting request ends
_LOOK_INTERVAL_S = 0.1


class Outsiders:
    """All actors outside the system of `world`."""

    def __init__(self, world: World) -> None:
        self.world = world

    def disturbances(self) -> Iterator[Any]:
        """Yield the actions of each actor in order. The power cuts are last."""
        chance = self.world.chance
        for number in range(chance.randint(1, 4)):
            yield self._submit(f"r{number}")
        for number in range(4 if self.world.talks else 0):
            yield self._submit(f"talk{number}")
        for number in range(chance.choice([0, 0, 1, 2])):
            yield self._cancel(f"cancel-{number}", chance.uniform(0.5, 14.0))
        for _ in range(chance.choice([0, 1, 6])):
            yield self._publish_stray(chance.uniform(0.2, 17.0))
        if Random(f"{self.world.seed}/forestalled").random() < 0.3:
            yield self._block_outcome(Random(f"{self.world.seed}/forestall"))
        waiting = Random(f"{self.world.seed}/cancels-waiting")
        for number in range(waiting.choice([0, 0, 1, 2])):
            yield self._cancel_waiting(f"cancel-waiting-{number}", waiting.uniform(0.0, 12.0))
        resumes = Random(f"{self.world.seed}/resumes")
        for number in range(resumes.choice([0, 0, 1, 3])):
            yield self._resume(number, Random(f"{self.world.seed}/resume-{number}"))
        for number in range(chance.choice([0, 0, 2, 4])):
            yield self._replay(number, chance.uniform(2.0, 19.0))
        if self.world.asks and Random(f"{self.world.seed}/outage").random() < 0.6:
            yield self._outage(Random(f"{self.world.seed}/outage-pause"))
        tells = Random(f"{self.world.seed}/tells")
        for number in range(tells.choice([0, 0, 2, 5])):
            yield self._tell(f"tell-{number}", Random(f"{self.world.seed}/tell-{number}"))
        for number in range(self.world.cuts):
            yield self._power_cut(Random(f"{self.world.seed}/cut-{number}"))

    async def _submit(self, name: str) -> None:
        """Send a request of a random form. Sometimes repeat it, or send another request with the same id."""
        chance = Random(f"{self.world.seed}/{name}")
        threads = Random(f"{self.world.seed}/{name}-thread")
        thread = threads.choice(["t0", "t0", "t0", "t1", None]) if self.world.talks else None
        headers, body = request(chance, name, self.world.clock, thread)
        another = Random(f"{self.world.seed}/{name}-another").random() < 0.3
        for time in range(chance.choice([1, 1, 1, 2, 3])):
            await asyncio.sleep(chance.uniform(0.0, 5.0))
            if time and another:
                body = body.replace(b"please do", b"never do")
            self._inject(self.world.subjects.request(self.world.team.name, "anonymous"), body, headers)

    async def _cancel(self, name: str, when: float) -> None:
        await asyncio.sleep(when)
        self._inject_cancel(name, self._some_workflow())

    async def _cancel_waiting(self, name: str, when: float) -> None:
        """Cancel the first workflow whose request is queued, so the workflow has no log yet."""
        await asyncio.sleep(when)
        while self.world.clock.monotonic() < _LAST_CANCEL_S:
            for _, workflow in self.world.requests():
                if not self.world.broker.all_messages("log", self.world.subjects.workflow_log(workflow)):
                    return self._inject_cancel(name, workflow)
            await asyncio.sleep(_LOOK_INTERVAL_S)
        return None

    def _inject_cancel(self, name: str, workflow: str) -> None:
        control = Control(action="cancel", reason="no longer wanted")
        subject = self.world.subjects.control(self.world.team.name, workflow, "cancel", "operator", name)
        headers = self._headers(name, Control.event_type)
        self._inject(subject, dump(control), headers)
        if self.world.chance.random() < 0.3:
            self._inject(subject, dump(control), headers)

    async def _tell(self, name: str, chance: Random) -> None:
        """Send a message to a workflow, sometimes twice: before its start, while it runs, or after its end."""
        await asyncio.sleep(chance.uniform(0.1, 16.0))
        known = sorted({workflow for _, workflow in self.world.requests()})
        workflow = chance.choice(known[-4:]) if known else "wf_unknown"
        actor, team = chance.choice(["anonymous", "anonymous", "operator"]), self.world.team.name
        self.world.told[name] = (workflow, actor, f"message {name}")
        control = Control(action="tell", text=f"message {name}")
        subject = self.world.subjects.control(team, workflow, "tell", actor, name)
        for _ in range(chance.choice([1, 1, 2])):
            self._inject(subject, dump(control), self._headers(name, Control.event_type))
            await asyncio.sleep(chance.choice([0.0, 0.0, 3.0]))

    async def _publish_stray(self, when: float) -> None:
        """Send a message that no correct agent or caller sends."""
        await asyncio.sleep(when)
        chance = self.world.chance
        handoffs = self.world.broker.stream("handoffs").select("sim.handoff.>")
        workflow, team = self._some_workflow(), self.world.team.name
        agent, task, attempt, token = "alpha", "nothing", 1, "forged"
        if handoffs:
            stored = chance.choice(handoffs[-6:])
            address = self.world.subjects.parse(stored.subject, HandoffAddress)
            agent, workflow, task, attempt = address.agent, address.workflow, address.task, address.attempt
            if chance.random() < 0.7:
                token = self._token_of(stored)
        kind = chance.choice(
            ["garbage", "foreign", "again", "early", "late", "late", "odd", "control", "timer", "handoff", "version"]
        )
        subject = self.world.subjects.result(team, agent, workflow, task, attempt, token)
        body, headers = b'{"half": ', self._headers(f"stray-{when}", Result.event_type)
        match kind:
            case "foreign" | "early" | "late":
                match kind:
                    case "foreign":
                        agent = "beta" if agent != "beta" else "gamma"
                    case "early":
                        attempt += 1
                    case _:
                        sent = [self.world.subjects.parse(stored.subject, HandoffAddress) for stored in handoffs]
                        again = [address for address in sent if address.attempt > 1]
                        if again:
                            workflow, agent, task = again[-1].workflow, again[-1].agent, again[-1].task
                            attempt = again[-1].attempt - 1
                subject = self.world.subjects.result(team, agent, workflow, task, attempt, token)
                body = dump(self._result(workflow, task, attempt, agent))
            case "again":
                earlier = self.world.broker.all_messages("results", subject)
                body = earlier[0].body if earlier else dump(self._result(workflow, task, attempt, agent))
                headers = dict(earlier[0].headers) if earlier else headers
            case "odd":
                odd = chance.choice(["control.{}.{}.dance.ada.what", "result.{}.a.{}.b.0.c", "timer.{}.{}.what"])
                subject = f"sim.{odd.format(team, workflow)}"
            case "control":
                subject = self.world.subjects.control(
                    team, chance.choice([workflow, "wf_unknown"]), "replay", "operator", "stray"
                )
                headers = self._headers("stray", Control.event_type)
                body = chance.choice([b"{}", dump(Control(action="replay", task_id=task)), b'{"action": "dance"}'])
            case "timer":
                # Never the subject of a timer that may still be armed, because the timer could then not be scheduled.
                # In a real system, permissions allow only the broker to publish on such a subject.
                subject = self.world.subjects.timer(team, workflow, "wake-0")
            case "handoff":
                subject = self.world.subjects.handoff(agent, team, workflow, "stray", 1)
            case "version":
                headers = self._headers(f"stray-{when}", "io.pointsman.result.v9")
                body = dump(self._result(workflow, task, attempt, agent))
        self.world.note(f"stray {kind}")
        self._inject(subject, body, headers)

    async def _block_outcome(self, chance: Random) -> None:
        """Occupy the subject of a future outcome."""
        await asyncio.sleep(chance.uniform(0.2, 12.0))
        subjects, team = self.world.subjects, self.world.team.name
        places = sorted({subjects.outcome(team, workflow) for _, workflow in self.world.requests()})
        if free := [place for place in places if not self.world.broker.all_messages("log", place)]:
            self.world.note("stray outcome")
            self._inject(chance.choice(free), b"{}", {})

    async def _replay(self, number: int, when: float) -> None:
        """Replay a dead letter as an operator. The operator's process may crash during the replay."""
        await asyncio.sleep(when)
        process = SimulatedProcess(f"operator-{number}")
        letters = DeadLetters(
            FaultyBus(self.world.outside, self.world.faults, process), self.world.subjects, clock=self.world.clock
        )

        async def replay() -> None:
            there = await letters.list()
            if there:
                letter = self.world.chance.choice(there)
                done = await letters.replay(
                    letter, as_new=self.world.chance.random() < 0.5, keep=self.world.chance.random() < 0.3
                )
                self.world.note(f"{process.name} replayed {done.letter}: {done.action} of {done.workflow}")

        main = process.start(replay())
        await process.wait()
        error = None if main.cancelled() else main.exception()
        if error is not None and not isinstance(error, BusUnavailableError | NotReplayableError | NotFoundError):
            self.world.problems.append(f"{process.name} ended with {error!r}")

    async def _resume(self, number: int, chance: Random) -> None:
        """Resume a failed or partial workflow as an operator, sometimes twice at once, or by a raw control message."""
        await asyncio.sleep(chance.uniform(2.0, 19.0))
        if not (ended := self._resumable()):
            return
        workflow = chance.choice(ended)
        if chance.random() < 0.3:  # a control message without a round
            name = f"resume-{number}"
            control = Control(action="resume")
            subject = self.world.subjects.control(self.world.team_of(workflow), workflow, "resume", "program", name)
            for _ in range(chance.choice([1, 2])):
                self._inject(subject, dump(control), self._headers(name, Control.event_type))
            return
        await asyncio.gather(
            *(self._resume_once(f"resumer-{number}-{turn}", workflow) for turn in range(chance.choice([1, 1, 2])))
        )

    async def _resume_once(self, name: str, workflow: str) -> None:
        process = SimulatedProcess(name)
        bus = FaultyBus(self.world.outside, self.world.faults, process)

        async def resume() -> None:
            done = await resume_workflow(bus, self.world.subjects, self.world.clock, workflow, actor="operator")
            self.world.note(f"{name} resumed {workflow}: round {done.round}, tasks {', '.join(done.tasks)}")

        main = process.start(resume())
        await process.wait()
        error = None if main.cancelled() else main.exception()
        if error is not None and not isinstance(error, BusUnavailableError | NotResumableError | NotFoundError):
            self.world.problems.append(f"{name} ended with {error!r}")

    def _resumable(self) -> list[str]:
        """Return the workflows that ended as failed or partial."""
        newest = {
            stored.subject: stored
            for stored in self.world.broker.all_messages("log", self.world.subjects.team_logs())
            if self.world.broker.removed_at(stored) is None
        }
        found: list[str] = []
        for subject, stored in sorted(newest.items()):
            last = read_commit(stored).entries[-1]
            if isinstance(last, WorkflowEnded) and last.outcome.status in ("failed", "partial"):
                found.append(subject.rpartition(".")[2])
        return found

    async def _outage(self, chance: Random) -> None:
        """Kill all processes while a question is open. No process starts again until the question may have expired."""
        while not any(self._open_questions()) and self.world.clock.monotonic() < 18.0:
            await asyncio.sleep(0.1)
        for process in self.world.processes.values():
            process.kill()
        self.world.down_until = self.world.clock.monotonic() + chance.uniform(0.5, 8.0)
        self.world.note(f"all processes were killed while {' '.join(self._open_questions()) or 'no question'} was open")
        await asyncio.sleep(self.world.down_until - self.world.clock.monotonic())

    def _open_questions(self) -> list[str]:
        newest = {
            stored.subject: stored
            for stored in self.world.broker.all_messages("log", self.world.subjects.team_logs())
            if self.world.broker.removed_at(stored) is None
        }
        return [name for stored in newest.values() for name in read_commit(stored).open_questions]

    async def _power_cut(self, chance: Random) -> None:
        """Cut the power. The broker loses handoffs that it has not synced."""
        await asyncio.sleep(chance.uniform(0.0, 14.0))
        steps = [self.world.broker.sync_handoffs, self.world.broker.sync_consumers]
        chance.shuffle(steps)
        for step in steps:  # in random order, and some are not synced at all
            if chance.random() < 0.8:
                step()
            await asyncio.sleep(chance.choice([0.0, 0.05, 0.5, 2.0]))
        end = self.world.broker.stream("handoffs").end
        self.world.broker.power_cut()
        left = self.world.broker.stream("handoffs").end
        self.world.foreign -= {("handoffs", gone) for gone in range(left + 1, end + 1)}
        self.world.faults.counts["power"] += 1
        self.world.faults.counts["forgotten"] += end - left
        self.world.note(f"power cut: {end - left} of {end} handoffs forgotten")

    async def people(self, chance: Random) -> None:
        """Answer approvals. Some answers are sent twice, late or invalid, and some approvals get no answer."""
        read, number = 0, 0
        while not self.world.over.is_set():
            await asyncio.sleep(chance.uniform(0.2, 1.0))
            new = [
                stored
                for stored in self.world.broker.all_messages("log", self.world.subjects.team_logs())
                if stored.sequence > read
            ]
            for stored in new:
                read = stored.sequence
                for entry in read_commit(stored).entries:
                    if isinstance(entry, QuestionAsked):
                        number += 1
                        workflow = stored.subject.rpartition(".")[2]
                        for turn, (action, given) in enumerate(answers(chance, entry)):
                            name = f"answer-{number}-{turn}"
                            control = Control(action=action, question=entry.question, input=given)
                            await self._answer(name, workflow, control, chance)

    async def _answer(self, name: str, workflow: str, control: Control, chance: Random) -> None:
        if chance.random() < 0.2:
            await asyncio.sleep(chance.choice([1.0, 13.0]))
        self.world.answers[name] = control
        team = self.world.team_of(workflow)
        subject = self.world.subjects.control(team, workflow, control.action, "operator", name)
        self._inject(subject, dump(control), self._headers(name, Control.event_type))

    def _token_of(self, handoff: StoredMessage) -> str:
        """Return the token of an attempt, which an agent finds in its handoff."""
        with suppress(ContractError):
            return parse(Handoff, handoff.body).return_to.rpartition(".")[2]
        return "forged"

    def _some_workflow(self) -> str:
        known = sorted({workflow for _, workflow in self.world.requests()})
        return self.world.chance.choice(known) if known else "wf_unknown"

    def _result(self, workflow: str, task: str, attempt: int, agent: str) -> Result:
        now = self.world.clock.now()
        return Result(
            workflow_id=workflow, task_id=task, attempt=attempt, agent=agent, status="succeeded", output="stray",
            started_at=now, ended_at=now,
        )  # fmt: skip

    def _headers(self, name: str, event_type: str) -> dict[str, str]:
        return encode(Envelope(id=name, type=event_type, source="/outside", time=self.world.clock.now()))

    def _inject(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        self.world.foreign.add(
            (self.world.broker.stream_of(subject), self.world.broker.store(subject, body, dict(headers)))
        )
