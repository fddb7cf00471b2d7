"""Record logs of workflows. `python tests/replay/record.py NAME < LOG` stores an observed log as `NAME.jsonl`.

Each line of LOG is a commit: the body of a message on `{ns}.log.{team}.{workflow}`, in order. Without NAME, the core
plays the scenarios below and records each scenario that has no log. An existing log is not replaced, because every
later release must be able to read it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

FOLDER = Path(__file__).parent
if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parent))

from support.core import WorkflowDriver, card, cards, failure, plan, selection, task  # noqa: E402  (the path is set above)

from pointsman_schemas.log import Commit  # noqa: E402
from pointsman_schemas.strict_json import dump, parse  # noqa: E402
from pointsman_schemas.team import Limits, PlanAndExecute, RetryPolicy, Router  # noqa: E402

__all__ = ["SCENARIOS", "read", "write"]


def read(path: Path) -> list[Commit]:
    """Return the commits of a recorded log."""
    return [parse(Commit, line) for line in path.read_bytes().splitlines()]


def write(path: Path, commits: Iterable[Commit]) -> None:
    path.write_bytes(b"".join(dump(commit) + b"\n" for commit in commits))


begun = partial(WorkflowDriver, refiner=None, judge=None)
"""The logs of the scenarios are from a release that had no refiner and no judge."""


def everything_succeeds() -> WorkflowDriver:
    story = begun(cards=cards("research", "writing", "code")).start("Research the latest trends and write about them")
    story.complete_task(
        "plan-1", plan(task("T1", "research"), task("T2", "writing", ["T1"]), task("T3", "code", ["T1"]))
    )
    story.wait(3).complete_task("T1", {"facts": ["one", "two"]}, confidence=0.8)
    story.wait(2).decide_and_apply(story.result("T3", "print(1)"), story.result("T2", "Once upon a time"))
    story.complete_task("synthesis", {"answer": "Once upon a time, print(1)"})
    return story


def a_failure_cascades() -> WorkflowDriver:
    story = begun().planned(
        task("T1"), task("T2", "other"), task("T3", needs=["T1"]), task("T4", "other", ["T2"], ["T1"]),
        task("T5", needs=["T3", "T4"]),
    )  # fmt: skip
    for _ in range(3):
        story.wait(5).fail_task("T1", failure(retryable=True, retry_after=2))
    story.complete_task("T2")
    story.complete_task("T4")
    story.complete_task("synthesis", {"answer": "half of it"})
    return story


def a_planner_is_told_how_many_tasks_are_left() -> WorkflowDriver:
    story = begun(limits=Limits(replans=1)).start()
    story.complete_task("plan-1", plan(task("a", "ghost"), task("a", needs=["a"])))
    story.complete_task("plan-2", plan(task("a"), task("b", needs=["a"])))
    story.fail_task("a", failure("handler_error"))
    story.complete_task("plan-3", plan(task("a2", "other"), task("b", needs=["a2"])))
    story.complete_task("a2")
    story.complete_task("b", replan_hint="there may be more")
    story.fail_task("synthesis", failure("refused"), status="refused")
    return story


def the_fallback_answers_after_a_timeout() -> WorkflowDriver:
    fleet = (card("worker", fallback="other", timeout=5), card("other"))
    story = begun(cards=fleet, retry=RetryPolicy(attempts=1), strategy=PlanAndExecute(synthesizer=None)).planned(
        task("a")
    )
    late = story.result("a", "too late", event_id="late")
    story.fire_timer()
    story.decide_and_apply(late, late)
    story.complete_task("a", "in time")
    return story


def the_deadline_comes() -> WorkflowDriver:
    story = begun(limits=Limits(deadline=30, task_timeout=100)).planned(task("a"), task("b"), task("c", needs=["b"]))
    story.complete_task("a")
    story.fire_timer()
    story.wait(2).complete_task("synthesis", {"answer": "what there is"})
    return story


def a_dead_letter_is_replayed() -> WorkflowDriver:
    story = begun().planned(task("a"), task("b", needs=["a"]), task("x"))
    story.fail_task("a")
    story.control("replay", task_id="a", actor="ops")
    for name in ("a", "x", "b"):
        story.complete_task(name)
    story.complete_task("synthesis", {"answer": "all of it"})
    return story


def a_router_escalates() -> WorkflowDriver:
    router = Router(escalate=PlanAndExecute())
    story = begun(strategy=router, cards=cards("billing", "technical", "account")).start({"text": "429, twice"})
    story.complete_task("classify-1", selection(("billing", 0.9), ("technical", 0.7), ("account", 0.1)))
    story.complete_task("plan-1", plan(task("a", "billing"), task("b", "technical")))
    story.complete_task("b", {"nothing": None})
    story.complete_task("a", 12345678901234567890)
    story.complete_task("synthesis", {"answer": "both"})
    return story


def an_operator_cancels() -> WorkflowDriver:
    story = begun(limits=Limits(calls=10)).planned(task("a"), task("b", needs=["a"]))
    story.fail_task("a", failure(retryable=True))
    story.control("cancel", actor="ops", reason="not needed any more")
    return story


SCENARIOS: Mapping[str, Callable[[], WorkflowDriver]] = {
    play.__name__.replace("_", "-"): play
    for play in (
        everything_succeeds,
        a_failure_cascades,
        a_planner_is_told_how_many_tasks_are_left,
        the_fallback_answers_after_a_timeout,
        the_deadline_comes,
        a_dead_letter_is_replayed,
        a_router_escalates,
        an_operator_cancels,
    )
}


def main(arguments: list[str]) -> int:
    if arguments:
        commits = [parse(Commit, line) for line in sys.stdin.buffer.read().splitlines() if line.strip()]
        write(FOLDER / f"{arguments[0]}.jsonl", commits)
        return 0
    for name, play in SCENARIOS.items():
        path = FOLDER / f"{name}.jsonl"
        if not path.exists():
            write(path, play().commits)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
