"""A person's answer to what a workflow asks: it is published once, and what counts is read back from the log."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from uuid import uuid4

from pydantic import JsonValue

from pointsman.engine.history import closeable, commit_of, entries_of, newest_commit, publish
from pointsman.errors import NotFound
from pointsman.ports import Bus
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Control
from pointsman_schemas.log import ApprovalDecided, ApprovalRequested, ControlIgnored, Entry, WorkflowEnded
from pointsman_schemas.strict_json import as_json_value, dump
from pointsman_schemas.subjects import Subjects

__all__ = ["Answer", "answer"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an answer. `counted`: it decided the approval. None: no supervisor has read it yet. `said` says it
    in one sentence, for whoever answered."""

    counted: bool | None
    said: str
    decided: ApprovalDecided | None = None


async def answer(
    bus: Bus,
    subjects: Subjects,
    action: Literal["approve", "reject"],
    approval: str,
    *,
    input: JsonValue = None,
    reason: str = "",
    by: str = "",
    timeout: float = 10.0,
) -> Answer:
    """Publish the answer, unless it could not count, and wait for what counts.

    Raises:
        NotFound: nobody asked, or the log is gone.
        NotJson: `input` cannot be carried.
    """
    workflow = approval.rpartition("-")[0]
    if not workflow:
        raise _never_asked(approval)
    team, _ = await newest_commit(bus, subjects, workflow)
    entries = await entries_of(bus, subjects, workflow)
    asked = [entry for entry in entries if isinstance(entry, ApprovalRequested) and entry.approval == approval]
    if not asked:
        raise _never_asked(approval)
    name = uuid4().hex
    for entry in entries:
        if (found := _settles(entry, approval, name)) is not None:
            return found
    if datetime.now(UTC) >= asked[0].expires_at:
        return Answer(False, f"{approval} expired at {asked[0].expires_at.isoformat()}, which means no")
    control = Control(action=action, approval=approval, input=as_json_value(input, "input"), reason=reason, by=by)
    source = subjects.source("client", "python")
    envelope = Envelope(id=name, type=Control.event_type, source=source, time=datetime.now(UTC), subject=workflow)
    subject = subjects.control(team, workflow, name)
    await publish(bus, subject, dump(control), encode(envelope), message_id=name)
    log = bus.follow("log", (subjects.log(team, workflow),))
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout), aclosing(closeable(log)) as messages:
            async for stored in messages:
                for entry in commit_of(stored).entries:
                    if (found := _settles(entry, approval, name)) is not None:
                        return found
    return Answer(None, f"{approval} is answered in the stream; no supervisor of {team} has read it yet")


def _settles(entry: Entry, approval: str, name: str) -> Answer | None:
    """What the entry says of the approval, and of the answer with the id `name`."""
    match entry:
        case ApprovalDecided() if entry.approval == approval:
            mine = entry.event_id == name
            by = f" by {entry.by}" if entry.by and not mine else ""
            said = f"{approval} {'is' if mine else 'was already'} {entry.verdict}{by}"
            return Answer(mine, said if mine else f"{said}; nothing has changed", entry)
        case ControlIgnored() if entry.event_id == name:
            return Answer(False, entry.reason)
        case WorkflowEnded():
            return Answer(False, f"the workflow has ended: {entry.outcome.status}; {approval} is asked no more")
        case _:
            return None


def _never_asked(approval: str) -> NotFound:
    return NotFound(f"no approval {approval!r} was ever asked for; `pointsman approvals` lists what is asked now")
