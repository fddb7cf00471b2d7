"""The page `docs/state-machine.md`, drawn from the tables in `transitions`.

`make schemas` draws it anew; a test fails when it has not been.
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

A workflow is in one phase, and each of its tasks has one status. The moves below are all there are: folding a log entry
that asks for another one is an error, so a log that folds has obeyed them.

## Phases of a workflow

`planning` covers classification too. From `running` back to `planning` goes a workflow that plans again. Nothing
follows a terminal phase.

{phases}
## Statuses of a task

The planner's, the classifier's and the synthesizer's own work are tasks like any other. `backing_off` waits for the
time of its next attempt, which the broker keeps. `awaiting_budget` waits until an attempt that is under way gives back
what it did not use. `failed` and `skipped` are left only when somebody replays the failed
task's dead letter while its workflow still runs; `succeeded` only when an answer that came in time, a plan, is refused
for good.

{tasks}"""


def render_page() -> str:
    """The whole page, as Markdown with two Mermaid diagrams."""
    return _PAGE_TEMPLATE.format(
        phases=_render_diagram(Phase, PHASE_MOVES, TERMINAL), tasks=_render_diagram(TaskStatus, TASK_MOVES, SETTLED)
    )


def _render_diagram(states: type[StateT], moves: Mapping[StateT, frozenset[StateT]], last: frozenset[StateT]) -> str:
    """The moves in the order in which the states are declared, the first of which is where everything begins."""
    lines = [f"    [*] --> {next(iter(states))}"]
    for source in states:
        lines.extend(f"    {source} --> {target}" for target in states if target in moves[source])
        if source in last:
            lines.append(f"    {source} --> [*]")
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


if __name__ == "__main__":
    sys.stdout.write(render_page())
