"""Whether the streams still hold what they once acknowledged, as far as one of them can testify for the other.

A commit is stored before the handoffs that follow from it, and a result before the commit that accepts it. So the
newest handoff vouches for its commit, and the newest commit for its result. Where one is missing, its stream has lost
its end: a disk that failed, a power cut, a store put back from an older copy. The broker itself says nothing then: it
moves consumers that are ahead of their stream back in silence.

A copy of all streams from one earlier moment is consistent. Only a process that remembers a later one can tell, which
is what a running supervisor looks for; see docs/durability.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta

from pointsman.engine.history import commit_of
from pointsman.errors import ContractError
from pointsman.ports import Bus, Clock
from pointsman_schemas.envelope import decode
from pointsman_schemas.log import AttemptFailed, TaskSucceeded
from pointsman_schemas.subjects import Subjects

__all__ = ["lost_log", "lost_work"]

_WITNESS = timedelta(days=6)
"""How old a commit may be to vouch for its result: the work stream keeps that for 7 days."""
_CAUSE = re.compile(r"(.+)-(\d+)")


async def lost_log(bus: Bus, subjects: Subjects) -> Sequence[str]:
    """What the log must have held and does not, as sentences."""
    newest = await bus.last("work", f"{subjects.namespace}.handoff.>")
    if newest is None:
        return ()
    try:
        envelope, _ = decode(newest.headers, newest.body)
        ours = envelope is not None and envelope.source.startswith(f"/{subjects.namespace}/team/")
        cause = _CAUSE.fullmatch((envelope.causation_id or "") if envelope and ours else "")
        if cause is None:  # somebody else's
            return ()
        workflow, number = cause[1], int(cause[2])
        stored = await bus.last("log", subjects.log_anywhere(workflow))
        held = commit_of(stored).number if stored else 0
    except ContractError:  # what cannot be read testifies to nothing
        return ()
    if held >= number:
        return ()
    return (
        f"{newest.subject} was sent after commit {number} of {workflow}, and {subjects.log_stream} holds "
        f"{held or 'none'} of its commits: the stream has lost its end",
    )


async def lost_work(bus: Bus, subjects: Subjects, team: str, clock: Clock) -> Sequence[str]:
    """What was to be done and is gone from the work stream, as sentences."""
    stored = await bus.last("log", subjects.logs_of(team))
    if stored is None or clock.now() - stored.at > _WITNESS:
        return ()
    workflow = stored.subject.rpartition(".")[2]
    try:
        entries = commit_of(stored).entries
    except ContractError:
        return ()
    for entry in entries:
        if isinstance(entry, TaskSucceeded | AttemptFailed) and entry.result is not None:
            subject = subjects.result(team, workflow, entry.result.agent, entry.task_id, entry.attempt)
            if await bus.last("work", subject) is None:
                return (f"{workflow} has accepted {subject}, which {subjects.work_stream} does not hold: "
                        "the stream has lost its end",)  # fmt: skip
    return ()
