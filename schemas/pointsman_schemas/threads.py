"""Define threads. A thread is a conversation, and its turns are workflows of one team, in order.

A thread has one record, on `{ns}.thread.{team}.{caller}.{thread}`. Each message of the record contains the entries of
one change and the thread after the change. The messages are published by compare-and-set, so the newest message is the
whole thread.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import AwareDatetime, Field

from pointsman_schemas.base import Frozen
from pointsman_schemas.events import MAX_DEADLINE_S, Event, Part
from pointsman_schemas.ids import AgentName, TeamName, Token, WorkflowId

__all__ = [
    "MAX_TURNS",
    "Thread",
    "ThreadDeleted",
    "ThreadEntry",
    "ThreadPolicy",
    "ThreadRecord",
    "ThreadStarted",
    "Turn",
    "TurnEnded",
    "TurnGranted",
    "TurnRequested",
    "TurnsSummarized",
]

MAX_TURNS = 1_000
"""Largest number of turns in one thread. The number is limited, because the record of a thread contains the workflow id
of each turn. A deletion finds the turns by these ids."""

TurnStatus: TypeAlias = Literal["queued", "running", "ended"]


class ThreadPolicy(Frozen):
    """The policy for the threads of a team: the history for agents, and the rule for a turn during another turn."""

    busy: Literal["queue", "reject", "interrupt", "parallel"] = Field(
        default="queue",
        description="The rule for a turn that arrives while another turn of its thread runs. `queue`: the "
        "new turn waits. `reject`: the new turn is refused. `interrupt`: the other turn is cancelled, and "
        "the new turn starts after its end. `parallel`: both turns run at the same time.",
    )
    max_queued: int = Field(
        default=10,
        strict=True,
        ge=1,
        le=100,
        description="Largest number of waiting turns of one thread. Further turns are refused.",
    )
    turns: int = Field(
        default=10,
        strict=True,
        ge=1,
        le=100,
        description="Largest number of turns that agents receive. A summary replaces older turns.",
    )
    tokens: int = Field(
        default=4_000,
        strict=True,
        ge=100,
        le=100_000,
        description="Largest number of tokens in the turns that agents receive. A token is estimated as "
        "four characters.",
    )
    summarizer: AgentName | None = Field(
        default="summarizer", description="The agent that summarizes older turns, if it is live."
    )
    ttl: float = Field(
        default=2_592_000.0,
        strict=True,
        ge=1,
        le=MAX_DEADLINE_S,
        description="Seconds from the last change of a thread until the thread expires; at most the "
        "retention time of logs.",
    )


class Turn(Part):
    """One turn of a thread."""

    workflow_id: WorkflowId = Field(description="The workflow of the turn.")
    number: int = Field(ge=1, description="The number of the turn in its thread.")
    status: TurnStatus = Field(description="The status of the turn.")
    asked_at: AwareDatetime = Field(description="Time at which a supervisor added the turn to the record.")
    sequence: int = Field(default=0, description="The sequence number of the request in its stream.")
    request: str = Field(default="", description="The request. A long request is cut after its beginning.")
    answer: str = Field(default="", description="The answer. A long answer is cut after its beginning.")
    outcome: str = Field(default="", description="The status of the outcome, or `lost` for a turn that never started.")
    ended_at: AwareDatetime | None = Field(default=None, description="The end of the turn.")


class Thread(Part):
    """The state of a thread."""

    team: TeamName = Field(description="The team.")
    caller: Token = Field(description="The caller to whom the thread belongs.")
    thread: Token = Field(description="The id of the thread, unique for its team and caller.")
    started_at: AwareDatetime = Field(description="Time of the first turn.")
    changed_at: AwareDatetime = Field(description="Time of the last change.")
    turns: tuple[Turn, ...] = Field(default=(), description="The newest turns, in order.")
    earlier: tuple[WorkflowId, ...] = Field(default=(), description="The workflows of the turns before `turns`.")
    summary: str = Field(default="", description="The summary of the turns up to `summarized`.")
    summarized: int = Field(default=0, description="The number of the last turn that the summary covers.")
    deleted_at: AwareDatetime | None = Field(default=None, description="Time of the deletion.")
    deleted_by: str = Field(default="", description="The person or system that deleted the thread.")


class ThreadStarted(Part):
    """The thread began for the first time, or again after its time to live had passed."""

    kind: Literal["thread_started"] = Field(default="thread_started", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    team: TeamName = Field(description="The team.")
    caller: Token = Field(description="The caller to whom the thread belongs.")
    thread: Token = Field(description="The id of the thread.")


class TurnRequested(Part):
    """A request became a turn of the thread."""

    kind: Literal["turn_requested"] = Field(default="turn_requested", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    workflow_id: WorkflowId = Field(description="The workflow of the turn.")
    status: Literal["queued", "running"] = Field(description="The first status: `running`, or `queued` if it waits.")
    sequence: int = Field(default=0, description="The sequence number of the request in its stream.")
    request: str = Field(default="", description="The request. A long request is cut after its beginning.")


class TurnGranted(Part):
    """A waiting turn was allowed to start."""

    kind: Literal["turn_granted"] = Field(default="turn_granted", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    workflow_id: WorkflowId = Field(description="The workflow of the turn.")


class TurnEnded(Part):
    """A turn ended."""

    kind: Literal["turn_ended"] = Field(default="turn_ended", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    workflow_id: WorkflowId = Field(description="The workflow of the turn.")
    outcome: str = Field(description="The status of the outcome, or `lost` for a turn that never started.")
    answer: str = Field(default="", description="The answer. A long answer is cut after its beginning.")


class TurnsSummarized(Part):
    """A summary replaces the older turns."""

    kind: Literal["turns_summarized"] = Field(default="turns_summarized", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    through: int = Field(ge=1, description="The number of the last turn that the summary covers.")
    summary: str = Field(description="The new summary, which includes the earlier summary.")


class ThreadDeleted(Part):
    """The thread was deleted. A deleted thread accepts no turns."""

    kind: Literal["thread_deleted"] = Field(default="thread_deleted", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    by: str = Field(default="", description="The person or system that deleted the thread.")
    purged: bool = Field(default=False, description="True if all messages of the turns have been deleted.")


ThreadEntry: TypeAlias = Annotated[
    ThreadStarted | TurnRequested | TurnGranted | TurnEnded | TurnsSummarized | ThreadDeleted,
    Field(discriminator="kind"),
]


class ThreadRecord(Event):
    """One change of a thread, with the thread after the change."""

    event_type: ClassVar[str] = "io.pointsman.thread.v1"

    number: int = Field(ge=1, description="The number of the change, from 1.")
    entries: tuple[ThreadEntry, ...] = Field(description="The entries of the change, in order.")
    state: Thread = Field(description="The thread after the change.")
