"""The printed outcome has the content of the log and fits the terminal's width."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console, RenderableType
from support.history import at, completed, dispatched, ended, failing, started, succeeded, tool

from pointsman.cli.render import outcome as render
from pointsman.cli.render.follow import EVENT_TEXT_COLUMN, EventPrinter
from pointsman.cli.render.tree import render_tree
from pointsman.client.client import WorkflowEvent, WorkflowSummary
from pointsman.core.views.formatting import format_seconds
from pointsman.core.views.trace import build_trace
from pointsman.engine.operations.dead_letter_entry import DeadLetterEntry
from pointsman_schemas.events import AttemptError, DeadLetter, Delta, Gap, Progress, Usage
from pointsman_schemas.log import (
    AttemptFailed,
    Entry,
    LimitReached,
    PlanAccepted,
    QuestionAnswered,
    QuestionAsked,
    ResultIgnored,
    TimerArmed,
)
from pointsman_schemas.plan import Plan, PlannedTask

WORKFLOW = "wf_0123456789abcdef01234567"


def plain(renderable: RenderableType, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def told(*events: WorkflowEvent) -> list[str]:
    printer = EventPrinter()
    return [(line.prefix + line.text).plain for event in events for line in printer.lines(event)]


def test_timeline_shows_the_plan_the_dispatches_the_tools_and_the_results() -> None:
    lines = told(*completed()[:8], tool("find_bolts", 2, 2.5))

    assert [" ".join(line.split()) for line in lines] == [
        "0.000s ▶ crew wf_0123456789abcdef01234567 mend it",
        "0.000s → planner plan",
        "1.000s ✓ planner plan in 800 ms, 120 tokens",
        "1.000s ≡ plan 1 mend it",
        "1.000s t1 fitter: fit",
        "1.000s t2 tester: test",
        "1.000s → fitter t1",
        "1.000s → tester t2",
        "3.000s ✓ tester t2 in 1.5 s, 120 tokens",
        "2.500s ⚒ fitter find_bolts 500 ms",
    ]


def test_attempt_that_asks_a_person_is_waiting_and_not_failed() -> None:
    error = AttemptError(kind="needs_answer", message="a person must allow the use of refund")

    (line,) = told(AttemptFailed(at=at(1), event_id="e1", task_id="t1", attempt=1, error=error))

    assert "‖ supervisor" in line
    assert line.endswith("t1, attempt 1: a person must allow the use of refund")


def test_timeline_shows_failures_retries_and_the_skipped_tasks() -> None:
    lines = told(*failing())

    assert [" ".join(line.split()[1:]) for line in lines[-5:]] == [
        "✗ fitter t1, attempt 1: handler error: out of bolts",
        "↻ helper t1, attempt 2 in 1.0 s",
        "✗ helper t1, attempt 2: handler error: out of bolts",
        "✗ helper t1 after 2 attempts: out of bolts",
        "- tester t2 skipped: t1 failed",
    ]


def test_timers_are_not_worth_a_line() -> None:
    assert told(TimerArmed(at=at(1), name="wake-1", due=at(2))) == []


def test_limits_and_ignored_results_have_a_line_each() -> None:
    ignored = ResultIgnored(
        at=at(1), event_id="e", task_id="t1", attempt=1, agent="late", cause="stale_attempt", reason="late"
    )

    lines = told(LimitReached(at=at(1), limit="tokens", detail="used up"), ignored)

    assert len(lines) == 2


def test_escape_sequences_of_agents_are_made_visible() -> None:
    lines = told(started(input="\x1b[2J\nPointsman: all is well"))

    assert "\x1b" not in lines[0]
    assert "\n" not in lines[0]


def test_outcome_names_every_gap_and_the_time_saved_in_parallel() -> None:
    outcome = ended("partial", 3, gaps=[Gap(task_id="t1", agent="fitter", reason="out of bolts")]).outcome

    text = plain(render.render_outcome(outcome))

    assert "t1 (fitter): out of bolts" in text
    assert "partial in 3.0 s; one after another: 6.0 s; 360 tokens" in text


def test_shared_reason_of_many_gaps_is_printed_once() -> None:
    missing = [Gap(task_id=f"t{number}", agent="fitter", reason="no fitter; all are ill") for number in range(20)]
    why = "; ".join(f"{gap.task_id}: {gap.reason}" for gap in missing)
    more = f"{why}; the deadline came"

    alone = plain(render.render_outcome(ended("partial", 3, "sorry", reason=why, gaps=missing).outcome), 400)
    with_more = plain(render.render_outcome(ended("partial", 3, "sorry", reason=more, gaps=missing).outcome), 400)

    assert alone.count("no fitter") == 1
    assert "t0, t1, t2" in alone
    assert "t19 (fitter): no fitter; all are ill" in alone
    assert "partial in 3.0 s" in alone
    assert "partial (t0: no fitter" in with_more


def test_sequential_run_is_not_compared_with_itself() -> None:
    text = plain(render.render_outcome(ended("completed", 9).outcome.model_copy(update={"sequential": 6.0})))

    assert "completed in 9.0 s; 360 tokens" in text


@pytest.mark.parametrize("width", [60, 80, 140])
def test_ids_are_never_cut_off(width: int) -> None:
    summary = WorkflowSummary(WORKFLOW, "quite-a-long-team", "completed", at(0), at(1), "a long request " * 20)
    letter = DeadLetter(
        id="d" * 24, origin="fitter", workflow_id=WORKFLOW, task_id="t1", attempts=3, at=at(1), subject="s", body="",
        cause=AttemptError(kind="handler_error", message="out of bolts " * 20),
    )  # fmt: skip

    lists = plain(render.workflow_table([summary], at(2), width), width)
    dead = plain(render.dead_letter_table([DeadLetterEntry(1, "pointsman.dead.a.w.d", letter)], width), width)

    assert WORKFLOW in lists
    assert "completed" in lists
    assert len(lists.splitlines()) == 2
    assert "d" * 24 in dead
    assert WORKFLOW in dead
    assert len(dead.splitlines()) == 2, "the cause must be shortened, not wrapped"


@pytest.mark.parametrize("width", [60, 80, 140])
def test_failure_reason_time_and_agent_are_shown_at_every_width(width: int) -> None:
    letter = DeadLetter(
        id="dl_" + "d" * 24, origin="fitter", workflow_id=WORKFLOW, attempts=3, at=at(1), subject="s", body="",
        cause=AttemptError(kind="handler_error", message="out of bolts " * 20),
    )  # fmt: skip

    dead = plain(render.dead_letter_table([DeadLetterEntry(1, "pointsman.dead.a.w.d", letter)] * 2, width), width)

    assert len(re.findall(r"fitter .*handler_error: out", dead)) == 2
    assert dead.count(f"{at(1).astimezone():%m-%d %H:%M:%S}") == 2
    assert all(len(line) <= width for line in dead.splitlines())
    assert width < 140 or "attempts" in dead, "`dead` must name the column as `show` does"


def test_outcome_without_an_answer_has_the_reason() -> None:
    assert render.render_answer(ended("cancelled", 1, None, reason="asked to").outcome) == "No answer: asked to."


def test_show_has_the_request_the_plan_the_results_and_the_answer_once() -> None:
    text = plain(render.render_workflow(completed(), (), at(9), ()))

    for part in ("mend it", "Plan 1", "t2", "Result of t1", "completed in 6.0 s"):
        assert part in text
    assert "Result of plan-1" not in text


def test_show_starts_with_the_status_and_has_the_duration_of_each_task() -> None:
    first, *rest = plain(render.render_workflow(completed(), (), at(9), ())).splitlines()
    rows = [" ".join(line.split()) for line in rest]

    assert first == f"{WORKFLOW}  completed after 6.0 s"
    assert "t1 fitter succeeded 1 3.0 s 120" in rows


def test_show_of_one_that_runs_has_its_tasks_as_they_are_now() -> None:
    log = [*completed()[:6], dispatched("t1", "fitter", 1)]
    begun = tool("drill", 2, 2)

    first, *rest = plain(render.render_workflow(log, [begun], at(9), ("fitter",))).splitlines()
    rows = [" ".join(line.split()) for line in rest]

    assert first == f"{WORKFLOW}  running for 9.0 s"
    assert "t1 fitter running 1 8.0 s" in rows
    assert "t2 tester waiting" in rows


@pytest.mark.parametrize(("width", "whole"), [(40, False), (80, True), (140, True)])
def test_error_text_is_not_cut_at_the_terminal_width(width: int, whole: bool) -> None:
    printer = EventPrinter()
    lines = [line for event in failing(message="out of bolts " * 6 + "and nuts") for line in printer.lines(event)]
    terminal = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)

    for line in lines:
        line.print(terminal)

    told = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in told.splitlines())
    assert ("and nuts" in told) is whole
    assert all(
        line.startswith(" " * EVENT_TEXT_COLUMN) or re.match(r" +\d+\.\d{3}s ", line) for line in told.splitlines()
    )


def test_show_says_that_a_workflow_still_runs() -> None:
    assert "still running" in plain(render.render_workflow(failing(), (), at(9), ()))


def test_show_names_the_open_approvals() -> None:
    tasks = tuple(PlannedTask(id=f"t{n}", agent="fitter", intent="fit it") for n in (1, 2))
    accepted = PlanAccepted(at=at(1), revision=1, plan=Plan(tasks=tasks))
    asked = [
        QuestionAsked(at=at(1), question=f"wf-{n}", about="task", task_id=f"t{n}", expires_at=at(99)) for n in (1, 2)
    ]
    decided = QuestionAnswered(at=at(2), event_id="e", question="wf-1", verdict="approved")

    handed = dispatched("t1", "fitter", 2)

    text = plain(render.render_workflow([started(), accepted, *asked, decided, handed], (), at(9), ()))

    assert "waiting for an answer" in text
    assert "t1 is waiting for an agent named fitter" in text, "the second reason to wait is missing"
    assert "wf-2: the task t2" in text
    assert "wf-1" not in text


@pytest.mark.parametrize(
    ("about", "said", "shown"),
    [
        ({"about": "plan"}, {"verdict": "rejected", "by": "Ann"}, "The plan: rejected by Ann"),
        ({"about": "task", "task_id": "t1"}, {"verdict": "approved"}, "The task t1: approved"),
        (
            {"about": "tool", "task_id": "t1", "tool": "pay"},
            {"verdict": "rejected", "by": "Ann", "reason": "too much"},
            "The call of pay in t1: rejected by Ann: too much",
        ),
    ],
    ids=["plan", "task", "call"],
)
def test_show_has_each_answered_approval_and_its_author(
    about: dict[str, Any], said: dict[str, Any], shown: str
) -> None:
    asked = QuestionAsked(at=at(1), question="wf-1", expires_at=at(99), **about)
    answer = QuestionAnswered(at=at(2), event_id="e", question="wf-1", **said)
    task = PlannedTask(id="t1", agent="fitter", intent="fit it")
    accepted = PlanAccepted(at=at(1), revision=1, plan=Plan(tasks=(task,)))

    lines = plain(render.render_workflow([started(), accepted, asked, answer], (), at(9), ())).splitlines()

    assert shown in [line.rstrip() for line in lines]


@pytest.mark.parametrize(
    ("about", "shown"),
    [
        ({"about": "tool", "task_id": "t1", "tool": "refund", "input": {"order": "o-18", "amount": 9}}, '"o-18"'),
        ({"about": "task", "task_id": "t1"}, "9 mm"),
        ({"about": "plan", "plan": Plan(goal="mend all of it", tasks=()), "revision": 1}, "mend all of it"),
    ],
    ids=lambda each: each["about"] if isinstance(each, dict) else "",
)
def test_show_has_open_questions_and_the_commands_that_answer_them(about: dict[str, Any], shown: str) -> None:
    task = PlannedTask(id="t1", agent="fitter", intent="fit it", input={"bolt": "9 mm", "nut": "big"})
    accepted = PlanAccepted(at=at(1), revision=1, plan=Plan(tasks=(task,)))
    asked = QuestionAsked(at=at(1), question="wf-1", expires_at=at(99), **about)

    _, stands = plain(render.render_workflow([started(), accepted, asked], (), at(9), ())).split(
        "waiting for an answer."
    )

    assert shown in stands
    assert "`pointsman approve wf-1`" in stands
    assert "`pointsman reject wf-1`" in stands


def test_attempt_that_asked_a_person_is_drawn_as_waiting() -> None:
    error = AttemptError(kind="needs_answer", message="a person must allow the use of refund")
    log = [*completed()[:5], dispatched("t1", "fitter", 2)]
    result = succeeded("t1", "fitter", 2, 3).result.model_copy(update={"status": "failed", "error": error})
    log.append(AttemptFailed(at=at(3), event_id="e1", task_id="t1", attempt=1, error=error, result=result))
    log.append(QuestionAsked(at=at(3), question="wf-1", about="tool", task_id="t1", expires_at=at(99)))

    root = build_trace(log)
    text, narrow = plain(render_tree(root, at(9), 200), 200), plain(render_tree(root, at(9), 80), 80)
    (line,) = (line for line in text.splitlines() if "invoke_agent fitter" in line)

    assert "‖ invoke_agent fitter t1" in line
    assert "█" in line, "the attempt's work before its question is missing"
    assert "a person must allow the use of refund" in line
    assert "✗" not in text + narrow
    assert "needs_answer" not in text + narrow
    (attempt,) = (node for task in root.children[0].children if task.task_id == "t1" for node in task.children)
    assert attempt.status == "asked a person"


def test_bars_are_to_scale_on_one_axis() -> None:
    lines = plain(render_tree(build_trace(completed()), at(9)), 140).splitlines()

    def bar(name: str) -> tuple[int, int]:
        line = next(line for line in lines if name in line)
        (drawn,) = re.finditer("[█─]+", line)
        return drawn.start(), len(drawn.group())

    names = ("invoke_workflow", "plan planner", "invoke_agent fitter", "invoke_agent tester")
    whole, plan, fitter, tester = (bar(name) for name in names)
    assert whole[1] == 32
    assert (plan[0], fitter[0]) == (whole[0], whole[0] + 5)
    assert abs(fitter[1] - 16) <= 1
    assert tester[0] == fitter[0], "parallel tasks must start in the same column"
    assert abs(tester[1] - 32 / 3) <= 1


def test_trace_shows_attempts_and_cost() -> None:
    usage = Usage(calls=1, input_tokens=1_000, output_tokens=234, cost=0.5)
    root = build_trace(failing(), [tool("a", 2, 3)])
    task = root.children[0].children[0].model_copy(update={"attempt": 2, "usage": usage})
    workflow = root.children[0].model_copy(update={"children": (task,), "usage": usage})
    text = plain(render_tree(root.model_copy(update={"children": (workflow,), "usage": usage}), at(9), 140))

    (line,) = [line for line in text.splitlines() if task.name in line]
    assert f"{task.name} x2" in line
    assert "1,234" in line
    assert "$0.5000" in line


def test_bar_is_thick_while_an_agent_works_and_thin_while_the_task_waits() -> None:
    log: list[Entry] = [
        started(), dispatched("t1", "fitter", 0), succeeded("t1", "fitter", 4, 8), ended("completed", 8),
    ]  # fmt: skip

    (line,) = [
        line for line in plain(render_tree(build_trace(log), at(9))).splitlines() if "invoke_agent fitter" in line
    ]

    assert line.count("─") == line.count("█") == 16
    assert line.index("─") < line.index("█")


def test_task_without_a_begin_report_has_its_own_mark() -> None:
    log: list[Entry] = [started(), dispatched("t1", "fitter", 0)]

    def line(*reports: Progress) -> str:
        text = plain(render_tree(build_trace(log, reports), at(8)))
        return next(line for line in text.splitlines() if "invoke_agent fitter" in line)

    assert ("·" in line(), line().count("─"), line().count("█")) == (True, 32, 0)
    begun = line(tool("drill", 4, 5))
    assert ("…" in begun, begun.count("─"), begun.count("█")) == (True, 16, 16)


def test_attempts_have_lines_of_their_own_only_if_there_are_several() -> None:
    once = plain(render_tree(build_trace(completed(), [tool("find_bolts", 2, 2.5)]), at(9)))
    again = plain(render_tree(build_trace(failing()), at(9)))

    assert "attempt" not in once
    assert "│ └ ✓ execute_tool find_bolts" in once
    assert [f"attempt {n}" in again for n in (1, 2, 3)] == [True, True, False]


def test_running_task_shows_its_time_until_now() -> None:
    log: list[Entry] = [started(), dispatched("t1", "fitter", 2)]

    lines = [line.split() for line in plain(render_tree(build_trace(log), at(9))).splitlines()]

    assert ["9.0", "s"] in [line[-2:] for line in lines if "invoke_workflow" in line]
    assert ["7.0", "s"] in [line[-2:] for line in lines if "invoke_agent" in line]


def test_tasks_of_one_agent_have_distinct_labels() -> None:
    text = plain(render_tree(build_trace(completed()), at(9)))

    assert "invoke_agent fitter t1" in text
    assert "synthesize synthesizer" in text


@pytest.mark.parametrize("width", [80, 130, 300])
def test_long_error_is_printed_once_below_the_tree(
    width: int,
) -> None:
    lines = plain(render_tree(build_trace(failing(message="out of bolts " * 6 + "and nuts")), at(9), width), width)

    assert " ".join(lines.split()).count("out of bolts and nuts") >= 1
    assert len(re.findall(r"^✗ helper t1: ", lines, re.M)) == (width < 300)


@pytest.mark.parametrize("width", [50, 60, 80, 100, 140, 200])
def test_trace_fits_into_its_terminal(width: int) -> None:
    reports = [tool("a_tool_with_quite_a_long_name_for_a_tool", 2, 3, error="why " * 50)]

    lines = plain(render_tree(build_trace(completed(), reports), at(9), width), width).splitlines()

    assert len(lines) >= 10
    assert all(len(line) <= width for line in lines)
    assert any("3.0 s" in line for line in lines), "the duration is missing"


@pytest.mark.parametrize("width", [50, 60, 70])
def test_narrow_tree_shows_names_and_the_total_time(width: int) -> None:
    head, *lines = plain(
        render_tree(build_trace(completed(), [tool("look_up", 2, 3)]), at(9), width), width
    ).splitlines()

    assert "to 6.0 s" in head
    assert [
        name
        for name in ("plan planner", "fitter t1", "look_up", "tester t2")
        if not any(name in line for line in lines)
    ] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0004, "0.4 ms"), (0.083, "83 ms"), (1.24, "1.2 s"), (185, "3m 05s"), (7260, "2h 01m")],
)
def test_durations_read_at_a_glance(value: float, text: str) -> None:
    assert format_seconds(value) == text


def test_streamed_text_is_printed_in_whole_lines_without_control_characters() -> None:
    printer = EventPrinter()

    def said(text: str) -> list[str]:
        delta = Delta(workflow_id="wf_1", task_id="T1", attempt=1, agent="writer", text=text)
        return [line.text.plain.strip() for line in printer.text_lines(delta)]

    assert said("It was a dark") == []
    assert said(" night.\n\x1b[31mThen") == ["It was a dark night."]
    (line,) = said(" there were many words" * 5)
    assert "\x1b" not in line
    assert line.endswith(("there", "were", "many", "words"))
