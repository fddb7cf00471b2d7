"""Convert the log of a workflow to the events of a response.

The events and their numbers depend only on the log. So a client can continue a stream at any gateway, after any event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pointsman.gateway.openai.commentary import Commentary
from pointsman.gateway.openai.conversation import BACKGROUND_METADATA, PREVIOUS_METADATA, response_id
from pointsman.gateway.openai.messages import answer_text
from pointsman_schemas.events import Outcome
from pointsman_schemas.log import Entry, WorkflowEnded, WorkflowStarted

__all__ = ["ResponseEvents", "response_body"]

_PIECE_CHARS = 200  # largest number of characters of the answer in one event


def response_body(
    workflow: str,
    model: str,
    *,
    created_at: float,
    status: str,
    previous: str | None = None,
    outcome: Outcome | None = None,
    work: str = "",
    background: bool = False,
) -> dict[str, Any]:
    """Return a response object.

    Args:
        workflow: The workflow.
        model: The team.
        created_at: Time of the request, in seconds since 1970.
        status: `queued`, `in_progress`, `completed`, `failed` or `cancelled`.
        previous: The id of the previous response. Default: none.
        outcome: The outcome of the workflow. Default: the workflow has not ended.
        work: The work of the team, one line for each event.
        background: True if the client asked for the response in the background.

    Returns:
        The response object.
    """
    id = response_id(workflow)
    usage = outcome.usage if outcome else None
    output: list[dict[str, Any]] = []
    if work:
        output.append(_reasoning_item(workflow, work))
    if outcome is not None and status == "completed":
        output.append(_message_item(workflow, answer_text(outcome), "completed"))
    failed = outcome if outcome is not None and status == "failed" else None
    return {
        "id": id,
        "object": "response",
        "created_at": created_at,
        "status": status,
        "background": background,
        "error": {"code": "server_error", "message": failed.reason or "the workflow failed"} if failed else None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {"workflow_id": workflow},
        "model": model,
        "output": output,
        "parallel_tool_calls": False,
        "previous_response_id": previous,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "none",
        "tools": [],
        "top_p": None,
        "usage": None
        if usage is None
        else {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.tokens,
        },
    }


class ResponseEvents:
    """The events of one response, in order.

    Args:
        workflow: The workflow.
        model: The team.
    """

    def __init__(self, workflow: str, model: str) -> None:
        self._workflow = workflow
        self._model = model
        self._background = False
        self._created_at = 0.0
        self._previous: str | None = None
        self._number = 0
        self._commentary = Commentary()
        self._work = ""
        self._ended = False

    @property
    def background(self) -> bool:
        """True if the log records that the client asked for the response in the background."""
        return self._background

    @property
    def work(self) -> str:
        """The work of the team so far, one line for each event."""
        return self._work

    def of(self, entry: Entry) -> list[dict[str, Any]]:
        """Return the events for the next entry of the log.

        Args:
            entry: The entry.

        Returns:
            The events, with their sequence numbers.
        """
        if self._ended:
            return []  # the response has ended, so the entries of a resumed workflow add no events
        if isinstance(entry, WorkflowStarted):
            self._created_at = entry.at.timestamp()
            previous = entry.metadata.get(PREVIOUS_METADATA)
            self._previous = previous if isinstance(previous, str) else None
            self._background = entry.metadata.get(BACKGROUND_METADATA) is True
            return [
                self._event("response.created", response=self._body("in_progress")),
                self._event("response.in_progress", response=self._body("in_progress")),
            ]
        events: list[dict[str, Any]] = []
        if line := self._commentary.line(entry):
            events += self._describe(f"{line}\n")
        if isinstance(entry, WorkflowEnded):
            events += self._end(entry.outcome)
        return events

    def _describe(self, text: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        item = f"rs_{self._workflow}"
        if not self._work:
            empty = {"type": "reasoning", "id": item, "summary": []}
            part = {"type": "summary_text", "text": ""}
            events.append(self._event("response.output_item.added", output_index=0, item=empty))
            events.append(
                self._event(
                    "response.reasoning_summary_part.added", item_id=item, output_index=0, summary_index=0, part=part
                )
            )
        self._work += text
        events.append(
            self._event(
                "response.reasoning_summary_text.delta", item_id=item, output_index=0, summary_index=0, delta=text
            )
        )
        return events

    def _end(self, outcome: Outcome) -> list[dict[str, Any]]:
        self._ended = True
        events: list[dict[str, Any]] = []
        if self._work:
            item = f"rs_{self._workflow}"
            at = {"item_id": item, "output_index": 0, "summary_index": 0}
            part = {"type": "summary_text", "text": self._work}
            events += [
                self._event("response.reasoning_summary_text.done", **at, text=self._work),
                self._event("response.reasoning_summary_part.done", **at, part=part),
                self._event(
                    "response.output_item.done", output_index=0, item=_reasoning_item(self._workflow, self._work)
                ),
            ]
        if outcome.status in ("completed", "partial"):
            events += self._message(answer_text(outcome), 1 if self._work else 0)
            return [*events, self._event("response.completed", response=self._body("completed", outcome))]
        # The API has no event for a cancelled response, so its stream ends with `response.failed`, too.
        return [*events, self._event("response.failed", response=self._body(outcome.status, outcome))]

    def _message(self, text: str, index: int) -> list[dict[str, Any]]:
        item = f"msg_{self._workflow}"
        at = {"item_id": item, "output_index": index, "content_index": 0}
        begun = {**_message_item(self._workflow, "", "in_progress"), "content": []}
        pieces = [text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS)]
        return [
            self._event("response.output_item.added", output_index=index, item=begun),
            self._event("response.content_part.added", **at, part=_text_part("")),
            *(self._event("response.output_text.delta", **at, delta=piece, logprobs=[]) for piece in pieces),
            self._event("response.output_text.done", **at, text=text, logprobs=[]),
            self._event("response.content_part.done", **at, part=_text_part(text)),
            self._event(
                "response.output_item.done",
                output_index=index,
                item=_message_item(self._workflow, text, "completed"),
            ),
        ]

    def _body(self, status: str, outcome: Outcome | None = None) -> dict[str, Any]:
        return response_body(
            self._workflow,
            self._model,
            created_at=self._created_at,
            status=status,
            previous=self._previous,
            outcome=outcome,
            work=self._work,
            background=self._background,
        )

    def _event(self, type: str, **fields: Any) -> dict[str, Any]:
        event: Mapping[str, Any] = {"type": type, "sequence_number": self._number, **fields}
        self._number += 1
        return dict(event)


def _reasoning_item(workflow: str, text: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": f"rs_{workflow}", "summary": [{"type": "summary_text", "text": text}]}


def _message_item(workflow: str, text: str, status: str) -> dict[str, Any]:
    return {
        "type": "message",
        "id": f"msg_{workflow}",
        "role": "assistant",
        "status": status,
        "content": [_text_part(text)],
    }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
