"""The subjects of the bus. Only this module builds and parses them, and it validates every token.

| Subject | Carries |
|---|---|
| `{ns}.request.{team}` | requests |
| `{ns}.handoff.{agent}.{workflow}.{task}.{attempt}` | handoffs |
| `{ns}.step.{workflow}.{task}.{attempt}.{name}` | steps of a running attempt |
| `{ns}.inbox.{team}.{workflow}.result.{agent}.{task}.{attempt}` | results |
| `{ns}.inbox.{team}.{workflow}.control.{id}` | cancel, replay, approve, reject, answer |
| `{ns}.inbox.{team}.{workflow}.timer.{name}` | timers that fired |
| `{ns}.schedule.{workflow}.{name}` | timers for later |
| `{ns}.schedule.{workflow}.try.{name}` | handoffs for later |
| `{ns}.log.{team}.{workflow}` | commits |
| `{ns}.event.{workflow}.{name}` | progress and domain events, stored |
| `{ns}.event.{workflow}.question.{id}` | questions to a person, stored |
| `{ns}.live.{workflow}.cancelled` | cancellations, not stored |
| `{ns}.live.{workflow}.delta` | text that models are writing, not stored |
| `{ns}.handed.{supervisor}.>` | messages forwarded to a supervisor, with their own subject behind, not stored |
| `{ns}.limit.{id}` | the rest of a model provider's limits; with the id `circuits`, the open circuits |
| `{ns}.outcome.{team}.{workflow}` | the one outcome |
| `{ns}.dead.{origin}.{workflow or "none"}.{id}` | dead letters |
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pointsman_schemas.errors import ContractError
from pointsman_schemas.ids import token

__all__ = ["HandoffAddress", "InboxAddress", "Subjects"]

_TOKENS_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}(?:\.[A-Za-z0-9_-]{1,64})*")  # each is valid for `token`
_ATTEMPT_PATTERN = re.compile(r"[1-9][0-9]{0,8}")  # no leading zero, so that each attempt has one address


@dataclass(frozen=True, slots=True)
class HandoffAddress:
    """The parts of the subject of a handoff.

    Attributes:
        agent: The agent.
        workflow: The workflow.
        task: The task.
        attempt: The number of the attempt, from 1.
    """

    agent: str
    workflow: str
    task: str
    attempt: int


@dataclass(frozen=True, slots=True)
class InboxAddress:
    """The parts of the subject of an inbox message.

    Attributes:
        team: The team.
        workflow: The workflow.
        kind: `result`, `control` or `timer`.
        name: The id of a control event, the name of a timer, or `TASK-ATTEMPT` of a result.
        agent: The agent, for results only.
        task: The task, for results only.
        attempt: The number of the attempt, for results only.
    """

    team: str
    workflow: str
    kind: str
    name: str = ""
    agent: str = ""
    task: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects, streams and buckets of one namespace.

    Every method raises `InvalidTokenError` for an argument that is not a token of a subject.

    Args:
        namespace: The tenant; default: `pointsman`.
    """

    namespace: str = "pointsman"

    def __post_init__(self) -> None:
        token(self.namespace, "namespace")

    # Streams and buckets

    @property
    def _stream_prefix(self) -> str:
        return self.namespace.upper()

    @property
    def work_stream(self) -> str:
        """The stream of requests, handoffs, steps, inbox messages and schedules."""
        return f"{self._stream_prefix}_WORK"

    @property
    def handoff_stream(self) -> str:
        """The stream of handoffs in a namespace with POINTSMAN_UNSYNCED_HANDOFFS."""
        return f"{self._stream_prefix}_HANDOFFS"

    @property
    def log_stream(self) -> str:
        """The stream of logs, events and outcomes."""
        return f"{self._stream_prefix}_LOG"

    @property
    def dead_letter_stream(self) -> str:
        """The stream of dead letters."""
        return f"{self._stream_prefix}_DEAD"

    @property
    def limits_stream(self) -> str:
        """The stream of shared limits and open circuits."""
        return f"{self._stream_prefix}_LIMITS"

    @property
    def agents_bucket(self) -> str:
        """The key-value bucket of agent cards."""
        return f"{self._stream_prefix}_AGENTS"

    @property
    def gateway_bucket(self) -> str:
        """The key-value bucket of the gateway's API keys."""
        return f"{self._stream_prefix}_GATEWAY"

    @property
    def artifacts_bucket(self) -> str:
        """The object store of large bodies."""
        return f"{self._stream_prefix}_ARTIFACTS"

    # One message

    def request(self, team: str) -> str:
        """Build the subject of requests to a team.

        Args:
            team: The team.

        Returns:
            The subject.
        """
        return f"{self.namespace}.request.{token(team, 'team')}"

    def handoff(self, agent: str, workflow: str, task: str, attempt: int) -> str:
        """Build the subject of a handoff.

        Args:
            agent: The agent.
            workflow: The workflow.
            task: The task.
            attempt: The number of the attempt, from 1.

        Returns:
            The subject.
        """
        token(agent, "agent")
        token(workflow, "workflow")
        token(task, "task")
        return f"{self.namespace}.handoff.{agent}.{workflow}.{task}.{attempt}"

    def step(self, workflow: str, task: str, attempt: int, name: str) -> str:
        """Build the subject of a step of an attempt.

        Args:
            workflow: The workflow.
            task: The task.
            attempt: The number of the attempt, from 1.
            name: The name of the step.

        Returns:
            The subject.
        """
        token(workflow, "workflow")
        token(task, "task")
        return f"{self.namespace}.step.{workflow}.{task}.{attempt}.{token(name, 'step')}"

    def result(self, team: str, workflow: str, agent: str, task: str, attempt: int) -> str:
        """Build the subject of the result of an attempt.

        Args:
            team: The team.
            workflow: The workflow.
            agent: The agent.
            task: The task.
            attempt: The number of the attempt, from 1.

        Returns:
            The subject.
        """
        token(team, "team")
        token(workflow, "workflow")
        token(agent, "agent")
        token(task, "task")
        return f"{self.namespace}.inbox.{team}.{workflow}.result.{agent}.{task}.{attempt}"

    def control(self, team: str, workflow: str, name: str) -> str:
        """Build the subject of a control event.

        Args:
            team: The team.
            workflow: The workflow.
            name: The id of the control event.

        Returns:
            The subject.
        """
        token(team, "team")
        token(workflow, "workflow")
        token(name, "control id")
        return f"{self.namespace}.inbox.{team}.{workflow}.control.{name}"

    def timer(self, team: str, workflow: str, name: str) -> str:
        """Build the subject on which a timer fires.

        Args:
            team: The team.
            workflow: The workflow.
            name: The name of the timer.

        Returns:
            The subject.
        """
        token(team, "team")
        token(workflow, "workflow")
        token(name, "timer")
        return f"{self.namespace}.inbox.{team}.{workflow}.timer.{name}"

    def schedule(self, workflow: str, name: str) -> str:
        """Build the subject of the schedule of a timer.

        Args:
            workflow: The workflow.
            name: The name of the timer.

        Returns:
            The subject.
        """
        return f"{self.namespace}.schedule.{token(workflow, 'workflow')}.{token(name, 'schedule')}"

    def retry(self, workflow: str, name: str) -> str:
        """Build the subject of the schedule of a delayed handoff.

        Args:
            workflow: The workflow.
            name: The name of the schedule.

        Returns:
            The subject.
        """
        return f"{self.namespace}.schedule.{token(workflow, 'workflow')}.try.{token(name, 'retry')}"

    def log(self, team: str, workflow: str) -> str:
        """Build the subject of the log of a workflow.

        Args:
            team: The team.
            workflow: The workflow.

        Returns:
            The subject.
        """
        return f"{self.namespace}.log.{token(team, 'team')}.{token(workflow, 'workflow')}"

    def event(self, workflow: str, name: str) -> str:
        """Build the subject of a progress report or domain event.

        Args:
            workflow: The workflow.
            name: The id of the event.

        Returns:
            The subject.
        """
        return f"{self.namespace}.event.{token(workflow, 'workflow')}.{token(name, 'event')}"

    def question(self, workflow: str, name: str) -> str:
        """Build the subject of a question to a person.

        Args:
            workflow: The workflow.
            name: The id of the question.

        Returns:
            The subject.
        """
        return f"{self.namespace}.event.{token(workflow, 'workflow')}.question.{token(name, 'question')}"

    def live(self, workflow: str, name: str) -> str:
        """Build the subject of a broadcast about a workflow.

        Args:
            workflow: The workflow.
            name: `cancelled` or `delta`.

        Returns:
            The subject.
        """
        return f"{self.namespace}.live.{token(workflow, 'workflow')}.{token(name, 'live event')}"

    def limit(self, name: str) -> str:
        """Build the subject of a shared limit.

        Args:
            name: The id of the limit, or `circuits`.

        Returns:
            The subject.
        """
        return f"{self.namespace}.limit.{token(name, 'limit')}"

    def outcome(self, team: str, workflow: str) -> str:
        """Build the subject of the outcome of a workflow.

        Args:
            team: The team.
            workflow: The workflow.

        Returns:
            The subject.
        """
        return f"{self.namespace}.outcome.{token(team, 'team')}.{token(workflow, 'workflow')}"

    def dead_letter(self, origin: str, workflow: str | None, name: str) -> str:
        """Build the subject of a dead letter.

        Args:
            origin: The team or agent that could not process the event.
            workflow: The workflow; None if it is unknown.
            name: The id of the dead letter.

        Returns:
            The subject.
        """
        token(origin, "origin")
        token(workflow or "none", "workflow")
        token(name, "dead letter")
        return f"{self.namespace}.dead.{origin}.{workflow or 'none'}.{name}"

    # The sender

    def source(self, kind: str, name: str) -> str:
        """Build the CloudEvents source of a sender.

        Args:
            kind: `team`, `agent` or `client`.
            name: The name of the sender.

        Returns:
            The source.
        """
        return f"/{self.namespace}/{token(kind, 'kind of source')}/{token(name, 'source')}"

    # Many messages: filters for consumers and readers

    @property
    def requests(self) -> str:
        """The filter of all requests."""
        return f"{self.namespace}.request.*"

    def agent_handoffs(self, agent: str) -> str:
        """Build the filter of the handoffs of an agent.

        Args:
            agent: The agent.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.handoff.{token(agent, 'agent')}.>"

    def attempt_steps(self, workflow: str, task: str, attempt: int) -> str:
        """Build the filter of the steps of an attempt.

        Args:
            workflow: The workflow.
            task: The task.
            attempt: The number of the attempt, from 1.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.step.{token(workflow, 'workflow')}.{token(task, 'task')}.{attempt}.*"

    def team_inbox(self, team: str) -> str:
        """Build the filter of the inbox of a team.

        Args:
            team: The team.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.inbox.{token(team, 'team')}.>"

    def workflow_controls(self, team: str, workflow: str) -> str:
        """Build the filter of the control events of a workflow.

        Args:
            team: The team.
            workflow: The workflow.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.inbox.{token(team, 'team')}.{token(workflow, 'workflow')}.control.*"

    def team_logs(self, team: str | None = None) -> str:
        """Build the filter of logs.

        Args:
            team: The team; None for all teams.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.log.{token(team, 'team') if team else '*'}.*"

    def workflow_log(self, workflow: str) -> str:
        """Build the filter of the log of a workflow whose team is unknown.

        Args:
            workflow: The workflow.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.log.*.{token(workflow, 'workflow')}"

    def team_outcomes(self, team: str | None = None) -> str:
        """Build the filter of outcomes.

        Args:
            team: The team; None for all teams.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.outcome.{token(team, 'team') if team else '*'}.*"

    def workflow_outcome(self, workflow: str) -> str:
        """Build the filter of the outcome of a workflow whose team is unknown.

        Args:
            workflow: The workflow.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.outcome.*.{token(workflow, 'workflow')}"

    @property
    def objects(self) -> str:
        """The filter of the metadata of large bodies in the object store."""
        return f"$O.{self.artifacts_bucket}.M.>"

    def workflow_events(self, workflow: str) -> str:
        """Build the filter of the events of a workflow.

        Args:
            workflow: The workflow.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.event.{token(workflow, 'workflow')}.>"

    def workflow_questions(self, workflow: str | None = None) -> str:
        """Build the filter of questions to persons.

        Args:
            workflow: The workflow; None for all workflows.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.event.{token(workflow, 'workflow') if workflow else '*'}.question.*"

    @property
    def cancellations(self) -> str:
        """The filter of all cancellations."""
        return f"{self.namespace}.live.*.cancelled"

    @property
    def dead_letters(self) -> str:
        """The filter of all dead letters."""
        return f"{self.namespace}.dead.>"

    def dead_letters_for(
        self, *, origin: str | None = None, workflow: str | None = None, name: str | None = None
    ) -> str:
        """Build the filter of some dead letters. None stands for any value.

        Args:
            origin: The team or agent that could not process the event.
            workflow: The workflow.
            name: The id of the dead letter.

        Returns:
            The subject filter.
        """
        one = [
            token(part, what) if part else "*"
            for part, what in ((origin, "origin"), (workflow, "workflow"), (name, "dead letter"))
        ]
        return f"{self.namespace}.dead.{'.'.join(one)}"

    # Parsing

    def parse_handoff(self, subject: str) -> HandoffAddress:
        """Parse the subject of a handoff.

        Args:
            subject: A subject.

        Returns:
            The parts of the subject.

        Raises:
            ContractError: The subject is not that of a handoff of this namespace.
        """
        match self._split(subject):
            case ["handoff", agent, workflow, task, attempt] if _ATTEMPT_PATTERN.fullmatch(attempt):
                return HandoffAddress(agent, workflow, task, int(attempt))
        raise ContractError(f"subject is {subject!r}; expected {self.namespace}.handoff.AGENT.WORKFLOW.TASK.ATTEMPT")

    def parse_inbox(self, subject: str) -> InboxAddress:
        """Parse the subject of an inbox message.

        Args:
            subject: A subject.

        Returns:
            The parts of the subject.

        Raises:
            ContractError: The subject is not that of an inbox message of this namespace.
        """
        match self._split(subject):
            case ["inbox", team, workflow, "result", agent, task, attempt] if _ATTEMPT_PATTERN.fullmatch(attempt):
                return InboxAddress(team, workflow, "result", f"{task}-{attempt}", agent, task, int(attempt))
            case ["inbox", team, workflow, ("control" | "timer") as kind, name]:
                return InboxAddress(team, workflow, kind, name)
        raise ContractError(
            f"subject is {subject!r}; expected {self.namespace}.inbox.TEAM.WORKFLOW followed by "
            "result.AGENT.TASK.ATTEMPT, control.ID or timer.NAME"
        )

    def _split(self, subject: str) -> list[str]:
        prefix = self.namespace + "."
        if not subject.startswith(prefix):
            raise ContractError(f"subject is {subject!r}; expected it to begin with {prefix!r}")
        rest = subject[len(prefix) :]
        tokens = rest.split(".")
        if not _TOKENS_PATTERN.fullmatch(rest):
            for part in tokens:
                token(part, "a token of the subject")
        return tokens
