"""Messages to workflows are read, recorded, refused, or start a turn, on the memory bus with the real engines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support import factory
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.bus.memory.bus import MemoryBroker
from pointsman.client.client import Client
from pointsman.engine.operations.messages import MessageRefusedError
from pointsman.errors import ContractError, NotFoundError
from pointsman.testing.models import ScriptedModel, text_reply
from pointsman_schemas.events import Control
from pointsman_schemas.log import MessageReceived
from pointsman_schemas.strict_json import dump
from pointsman_schemas.team import Limits, Pipeline, Stage, Team, ThreadPolicy

SOLO = Pipeline(stages=(Stage(agent="a"),))
CREW = Team(name="crew", strategy=SOLO, threads=ThreadPolicy(busy="reject"))


class Listener:
    """An agent that ends its work after it has read the message `stop`, or when the gate opens."""

    def __init__(self) -> None:
        self.started, self.gate = asyncio.Event(), asyncio.Event()

    def agent(self) -> Agent:
        @agent(name="a", description="Listens")
        async def listen(request: str, context: Context) -> list[str]:
            self.started.set()
            while not self.gate.is_set():
                said = [each.text for each in await context.messages()]
                if "stop" in said:
                    return said
                await asyncio.sleep(0.01)
            return []

        return listen

    def deaf(self) -> Agent:
        @agent(name="a", description="Does not listen")
        async def work(request: str) -> str:
            self.started.set()
            await self.gate.wait()
            return f"did {request}"

        return work


async def recorded(client: Client, workflow: str) -> list[tuple[int, str, str]]:
    entries = await client.entries(workflow)
    return [(each.number, each.text, each.by) for each in entries if isinstance(each, MessageReceived)]


async def test_listening_agent_reads_messages_while_it_works() -> None:
    listener = Listener()
    async with factory.team(CREW, [listener.agent()]) as client:
        workflow = await client.submit("crew", "work")
        await listener.started.wait()
        first = await client.tell(workflow.id, "hurry")
        second = await workflow.tell("stop", actor="bo")
        outcome = await workflow.outcome(10)

        assert (first.number, second.number, first.next_turn) == (1, 2, None)
        assert outcome.answer == ["hurry", "stop"]
        assert outcome.unread_messages == 0
        assert await recorded(client, workflow.id) == [(1, "hurry", "anonymous"), (2, "stop", "bo")]


async def test_message_with_the_same_id_counts_once() -> None:
    listener = Listener()
    async with factory.team(CREW, [listener.agent()], supervisors=2) as client:
        workflow = await client.submit("crew", "work")
        await listener.started.wait()
        told = await asyncio.gather(*(client.tell(workflow.id, "hurry", message_id="order 17") for _ in range(3)))
        await client.tell(workflow.id, "stop")
        await workflow.outcome(10)
        after = await client.tell(workflow.id, "hurry", message_id="order 17")

        assert [each.number for each in (*told, after)] == [1, 1, 1, 1]
        assert [text for _, text, _ in await recorded(client, workflow.id)] == ["hurry", "stop"]


async def test_message_before_the_workflow_begins_is_recorded_when_it_begins() -> None:
    listener, broker = Listener(), MemoryBroker()
    async with factory.team([], [listener.agent()], broker=broker) as client:
        workflow = await client.submit("crew", "work")
        told = await client.tell(workflow.id, "stop")
        async with factory.team(CREW, [], broker=broker):
            outcome = await workflow.outcome(20)

    assert told.number is None
    assert "when a supervisor admits the request" in told.message
    assert outcome.answer == ["stop"]


async def test_message_after_the_end_of_a_turn_is_the_next_turn_of_its_thread() -> None:
    listener = Listener()
    listener.gate.set()
    async with factory.team(CREW, [listener.deaf()]) as client:
        talk = client.thread("crew")
        workflow = await talk.submit("one")
        await workflow.outcome(10)

        told = await client.tell(workflow.id, "two", message_id="m")
        again = await client.tell(workflow.id, "two", message_id="m")
        assert told.next_turn is not None
        outcome = await factory.workflow_of(client, told.next_turn).outcome(10)
        state = await talk.state()

    assert (told.number, again.next_turn) == (None, told.next_turn)
    assert outcome.answer == "did two"
    assert state is not None
    assert [(each.request, each.outcome) for each in state.turns] == [("one", "completed"), ("two", "completed")]


async def test_message_that_no_task_has_read_is_the_next_turn_of_its_thread() -> None:
    listener = Listener()
    async with factory.team(CREW, [listener.deaf()]) as client:
        talk = client.thread("crew")
        workflow = await talk.submit("one")
        await listener.started.wait()
        told = await client.tell(workflow.id, "two")
        listener.gate.set()
        outcome = await workflow.outcome(10)
        state: Any = await until(lambda: ended_turns(talk, 2))

    assert (told.number, outcome.answer, outcome.unread_messages) == (1, "did one", 1)
    assert [(each.request, each.answer) for each in state.turns] == [("one", "did one"), ("two", "did two")]


async def ended_turns(talk: Any, count: int) -> Any:
    state = await talk.state()
    return state if state and sum(each.status == "ended" for each in state.turns) == count else None


async def test_message_of_another_user_after_the_end_is_refused() -> None:
    listener = Listener()
    listener.gate.set()
    async with factory.team(CREW, [listener.deaf()]) as client:
        workflow = await client.thread("crew", "talk").submit("one")
        await workflow.outcome(10)

        with pytest.raises(MessageRefusedError, match="only anonymous can continue its thread talk"):
            await client.operations.tell(workflow.id, "two", actor="bo")


async def test_message_after_the_end_without_a_thread_is_refused_and_not_sent() -> None:
    listener = Listener()
    listener.gate.set()
    async with factory.team(CREW, [listener.deaf()]) as client:
        workflow = await client.submit("crew", "one")
        await workflow.outcome(10)

        with pytest.raises(MessageRefusedError, match="has ended as completed, so no step is left"):
            await client.tell(workflow.id, "two")
        assert [each async for each in client.bus.read("controls", ">")] == []


async def test_late_message_of_another_program_is_a_dead_letter_with_the_reason() -> None:
    listener = Listener()
    listener.gate.set()
    async with factory.team(CREW, [listener.deaf()]) as client:
        workflow = await client.submit("crew", "one")
        await workflow.outcome(10)
        subject = client.subjects.control("crew", workflow.id, "tell", "bo", "x")
        await client.bus.publish(subject, dump(Control(action="tell", text="two")), {})
        letter: Any = await until(client.operations.dead_letters)

    assert (letter[0].content.cause.kind, letter[0].content.workflow_id) == ("workflow_ended", workflow.id)
    assert "send a new request" in letter[0].content.cause.message


async def test_message_over_the_limit_is_refused_with_the_limit() -> None:
    listener = Listener()
    team = CREW.model_copy(update={"limits": Limits(messages=1)})
    async with factory.team(team, [listener.agent()]) as client:
        workflow = await client.submit("crew", "work")
        await listener.started.wait()
        await client.tell(workflow.id, "hurry")

        with pytest.raises(MessageRefusedError, match="has 1 messages; at most 1 are allowed"):
            await client.tell(workflow.id, "hurry more")
        listener.gate.set()


@pytest.mark.parametrize("text", ["", " \n", "x" * 4_001])
async def test_empty_or_long_message_is_not_sent(text: str) -> None:
    async with factory.team(CREW, []) as client:
        with pytest.raises(ContractError, match="nothing was sent"):
            await client.tell("wf_1", text)


async def test_message_to_an_unknown_workflow_is_refused() -> None:
    async with factory.team(CREW, []) as client:
        with pytest.raises(NotFoundError, match="there is no workflow wf_1"):
            await client.tell("wf_1", "hello")


async def test_shipped_synthesizer_reads_the_messages_as_data() -> None:
    listener, writer = Listener(), ScriptedModel(text_reply('{"answer": "done"}'))
    from pointsman_agents.synthesizer import synthesizer

    team = Team(name="crew")
    agents = [factory.planner_of(factory.ONE_TASK), listener.deaf(), synthesizer.with_model(writer)]
    async with factory.team(team, agents) as client:
        workflow = await client.submit("crew", "work")
        await listener.started.wait()
        await client.tell(workflow.id, "in French, please")
        listener.gate.set()
        outcome = await workflow.outcome(10)

    assert '<messages>\n["in French, please"]\n</messages>' in writer.requests[0].turns[0].text
    assert outcome.unread_messages == 0


async def test_agent_of_a_team_below_reads_messages_to_the_workflow_above() -> None:
    listener = Listener()
    below = Team(name="below", strategy=SOLO)
    above = Team(name="crew", agents=("below",), strategy=Pipeline(stages=(Stage(agent="below"),)))
    broker = MemoryBroker()
    async with (
        factory.team(below, [listener.agent()], broker=broker),
        factory.team(above, [], broker=broker) as client,
    ):
        workflow = await client.submit("crew", "work")
        await listener.started.wait()
        await client.tell(workflow.id, "hurry")
        await client.tell(workflow.id, "stop")
        outcome = await workflow.outcome(15)

    assert outcome.answer == ["hurry", "stop"]
    assert outcome.unread_messages == 0
