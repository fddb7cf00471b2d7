"""Convert a workflow's trace from its log to OTLP/JSON. The span ids equal the ids that a collector would receive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydantic import JsonValue

from pointsman.core.views.trace import TraceNode
from pointsman.telemetry import semconv
from pointsman.telemetry.semconv import Attributes
from pointsman_schemas.ids import derive_id

__all__ = ["to_otlp"]

_INTERNAL, _CLIENT, _PRODUCER, _CONSUMER = 1, 3, 4, 5
_ERROR: Final = 2
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_otlp(root: TraceNode, *, namespace: str, workflow_id: str, now: datetime) -> dict[str, Any]:
    """Return a request of the OTLP trace service with the spans of `root`.

    Parts of the workflow that have not started are left out. Unfinished spans end at `now` and have the attribute
    `pointsman.unfinished`.

    Args:
        root: The trace of the workflow.
        namespace: The namespace of the workflow.
        workflow_id: The id of the workflow.
        now: The current time.

    Returns:
        The request as data for JSON.
    """
    writer = _Writer(namespace, workflow_id, root.trace_id, now)
    spans: list[JsonValue] = list(writer.spans(root, ""))
    resource = _attributes({"service.name": "pointsman", "service.namespace": namespace})
    scopes: list[JsonValue] = [{"scope": {"name": "pointsman"}, "spans": spans}]
    return {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": scopes}]}


@dataclass(slots=True)
class _Writer:
    namespace: str
    workflow_id: str
    trace_id: str
    now: datetime
    team: str = ""
    used: set[str] = field(default_factory=set)

    def spans(self, node: TraceNode, parent: str) -> Iterator[JsonValue]:
        if node.kind == "publish" and not node.span_id:  # the request has no trace and so no span
            for child in node.children:
                yield from self.spans(child, "")
            return
        if node.started_at is None:
            return
        span_id = self._id(node, parent)
        name, kind, attributes = self._events(node)
        more: Attributes = {
            "pointsman.unfinished": None if node.ended_at else True,
            semconv.REASON: node.detail or None,
        }
        ended = node.started_at if node.kind == "publish" else node.ended_at or self.now
        span: dict[str, JsonValue] = {
            "traceId": self.trace_id,
            "spanId": span_id,
            "name": name,
            "kind": kind,
            "startTimeUnixNano": _nanoseconds(node.started_at),
            "endTimeUnixNano": _nanoseconds(max(ended, node.started_at)),
            "attributes": _attributes({**attributes, **more}),
            "status": {"code": _ERROR, "message": node.detail} if node.status == "failed" else {},
        }
        if parent:
            span["parentSpanId"] = parent
        yield span
        for child in node.children:
            yield from self.spans(child, span_id)

    def _id(self, node: TraceNode, parent: str) -> str:
        """Return the id of the node's span. If the id is missing or shared, derive an id from the node's position."""
        wanted, number = node.span_id, 0
        while len(wanted) != 16 or wanted in self.used:
            number += 1
            wanted = derive_id(self.trace_id, parent, node.name, str(number), length=16)
        self.used.add(wanted)
        return wanted

    def _events(self, node: TraceNode) -> tuple[str, int, Attributes]:
        what = node.name.partition(" ")[2]
        ids: dict[str, Any] = {"workflow_id": self.workflow_id, "task_id": node.task_id or ""}
        match node.kind:
            case "publish":
                self.team, _, caller = what.partition(".")[2].partition(".")
                name, found = semconv.publish_request(self.namespace, self.team, caller)
                return name, _PRODUCER, found
            case "workflow":
                name, found = semconv.invoke_workflow(what, workflow_id=self.workflow_id, status=node.status)
                return name, _INTERNAL, found
            case "task":
                _, found = semconv.task(str(node.role), what, attempts=node.attempt, status=node.status, **ids)
                return node.name, _INTERNAL if node.role == "plan" else _CLIENT, found
            case "attempt":
                address = (node.agent, self.team, self.workflow_id, node.task_id, node.attempt)
                subject = ".".join([self.namespace, "handoff", *map(str, address)])
                agent, attempt = node.agent or "", node.attempt or 1
                name, found = semconv.process_handoff(self.namespace, agent, subject=subject, attempt=attempt, **ids)
                return name, _CONSUMER, found
            case "chat":
                used = semconv.chat_reply(
                    input_tokens=node.usage.input_tokens, output_tokens=node.usage.output_tokens, cost=node.usage.cost
                )
                return node.name, _CLIENT, {semconv.OPERATION_NAME: "chat", semconv.REQUEST_MODEL: what, **used}
            case "tool":
                name, found = semconv.execute_tool(what, call_id="", agent=node.agent)
                return name, _INTERNAL, found


def _attributes(of: Attributes) -> list[JsonValue]:
    return [{"key": key, "value": _value(value)} for key, value in of.items() if value is not None]


def _value(value: object) -> dict[str, JsonValue]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}  # a text, because JSON numbers cannot represent 64 bits exactly
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case tuple() | list():
            return {"arrayValue": {"values": [_value(each) for each in value]}}
        case _:
            return {"stringValue": str(value)}


def _nanoseconds(instant: datetime) -> str:
    return str((instant - _EPOCH) // timedelta(microseconds=1) * 1000)
