"""Print the modules of the core that run when a request becomes a handoff, and when a result is handled.

A reader who follows a message through the code opens these modules, in this order. `make reading-path` prints them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from pointsman import core
from pointsman.core.decide import decide
from pointsman.core.decision import DecisionContext
from pointsman.core.evolve import evolve
from pointsman.core.model.inputs import Input, RequestReceived
from pointsman.core.model.messages import Message
from pointsman.core.model.state import State
from pointsman.core.outbox import outbox
from pointsman_schemas.events import Request
from pointsman_schemas.team import Limits, PlanAndExecute
from support.core import SUBJECTS, T0, WorkflowDriver, admission, card, plan, task

__all__ = ["ReadingPath", "plan_path", "request_path", "result_path"]

_CORE = Path(core.__path__[0])


class ReadingPath:
    """The modules of the core whose functions ran during the followed steps.

    `functions` maps a module, such as `tasks.dispatch`, to its functions that ran, in the order of their first call.
    Code that runs on import does not count.
    """

    def __init__(self) -> None:
        self.functions: dict[str, set[str]] = {}

    def __str__(self) -> str:
        """List the modules in the order of their first call, each with the number of its functions that ran."""
        rows = [f"{number:3}  {name:32} {len(ran):3}" for number, (name, ran) in enumerate(self.functions.items(), 1)]
        return "\n".join(rows)

    def follow(self, state: State | None, inputs: Iterable[Input]) -> tuple[State, list[Message]]:
        """Decide on `inputs`, fold the entries, and compute the outbox.

        Returns:
            The new state, and the messages in its outbox.
        """
        context = DecisionContext(T0, (card("worker"), card("other")))
        before = sys.getprofile()
        sys.setprofile(self._profile(before))
        try:
            for entry in decide(state, inputs, context):
                state = evolve(state, entry)
            assert state is not None
            return state, list(outbox(state, SUBJECTS))
        finally:
            sys.setprofile(before)

    def _profile(self, before: Callable[..., Any] | None) -> Callable[[FrameType, str, Any], None]:
        def called(frame: FrameType, event: str, argument: Any) -> None:
            path = Path(frame.f_code.co_filename)
            if event == "call" and path.is_relative_to(_CORE):
                module = ".".join(path.relative_to(_CORE).with_suffix("").parts)
                self.functions.setdefault(module, set()).add(frame.f_code.co_qualname.partition(".<locals>")[0])
            if before is not None:
                before(frame, event, argument)

        return called


def request_path() -> ReadingPath:
    """Follow a request for a planner from its arrival to the planner's handoff."""
    path = ReadingPath()
    admitted = admission(PlanAndExecute(), Limits(), refiner="refiner", judge="judge")
    state, messages = path.follow(None, [RequestReceived(admitted, Request(input="do it"))])
    assert [each.subject for each in messages if "plan-1" in each.subject], f"no handoff for plan-1 in {messages}"
    assert set(state.tasks) == {"plan-1"}
    return path


def plan_path() -> ReadingPath:
    """Follow the planner's result to the handoff of the plan's first task."""
    path = ReadingPath()
    story = WorkflowDriver().start()
    answer = story.result("plan-1", plan(task("first"), task("second", needs=["first"])))
    _, messages = path.follow(story.state, [answer])
    assert [each.subject for each in messages if "first" in each.subject], f"no handoff for first in {messages}"
    return path


def result_path() -> ReadingPath:
    """Follow the result of a task to the handoff of the task that needs the result."""
    path = ReadingPath()
    story = WorkflowDriver().planned(task("first"), task("second", needs=["first"]))
    _, messages = path.follow(story.state, [story.result("first", {"from": "first"})])
    assert [each.subject for each in messages if "second" in each.subject], f"no handoff for second in {messages}"
    return path


def main() -> None:
    for title, follow in (
        ("A request, to the planner's handoff", request_path),
        ("A plan, to the first task's handoff", plan_path),
        ("A result, to the next task's handoff", result_path),
    ):
        path = follow()
        sys.stdout.write(f"{title}: {len(path.functions)} modules, with the number of functions that ran\n{path}\n\n")


if __name__ == "__main__":
    main()
