"""Faults that systems of this kind were seen to have around models, tools and plans, tried on Pointsman."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anthropic as anthropic_sdk  # imported here, as it takes seconds: not while a worker must show that it lives
import openai as openai_sdk
import pytest
from pydantic import BaseModel
from support.broker import remove_streams
from support.crew import CREW, planner, steps, synthesizer, team, worker
from support.processes import System, found
from support.providers import Answer, Call, FakeProvider, unpaired
from support.system import running

from pointsman.agent import agent
from pointsman.client import Client
from pointsman.context import Context
from pointsman.llm.anthropic import AnthropicModel
from pointsman.llm.openai import OpenAIModel
from pointsman.llm_agent import LLMAgent
from pointsman.ports import Model
from pointsman.settings import Settings
from pointsman.testing.clock import VirtualClock
from pointsman.tools import tool
from pointsman_schemas.card import Role
from pointsman_schemas.log import AttemptFailed, PlanAccepted, PlanRejected, TaskDispatched
from pointsman_schemas.plan import Plan
from pointsman_schemas.roles import PlannerInput, Synthesis
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Supervisor, Team

pytestmark = pytest.mark.timeout(120)

SDKS = (anthropic_sdk, openai_sdk)
KEY = "sk-test-0123456789abcdef"


def openai(provider: FakeProvider) -> Model:
    return OpenAIModel("gpt-4.1", api_key=KEY, base_url=provider.openai_url, timeout=20)


def anthropic(provider: FakeProvider) -> Model:
    return AnthropicModel("claude-haiku-4-5", api_key=KEY, base_url=provider.url, timeout=20)


both = pytest.mark.parametrize("connect", [openai, anthropic])


@asynccontextmanager
async def _closing(model: Model) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await model.close()


# A killed worker's conversation

THINKER = '''
import asyncio, json, os, pathlib
from pointsman import Context, LLMAgent, tool

here = pathlib.Path(__file__).parent

@tool(idempotent=True)
async def step(task: str, n: int, slow: bool, context: Context) -> str:
    """One step of the work."""
    return await take(task, n, slow, context)

@tool
async def pay(task: str, n: int, slow: bool, context: Context) -> str:
    """A step that may be taken once."""
    return await take(task, n, slow, context)

async def take(task, n, slow, context):
    def note(what):
        with open(here / "steps", "a") as file:
            line = {"what": what, "task": task, "n": n, "key": context.idempotency_key, "pid": os.getpid()}
            file.write(json.dumps(line) + "\\n")
    note("start")
    while slow and not (here / "released").exists():
        await asyncio.sleep(0.02)
    note("end")
    return f"step {n} is done"

thinker = LLMAgent(
    name="thinker", description="Takes steps", instructions="Take the steps.", tools=[step, pay], model="openai:gpt-4.1"
)
'''


async def test_a_worker_killed_amid_its_tools_is_followed_by_one_whose_history_pairs(
    settings: Settings, tmp_path: Path
) -> None:
    plans = {  # the steps of each round of calls; those below 0 last until the first worker is dead
        "only": [[-1]],
        "serial": [[1], [-2], [3]],
        "parallel": [[1, -2, 3]],
        "once": [[-1]],
    }

    def think(call: Call) -> Answer:
        (task,) = (name for name in plans if f'"do {name}"' in call.prompt)
        round_ = sum(message["role"] == "assistant" for message in call.body["messages"])
        if round_ == len(plans[task]):
            return Answer(f"{task} is done")
        wanted = [{"task": task, "n": abs(n), "slow": n < 0} for n in plans[task][round_]]
        name = "pay" if task == "once" else "step"
        return Answer(calls=tuple((name, arguments) for arguments in wanted))

    def noted(what: str) -> list[dict[str, Any]]:
        path = tmp_path / "steps"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line["what"] == what]

    async def all_amid() -> bool:
        kept = Subjects(settings.namespace).step(workflow.id, "parallel", 1, "result-1-2")
        all_kept = await system.client.bus.last("work", kept) is not None
        begun, ended = ({(line["task"], line["n"]) for line in noted(what)} for what in ("start", "end"))
        return begun - ended == {("only", 1), ("serial", 2), ("parallel", 2), ("once", 1)} and all_kept

    async with FakeProvider() as provider:
        provider.when("", think)
        environment = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": provider.openai_url}
        async with System(tmp_path, settings, **environment) as system:
            file = system.write("thinker.py", THINKER)
            _, _, first = await asyncio.gather(
                system.supervisor(CREW), system.worker(f"{CREW}:planner", f"{CREW}:synthesizer"), system.worker(file)
            )
            tasks = [task | {"agent": "thinker"} for task in steps(*plans)["tasks"]]
            workflow = await system.client.submit("crew", {"tasks": tasks})
            await found(all_amid, "tool of each task under way")
            await first.kill()
            (tmp_path / "released").touch()
            await system.worker(file)
            outcome = await workflow.outcome(30)
    await remove_streams(settings)

    keys: dict[tuple[str, int], set[str]] = {}
    for line in noted("start"):
        keys.setdefault((line["task"], line["n"]), set()).add(line["key"])
    assert (outcome.status, outcome.answer) == (
        "partial",
        "only is done parallel is done serial is done (once is missing)",
    )
    assert [(gap.task_id, "may have done its work or not" in gap.reason) for gap in outcome.gaps] == [("once", True)]
    assert {task.attempts for task in outcome.tasks} == {1}
    assert [unpaired(call) for call in provider.calls if unpaired(call)] == []
    assert all(len(of_a_step) == 1 for of_a_step in keys.values())  # run again under the key of the first time
    assert len({key for of_a_step in keys.values() for key in of_a_step}) == len(keys) == 8
    ended = Counter((line["task"], line["n"]) for line in noted("end"))
    assert set(ended.values()) == {1}  # what was finished is not run again
    assert ("once", 1) not in ended  # nor what may have been
    rounds = sum(len(each) + 1 for name, each in plans.items() if name != "once") + 1
    assert len(provider.calls) == rounds  # and nothing is asked for twice
    assert {line["pid"] for line in noted("start")} > {first.pid}


# Parallel calls


@both
async def test_of_eight_parallel_calls_those_that_fail_fail_alone(connect: Callable[[FakeProvider], Model]) -> None:
    runs: Counter[int] = Counter()

    @tool(retries=1, idempotent=True)
    async def work(n: int) -> str:
        """Does some work."""
        runs[n] += 1
        if n == 8 or (n in (2, 5, 7) and runs[n] == 1):
            if n == 5:  # given up by somebody else
                lost = asyncio.ensure_future(asyncio.Event().wait())
                lost.cancel()
                await lost
            raise OSError(f"{n} is out of order")
        return f"did {n}"

    async with FakeProvider.saying(
        Answer(calls=tuple(("work", {"n": n}) for n in range(1, 9))), Answer("done but for 8")
    ) as provider:
        model = connect(provider)
        thinker = LLMAgent(name="thinker", description="Works", instructions="Work.", model=model, tools=[work])
        context = Context.for_test("work", agent="thinker")
        async with _closing(model):
            output = await thinker.run(context.handoff, context)

    assert output == "done but for 8"
    assert runs == {1: 1, 2: 2, 3: 1, 4: 1, 5: 2, 6: 1, 7: 2, 8: 2}
    assert len(provider.calls) == 2
    assert all(f"did {n}" in provider.calls[1].prompt for n in range(1, 8))
    assert "work failed: OSError: 8 is out of order" in provider.calls[1].prompt


# Requests with the same id


async def test_a_request_made_by_a_step_under_its_workflows_own_id_is_another_workflow(settings: Settings) -> None:
    inner = Team(name="inner", strategy=Supervisor(synthesizer=None))
    asked: list[Client] = []

    @agent(name="nester", description="Asks another team under the id it was given")
    async def nester(work: dict[str, Any]) -> Any:
        nested = await asked[0].submit("inner", steps(work["say"]), request_id=work["id"])
        return (await nested.outcome(30)).answer

    async def ask(client: Client, number: int) -> Any:
        task = {"id": "t1", "agent": "nester", "intent": "ask", "input": {"say": f"nonce-{number}", "id": str(number)}}
        workflow = await client.submit("crew", {"tasks": [task]}, request_id=str(number))
        return (await workflow.outcome(30)).answer

    async with running(settings, team, [planner, synthesizer, worker, nester]) as client, running(settings, inner):
        asked.append(client)
        answers = await asyncio.gather(*(ask(client, number) for number in range(10)))

    assert answers == [f"nonce-{number}" for number in range(10)]


# Refusals


class Said(BaseModel):
    words: str


REFUSALS = {  # how, of whose models, after how many calls, with which words
    "by field": (Answer(refusal="I will not."), "openai", 1, "I will not."),
    "by filter": (Answer(finish="content_filter"), "openai", 1, "content filter"),
    "by silence": (Answer(), "openai", 2, "answered nothing, twice"),
    "by stop reason": (Answer(refusal="Not that."), "anthropic", 1, "Not that."),
    "by bare stop reason": (Answer(finish="content_filter"), "anthropic", 1, "content filter"),
    "by no blocks": (Answer(), "anthropic", 2, "answered nothing, twice"),
}
PLACES: dict[str, type[BaseModel]] = {"plan": Plan, "work": Said, "synthesize": Synthesis}


async def test_a_refusal_ends_what_was_refused_after_one_call_wherever_it_is(settings: Settings) -> None:
    def answer(call: Call) -> Answer:
        place = next(place for place in PLACES if f"You {place}." in call.prompt)
        for kind, (refusal, *_) in REFUSALS.items():
            if f'"refuse to {place} {kind}"' in call.prompt:
                return refusal
        who = "openai" if "/chat/" in call.path else "anthropic"
        task = {"id": "t1", "agent": f"work-{who}", "intent": "say something"}
        return Answer(
            data={"plan": {"tasks": [task]}, "work": {"words": "done"}, "synthesize": {"answer": "ok"}}[place]
        )

    async def ask(client: Client, place: str, kind: str) -> Any:
        return await (await client.submit(f"team-{REFUSALS[kind][1]}", f"refuse to {place} {kind}")).outcome(60)

    asked = [(place, kind) for place in PLACES for kind in REFUSALS]
    async with FakeProvider() as provider:
        provider.when("", answer)
        models = {"openai": openai(provider), "anthropic": anthropic(provider)}
        agents = [
            LLMAgent(
                name=f"{place}-{who}",
                description=place,
                instructions=f"You {place}.",
                role=Role(place),
                model=model,
                output=output,
                concurrency=32,
            )
            for who, model in models.items()
            for place, output in PLACES.items()
        ]
        first, second = (
            Team(name=f"team-{who}", strategy=Supervisor(planner=f"plan-{who}", synthesizer=f"synthesize-{who}"))
            for who in models
        )
        async with running(settings, first, agents) as client, running(settings, second):
            outcomes = await asyncio.gather(*(ask(client, *each) for each in asked))
        made = Counter(
            (place, kind)
            for place, kind in asked
            for call in provider.calls
            if f"You {place}." in call.prompt and f'"refuse to {place} {kind}"' in call.prompt
        )

    assert made == {(place, kind): REFUSALS[kind][2] for place, kind in asked}
    for (place, kind), outcome in zip(asked, outcomes, strict=True):
        assert outcome.status == "failed"
        assert REFUSALS[kind][3] in outcome.reason
        match place:
            case "plan":
                assert "could not be served" in outcome.answer
            case "work":  # the agent's own words are meant for who asked
                assert outcome.answer.startswith("Could not help, because ")
                assert REFUSALS[kind][3].rstrip(".") in outcome.answer
            case _:  # what there is can be read beside the refusal
                assert outcome.answer == {"words": "done"}


# Answers that break off


class _Hurried(VirtualClock):
    """Its sleeps are over at once."""

    async def sleep(self, seconds: float) -> None:
        pass


BROKEN_OFF = [
    Answer("half of it", drop=0),
    Answer("half of it", drop=40),
    Answer(body=b'{"error": {"type": "overloaded_error", "message": "Overloaded"}}'),
    Answer(body=b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'),
    Answer(body=b'{"id": "x", "choices": [{"index": 0, "message": {"role": "assis'),
    Answer(body=b""),
    Answer(body=b"\n\n\n"),
]


@both
@pytest.mark.parametrize("broken", BROKEN_OFF, ids=range(len(BROKEN_OFF)))
async def test_an_answer_that_breaks_off_is_asked_for_again_and_no_tool_runs_twice(
    connect: Callable[[FakeProvider], Model], broken: Answer
) -> None:
    runs = 0

    @tool
    async def charge(amount: int) -> str:
        """Charges an amount."""
        nonlocal runs
        runs += 1
        return "charged"

    wanted = Answer(calls=(("charge", {"amount": 5}),))
    async with FakeProvider.saying(broken, wanted, broken, broken, Answer("done")) as provider:
        model, clock = connect(provider), _Hurried(datetime.now(UTC))
        thinker = LLMAgent(name="thinker", description="d", instructions="i", model=model, tools=[charge], clock=clock)
        context = Context.for_test("charge it", agent="thinker")
        async with _closing(model):
            output = await thinker.run(context.handoff, context)

    assert (output, runs, len(provider.calls)) == ("done", 1, 5)


# Half a character


@both
async def test_half_a_character_of_a_model_does_not_break_the_next_request(
    connect: Callable[[FakeProvider], Model],
) -> None:
    @tool
    async def note(text: str) -> str:
        """Notes a text."""
        return text

    half = "\ud800"
    called = Answer(half, calls=(("note", {"text": half}),))
    async with FakeProvider.saying(called, Answer(data={"words": half}), Answer(data={"words": "ok"})) as provider:
        model = connect(provider)
        thinker = LLMAgent(name="t", description="d", instructions="i", model=model, tools=[note], output=Said)
        context = Context.for_test("note it", agent="t")
        async with _closing(model):
            output = await thinker.run(context.handoff, context)

    assert output == {"words": "ok"}
    assert len(provider.calls) == 3


# Plans that cannot be read

GOOD = '{"goal": "g", "tasks": [{"id": "t1", "agent": "worker", "intent": "say it", "input": {"say": "said"}}]}'
READ_AT_ONCE = {
    "fenced": f"```json\n{GOOD}\n```",
    "prose": f"Here is the plan you asked for: {GOOD} Tell me if it will do.",
    "byte order mark": "\ufeff" + GOOD,
    "spaces": " " * 200_000 + GOOD,
}
UNREADABLE = {
    "two objects": f"{GOOD} or {GOOD}",
    "trailing comma": GOOD.replace("}]}", "}],}"),
    "single quotes": GOOD.replace('"', "'"),
    "missing field": GOOD.replace('"agent": "worker", ', ""),
    "null field": GOOD.replace('"worker"', "null"),
    "an array": f"[{GOOD}, {GOOD}]",
    "a number for a name": GOOD.replace('"worker"', "7"),
    "nothing but spaces": " " * 200_000,
    "prose alone": "I would ask the worker. " * 400,
}


async def test_a_planner_that_cannot_write_json_is_asked_once_more_and_what_it_wrote_is_kept(
    settings: Settings,
) -> None:
    async with FakeProvider() as provider:
        for name, text in {**READ_AT_ONCE, **UNREADABLE}.items():
            for stays in ("", " for ever"):
                provider.when(f'"{name}{stays}"', _writes(text, stays=bool(stays)))
        written = LLMAgent(
            name="planner",
            description="Plans",
            instructions="Plan.",
            role=Role.PLAN,
            input=PlannerInput,
            output=Plan,
            output_name="plan",
            model=openai(provider),
            concurrency=32,
        )
        async with running(settings, team, [written, synthesizer, worker]) as client:

            async def ask(request: str) -> tuple[Any, list[Any]]:
                workflow = await client.submit("crew", request)
                return await workflow.outcome(30), list(await client.entries(workflow.id))

            at_once = await asyncio.gather(*map(ask, READ_AT_ONCE))
            repaired = await asyncio.gather(*map(ask, UNREADABLE))
            hopeless = await asyncio.gather(*(ask(f"{name} for ever") for name in UNREADABLE))

    asked = Counter(json.loads(call.prompt.split("<input>\n")[1].split("\n</input>")[0])["request"]
                    for call in provider.calls)  # fmt: skip
    assert {(outcome.status, outcome.answer) for outcome, _ in [*at_once, *repaired]} == {("completed", "said")}
    assert {outcome.status for outcome, _ in hopeless} == {"failed"}
    assert asked == {
        **dict.fromkeys(READ_AT_ONCE, 1),
        **dict.fromkeys(UNREADABLE, 2),
        **dict.fromkeys((f"{name} for ever" for name in UNREADABLE), 2),
    }
    for (outcome, entries), text in zip(hopeless, UNREADABLE.values(), strict=True):
        (failed,) = (entry for entry in entries if isinstance(entry, AttemptFailed))
        assert failed.error.message in outcome.reason
        assert failed.result is not None
        kept = failed.result.output
        assert kept is None if not text.strip() else isinstance(kept, str) and kept[:4000] == text[:4000]
        assert len(str(kept)) < 4100


def _writes(text: str, *, stays: bool) -> Callable[[Call], Answer]:
    return lambda call: Answer(GOOD if not stays and "cannot be used" in call.prompt else text)


# Agents that do not exist, or nearly

NEARLY = [
    "WORKER",
    '"worker"',
    "work-er",
    "'worker'",
    "manager",
    "planner",
    "synthesizer",
    "crew",
    "",
    "*",
    "worker\n\nx",
]


async def test_a_name_that_is_nearly_an_agents_goes_back_to_the_planner_with_the_names_there_are(
    settings: Settings,
) -> None:
    async def ask(client: Client, name: str) -> tuple[Any, list[PlanRejected], list[TaskDispatched]]:
        (task,) = steps("a")["tasks"]
        wrong, right = task | {"agent": name}, {"tasks": [task]}
        workflow = await client.submit("crew", {"tasks": [wrong], "repaired": right})
        outcome = await workflow.outcome(30)
        entries = await client.entries(workflow.id)
        return (
            outcome,
            [entry for entry in entries if isinstance(entry, PlanRejected)],
            [entry for entry in entries if isinstance(entry, TaskDispatched) and entry.task_id == "a"],
        )

    async with running(settings, team, [planner, synthesizer, worker]) as client:
        trimmed = await asyncio.gather(*(ask(client, name) for name in ("worker ", "\tworker\n")))
        nearly = await asyncio.gather(*(ask(client, name) for name in NEARLY))

    for outcome, rejected, dispatched in trimmed:
        assert (outcome.status, rejected, len(dispatched)) == ("completed", [], 1)
    for outcome, rejected, dispatched in nearly:
        assert (outcome.status, len(dispatched)) == ("completed", 1)
        (once,) = rejected
        assert "not one of: worker" in once.problems[0]


async def test_an_agent_that_comes_while_the_plan_goes_back_may_be_named_in_the_next(settings: Settings) -> None:
    come = asyncio.Event()

    @agent(name="planner", description="Names who is not there yet", role=Role.PLAN)
    async def hopeful(asked: PlannerInput) -> Plan:
        if asked.problems:
            async with asyncio.timeout(20):
                await come.wait()
        return Plan.model_validate(
            {"tasks": [{"id": "t1", "agent": "worker", "intent": "say it", "input": {"say": 1}}]}
        )

    async with running(settings, team, [hopeful, synthesizer]) as client:
        workflow = await client.submit("crew", "say it")
        async for event in workflow.events():
            if isinstance(event, PlanRejected):
                break
        async with running(settings, None, [worker]):
            come.set()
            outcome = await workflow.outcome(20)
            entries = await client.entries(workflow.id)

    assert outcome.status == "completed"
    assert sum(isinstance(entry, PlanRejected) for entry in entries) == 1
    assert sum(isinstance(entry, PlanAccepted) for entry in entries) == 1
