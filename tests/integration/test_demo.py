"""One command runs the demo with seven processes and without a key, as people start it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from support.providers import Answer, Call, FakeProvider

pytestmark = pytest.mark.timeout(150)  # each test starts seven interpreters, and the machine may be busy

_OFFLINE = {"POINTSMAN_MODEL": "offline", "OPENAI_API_KEY": "", "ANTHROPIC_API_KEY": ""}


@asynccontextmanager
async def pointsman(*arguments: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start the command as a process that ends with the test."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pointsman", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **_OFFLINE, **environment},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def demo(*arguments: str, **environment: str) -> tuple[int | None, list[Mapping[str, Any]]]:
    async with pointsman("demo", "--json", *arguments, **environment) as process:
        out, err = await process.communicate()
    assert b"Traceback" not in err, err.decode()
    return process.returncode, [json.loads(line) for line in out.splitlines()]


def outcome_of(lines: list[Mapping[str, Any]]) -> Any:
    return next(line["outcome"] for line in lines if "outcome" in line)


async def test_three_agents_answer_the_sample_request_side_by_side_in_one_trace() -> None:
    code, lines = await demo()

    outcome = outcome_of(lines)
    work = [task for task in outcome["tasks"] if task["role"] == "work"]
    trace = next(line["trace"] for line in lines if "trace" in line)
    tasks = [node for node in trace["children"][0]["children"] if node["role"] == "work"]
    assert (code, outcome["status"], outcome["gaps"]) == (0, "completed", [])
    assert {(task["agent"], task["status"]) for task in work} == {
        ("billing", "succeeded"), ("technical", "succeeded"), ("account", "succeeded"),
    }  # fmt: skip
    assert max(node["started_at"] for node in tasks) < min(node["ended_at"] for node in tasks), (
        "the tasks did not run at the same time"
    )
    assert all(any(call["kind"] == "tool" for call in node["children"][0]["children"]) for node in tasks)
    assert trace["trace_id"] == outcome["trace_id"]


def key_of(name: str, provider: FakeProvider) -> dict[str, str]:
    """Return the environment of a user with a key for the provider `name`."""
    place = {"OPENAI_BASE_URL": provider.openai_url, "ANTHROPIC_BASE_URL": provider.url}
    return {f"{name.upper()}_API_KEY": "sk-test-key", "POINTSMAN_MODEL": "", **place}


async def test_with_a_key_it_runs_on_that_provider() -> None:
    plan = {"goal": "help", "tasks": [{"id": "t1", "agent": "billing", "intent": "Look at the charges"}]}
    asked_twice: list[Call] = []

    def billing(call: Call) -> Answer:
        asked_twice.append(call)
        return Answer(calls=(("find_charges", {}),)) if len(asked_twice) == 1 else Answer("A duplicate, ch-5003.")

    async with FakeProvider.saying() as provider:
        provider.when("You plan for a team", Answer(data=plan))
        provider.when("You are the billing specialist", billing)
        provider.when("You write the one answer", Answer(data={"answer": "You were charged twice."}))
        code, lines = await demo("I was charged twice", **key_of("openai", provider))
        calls = provider.calls

    outcome = outcome_of(lines)
    assert (code, outcome["answer"]) == (0, "You were charged twice.")
    assert outcome["usage"]["calls"] == 4  # planner, billing before and after its tool, synthesizer
    assert "ch-5003" in json.dumps(asked_twice[1].body), "the model did not get the tool's real result"
    assert {call.path for call in calls} == {"/v1/chat/completions"}


async def test_unservable_request_is_answered_with_a_reason() -> None:
    """Run with a key for the other provider, whose model answers that no plan is possible."""
    async with FakeProvider.saying() as provider:
        provider.when("You plan for a team", Answer(data={"tasks": [], "cannot": "no agent here can help"}))
        code, lines = await demo("Which mountain is the highest on Mars?", **key_of("anthropic", provider))
        calls = provider.calls

    outcome = outcome_of(lines)
    assert (code, outcome["status"]) == (1, "failed")
    assert not [task for task in outcome["tasks"] if task["role"] == "work"]
    assert "no agent here can help" in outcome["reason"]
    assert [call.path for call in calls] == ["/v1/messages"]


async def test_demo_ends_with_the_output_of_a_child_that_cannot_start(tmp_path: Path) -> None:
    async with pointsman("demo", "--dir", str(tmp_path), POINTSMAN_MODEL="openai:any") as process:  # the key is missing
        _, err = await process.communicate()

    assert process.returncode == 1
    assert b"OPENAI_API_KEY" in err
    assert str(tmp_path).encode() in err
    await gone(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_interrupted_demo_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    async with pointsman("demo", "--dir", str(tmp_path)) as process:
        await appears(tmp_path / "account.log")
        process.send_signal(number)
        await process.communicate()

    assert process.returncode == 130
    await gone(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux the broker ends with a killed parent")
async def test_killed_demo_leaves_no_process(tmp_path: Path) -> None:
    async with pointsman("demo", "--dir", str(tmp_path)) as process:
        await appears(tmp_path / "account.log")
        process.kill()
        await process.communicate()

    await gone(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="the test needs /proc to find the process to crash")
async def test_up_answers_and_restarts_a_crashed_process(tmp_path: Path) -> None:
    async with pointsman("up", "--json", "--port", "0", "--dir", str(tmp_path)) as process:
        assert process.stdout is not None
        ready = await event(process.stdout, "ready")
        crashed = next(pid for pid in processes(tmp_path) if b"billing" in command_line(pid))
        os.kill(crashed, signal.SIGKILL)
        ended = await event(process.stdout, "child_exited")
        broker = next(pid for pid in processes(tmp_path) if b"nats-server" in command_line(pid))
        os.kill(broker, signal.SIGKILL)
        lost = await event(process.stdout, "child_exited", "the process broker")
        async with pointsman(
            "submit", "customer-service", "I was charged twice", "--json", "--url", ready["url"]
        ) as submitting:
            out, _ = await submitting.communicate()
        page = await asyncio.to_thread(lambda: urlopen(ready["dashboard"], timeout=30).read())
        process.send_signal(signal.SIGINT)
        told, _ = await process.communicate()

    assert [json.loads(line)["event"] for line in told.splitlines()] == ["stopping", "stopped"]
    assert b"<title>Pointsman</title>" in page
    assert "the process billing was killed by signal 9" in ended["message"]
    assert "the process broker was killed by signal 9" in lost["message"]
    assert json.loads(out)["status"] == "completed"
    assert process.returncode == 0
    await gone(tmp_path)


async def event(stream: asyncio.StreamReader, name: str, about: str = "") -> Mapping[str, Any]:
    async with asyncio.timeout(90):
        while True:
            line: Mapping[str, Any] = json.loads(await stream.readline())
            if line.get("event") == name and about in line.get("message", ""):
                return line


async def appears(path: Path) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(path.exists):
            await asyncio.sleep(0.02)


async def gone(directory: Path) -> None:
    """Wait until no process has a file in `directory` open. The broker and the children write their logs there."""
    async with asyncio.timeout(20):
        while processes(directory):
            await asyncio.sleep(0.05)


def processes(directory: Path) -> list[int]:
    """Return the processes whose standard error is a file in `directory`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            target = os.readlink(process / "fd" / "2")
        except OSError:  # the process has ended, or belongs to another user
            continue
        if target.startswith(str(directory)):
            found.append(int(process.name))
    return found


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
