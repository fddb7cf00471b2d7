"""The operations on one namespace: its agents, questions, workflows, threads, dead letters and archives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from pydantic import JsonValue

from pointsman.clock import SystemClock
from pointsman.core.model.agent_health import Circuit
from pointsman.engine.log.reader import newest_commit
from pointsman.engine.log.records import THREAD
from pointsman.engine.operations.archive import Archive
from pointsman.engine.operations.archive_export import export_workflow
from pointsman.engine.operations.archive_import import import_workflow
from pointsman.engine.operations.audit import AuditRecord, read_audit
from pointsman.engine.operations.circuits import load_circuits
from pointsman.engine.operations.dead_letter_entry import DeadLetterEntry
from pointsman.engine.operations.dead_letters import DeadLetters, ReplayResult
from pointsman.engine.operations.forget import ForgetResult, WorkflowRunsError, forget_workflow
from pointsman.engine.operations.messages import MessageRefusedError, TellResult, tell_workflow
from pointsman.engine.operations.questions import AnswerResult, answer_question
from pointsman.engine.operations.resume import NotResumableError, ResumeResult, resume_workflow
from pointsman.engine.operations.threads import list_threads, remove_thread
from pointsman.engine.process.consumers import consumer_name
from pointsman.errors import ContractError, NotFoundError
from pointsman.ports.bus import Bus, QueueDepth
from pointsman.ports.clock import Clock
from pointsman_schemas.card import AgentCard
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import Question
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.threads import Thread

__all__ = [
    "AnswerResult",
    "Archive",
    "AuditRecord",
    "Circuit",
    "DeadLetterEntry",
    "ForgetResult",
    "MessageRefusedError",
    "NotResumableError",
    "Operations",
    "ReplayResult",
    "ResumeResult",
    "TellResult",
    "WorkflowRunsError",
]

_PUBLISH_TIMEOUT_S = 2.0  # seconds to wait until a committed question is published; a supervisor needs less
_PUBLISH_POLL_S = 0.05


class Operations:
    """The operations on a namespace, for people and systems. Use `Client.operations`.

    Every call raises `BusUnavailableError` if the broker does not answer.

    Args:
        bus: The bus, after its setup.
        subjects: The subjects of the namespace.
        user: The name of the user, in the subjects of controls; default: `anonymous`.
        clock: The clock for the times of new events. Default: the clock of the system.
        reopen_timeout: The longest wait of a replay until a supervisor has reopened the task, in seconds.
    """

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        *,
        user: str = "anonymous",
        clock: Clock | None = None,
        reopen_timeout: float = 5.0,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._user = user
        self._clock: Clock = clock or SystemClock()
        self._dead_letters = DeadLetters(bus, subjects, user=user, clock=clock, patience=reopen_timeout)

    # Agents

    async def agents(self) -> Sequence[AgentCard]:
        """Read the cards of agents from the registry.

        Returns:
            The card of every live agent instance, sorted by name and instance. Teams are left out.
        """
        return [card for card in await self._bus.registry.cards() if not card.team]

    async def teams(self) -> Sequence[AgentCard]:
        """Read the cards of teams from the registry.

        Returns:
            The card of every live supervisor, sorted by team and instance.
        """
        return [card for card in await self._bus.registry.cards() if card.team]

    async def refused_cards(self) -> Mapping[str, str]:
        """Read the entries of the registry that are not valid cards. Agents without a valid card get no tasks.

        Returns:
            The problem of each entry, by key. A key is `{agent}.{instance}`.
        """
        return await self._bus.registry.refused()

    async def live_names(self) -> frozenset[str]:
        """Read the names of agents and teams from the registry.

        Returns:
            The names of all live agents and teams.
        """
        return frozenset(card.name for card in await self._bus.registry.cards())

    async def circuits(self) -> Mapping[str, Circuit]:
        """Read the circuits that the supervisors share.

        Returns:
            The circuits that are not closed, by agent.
        """
        return await load_circuits(self._bus, self._subjects)

    async def queue_depth(self, agent: str) -> QueueDepth | None:
        """Count the waiting handoffs of an agent and the handoffs in progress, for all instances of the agent.

        Args:
            agent: The agent's name.

        Returns:
            The depth; None if the agent has never run in this namespace.
        """
        return await self._bus.depth(consumer_name(agent), "handoffs")

    # Records of operations, and forgetting

    async def audit(self) -> Sequence[AuditRecord]:
        """Read the records of operations that delete messages: of forgotten workflows and of deleted dead letters.

        A dead letter is deleted when a user discards or replays it, or resumes its workflow.

        Returns:
            The records, oldest first.
        """
        return await read_audit(self._bus, self._subjects)

    async def forget(
        self,
        workflow: str,
        *,
        reason: str = "",
        actor: str | None = None,
        progress: Callable[[int], None] = lambda deleted: None,
    ) -> ForgetResult:
        """Delete all messages and large bodies of an ended workflow and its child workflows, and record the deletion.

        Args:
            workflow: The workflow's id.
            reason: The reason, for the record.
            actor: The user who deletes. Default: the user of the client. The broker must allow the client to name a
                different user.
            progress: Function that is called with the number of messages deleted so far.

        Returns:
            The numbers of deleted messages, files and other items.

        Raises:
            NotFoundError: there is no such workflow.
            WorkflowRunsError: the workflow, or one of its child workflows, has not ended. Nothing was deleted.
        """
        return await forget_workflow(
            self._bus,
            self._subjects,
            workflow,
            actor=actor or self._user,
            at=self._clock.now(),
            reason=reason,
            progress=progress,
        )

    # Questions

    async def questions(self, workflow: str | None = None) -> Sequence[Question]:
        """Find the open questions to people, which are approvals and questions for information.

        A supervisor commits a question and then publishes the question. If `workflow` is given, the call waits up to 2
        seconds for committed questions that are not published yet.

        Args:
            workflow: The workflow; by default all workflows of the namespace.

        Returns:
            The questions, oldest first. Expired questions and questions of imported workflows are left out.
        """
        deadline = self._clock.monotonic() + _PUBLISH_TIMEOUT_S
        while True:
            is_late = self._clock.monotonic() >= deadline  # before the read, so that a slow read is repeated
            asked = await self._published_questions(workflow)
            still_open: set[str] = set()
            now = self._clock.now()
            unexpired = {each.workflow_id for each in asked.values() if each.expires_at > now}
            for name in {workflow} if workflow is not None else unexpired:
                with suppress(NotFoundError):
                    newest = await newest_commit(self._bus, self._subjects, name)
                    if newest.imported_from is None:  # no supervisor would read the answer to an imported question
                        still_open.update(newest.commit.open_questions)
            if workflow is None or still_open <= asked.keys() or is_late:
                return [each for name, each in asked.items() if name in still_open and each.expires_at > now]
            await self._clock.sleep(_PUBLISH_POLL_S)

    async def _published_questions(self, workflow: str | None) -> Mapping[str, Question]:
        asked: dict[str, Question] = {}
        async for stored in self._bus.read("log", self._subjects.workflow_questions(workflow)):
            with suppress(ContractError):  # not a question: a domain event of an agent can have any name
                question = parse(Question, decode(stored.headers, stored.body)[1])
                asked[question.id] = question
        return asked

    async def answer(
        self, question: str, answer: JsonValue, *, actor: str | None = None, timeout: float = 10.0
    ) -> AnswerResult:
        """Answer a question for information, and wait until a supervisor has recorded an answer.

        Args:
            question: The id of the question.
            answer: The answer, which must fit the JSON Schema of the question.
            actor: The user who answers. Default: the user of the client. The broker must allow the client to name a
                different user.
            timeout: The longest wait until a supervisor has recorded an answer, in seconds.

        Returns:
            The recorded answer. If the question had an answer already, this is the earlier answer.

        Raises:
            ContractError: `answer` does not fit the schema of the question. The question stays open.
            NotFoundError: there is no such question.
            ImportedLogError: the workflow was imported. Nothing was sent.
        """
        return await answer_question(
            self._bus, self._subjects, "answer", question, actor=actor or self._user, input=answer, timeout=timeout
        )

    async def approve(
        self, question: str, *, input: JsonValue = None, actor: str | None = None, timeout: float = 10.0
    ) -> AnswerResult:
        """Approve a task, a tool call or a plan, and wait until a supervisor has recorded an answer.

        Args:
            question: The id of the question.
            input: A replacement for the task's input, the tool's arguments or the whole plan. With None, nothing is
                replaced.
            actor: The user who answers. Default: the user of the client. The broker must allow the client to name a
                different user.
            timeout: The longest wait until a supervisor has recorded an answer, in seconds.

        Returns:
            The recorded answer. If the question had an answer already, this is the earlier answer.

        Raises:
            ContractError: `input` is not valid for the task, the tool or the plan. The question stays open.
            NotFoundError: there is no such question.
            ImportedLogError: the workflow was imported. Nothing was sent.
        """
        return await answer_question(
            self._bus, self._subjects, "approve", question, actor=actor or self._user, input=input, timeout=timeout
        )

    async def reject(
        self, question: str, *, reason: str = "", actor: str | None = None, timeout: float = 10.0
    ) -> AnswerResult:
        """Reject a task, a tool call or a plan, or refuse an answer. Wait until a supervisor has recorded an answer.

        Args:
            question: The id of the question.
            reason: The reason, for the planner or the agent.
            actor: The user who answers. Default: the user of the client. The broker must allow the client to name a
                different user.
            timeout: The longest wait until a supervisor has recorded an answer, in seconds.

        Returns:
            The recorded answer. If the question had an answer already, this is the earlier answer.

        Raises:
            NotFoundError: there is no such question.
        """
        return await answer_question(
            self._bus, self._subjects, "reject", question, actor=actor or self._user, reason=reason, timeout=timeout
        )

    # Workflows

    async def resume(
        self, workflow: str, *, reason: str = "", actor: str | None = None, timeout: float = 10.0
    ) -> ResumeResult:
        """Resume a workflow that ended as failed or partial. Its failed tasks are done again in a new round.

        The results of successful tasks stay. The new round gets the full limits of the workflow. Two concurrent resumes
        start one round. The dead letters of tasks in earlier rounds are removed.

        Args:
            workflow: The workflow's id.
            reason: The reason, for the log.
            actor: The user who resumes. Default: the user of the client. The broker must allow the client to name a
                different user.
            timeout: The longest wait for a supervisor, in seconds.

        Returns:
            The new round and its tasks.

        Raises:
            NotResumableError: the workflow runs, has completed, was cancelled or is a child workflow, or no supervisor
                started the round in time.
            NotFoundError: the workflow has no log.
            ImportedLogError: the workflow was imported. Nothing was sent.
        """
        return await resume_workflow(
            self._bus,
            self._subjects,
            self._clock,
            workflow,
            actor=actor or self._user,
            reason=reason,
            timeout=timeout,
        )

    async def tell(
        self,
        workflow: str,
        text: str,
        *,
        team: str | None = None,
        message_id: str | None = None,
        actor: str | None = None,
        timeout: float = 10.0,
    ) -> TellResult:
        """Send a message to a workflow, and wait until the workflow has recorded the message.

        Tasks that start later receive the message. Running agents with `listen` receive the message, too. If the
        workflow has ended and is a turn in a thread of this user, the message becomes the next turn of the thread.

        Args:
            workflow: The workflow's id.
            text: The message, of at most 4,000 characters.
            team: The workflow's team. It is required if the user may not read the logs of other teams.
            message_id: The id of the message. A second message with this id has no effect. Default: a new id.
            actor: The user who sends the message. Default: the user of the client. The broker must allow the client to
                name a different user.
            timeout: The longest wait for a supervisor, in seconds.

        Returns:
            The number of the message, or the workflow of the next turn. Both are None if no supervisor has read the
            message in time.

        Raises:
            ContractError: the message is empty or too long. Nothing was sent.
            MessageRefusedError: the workflow has ended and is in no thread of this user, or the workflow accepts no
                further message.
            NotFoundError: there is no such workflow.
            ImportedLogError: the workflow was imported. Nothing was sent.
        """
        return await tell_workflow(
            self._bus,
            self._subjects,
            self._clock,
            workflow,
            text,
            actor=actor or self._user,
            team=team,
            message_id=message_id,
            timeout=timeout,
        )

    # Threads

    async def threads(self, team: str | None = None, *, caller: str | None = None) -> Sequence[Thread]:
        """List the threads.

        Args:
            team: Only threads with this team.
            caller: Only threads of this caller.

        Returns:
            The threads, most recently changed first.
        """
        return await list_threads(self._bus, self._subjects, team, caller)

    async def thread(self, team: str, thread: str, *, caller: str | None = None) -> Thread | None:
        """Read a thread with its turns and the summary of older turns.

        Args:
            team: The team.
            thread: The id of the thread.
            caller: The caller to whom the thread belongs. Default: the user of the client.

        Returns:
            The thread; None if there is no such thread.
        """
        return (await THREAD.read(self._bus, self._subjects.thread(team, caller or self._user, thread))).state

    async def delete_thread(
        self, team: str, thread: str, *, caller: str | None = None, actor: str | None = None, timeout: float = 30.0
    ) -> int:
        """Delete a thread with the messages of its turns and of their child workflows.

        A running turn is cancelled. The record of the thread stays until it expires. It names the user who deleted the
        thread, and the time of the deletion.

        Args:
            team: The team.
            thread: The id of the thread.
            caller: The caller to whom the thread belongs. Default: the user of the client.
            actor: The user who deletes. Default: the user of the client. The broker must allow the client to name a
                different user.
            timeout: The longest wait for the end of running turns, in seconds.

        Returns:
            The number of turns whose messages were deleted.

        Raises:
            NotFoundError: there is no such thread.
            BusyThreadError: a turn did not end in time. The thread accepts no further turn; delete the thread again.
        """
        user = self._user
        return await remove_thread(
            self._bus, self._subjects, self._clock, team, caller or user, thread, actor=actor or user, timeout=timeout
        )

    # Dead letters

    async def dead_letters(
        self,
        *,
        origin: str | None = None,
        workflow: str | None = None,
        cause: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Sequence[DeadLetterEntry]:
        """List dead letters.

        Args:
            origin: Only dead letters of this agent or team.
            workflow: Only dead letters of this workflow.
            cause: Only dead letters with this kind of error.
            since: Only dead letters written at this time or later.
            until: Only dead letters written before this time.
            limit: The largest number of dead letters; None means no limit.

        Returns:
            The dead letters, oldest first.
        """
        return await self._dead_letters.list(
            origin=origin, workflow=workflow, cause=cause, since=since, until=until, limit=limit
        )

    async def dead_letter(self, id: str) -> DeadLetterEntry:
        """Read one dead letter.

        Args:
            id: The id of the dead letter.

        Returns:
            The dead letter.

        Raises:
            NotFoundError: there is no such dead letter.
        """
        return await self._dead_letters.get(id)

    async def replay(self, letter: DeadLetterEntry, *, as_new: bool = False, keep: bool = False) -> ReplayResult:
        """Process the event of a dead letter again, then remove the dead letter. A second replay has no further effect.

        Args:
            letter: The dead letter.
            as_new: True to send the workflow's request again as a new workflow.
            keep: True to keep the dead letter.

        Returns:
            The workflow that continues, or the new workflow, and the action that was taken.

        Raises:
            NotReplayableError: the dead letter cannot be replayed in this way. The message contains the next step.
            NotFoundError: the log of the letter's workflow does not exist.
        """
        return await self._dead_letters.replay(letter, as_new=as_new, keep=keep)

    async def discard(self, letter: DeadLetterEntry) -> bool:
        """Remove a dead letter permanently.

        Args:
            letter: The dead letter.

        Returns:
            True if this call removed the dead letter; False if it was removed before.
        """
        return await self._dead_letters.discard(letter)

    # Archives

    async def export_workflow(self, workflow: str) -> Archive:
        """Export all messages of a workflow and of its child workflows.

        Args:
            workflow: The workflow's id.

        Returns:
            The archive.

        Raises:
            NotFoundError: the workflow has no log.
        """
        return await export_workflow(self._bus, self._subjects, workflow, self._clock.now())

    async def import_workflow(self, archive: Archive) -> int:
        """Store the log, events, outcome and dead letters of an archive for reading. Supervisors ignore these messages.

        Args:
            archive: The archive.

        Returns:
            The number of stored messages.

        Raises:
            ConfigurationError: the archive has messages of other workflows, or a log is not complete. Nothing was
                stored.
            WorkflowExistsError: a workflow of the archive has a log in this namespace. Nothing was stored.
        """
        return await import_workflow(self._bus, self._subjects, archive)
