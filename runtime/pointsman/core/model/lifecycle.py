"""Define the legal moves between the phases of a workflow and between the statuses of a task, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

__all__ = ["PHASE_MOVES", "RESUMABLE", "SETTLED", "TASK_MOVES", "TERMINAL", "Phase", "TaskStatus"]


class Phase(StrEnum):
    """The phases of a workflow."""

    PLANNING = "planning"
    RUNNING = "running"
    SYNTHESIZING = "synthesizing"
    COMPLETED = "completed"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TaskStatus(StrEnum):
    """The statuses of a task.

    A task in `backing_off` waits for the time of its next attempt. A task in `awaiting_answer` waits for a person. A
    task in `refining` waits for a new intent. A task in `in_review` waits for a judge. A task in `held` waits for a
    live agent whose circuit allows work. A task in `awaiting_budget` waits until other attempts return budget. A task
    in `expanded` waits for the tasks of its items.
    """

    WAITING = "waiting"
    AWAITING_ANSWER = "awaiting_answer"
    RUNNING = "running"
    BACKING_OFF = "backing_off"
    REFINING = "refining"
    IN_REVIEW = "in_review"
    HELD = "held"
    AWAITING_BUDGET = "awaiting_budget"
    EXPANDED = "expanded"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    ABANDONED = "abandoned"


TERMINAL = frozenset({Phase.COMPLETED, Phase.PARTIAL, Phase.FAILED, Phase.CANCELLED})
RESUMABLE = frozenset({Phase.PARTIAL, Phase.FAILED})
"""The phases of an ended workflow that a person may resume."""
SETTLED = frozenset({TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.SKIPPED, TaskStatus.ABANDONED})

PHASE_MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.PLANNING: frozenset({Phase.RUNNING, Phase.SYNTHESIZING}) | TERMINAL,
    Phase.RUNNING: frozenset({Phase.PLANNING, Phase.SYNTHESIZING}) | TERMINAL,
    Phase.SYNTHESIZING: TERMINAL,
    **{phase: frozenset() for phase in TERMINAL},
    **{phase: frozenset({Phase.PLANNING, Phase.RUNNING}) for phase in RESUMABLE},  # only when a person resumes it
}

TASK_MOVES: Mapping[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.WAITING: frozenset(
        {
            TaskStatus.RUNNING,
            TaskStatus.AWAITING_ANSWER,
            TaskStatus.HELD,
            TaskStatus.AWAITING_BUDGET,
            TaskStatus.EXPANDED,
            TaskStatus.FAILED,  # only a task with `for_each`, if its value is not a list or has too many items
            TaskStatus.SKIPPED,
            TaskStatus.ABANDONED,
        }
    ),
    TaskStatus.EXPANDED: frozenset({TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.ABANDONED}),
    TaskStatus.AWAITING_ANSWER: frozenset(
        {
            TaskStatus.RUNNING,
            TaskStatus.HELD,
            TaskStatus.AWAITING_BUDGET,
            TaskStatus.FAILED,
            TaskStatus.ABANDONED,
        }
    ),
    TaskStatus.AWAITING_BUDGET: frozenset(
        {
            TaskStatus.RUNNING,
            TaskStatus.AWAITING_ANSWER,
            TaskStatus.BACKING_OFF,
            TaskStatus.HELD,
            TaskStatus.ABANDONED,
        }
    ),
    TaskStatus.RUNNING: frozenset(
        {
            TaskStatus.AWAITING_ANSWER,
            TaskStatus.AWAITING_BUDGET,
            TaskStatus.BACKING_OFF,
            TaskStatus.REFINING,
            TaskStatus.IN_REVIEW,
            TaskStatus.HELD,
            TaskStatus.SUCCEEDED,
            TaskStatus.FAILED,
            TaskStatus.ABANDONED,
        }
    ),
    TaskStatus.BACKING_OFF: frozenset(
        {
            TaskStatus.AWAITING_ANSWER,
            TaskStatus.AWAITING_BUDGET,
            TaskStatus.SUCCEEDED,
            TaskStatus.REFINING,
            TaskStatus.IN_REVIEW,
            TaskStatus.BACKING_OFF,
            TaskStatus.HELD,
            TaskStatus.FAILED,
            TaskStatus.ABANDONED,
        }
    ),
    TaskStatus.REFINING: frozenset(
        {
            TaskStatus.AWAITING_ANSWER,
            TaskStatus.BACKING_OFF,
            TaskStatus.HELD,
            TaskStatus.AWAITING_BUDGET,
            TaskStatus.FAILED,
            TaskStatus.ABANDONED,
        }
    ),
    TaskStatus.IN_REVIEW: frozenset(
        {
            TaskStatus.AWAITING_ANSWER,
            TaskStatus.AWAITING_BUDGET,
            TaskStatus.BACKING_OFF,
            TaskStatus.REFINING,
            TaskStatus.HELD,
            TaskStatus.SUCCEEDED,
            TaskStatus.FAILED,
            TaskStatus.ABANDONED,
        }
    ),
    TaskStatus.HELD: frozenset(
        {
            TaskStatus.RUNNING,
            TaskStatus.AWAITING_ANSWER,
            TaskStatus.AWAITING_BUDGET,
            TaskStatus.HELD,
            TaskStatus.FAILED,
            TaskStatus.ABANDONED,
        }
    ),
    TaskStatus.FAILED: frozenset(
        {
            TaskStatus.WAITING,  # only when the workflow is resumed
            TaskStatus.RUNNING,
            TaskStatus.AWAITING_ANSWER,
            TaskStatus.HELD,
            TaskStatus.AWAITING_BUDGET,
            TaskStatus.EXPANDED,  # only by a replay of the dead letter of an item's task
        }
    ),  # only by a replay of its dead letter, or when the workflow is resumed
    TaskStatus.SKIPPED: frozenset({TaskStatus.WAITING}),  # only when a failed dependency is reopened, or by a resume
    TaskStatus.SUCCEEDED: frozenset(
        {
            TaskStatus.FAILED,  # only if the output, such as a plan, is refused permanently
            TaskStatus.WAITING,  # only if the result of a team has gaps, and the workflow is resumed
            TaskStatus.EXPANDED,  # only if items of a task with `for_each` have failed, and the workflow is resumed
        }
    ),
    TaskStatus.ABANDONED: frozenset(
        {
            TaskStatus.WAITING,  # only when the workflow is resumed
            TaskStatus.EXPANDED,  # only when the workflow is resumed
        }
    ),
}
