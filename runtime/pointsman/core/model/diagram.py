"""Draw the page `docs/state-machine.md` from the tables in `lifecycle`.

`make schemas` writes the page. A test fails if the page is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from pointsman.core.model.lifecycle import PHASE_MOVES, SETTLED, TASK_MOVES, TERMINAL, Phase, TaskStatus

__all__ = ["render_page"]

StateT = TypeVar("StateT", bound=StrEnum)

_PAGE_TEMPLATE = """\
# The state machine

<!-- Drawn from runtime/pointsman/core/model/lifecycle.py: run `make schemas`. -->

A workflow is in one phase, and each of its tasks has one status. The two diagrams show all legal moves. A log entry
with a different move is an error when the log is folded.

## Phases of a workflow

`planning` includes classification. A workflow that is planned again goes from `running` back to `planning`. A terminal
phase ends a round of the workflow. `completed` and `cancelled` are final. A person may resume a workflow in `partial`
or `failed`. The new round begins in `running` or, if the workflow has no plan, in `planning`.

{phases}
## Statuses of a task

The planner, the classifier and the synthesizer have tasks, too. A task in `backing_off` waits for the time of its next
attempt, which the broker schedules. A task in `awaiting_budget` waits until an active attempt returns unused budget. A
task in `expanded` has `for_each`, and waits for the tasks of its items.

A task leaves `failed` and `skipped` only in two cases: a person replays the dead letter of the failed task while the
workflow runs, or a person resumes the workflow after its end. After a resume, three other kinds of tasks also wait
again: abandoned tasks, tasks of a team whose result has gaps, and tasks with `for_each` that lack results of items. In
any other case, a task leaves `succeeded` only if its output, such as a plan, is refused permanently.

{tasks}"""


def render_page() -> str:
    """Return the page, as Markdown with two Mermaid diagrams."""
    return _PAGE_TEMPLATE.format(
        phases=_render_diagram(Phase, PHASE_MOVES, TERMINAL), tasks=_render_diagram(TaskStatus, TASK_MOVES, SETTLED)
    )


def _render_diagram(states: type[StateT], moves: Mapping[StateT, frozenset[StateT]], last: frozenset[StateT]) -> str:
    """Return the moves in the order in which the states are declared. The first state is the initial state."""
    lines = [f"    [*] --> {next(iter(states))}"]
    for source in states:
        lines.extend(f"    {source} --> {target}" for target in states if target in moves[source])
        if source in last:
            lines.append(f"    {source} --> [*]")
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


if __name__ == "__main__":
    sys.stdout.write(render_page())
