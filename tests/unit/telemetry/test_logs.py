"""Log lines are for people and machines. No line contains a secret, and no line raises an error in its caller."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import structlog

from pointsman.settings import Settings
from pointsman.telemetry import logs
from pointsman.telemetry.logs import bind, get_logger
from pointsman.telemetry.traces import TraceContext, span
from pointsman.util.scrubber import scrub


class Stream(io.StringIO):
    def __init__(self, *, tty: bool = False) -> None:
        super().__init__()
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty

    @property
    def rows(self) -> list[str]:
        return self.getvalue().splitlines()

    @property
    def events(self) -> list[dict[str, object]]:
        return [json.loads(row) for row in self.rows]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Reset logging to the state of a new process."""
    structlog.reset_defaults()
    yield monkeypatch
    structlog.reset_defaults()


@contextmanager
def root_logger(*handlers: logging.Handler) -> Iterator[logging.Logger]:
    """Replace the root logger by a new one without the handlers of pytest."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = handlers
    try:
        yield root
    finally:
        root.handlers[:] = before
        root.setLevel(level)


def start(patch: pytest.MonkeyPatch, *, tty: bool = False, form: str = "auto", level: str = "info") -> Stream:
    stream = Stream(tty=tty)
    patch.setattr(sys, "stderr", stream)
    patch.setenv("NO_COLOR", "1")
    logs.configure(Settings(log_format=form, log_level=level))
    return stream


def test_a_line_carries_its_logger_the_span_and_the_bound_ids(fresh: pytest.MonkeyPatch) -> None:
    stream = start(fresh)
    log = get_logger("pointsman.x")

    with bind(workflow_id="w1", task_id=None), span("s", parent=TraceContext("a" * 32, "b" * 16, 1)):
        log.info("task_dispatched", attempt=2)
    log.info("after")

    first, second = stream.events
    assert first.pop("timestamp")
    assert first == {
        "event": "task_dispatched",
        "attempt": 2,
        "level": "info",
        "logger": "pointsman.x",
        "workflow_id": "w1",
        "trace_id": "a" * 32,
        "span_id": "b" * 16,
    }
    assert "workflow_id" not in second
    assert "trace_id" not in second


def test_an_inner_binding_gives_way_to_the_outer_one_again(fresh: pytest.MonkeyPatch) -> None:
    stream = start(fresh)
    log = get_logger("x")

    with bind(attempt=1):
        with bind(attempt=2):
            log.info("inner")
        log.info("outer")

    assert [event["attempt"] for event in stream.events] == [2, 1]


async def test_a_generator_left_early_does_not_trip_over_its_binding(fresh: pytest.MonkeyPatch) -> None:
    stream = start(fresh)
    ended = asyncio.Event()

    async def numbers() -> AsyncIterator[int]:
        try:
            with bind(workflow_id="w1"):
                yield 1
                yield 2
        finally:
            ended.set()

    async def consume() -> None:
        async for _ in numbers():
            break

    await asyncio.create_task(consume())
    gc.collect()
    await asyncio.wait_for(ended.wait(), 5)
    get_logger("x").info("after")

    assert "workflow_id" not in stream.events[-1]


def test_a_terminal_gets_console_lines_and_a_pipe_gets_json(fresh: pytest.MonkeyPatch) -> None:
    log = get_logger("x")

    terminal = start(fresh, tty=True)
    log.info("shown", a=1)
    structlog.reset_defaults()
    pipe = start(fresh, tty=False)
    get_logger("x").info("shown", a=1)

    assert "[info     ] shown" in terminal.getvalue()
    assert pipe.events[0]["a"] == 1


@pytest.mark.parametrize("form", ["console", "json"])
@pytest.mark.parametrize("bad", ["\n", "\r", "\x85", "\u2028", "\x1b[2K", "\x00", "\x0b"])
def test_no_value_can_forge_a_line(fresh: pytest.MonkeyPatch, form: str, bad: str) -> None:
    stream = start(fresh, form=form)
    forged = f"x{bad}2026-01-01T00:00:00Z [info     ] workflow_completed"

    get_logger("x").info(forged, value=forged, nested={"a": [forged], forged: 1}, error=ValueError(forged))

    assert len(stream.rows) == 1
    assert bad not in stream.getvalue().removesuffix("\n")


def test_a_traceback_on_the_console_is_set_off_from_the_lines(fresh: pytest.MonkeyPatch) -> None:
    stream = start(fresh, form="console")

    try:
        raise ValueError("bad\n2026-01-01T00:00:00Z [info     ] forged\x1b[2K sk-abcdefghijklmnop")
    except ValueError:
        get_logger("x").exception("it_failed")

    assert stream.rows[0].split("] ")[1].startswith("it_failed")
    assert all(row.startswith("  | ") for row in stream.rows[1:])
    assert "\x1b" not in stream.getvalue()
    assert "sk-abc" not in stream.getvalue()


@pytest.mark.parametrize("form", ["console", "json"])
def test_literal_in_a_source_line_is_not_logged(fresh: pytest.MonkeyPatch, form: str) -> None:
    def connect(my_password: str) -> None:
        raise ConnectionError

    stream = start(fresh, form=form)
    sent: list[logs.Line] = []
    logs.send_to(sent.append)
    try:
        try:
            connect(my_password="hunter2")
        except ConnectionError:
            get_logger("x").exception("it_failed")
    finally:
        logs.send_to(None)

    assert "my_password" in stream.getvalue()
    assert "hunter2" not in stream.getvalue() + str(sent[0].attributes["exception"])


def test_secrets_are_hidden_by_key_and_by_look(fresh: pytest.MonkeyPatch) -> None:
    stream = start(fresh)

    get_logger("x").info(
        "sent sk-abcdefghijklmnop",
        api_key="anything",
        headers={"Authorization": "Bearer abc", "x-api-key": ["v"], "accept": "json"},
        password="hunter2",
        settings=Settings(password="hunter2", token="t0k3n"),
        url="nats://user:hunter2@host:4222,nats://t0k3n@host",
        text="Authorization: Bearer abc123def456",
        input_tokens=12,
        tokens=("a", "b"),
        token=None,
    )

    (event,) = stream.events
    assert event["event"] == "sent [hidden]"
    assert event["api_key"] == "[hidden]"
    assert event["headers"] == {"Authorization": "[hidden]", "x-api-key": "[hidden]", "accept": "json"}
    assert event["url"] == "nats://[hidden]@host:4222,nats://[hidden]@host"
    assert event["text"] == "Authorization: [hidden]"
    assert (event["input_tokens"], event["tokens"], event["token"]) == (12, ["a", "b"], None)
    assert "hunter2" not in stream.getvalue()
    assert "t0k3n" not in stream.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "task-something-that-is-long",
        "Basic information about the bearer capabilities",
        "an unexpected token: abcdef",
        "https://example.org/path?a=b",
        "risk-assessment-report-2026",
    ],
)
def test_ordinary_text_is_left_as_it_is(text: str) -> None:
    assert scrub(text) == text


def test_unprintable_value_does_not_stop_the_caller(fresh: pytest.MonkeyPatch) -> None:
    class Sulking:
        def __str__(self) -> str:
            raise RuntimeError("no")

    stream = start(fresh)
    endless: list[object] = []
    endless.append(endless)

    get_logger("x").info("shown", a=Sulking(), b=endless, c=b"\xff", d="\ud800", e=float("nan"))

    assert stream.events[0]["a"] == "<Sulking: str() raised RuntimeError>"


def test_a_closed_standard_error_does_not_stop_the_caller(fresh: pytest.MonkeyPatch) -> None:
    stream = start(fresh)
    stream.close()

    get_logger("x").error("nobody_reads_this")


def test_the_level_is_the_one_that_is_set(fresh: pytest.MonkeyPatch) -> None:
    stream = start(fresh, level="warning")
    log = get_logger("x")

    log.debug("a")
    log.info("b")
    log.warning("c")

    assert [event["event"] for event in stream.events] == ["c"]


def test_library_logs_warnings_to_standard_error_before_setup(
    fresh: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = get_logger("x")

    log.info("a")
    log.warning("b")

    captured = capsys.readouterr()
    assert captured.out == ""
    assert [json.loads(row)["event"] for row in captured.err.splitlines()] == ["b"]


def test_lines_of_libraries_come_through_the_same_pipe_from_warning_on(fresh: pytest.MonkeyPatch) -> None:
    with root_logger(), bind(workflow_id="w1"):
        stream = start(fresh, level="debug")

        logging.getLogger("some.library").info("hidden")
        logging.getLogger("some.library").warning("the key is %s", "sk-abcdefghijklmnop")

    (event,) = stream.events
    assert (event["event"], event["level"], event["logger"]) == ("the key is [hidden]", "warning", "some.library")
    assert event["workflow_id"] == "w1"


def test_repeating_exporter_error_is_logged_once(fresh: pytest.MonkeyPatch) -> None:
    with root_logger():
        stream = start(fresh)

        for n in range(100):
            logging.getLogger("opentelemetry.exporter").warning("retrying in %d s", n)

    assert len(stream.rows) == 1


def test_setting_up_twice_shows_a_line_once(fresh: pytest.MonkeyPatch) -> None:
    with root_logger():
        start(fresh)
        stream = start(fresh)

        logging.getLogger("some.library").warning("once")

    assert len(stream.rows) == 1


def test_an_application_that_set_up_logging_itself_keeps_it(fresh: pytest.MonkeyPatch) -> None:
    handler = logging.NullHandler()
    get_logger("made at import, before the application had its turn")
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
    before = structlog.get_config()["processors"]

    with root_logger(handler) as root:
        logs.configure(Settings())

        assert root.handlers == [handler]
        assert structlog.get_config()["processors"] is before


def test_log_record_is_sent_as_data_with_ids_and_without_secrets() -> None:
    sent: list[logs.Line] = []
    logs.send_to(sent.append)
    try:
        with bind(workflow_id="wf_1"):
            get_logger("pointsman.x").error("it_failed", reason="sk-abcdefghijklmnop", count=2)
    finally:
        logs.send_to(None)

    (line,) = sent
    assert (line.event, line.level) == ("it_failed", "error")
    assert line.attributes == {"workflow_id": "wf_1", "logger": "pointsman.x", "reason": "[hidden]", "count": 2}


def test_failing_log_exporter_does_no_harm() -> None:
    def refuse(line: logs.Line) -> None:
        sent.append(line)
        raise OSError("no room")

    sent: list[logs.Line] = []
    logs.send_to(refuse)
    try:
        get_logger("pointsman.x").error("it_failed")
        get_logger("opentelemetry.sdk").error("export failed")
    finally:
        logs.send_to(None)

    assert [line.event for line in sent] == ["it_failed"]


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_line_that_is_written_and_sent_is_scrubbed_once(fresh: pytest.MonkeyPatch, form: str) -> None:
    stream = start(fresh, form=form)
    scrubbed: list[str] = []

    def noted(text: str) -> str:
        scrubbed.append(text)
        return scrub(text)

    fresh.setattr(logs, "scrub", noted)
    sent: list[logs.Line] = []
    logs.send_to(sent.append)
    try:
        get_logger("x").info("asked", header="Bearer abcdefgh12345678", rows="a\nb")
    finally:
        logs.send_to(None)

    assert scrubbed.count("Bearer abcdefgh12345678") == 1
    assert sent[0].attributes["header"] == "[hidden]"
    assert sent[0].attributes["rows"] == "a\nb"
    assert "abcdefgh12345678" not in stream.getvalue()
