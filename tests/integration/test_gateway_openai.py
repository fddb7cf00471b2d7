"""The real SDK of OpenAI and agent frameworks of other makers use the OpenAI-compatible API."""

from __future__ import annotations

import asyncio
import json
import sys
import sysconfig
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support import factory
from support.broker import own_settings, restart_broker
from support.factory import RunningTeam
from support.gateway import gateway_process, http_client, served_gateway
from support.processes import System
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.errors import TaskError
from pointsman.gateway.keys import KeyStore
from pointsman.settings import Settings
from pointsman_schemas.card import Role
from pointsman_schemas.plan import Plan
from pointsman_schemas.role_io import PlannerInput, Synthesis, SynthesizerInput
from pointsman_schemas.team import Limits, RetryPolicy, Team

pytestmark = pytest.mark.timeout(120)

TEAM = Team(name="helpers", description="Repeats", limits=Limits(deadline=60), retry=RetryPolicy(attempts=1))
HISTORY: list[Any] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "My name is Ada."},
    {"role": "assistant", "content": "Hello Ada."},
    {"role": "user", "content": [{"type": "text", "text": "What is my name?"}]},
]
TITLE = """### Task:
Generate a concise, 3-5 word title with an emoji summarizing the chat history.
### Output:
JSON format: { "title": "your concise title here" }
### Chat History:
<chat_history>
USER: Why does my bike squeak when it rains
ASSISTANT: Because of the chain.
</chat_history>"""


@agent(name="synthesizer", description="Returns the result", role=Role.SYNTHESIZE)
async def joiner(asked: SynthesizerInput, context: Context) -> Synthesis:
    (report,) = context.results.values()
    return Synthesis(answer=str(report.output))


class Helpers:
    """Agents of a team that answer with the request, and that wait or fail if the request says so."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.requests: list[str] = []

        @agent(name="repeater", description="Repeats the request")
        async def repeat(request: str) -> str:
            self.requests.append(request)
            await self.go.wait()
            if request.startswith("fail"):
                raise TaskError("out of words")
            return request

        self.agents: list[Agent] = [planner, repeat, joiner]


@agent(name="planner", description="Hands the request on", role=Role.PLAN)
async def planner(asked: PlannerInput) -> Plan:
    task = {"id": "t1", "agent": "repeater", "intent": "repeat it", "input": asked.request}
    return Plan.model_validate({"goal": "an answer", "tasks": [task]})


@pytest.fixture
async def helpers() -> Helpers:
    return Helpers()


@pytest.fixture
async def crew(settings: Settings, helpers: Helpers) -> AsyncIterator[RunningTeam]:
    async with factory.team(TEAM, helpers.agents, on=settings) as running:
        yield running


@pytest.fixture
async def address(crew: RunningTeam, settings: Settings) -> AsyncIterator[str]:
    async with served_gateway(settings) as address:
        yield address


@pytest.fixture
async def client(address: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", timeout=30, max_retries=0) as client:
        yield client


async def workflows(crew: RunningTeam) -> list[str]:
    return [summary.id for summary in await crew.list(limit=100)]


# Chat completions


async def test_teams_are_models(client: openai.AsyncOpenAI) -> None:
    async def listed() -> list[str]:
        """Return the models. On a busy machine, the card of a team may expire and return."""
        return [model.id async for model in client.models.list()]

    models = await until(listed, seconds=30)

    assert models == ["helpers"]
    assert (await client.models.retrieve("helpers")).owned_by == "pointsman"
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("unknown")
    assert caught.value.code == "model_not_found"


async def test_a_completion_is_the_answer_of_a_workflow(
    client: openai.AsyncOpenAI, crew: RunningTeam, helpers: Helpers
) -> None:
    completion = await client.chat.completions.create(
        model="helpers", messages=[{"role": "user", "content": "say hello"}], temperature=0.2,
        tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}], extra_body={"unknown": {"x": 1}},
    )  # fmt: skip

    message = completion.choices[0].message
    assert (message.content, message.tool_calls, completion.choices[0].finish_reason) == ("say hello", None, "stop")
    assert completion.id == f"chatcmpl-{(await workflows(crew))[0]}"
    assert completion.usage is not None
    assert helpers.requests == ["say hello"]


async def test_the_earlier_messages_are_sent_as_fenced_data(client: openai.AsyncOpenAI, helpers: Helpers) -> None:
    await client.chat.completions.create(model="helpers", messages=HISTORY)

    (request,) = helpers.requests
    first, _, data = request.partition("\n\n")
    assert first == "What is my name?"
    lines = data.splitlines()
    assert (lines[1], lines[-1]) == ("```json", "```")
    assert [json.loads(line) for line in lines[2:-1]] == [
        {"role": "system", "text": "Be short."},
        {"role": "user", "text": "My name is Ada."},
        {"role": "assistant", "text": "Hello Ada."},
    ]


async def test_a_stream_has_the_work_as_reasoning_then_the_answer_and_the_usage(client: openai.AsyncOpenAI) -> None:
    text, reasoning, finishes, usages = "", "", [], []
    stream = await client.chat.completions.create(
        model="helpers", messages=[{"role": "user", "content": "word " * 200}], stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finishes += [choice.finish_reason] if choice.finish_reason else []
            assert choice.delta.tool_calls is None
        usages += [chunk.usage] if chunk.usage else []

    assert text == "word " * 200
    assert "repeater: repeat it\n" in reasoning
    assert (finishes, len(usages)) == (["stop"], 1)


def test_the_synchronous_client_streams_and_completes(settings: Settings) -> None:
    async def both() -> tuple[str, str]:
        helpers = Helpers()
        async with factory.team(TEAM, helpers.agents, on=settings), served_gateway(settings) as address:
            return await asyncio.to_thread(ask, address)

    def ask(address: str) -> tuple[str, str]:
        with openai.OpenAI(base_url=f"{address}/v1", api_key="none", timeout=30, max_retries=0) as client:
            messages: list[Any] = [{"role": "user", "content": "hello"}]
            whole = client.chat.completions.create(model="helpers", messages=messages)
            chunks = client.chat.completions.create(model="helpers", messages=messages, stream=True)
            text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
            return str(whole.choices[0].message.content), text

    assert asyncio.run(both()) == ("hello", "hello")


async def test_errors_have_the_shape_of_openai(
    client: openai.AsyncOpenAI, address: str, crew: RunningTeam, settings: Settings
) -> None:
    remote = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    image: Any = [{"role": "user", "content": [remote]}]
    with pytest.raises(openai.BadRequestError) as unsupported:
        await client.chat.completions.create(model="helpers", messages=image)
    with pytest.raises(openai.BadRequestError) as invalid:
        await client.chat.completions.create(model="helpers", messages=[])
    with pytest.raises(openai.InternalServerError) as failed:
        await client.chat.completions.create(model="helpers", messages=[{"role": "user", "content": "fail"}])
    with pytest.raises(openai.APIError, match="failed"):
        async for _ in await client.chat.completions.create(
            model="helpers", messages=[{"role": "user", "content": "fail"}], stream=True
        ):
            pass
    async with (
        served_gateway(settings, gateway_require_key=True) as guarded,
        openai.AsyncOpenAI(base_url=f"{guarded}/v1", api_key="none", max_retries=0) as stranger,
    ):
        with pytest.raises(openai.AuthenticationError) as refused:
            await stranger.models.list()
    async with http_client(address) as plain:
        unknown = await plain.get("/v1/models/unknown")
        malformed = await plain.post("/v1/chat/completions", content="{")

    assert unsupported.value.code == "unsupported_content"
    assert (invalid.value.code, invalid.value.type) == ("invalid_request", "invalid_request_error")
    assert (failed.value.code, failed.value.response.headers["x-should-retry"]) == ("workflow_failed", "false")
    assert refused.value.type == "authentication_error"
    assert set(unknown.json()["error"]) == {"message", "type", "param", "code"}
    assert (malformed.status_code, malformed.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_prompts_of_chat_pages_start_no_workflow(client: openai.AsyncOpenAI, crew: RunningTeam) -> None:
    def asked(prompt: str) -> Any:
        return client.chat.completions.create(model="helpers", messages=[{"role": "user", "content": prompt}])

    title = await asked(TITLE)
    tags = await asked("### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history")
    stream = await client.chat.completions.create(
        model="helpers", messages=[{"role": "user", "content": TITLE}], stream=True
    )
    streamed = "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])

    assert json.loads(title.choices[0].message.content) == {"title": "Why does my bike squeak"}
    assert json.loads(tags.choices[0].message.content) == {"tags": ["General"]}
    assert json.loads(streamed) == {"title": "Why does my bike squeak"}
    assert await workflows(crew) == []
    quoted = await asked(f"What does this mean?\n{TITLE}")
    assert quoted.choices[0].message.content.startswith("What does this mean?")


async def test_keys_of_chat_pages_name_the_conversation_and_the_message(
    client: openai.AsyncOpenAI, crew: RunningTeam
) -> None:
    pages = {"X-OpenWebUI-Chat-Id": "chat-1", "X-OpenWebUI-Message-Id": "message-1"}
    for headers in (pages, pages, {**pages, "X-OpenWebUI-Message-Id": "message-2"}):
        await client.chat.completions.create(
            model="helpers", messages=[{"role": "user", "content": "hello"}], extra_headers=headers
        )
    other = {"X-Conversation-Id": "chat-2"}
    await client.chat.completions.create(
        model="helpers", messages=[{"role": "user", "content": "hello"}], extra_headers=other
    )

    threads = [summary.correlation_id for summary in await crew.list(limit=100)]
    assert len(threads) == 3
    assert (threads[1] == threads[2], threads[0] == threads[1]) == (True, False)


async def test_open_web_ui_gets_frames_of_status(address: str) -> None:
    body = {"model": "helpers", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    async with http_client(address) as client:
        plain = await client.post("/v1/chat/completions", json=body)
        page = await client.post("/v1/chat/completions", json=body, headers={"x-openwebui-chat-id": "c"})

    assert '"type":"status"' not in plain.text
    assert '{"event":{"type":"status","data":{"description":"repeater: repeat it","done":false}}}' in page.text
    assert page.text.endswith("data: [DONE]\n\n")


async def test_a_client_that_leaves_cancels_its_workflow_unless_the_request_has_a_key(
    client: openai.AsyncOpenAI, crew: RunningTeam, helpers: Helpers
) -> None:
    helpers.go.clear()

    async def leave(**headers: str) -> None:
        stream = await client.chat.completions.create(
            model="helpers", messages=[{"role": "user", "content": f"leave {headers}"}], stream=True,
            extra_headers=headers,
        )  # fmt: skip
        async for chunk in stream:
            if "repeater" in (getattr(chunk.choices[0].delta, "reasoning_content", None) or ""):
                await stream.close()
                return

    await leave()

    async def cancelled() -> bool:
        return [each.status for each in await crew.list()] == ["cancelled"]

    await until(cancelled, seconds=30)
    await leave(**{"Idempotency-Key": "mine"})
    helpers.go.set()

    async def completed() -> bool:
        return sorted(each.status for each in await crew.list()) == ["cancelled", "completed"]

    await until(completed, seconds=30)


async def test_a_silent_stream_is_kept_alive_by_comments(
    address: str, crew: RunningTeam, helpers: Helpers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman.gateway.streams.KEEPALIVE_INTERVAL_S", 0.1)
    helpers.go.clear()
    body = {"model": "helpers", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    async with http_client(address) as client, client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line == ": keep-alive":
                helpers.go.set()
            if line == "data: [DONE]":
                break

    assert helpers.go.is_set()


# Responses


async def test_a_response_has_the_answer_and_continues_an_earlier_one(
    client: openai.AsyncOpenAI, helpers: Helpers
) -> None:
    first = await client.responses.create(model="helpers", input="My name is Ada.", instructions="Be short.")
    second = await client.responses.create(
        model="helpers", input=[{"role": "user", "content": "And now?"}], previous_response_id=first.id
    )
    third = await client.responses.create(model="helpers", input="Third", previous_response_id=second.id)

    assert (first.status, first.output_text) == ("completed", helpers.requests[0])
    assert second.previous_response_id == first.id
    texts = [json.loads(line)["text"] for line in helpers.requests[2].splitlines() if line.startswith("{")]
    assert texts[0] == "My name is Ada."
    assert texts[2] == "And now?"
    assert helpers.requests[2].startswith("Third\n")
    assert third.output_text == helpers.requests[2]
    with pytest.raises(openai.NotFoundError) as caught:
        await client.responses.create(model="helpers", input="x", previous_response_id="resp_unknown")
    assert caught.value.code == "previous_response_not_found"


async def test_a_background_response_is_polled_and_cancelled(client: openai.AsyncOpenAI, helpers: Helpers) -> None:
    helpers.go.clear()
    one, two = [await client.responses.create(model="helpers", input="hello", background=True) for _ in range(2)]
    cancelled = await client.responses.cancel(two.id)
    helpers.go.set()

    async def completed() -> bool:
        return (await client.responses.retrieve(one.id)).status == "completed"

    await until(completed, seconds=30)
    again = await client.responses.cancel(one.id)
    assert (one.status, one.background) == ("queued", True)
    assert (cancelled.status, (await client.responses.retrieve(two.id)).status) == ("cancelled", "cancelled")
    assert (again.status, again.output_text, again.background) == ("completed", "hello", True)


async def test_a_stream_of_a_response_is_resumed_after_any_number(client: openai.AsyncOpenAI) -> None:
    events = []
    async with client.responses.stream(model="helpers", input="hello", background=True) as stream:
        async for event in stream:
            events.append(event)  # noqa: PERF401 - the SDK checks each event against those before
        final = await stream.get_final_response()
    raw = [event async for event in await client.responses.retrieve(final.id, stream=True)]
    rest = [
        [event.sequence_number async for event in await client.responses.retrieve(
            final.id, stream=True, starting_after=number)]
        for number in (0, 3, raw[-2].sequence_number)
    ]  # fmt: skip

    assert final.output_text == "hello"
    numbers = [event.sequence_number for event in raw]
    assert numbers == list(range(len(numbers)))
    assert rest == [numbers[1:], numbers[4:], numbers[-1:]]
    types = [event.type for event in raw]
    assert (types[0], types[-1]) == ("response.created", "response.completed")
    assert types.count("response.reasoning_summary_text.delta") >= 2
    assert not [kind for kind in types if "function_call" in kind]


async def test_a_failed_response_reports_the_reason(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(model="helpers", input="fail", background=True)

    async def failed() -> bool:
        return (await client.responses.retrieve(response.id)).status == "failed"

    await until(failed, seconds=30)
    read = await client.responses.retrieve(response.id)
    assert read.error is not None
    assert "out of words" in read.error.message or "t1" in read.error.message


async def test_responses_of_another_caller_do_not_exist(crew: RunningTeam, settings: Settings) -> None:
    store = await KeyStore.open(crew.bus, crew.subjects)
    keys = [(await store.create(name)).text for name in ("ada", "bob")]
    async with served_gateway(settings, gateway_require_key=True) as address:
        ada, bob = [openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0) for key in keys]
        response = await ada.responses.create(model="helpers", input="secret")
        with pytest.raises(openai.NotFoundError):
            await bob.responses.retrieve(response.id)
        with pytest.raises(openai.NotFoundError):
            await bob.responses.cancel(response.id)
        with pytest.raises(openai.NotFoundError):
            await bob.responses.create(model="helpers", input="x", previous_response_id=response.id)
        for client in (ada, bob):
            await client.close()


# Gateways and brokers that fail


async def test_another_gateway_continues_with_a_response_and_gives_a_chat_its_answer(
    crew: RunningTeam, helpers: Helpers, settings: Settings, tmp_path: Path
) -> None:
    """Kill the gateway while it sends both streams."""
    helpers.go.clear()
    async with System(tmp_path, settings) as system:
        (first, one), (_, two) = await asyncio.gather(gateway_process(system), gateway_process(system))
        key = {"Idempotency-Key": "mine"}
        asked: dict[str, Any] = {"model": "helpers", "messages": [{"role": "user", "content": "chat"}]}
        numbers: list[int] = []
        async with openai.AsyncOpenAI(base_url=f"{one}/v1", api_key="none", timeout=30, max_retries=0) as client:
            chunks = await client.chat.completions.create(**asked, stream=True, extra_headers=key)
            await anext(aiter(chunks))
            events = await client.responses.create(model="helpers", input="response", background=True, stream=True)
            name = ""
            async for event in events:
                numbers.append(event.sequence_number)
                if event.type == "response.created":
                    name = event.response.id
                if event.type == "response.reasoning_summary_text.delta" and "repeater" in event.delta:
                    break
            await first.kill()
        async with openai.AsyncOpenAI(base_url=f"{two}/v1", api_key="none", timeout=30, max_retries=0) as client:
            again = asyncio.create_task(client.chat.completions.create(**asked, extra_headers=key))
            rest = await client.responses.retrieve(name, stream=True, starting_after=numbers[-1])
            helpers.go.set()
            numbers += [event.sequence_number async for event in rest]
            response = await client.responses.retrieve(name)
            completion = await again

    assert numbers == list(range(len(numbers)))
    assert response.output_text == "response"
    assert completion.choices[0].message.content == "chat"
    assert helpers.requests.count("chat") == 1


async def test_a_chat_and_a_response_continue_through_a_restart_of_the_broker(
    own_broker: EmbeddedBroker, helpers: Helpers, tmp_path: Path
) -> None:
    helpers.go.clear()
    own = own_settings(own_broker, ack_wait=2.0, heartbeat=0.5)
    async with (
        factory.team(TEAM, helpers.agents, on=own),
        served_gateway(own) as address,
        openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", timeout=60, max_retries=0) as client,
    ):

        async def chat() -> str:
            stream = await client.chat.completions.create(
                model="helpers", messages=[{"role": "user", "content": "chat"}], stream=True
            )
            return "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])

        async def respond() -> list[int]:
            stream = await client.responses.create(model="helpers", input="response", stream=True)
            return [event.sequence_number async for event in stream]

        chatting, responding = asyncio.create_task(chat()), asyncio.create_task(respond())
        await until(lambda: len(helpers.requests) == 2, seconds=30)
        second = restart_broker(own_broker, tmp_path)
        await own_broker.stop()
        await asyncio.sleep(0.5)  # long enough for messages that are still in flight
        async with second:
            helpers.go.set()
            async with asyncio.timeout(60):
                text, numbers = await chatting, await responding
            await client.close()

    assert text == "chat"
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 8


# Agents of other makers


@pytest.fixture
def openai_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import the SDK `agents`, not a file `agents.py` that an earlier test has loaded."""
    monkeypatch.syspath_prepend(sysconfig.get_paths()["purelib"])
    for name in [name for name in sys.modules if name.partition(".")[0] == "agents"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("openai_agents")
async def test_an_agent_of_the_openai_agents_sdk_uses_a_team_as_its_model(address: str, helpers: Helpers) -> None:
    from agents import Agent as SdkAgent
    from agents import OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled

    set_tracing_disabled(disabled=True)
    client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    for model in (
        OpenAIChatCompletionsModel("helpers", openai_client=client),
        OpenAIResponsesModel("helpers", openai_client=client),
    ):
        desk = SdkAgent(name="desk", instructions="Be short.", model=model)
        result = await Runner.run(desk, "hello")
        streamed = Runner.run_streamed(desk, "hello again")
        async for _ in streamed.stream_events():
            pass

        assert str(result.final_output).startswith("hello\n")
        assert str(streamed.final_output).startswith("hello again\n")
    assert all("Be short." in request for request in helpers.requests)
    await client.close()


async def test_an_agent_of_pydantic_ai_uses_a_team_as_its_model(address: str) -> None:
    from pydantic_ai import Agent as PydanticAgent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    provider = OpenAIProvider(openai_client=client)
    for model in (OpenAIChatModel("helpers", provider=provider), OpenAIResponsesModel("helpers", provider=provider)):
        desk = PydanticAgent(model)
        result = await desk.run("hello")
        async with desk.run_stream("hello again") as streamed:
            text = await streamed.get_output()
        follow_up = await desk.run("and now?", message_history=result.all_messages())

        assert (result.output, text) == ("hello", "hello again")
        assert follow_up.output.startswith("and now?\n")
    await client.close()
