"""Convert a workflow, the agents and dead letters to JSON data for the pages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pointsman.client.files import list_files
from pointsman.core.model.agent_health import Circuit
from pointsman.core.views import trace
from pointsman.core.views.formatting import request_text
from pointsman.core.views.trace_status import at_time
from pointsman.engine.operations.dead_letter_entry import DeadLetterEntry
from pointsman.engine.process.agent_versions import group_by_name, live_revisions, mixed_queue, team_definitions
from pointsman.errors import ContractError
from pointsman.index.rows import AgentRecord
from pointsman.ports.bus import QueueDepth
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.events import DeadLetter, Outcome, Progress, UserMessage
from pointsman_schemas.ids import child_id_for
from pointsman_schemas.log import (
    Entry,
    MessageReceived,
    PlanAccepted,
    RetryScheduled,
    TaskDispatched,
    WorkflowEnded,
    WorkflowStarted,
)

__all__ = [
    "agents_json",
    "dead_letter_json",
    "dead_letter_row",
    "ended_json",
    "teams_json",
    "workflow_json",
]

_MAX_CAUSE_CHARS = 400  # number of characters of a cause in the list; the complete letter has the whole cause


def workflow_json(entries: Sequence[Entry], reports: Sequence[Progress], alive: Collection[str]) -> dict[str, Any]:
    """Return the current state of a workflow: the tasks with attempts, calls and dependencies, and the outcome.

    Args:
        entries: All entries of the workflow's log.
        reports: The reports of the workflow's agents.
        alive: The names of live agents.

    Returns:
        Data for JSON. `children` are the workflows of attempts that teams handle, in the order of the log.

    Raises:
        ValueError: The entries do not begin with `WorkflowStarted`.
    """
    now = datetime.now(UTC)
    root = at_time(trace.build_trace(entries, reports), now, alive)
    (top,) = root.children
    started, last = entries[0], entries[-1]
    assert isinstance(started, WorkflowStarted)
    outcome = last.outcome if isinstance(last, WorkflowEnded) else None
    plans = [entry for entry in entries if isinstance(entry, PlanAccepted)]
    return {
        "id": started.workflow_id,
        "team": started.team,
        "status": top.status,
        "reason": top.detail,
        "strategy": started.strategy.kind,
        "request": request_text(started.input),
        "input": started.input,
        "metadata": started.metadata,
        "files": [{**each.file.model_dump(), "origin": each.origin} for each in list_files(entries)],
        "correlation_id": started.correlation_id,
        "parent": started.parent.workflow_id if started.parent else None,
        "trace_id": started.trace.trace_id,
        "started_at": started.at,
        "ended_at": top.ended_at,
        "deadline": started.deadline,
        "usage": top.usage,
        "plan": {"revision": plans[-1].revision, "goal": plans[-1].plan.goal} if plans else None,
        "tasks": [_node_json(node) for node in top.children],
        "needs": _dependencies(plans, top),
        "children": [
            {
                "task_id": entry.task_id,
                "attempt": entry.attempt,
                "agent": entry.agent,
                "workflow": child_id_for(entry.agent, started.workflow_id, entry.task_id, entry.attempt),
            }
            for entry in entries
            if isinstance(entry, TaskDispatched | RetryScheduled) and entry.team
        ],
        "messages": [_message_json(each) for each in started.messages]
        + [_message_json(entry) for entry in entries if isinstance(entry, MessageReceived)],
        "outcome": outcome.model_dump(exclude={"tasks", "files"}) if outcome else None,
        "now": now,
    }


def _message_json(message: UserMessage | MessageReceived) -> dict[str, Any]:
    return {"number": message.number, "text": message.text, "by": message.by, "at": message.at}


def ended_json(started: WorkflowStarted, outcome: Outcome) -> dict[str, Any]:
    """Return the part of `workflow_json` that remains after the end of a workflow, without the tasks.

    Args:
        started: The first entry of the workflow's log.
        outcome: The outcome of the workflow.

    Returns:
        Data for JSON.
    """
    files = [{**file.model_dump(), "origin": "request"} for file in started.files]
    files += [{**file.model_dump(), "origin": "answer"} for file in outcome.files]
    return {
        "id": started.workflow_id,
        "team": started.team,
        "status": outcome.status,
        "request": request_text(started.input),
        "files": files,
        "started_at": started.at,
        "ended_at": outcome.ended_at,
        "tasks": [],
        "outcome": outcome.model_dump(exclude={"tasks", "files"}),
        "now": datetime.now(UTC),
    }


def _node_json(node: trace.TraceNode) -> dict[str, Any]:
    """Return a node of the trace without empty fields, because a plan of 500 tasks is sent often."""
    shown: dict[str, Any] = {
        "kind": node.kind,
        "name": node.name,
        "status": node.status,
        "started_at": node.started_at,
        "ended_at": node.ended_at,
    }
    for name in ("detail", "role", "agent", "task_id", "attempt", "revision", "due"):
        if value := getattr(node, name):
            shown[name] = value
    if node.usage.calls or node.usage.tokens:
        shown["usage"] = node.usage
    if node.children:
        shown["children"] = [_node_json(child) for child in node.children]
    return shown


def _dependencies(plans: Sequence[PlanAccepted], top: trace.TraceNode) -> dict[str, list[str]]:
    """Return the dependencies of each task.

    A planned task without dependencies depends on its planner. The synthesizer depends on each
    planned task that no other planned task needs.
    """
    roles = {node.task_id: node.role for node in top.children}
    planners = [node.task_id for node in top.children if node.role in (Role.PLAN, Role.CLASSIFY) and node.task_id]
    needs: dict[str, list[str]] = {}
    for number, accepted in enumerate(plans):
        planner = planners[min(number, len(planners) - 1) :][:1] if planners else []
        for task in accepted.plan.tasks:
            on = [*task.depends_on, *task.optional_dependencies]
            needs.setdefault(task.id, on or planner)
    _place_items(needs, top)
    needed = {name for on in needs.values() for name in on}
    ends = [name for name in needs if name not in needed]
    for node in top.children:
        if node.role is Role.SYNTHESIZE and node.task_id:
            needs[node.task_id] = ends or planners[-1:]
    return {name: [each for each in on if each in roles] for name, on in needs.items()}


def _place_items(needs: dict[str, list[str]], top: trace.TraceNode) -> None:
    """Place the tasks of the items of a task with `for_each` between this task and its dependencies."""
    items: dict[str, list[str]] = {}
    for node in top.children:
        if node.item_of and node.task_id:
            items.setdefault(node.item_of, []).append(node.task_id)
    for whole, names in items.items():
        needs.update(dict.fromkeys(names, needs.get(whole, [])))
        needs[whole] = names


def agents_json(
    cards: Sequence[AgentCard],
    depths: Mapping[str, QueueDepth | None],
    records: Mapping[str, AgentRecord],
    circuits: Mapping[str, Circuit],
    now: datetime,
) -> list[dict[str, Any]]:
    """Return every agent that is live or has waiting tasks, with its card, its queue and its latencies."""
    alive = group_by_name(cards)
    found = []
    for name in sorted({*alive, *records}):
        here, depth, record = alive.get(name, []), depths.get(name), records.get(name)
        if not here and not (depth and depth.pending + depth.in_flight):
            continue  # the agent has stopped, and no task waits for it, so the list omits the agent
        first = here[0] if here else None
        found.append(
            {
                "name": name,
                "role": first.role.value if first else record.role if record else Role.WORK.value,
                "description": first.description if first else "",
                "skills": first.skills if first else (),
                "model": first.model if first else None,
                "versions": list(live_revisions(here)),
                "owner": first.owner if first else None,
                "mixed": mixed_queue(here, now),
                "problems": list(dict.fromkeys(problem for card in here for problem in card.problems)),
                "instances": len(here),
                "slots": sum(card.concurrency for card in here),
                "waiting": depth.pending if depth else None,
                "working": depth.in_flight if depth else None,
                "health": _health(len(here), depth, record),
                "record": record.as_json() if record else None,
                "circuit": circuits.get(name),
            }
        )
    return found


def teams_json(cards: Sequence[AgentCard], depths: Mapping[str, QueueDepth | None]) -> list[dict[str, Any]]:
    """Return every team with a live supervisor, with its queue of requests.

    Args:
        cards: The cards of the supervisors.
        depths: The queue of requests by team.

    Returns:
        Data for JSON, sorted by name.
    """
    alive = group_by_name(cards)
    return [
        {
            "name": name,
            "description": here[0].description,
            "supervisors": len(here),
            "waiting": depth.pending if (depth := depths.get(name)) else None,
            "definitions": len(team_definitions(here)),
        }
        for name, here in sorted(alive.items())
    ]


def _health(instances: int, depth: QueueDepth | None, record: AgentRecord | None) -> str:
    """Return the health: `stuck` if work has no live agent, `failing` if half or more of the newest attempts failed."""
    if not instances:
        return "stuck" if depth and depth.pending else "gone"
    if record and len(record.recent) >= 4 and record.recent.count(False) * 2 >= len(record.recent):
        return "failing"
    if depth and depth.pending and depth.in_flight:
        return "busy"
    return "working" if depth and depth.in_flight else "ready"


def dead_letter_row(of: DeadLetter) -> dict[str, Any]:
    """Return a dead letter for the list, without its body."""
    return {
        "id": of.id,
        "origin": of.origin,
        "workflow": of.workflow_id,
        "task": of.task_id,
        "kind": of.cause.kind,
        "message": of.cause.for_operators[:_MAX_CAUSE_CHARS],
        "attempts": of.attempts,
        "subject": of.subject,
        "at": of.at,
    }


def dead_letter_json(of: DeadLetterEntry) -> dict[str, Any]:
    """Return one complete dead letter, with the body of the event decoded for people."""
    try:
        body = of.decoded
    except ContractError as error:
        body = str(error)
    return {**of.content.model_dump(mode="json", exclude={"body"}, exclude_none=True), "decoded": body}
