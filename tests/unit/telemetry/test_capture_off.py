"""If the capture of content is off, spans and logs contain no text of a request, an agent, a tool or a provider.

Class of fault: an error exposes content, for example in an exception's message, stack or cause, in the body of a
provider's error, in the problems of a refused plan, or in the log line of a library.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support import factory
from support.crew import synthesizer
from support.spans import exporting
from support.waiting import until

from pointsman import LLMAgent, RetryPolicy, Team, agent, tool
from pointsman.errors import BusUnavailableError, ConfigurationError, ModelError, RefusedError, TaskError
from pointsman.settings import Settings
from pointsman.telemetry import content_capture, error_content, get_logger, logs, traces
from pointsman.testing import ScriptedModel, text_reply, tool_reply
from pointsman_agents.planner import planner
from pointsman_schemas.events import Outcome
from pointsman_schemas.team import Limits, PlanAndExecute

MARK = "Zanzibar"  # every text with content contains this word


class QuotingError(Exception):
    def __repr__(self) -> str:
        return f"<{self.args[0]}>"


def fail(kind: str) -> Any:
    match kind:
        case "exception":
            raise QuotingError(f"no charge for {MARK}")
        case "cause":
            try:
                raise KeyError(MARK)
            except KeyError as error:
                raise ValueError("wrong") from error
        case "context":
            try:
                raise KeyError(MARK)
            except KeyError:
                raise ValueError("wrong")  # noqa: B904
        case "group":
            raise ExceptionGroup(MARK, [ValueError(MARK), OSError(MARK)])
        case "note":
            noted = ValueError("wrong")
            noted.add_note(MARK)
            raise noted
        case "file":
            raise FileNotFoundError(2, "No such file or directory", f"/tmp/{MARK}")
        case "task error":
            raise TaskError(f"{MARK} is not known")
        case "refusal":
            raise RefusedError(f"{MARK} is not served")
        case "model error":
            raise ModelError(f"the provider says: {MARK}", retryable=False)
        case "exit":
            raise SystemExit(MARK)
        case "output":
            return {MARK: float("nan")}
        case _:
            raise AssertionError(kind)


KINDS = (
    "exception", "cause", "context", "group", "note", "file", "task error", "refusal", "model error", "exit", "output",
)  # fmt: skip


@agent
def failing(kind: str) -> Any:
    """Fail in one way."""
    return fail(kind)


@tool
def using(kind: str) -> Any:
    """Fail in one way."""
    return fail(kind)


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    with exporting() as exporter:
        yield exporter
    content_capture.configure("none")


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[pytest.CaptureFixture[str]]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    logs.configure(Settings(log_level="debug", log_format="json"))
    yield capsys
    root.handlers[:] = handlers
    root.setLevel(level)
    logs.configure(Settings())
    root.handlers[:] = handlers


def everything(exporter: InMemorySpanExporter) -> str:
    return "".join(span.to_json() for span in exporter.get_finished_spans())


async def run(exporter: InMemorySpanExporter) -> Outcome:
    """Run a team in which an agent and a tool fail in each way."""
    calls = [tool_reply(*(("using", {"kind": kind}) for kind in KINDS)), text_reply(f"All of {MARK} failed.")]
    thinker = LLMAgent(
        name="thinker",
        description="Think",
        instructions=f"Think of {MARK}.",
        model=ScriptedModel(*calls),
        tools=[using],
    )
    broken = LLMAgent(
        name="broken", description="Break", instructions="Break.",
        model=ScriptedModel(ModelError(f"400: {{'error': 'bad prompt {MARK}'}}", retryable=False)),
    )  # fmt: skip
    tasks = [{"id": f"t{n}", "agent": "failing", "intent": MARK, "input": kind} for n, kind in enumerate(KINDS)]
    tasks += [{"id": "tool", "agent": "thinker", "intent": MARK}, {"id": "model", "agent": "broken", "intent": MARK}]
    refused = {"id": MARK, "agent": MARK, "intent": MARK, "depends_on": [MARK]}
    plans = ScriptedModel(text_reply({"tasks": [refused]}), text_reply({"tasks": tasks, "goal": MARK}))
    team = Team(name="crew", strategy=PlanAndExecute(), retry=RetryPolicy(attempts=1), limits=Limits(plan_repairs=2))
    agents = [planner.with_model(plans), synthesizer, failing, thinker, broken]
    async with factory.team(team, agents, settled=True) as client:
        outcome = await (await client.submit("crew", f"Help with {MARK}")).outcome(30)
    await until(lambda: any("invoke_workflow" in span.name for span in exporter.get_finished_spans()))
    return outcome


async def test_no_content_leaves_by_an_error(
    exported: InMemorySpanExporter, stderr: pytest.CaptureFixture[str]
) -> None:
    outcome = await run(exported)

    assert outcome.status in ("partial", "failed")
    assert len(outcome.tasks) >= len(KINDS) + 2
    spans, lines = everything(exported), stderr.readouterr().err
    assert [line for line in lines.splitlines() if MARK in line] == []
    assert MARK not in spans
    for kind in ("QuotingError", "KeyError", "ValueError", "provider_error", "invalid_output"):
        assert kind in spans, kind
    assert "attempt_failed" in lines
    assert "test_capture_off.py" in spans  # the place of the exception's origin


async def test_texts_are_exported_if_capture_is_on(
    exported: InMemorySpanExporter, stderr: pytest.CaptureFixture[str]
) -> None:
    content_capture.configure("full")

    await run(exported)

    assert f"no charge for {MARK}" in everything(exported)
    assert f"bad prompt {MARK}" in stderr.readouterr().err


async def test_lines_of_libraries_about_an_error_have_its_type_alone(stderr: pytest.CaptureFixture[str]) -> None:
    async def lost() -> None:
        raise QuotingError(f"no charge for {MARK}")

    work = asyncio.ensure_future(lost())
    await asyncio.wait({work})
    loop = asyncio.get_running_loop()
    loop.call_exception_handler(
        {"message": "Task exception was never retrieved", "exception": work.exception(), "future": work}
    )
    logging.getLogger("some.library").error("failed: %s", work.exception(), exc_info=work.exception())
    get_logger("ours").warning("failed", error=work.exception())

    lines = stderr.readouterr().err
    assert MARK not in lines
    assert lines.count("QuotingError") >= 3


def test_errors_that_quote_no_content_keep_their_texts(exported: InMemorySpanExporter) -> None:
    for error in (BusUnavailableError("no broker at nats://a"), ConfigurationError("POINTSMAN_URL is empty")):
        with pytest.raises(type(error)), traces.span("work"):
            raise error

    assert "no broker at nats://a" in everything(exported)
    assert "POINTSMAN_URL is empty" in everything(exported)


@pytest.mark.parametrize("error", [ValueError(), ValueError(""), KeyError("a"), OSError(5, "I/O error")])
def test_any_exception_has_a_headline(error: BaseException) -> None:
    assert error_content.stack_of(error).splitlines()[-1].startswith(type(error).__name__)
    assert error_content.without_texts_of(error, "a line about it") == "a line about it"
