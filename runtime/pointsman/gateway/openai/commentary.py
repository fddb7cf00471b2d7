"""Describe the work of a team as the reasoning of a model, with one line for each event."""

from __future__ import annotations

from pointsman_schemas.card import Role
from pointsman_schemas.log import Entry

__all__ = ["Commentary"]

_ROLES = {
    Role.PLAN: "plans",
    Role.CLASSIFY: "chooses an agent",
    Role.SYNTHESIZE: "writes the answer",
    Role.REFINE: "rewrites a task",
    Role.JUDGE: "reviews",
}


class Commentary:
    """Describe the entries of one log, in order. Each gateway makes the same lines from the same entries."""

    def __init__(self) -> None:
        self._intents: dict[str, str] = {}
        self._roles: dict[str, Role] = {}

    def line(self, entry: Entry) -> str:
        """Return the line for an entry.

        Args:
            entry: The next entry, after the entries of earlier calls.

        Returns:
            The line; empty for an entry that callers do not need.
        """
        match entry.kind:
            case "task_added":
                self._roles[entry.task_id] = entry.role
            case "plan_accepted":
                self._intents.update({task.id: task.intent for task in entry.plan.tasks})
                count = len(entry.plan.tasks)
                return (
                    f"Plan: {count} task{'' if count == 1 else 's'}. {entry.plan.goal or ''}".strip() if count else ""
                )
            case "task_dispatched":
                return f"{entry.agent}: {self._work(entry.task_id)}"
            case "task_succeeded":
                return f"{entry.result.agent}: done" if entry.task_id in self._intents else ""
            case "attempt_failed":
                return f"{entry.task_id}: {entry.error.message}"
            case "retry_scheduled":
                return f"{entry.agent}: tries again"
            case "question_asked":
                what = entry.text or f"approval of the {entry.about}"
                return f"Waits for a person: {what} (question {entry.question})"
            case "question_answered":
                return f"Question {entry.question}: {entry.verdict}"
            case "workflow_resumed":
                return "Resumed"
        return ""

    def _work(self, task: str) -> str:
        return self._intents.get(task) or _ROLES.get(self._roles.get(task, Role.WORK), "works")
