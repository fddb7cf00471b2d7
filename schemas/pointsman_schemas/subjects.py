"""The subjects of the bus. Only this module builds and parses them, and it validates every token.

A stream has one kind of writer. So the broker's permissions can bind each part of a subject that names its publisher.

| Subject | Carries | Writer |
|---|---|---|
| `{ns}.request.{team}.{caller}` | requests | callers |
| `{ns}.control.{team}.{workflow}.{action}.{actor}.{id}` | commands, such as `cancel`, `answer` and `tell` | operators |
| `{ns}.audit.{action}.{actor}.{id}` | records of operations | operators |
| `{ns}.result.{team}.{agent}.{workflow}.{task}.{attempt}.{token}` | results | agents |
| `{ns}.step.{agent}.{team}.{workflow}.{task}.{attempt}.{name}` | steps of a running attempt | agents |
| `{ns}.event.{team}.{workflow}.{agent}.{name}` | progress and domain events | agents |
| `{ns}.handoff.{agent}.{team}.{workflow}.{task}.{attempt}` | handoffs | supervisors |
| `{ns}.timer.{team}.{workflow}.{name}` | timers that fired | supervisors |
| `{ns}.schedule.{team}.{workflow}.timer.{name}` | timers for later | supervisors |
| `{ns}.schedule.{team}.{workflow}.handoff.{name}` | handoffs for later | supervisors |
| `{ns}.log.{team}.{workflow}` | commits | supervisors |
| `{ns}.outcome.{team}.{workflow}` | the one outcome | supervisors |
| `{ns}.question.{team}.{workflow}.{id}` | questions to a person | supervisors |
| `{ns}.message.{agent}.{team}.{workflow}.{number}` | messages to a running workflow, for an agent | supervisors |
| `{ns}.thread.{team}.{caller}.{thread}` | the record of a thread: the order of its turns | supervisors |
| `{ns}.cron.{team}.{caller}.{schedule}` | the record of a schedule: its times and its runs | supervisors |
| `{ns}.dead.{origin}.{workflow or "none"}.{id}` | dead letters | agents, supervisors |
| `{ns}.delivery.{endpoint}.{workflow or "none"}.{event}.message` | an event for a webhook | webhook services |
| `{ns}.delivery.{endpoint}.{workflow or "none"}.{event}.resend` | an order to send the event again | operators |
| `{ns}.receipt.{endpoint}.{workflow or "none"}.{event}` | the state of a delivery | webhook services |
| `{ns}.limit.{id}` | the rest of a model provider's limits | agents |
| `{ns}.circuits` | the open circuits | supervisors |
| `{ns}.cancelled.{team}.{workflow}` | cancellations, not stored | supervisors |
| `{ns}.delta.{team}.{workflow}.{agent}` | text that models are writing, not stored | agents |
| `{ns}.handed.{supervisor}.>` | messages forwarded to a supervisor, not stored | supervisors |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pointsman_schemas.errors import ContractError
from pointsman_schemas.ids import is_token, token

__all__ = [
    "ControlAddress",
    "DeliveryAddress",
    "HandoffAddress",
    "RequestAddress",
    "ResultAddress",
    "Subjects",
    "TimerAddress",
]

_TOKENS_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}(?:\.[A-Za-z0-9_-]{1,64})*")  # each is valid for `token`
_WORKFLOW_TOKEN_INDEX = {
    "control": 1, "event": 1, "timer": 1, "schedule": 1, "log": 1, "outcome": 1, "question": 1, "dead": 1,
    "delivery": 1, "receipt": 1,
    "result": 2, "step": 2, "handoff": 2, "message": 2,
}  # fmt: skip
"""The position of the workflow among the tokens after the kind of a subject."""
_ATTEMPT_PATTERN = re.compile(r"[1-9][0-9]{0,8}")  # no leading zero, so that each attempt has one address


@dataclass(frozen=True, slots=True)
class RequestAddress:
    """The parts of the subject of a request.

    Attributes:
        team: The team.
        caller: The caller. A grant of the broker binds this token to a user.
    """

    team: str
    caller: str


@dataclass(frozen=True, slots=True)
class HandoffAddress:
    """The parts of the subject of a handoff.

    Attributes:
        agent: The agent.
        team: The team that sends the handoff.
        workflow: The workflow.
        task: The task.
        attempt: The number of the attempt, from 1.
    """

    agent: str
    team: str
    workflow: str
    task: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ResultAddress:
    """The parts of the subject of a result.

    Attributes:
        team: The team that receives the result.
        agent: The agent.
        workflow: The workflow.
        task: The task.
        attempt: The number of the attempt, from 1.
        token: The token of the attempt, from the handoff.
    """

    team: str
    agent: str
    workflow: str
    task: str
    attempt: int
    token: str


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """The parts of the subject of a control event.

    Attributes:
        team: The team.
        workflow: The workflow.
        action: The command, such as `cancel` or `answer`.
        actor: The user, or the team of a parent workflow. A grant of the broker binds this token to a user.
        id: The id of the control event.
    """

    team: str
    workflow: str
    action: str
    actor: str
    id: str


@dataclass(frozen=True, slots=True)
class TimerAddress:
    """The parts of the subject of a timer that fired.

    Attributes:
        team: The team.
        workflow: The workflow.
        name: The name of the timer.
    """

    team: str
    workflow: str
    name: str


@dataclass(frozen=True, slots=True)
class DeliveryAddress:
    """The parts of the subject of a delivery to a webhook.

    Attributes:
        endpoint: The endpoint.
        workflow: The workflow; None if the event belongs to no workflow.
        event: The id of the event.
    """

    endpoint: str
    workflow: str | None
    event: str


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
    def request_stream(self) -> str:
        """The stream of requests."""
        return f"{self._stream_prefix}_REQUESTS"

    @property
    def control_stream(self) -> str:
        """The stream of control events and of records of operations."""
        return f"{self._stream_prefix}_CONTROLS"

    @property
    def result_stream(self) -> str:
        """The stream of results, steps, progress and domain events."""
        return f"{self._stream_prefix}_RESULTS"

    @property
    def work_stream(self) -> str:
        """The stream of handoffs, timers and schedules."""
        return f"{self._stream_prefix}_WORK"

    @property
    def handoff_stream(self) -> str:
        """The stream of handoffs in a namespace with POINTSMAN_UNSYNCED_HANDOFFS."""
        return f"{self._stream_prefix}_HANDOFFS"

    @property
    def log_stream(self) -> str:
        """The stream of logs, outcomes and questions."""
        return f"{self._stream_prefix}_LOG"

    @property
    def dead_letter_stream(self) -> str:
        """The stream of dead letters."""
        return f"{self._stream_prefix}_DEAD"

    @property
    def delivery_stream(self) -> str:
        """The stream of deliveries to webhooks."""
        return f"{self._stream_prefix}_DELIVERIES"

    @property
    def webhooks_bucket(self) -> str:
        """The key-value bucket of the endpoints of webhooks, without their secrets."""
        return f"{self._stream_prefix}_WEBHOOKS"

    @property
    def webhook_secrets_bucket(self) -> str:
        """The key-value bucket of the secrets that sign webhooks."""
        return f"{self._stream_prefix}_WEBHOOK_SECRETS"

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

    def request(self, team: str, caller: str) -> str:
        """Build the subject of a caller's requests to a team.

        Args:
            team: The team.
            caller: The caller.

        Returns:
            The subject.
        """
        token(team, "team")
        token(caller, "caller")
        return f"{self.namespace}.request.{team}.{caller}"

    def control(self, team: str, workflow: str, action: str, actor: str, id: str) -> str:
        """Build the subject of a control event.

        Args:
            team: The team.
            workflow: The workflow.
            action: The command, such as `cancel` or `answer`.
            actor: The user, or the team of a parent workflow.
            id: The id of the control event.

        Returns:
            The subject.
        """
        token(team, "team")
        token(workflow, "workflow")
        token(action, "action")
        token(actor, "actor")
        token(id, "control id")
        return f"{self.namespace}.control.{team}.{workflow}.{action}.{actor}.{id}"

    def controls_of(self, team: str, workflow: str) -> str:
        """Build the beginning of the subjects of a workflow's control events: action, actor and id follow.

        Args:
            team: The team.
            workflow: The workflow.

        Returns:
            The beginning, without a dot at its end.
        """
        return f"{self.namespace}.control.{token(team, 'team')}.{token(workflow, 'workflow')}"

    def audit(self, action: str, actor: str, id: str) -> str:
        """Build the subject of the record of an operation.

        Args:
            action: The operation, such as `discard`.
            actor: The user.
            id: The id of the record.

        Returns:
            The subject.
        """
        token(action, "action")
        token(actor, "actor")
        token(id, "audit id")
        return f"{self.namespace}.audit.{action}.{actor}.{id}"

    def result(self, team: str, agent: str, workflow: str, task: str, attempt: int, attempt_token: str) -> str:
        """Build the subject of the result of an attempt.

        Args:
            team: The team.
            agent: The agent.
            workflow: The workflow.
            task: The task.
            attempt: The number of the attempt, from 1.
            attempt_token: The token of the attempt, see `attempt_token`.

        Returns:
            The subject.
        """
        token(team, "team")
        token(agent, "agent")
        token(workflow, "workflow")
        token(task, "task")
        token(attempt_token, "attempt token")
        return f"{self.namespace}.result.{team}.{agent}.{workflow}.{task}.{attempt}.{attempt_token}"

    def step(self, agent: str, team: str, workflow: str, task: str, attempt: int, name: str) -> str:
        """Build the subject of a step of an attempt.

        Args:
            agent: The agent.
            team: The team.
            workflow: The workflow.
            task: The task.
            attempt: The number of the attempt, from 1.
            name: The name of the step.

        Returns:
            The subject.
        """
        token(agent, "agent")
        token(team, "team")
        token(workflow, "workflow")
        token(task, "task")
        token(name, "step")
        return f"{self.namespace}.step.{agent}.{team}.{workflow}.{task}.{attempt}.{name}"

    def event(self, team: str, workflow: str, agent: str, name: str) -> str:
        """Build the subject of a progress report or domain event.

        Args:
            team: The team.
            workflow: The workflow.
            agent: The agent.
            name: The task of a report, or the name of a domain event.

        Returns:
            The subject.
        """
        token(team, "team")
        token(workflow, "workflow")
        token(agent, "agent")
        token(name, "event")
        return f"{self.namespace}.event.{team}.{workflow}.{agent}.{name}"

    def handoff(self, agent: str, team: str, workflow: str, task: str, attempt: int) -> str:
        """Build the subject of a handoff.

        Args:
            agent: The agent.
            team: The team that sends the handoff.
            workflow: The workflow.
            task: The task.
            attempt: The number of the attempt, from 1.

        Returns:
            The subject.
        """
        token(agent, "agent")
        token(team, "team")
        token(workflow, "workflow")
        token(task, "task")
        return f"{self.namespace}.handoff.{agent}.{team}.{workflow}.{task}.{attempt}"

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
        return f"{self.namespace}.timer.{team}.{workflow}.{name}"

    def schedule(self, team: str, workflow: str, name: str) -> str:
        """Build the subject of the schedule of a timer.

        Args:
            team: The team.
            workflow: The workflow.
            name: The name of the timer.

        Returns:
            The subject.
        """
        token(team, "team")
        token(workflow, "workflow")
        token(name, "schedule")
        return f"{self.namespace}.schedule.{team}.{workflow}.timer.{name}"

    def retry(self, team: str, workflow: str, name: str) -> str:
        """Build the subject of the schedule of a delayed handoff.

        Args:
            team: The team.
            workflow: The workflow.
            name: The name of the schedule.

        Returns:
            The subject.
        """
        token(team, "team")
        token(workflow, "workflow")
        token(name, "retry")
        return f"{self.namespace}.schedule.{team}.{workflow}.handoff.{name}"

    def log(self, team: str, workflow: str) -> str:
        """Build the subject of the log of a workflow.

        Args:
            team: The team.
            workflow: The workflow.

        Returns:
            The subject.
        """
        token(team, "team")
        token(workflow, "workflow")
        return f"{self.namespace}.log.{team}.{workflow}"

    def thread(self, team: str, caller: str, thread: str) -> str:
        """Build the subject of the record of a thread.

        Args:
            team: The team.
            caller: The caller to whom the thread belongs.
            thread: The id of the thread.

        Returns:
            The subject.
        """
        token(team, "team")
        token(caller, "caller")
        token(thread, "thread")
        return f"{self.namespace}.thread.{team}.{caller}.{thread}"

    def cron(self, team: str, caller: str, schedule: str) -> str:
        """Build the subject of the record of a schedule.

        Args:
            team: The team.
            caller: The caller to whom the schedule belongs.
            schedule: The name of the schedule.

        Returns:
            The subject.
        """
        token(team, "team")
        token(caller, "caller")
        token(schedule, "schedule")
        return f"{self.namespace}.cron.{team}.{caller}.{schedule}"

    def outcome(self, team: str, workflow: str) -> str:
        """Build the subject of the outcome of a workflow.

        Args:
            team: The team.
            workflow: The workflow.

        Returns:
            The subject.
        """
        token(team, "team")
        token(workflow, "workflow")
        return f"{self.namespace}.outcome.{team}.{workflow}"

    def question(self, team: str, workflow: str, id: str) -> str:
        """Build the subject of a question to a person.

        Args:
            team: The team.
            workflow: The workflow.
            id: The id of the question.

        Returns:
            The subject.
        """
        token(team, "team")
        token(workflow, "workflow")
        token(id, "question")
        return f"{self.namespace}.question.{team}.{workflow}.{id}"

    def message(self, agent: str, team: str, workflow: str, number: int) -> str:
        """Build the subject of the messages to a workflow, for an agent that works on one of its tasks.

        Args:
            agent: The agent.
            team: The team.
            workflow: The workflow.
            number: The number of the newest message, from 1.

        Returns:
            The subject.
        """
        token(agent, "agent")
        token(team, "team")
        token(workflow, "workflow")
        return f"{self.namespace}.message.{agent}.{team}.{workflow}.{token(str(number), 'number')}"

    def limit(self, id: str) -> str:
        """Build the subject of a shared limit.

        Args:
            id: The id of the limit.

        Returns:
            The subject.
        """
        token(id, "limit")
        return f"{self.namespace}.limit.{id}"

    @property
    def circuits(self) -> str:
        """The subject of the open circuits."""
        return f"{self.namespace}.circuits"

    def cancelled(self, team: str, workflow: str) -> str:
        """Build the subject of a broadcast of cancelled tasks.

        Args:
            team: The team.
            workflow: The workflow.

        Returns:
            The subject.
        """
        token(team, "team")
        token(workflow, "workflow")
        return f"{self.namespace}.cancelled.{team}.{workflow}"

    def delta(self, team: str, workflow: str, agent: str) -> str:
        """Build the subject of a broadcast of text that a model writes.

        Args:
            team: The team.
            workflow: The workflow.
            agent: The agent.

        Returns:
            The subject.
        """
        token(team, "team")
        token(workflow, "workflow")
        token(agent, "agent")
        return f"{self.namespace}.delta.{team}.{workflow}.{agent}"

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

    def delivery(self, endpoint: str, workflow: str | None, event: str) -> str:
        """Build the subject of an event for a webhook.

        Args:
            endpoint: The endpoint.
            workflow: The workflow; None if the event belongs to no workflow.
            event: The id of the event.

        Returns:
            The subject.
        """
        return f"{self.namespace}.delivery.{_delivery(endpoint, workflow, event)}.message"

    def resend(self, endpoint: str, workflow: str | None, event: str) -> str:
        """Build the subject of an order to send an event to a webhook again.

        Args:
            endpoint: The endpoint.
            workflow: The workflow; None if the event belongs to no workflow.
            event: The id of the event.

        Returns:
            The subject.
        """
        return f"{self.namespace}.delivery.{_delivery(endpoint, workflow, event)}.resend"

    def receipt(self, endpoint: str, workflow: str | None, event: str) -> str:
        """Build the subject of the state of a delivery.

        Args:
            endpoint: The endpoint.
            workflow: The workflow; None if the event belongs to no workflow.
            event: The id of the event.

        Returns:
            The subject.
        """
        return f"{self.namespace}.receipt.{_delivery(endpoint, workflow, event)}"

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
        return f"{self.namespace}.request.*.*"

    def team_requests(self, team: str) -> str:
        """Build the filter of the requests to a team.

        Args:
            team: The team.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.request.{token(team, 'team')}.*"

    def workflow_messages(
        self,
        kind: Literal["control", "result", "step", "event", "handoff", "message", "timer", "schedule"],
        team: str,
        workflow: str,
    ) -> str:
        """Build the filter of the messages of one kind that belong to a workflow.

        Args:
            kind: The kind: the token after the namespace.
            team: The team.
            workflow: The workflow.

        Returns:
            The subject filter.
        """
        names = [token(team, "team"), token(workflow, "workflow")]
        if _WORKFLOW_TOKEN_INDEX[kind] == 2:  # a result has the team first, the others have the agent
            names.insert(1 if kind == "result" else 0, "*")
        return f"{self.namespace}.{kind}.{'.'.join(names)}.>"

    def team_controls(self, team: str) -> str:
        """Build the filter of the control events of a team's workflows.

        Args:
            team: The team.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.control.{token(team, 'team')}.>"

    def team_results(self, team: str) -> str:
        """Build the filter of the results for a team.

        Args:
            team: The team.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.result.{token(team, 'team')}.>"

    def attempt_results(self, team: str, agent: str, workflow: str, task: str, attempt: int) -> str:
        """Build the filter of the results of an attempt, whatever their token.

        Args:
            team: The team.
            agent: The agent.
            workflow: The workflow.
            task: The task.
            attempt: The number of the attempt, from 1.

        Returns:
            The subject filter.
        """
        parts = (token(team, "team"), token(agent, "agent"), token(workflow, "workflow"), token(task, "task"))
        return f"{self.namespace}.result.{'.'.join(parts)}.{attempt}.*"

    def team_timers(self, team: str) -> str:
        """Build the filter of the timers of a team.

        Args:
            team: The team.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.timer.{token(team, 'team')}.>"

    def agent_handoffs(self, agent: str) -> str:
        """Build the filter of the handoffs of an agent.

        Args:
            agent: The agent.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.handoff.{token(agent, 'agent')}.>"

    def threads(self, team: str | None = None, caller: str | None = None) -> str:
        """Build the filter of the records of threads.

        Args:
            team: The team; None for all teams.
            caller: The caller; None for all callers.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.thread.{_one_or_all(team, 'team')}.{_one_or_all(caller, 'caller')}.*"

    def crons(self, team: str | None = None, caller: str | None = None, schedule: str | None = None) -> str:
        """Build the filter of the records of schedules.

        Args:
            team: The team; None for all teams.
            caller: The caller; None for all callers.
            schedule: The name of the schedule; None for all schedules.

        Returns:
            The subject filter.
        """
        owner = f"{_one_or_all(team, 'team')}.{_one_or_all(caller, 'caller')}"
        return f"{self.namespace}.cron.{owner}.{_one_or_all(schedule, 'schedule')}"

    def attempt_steps(self, agent: str, team: str, workflow: str, task: str, attempt: int) -> str:
        """Build the filter of the steps of an attempt.

        Args:
            agent: The agent.
            team: The team.
            workflow: The workflow.
            task: The task.
            attempt: The number of the attempt, from 1.

        Returns:
            The subject filter.
        """
        parts = (token(agent, "agent"), token(team, "team"), token(workflow, "workflow"), token(task, "task"))
        return f"{self.namespace}.step.{'.'.join(parts)}.{attempt}.*"

    def team_logs(self, team: str | None = None) -> str:
        """Build the filter of logs.

        Args:
            team: The team; None for all teams.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.log.{_one_or_all(team, 'team')}.*"

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
        return f"{self.namespace}.outcome.{_one_or_all(team, 'team')}.*"

    def workflow_outcome(self, workflow: str) -> str:
        """Build the filter of the outcome of a workflow whose team is unknown.

        Args:
            workflow: The workflow.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.outcome.*.{token(workflow, 'workflow')}"

    def workflow_events(self, workflow: str, team: str | None = None) -> str:
        """Build the filter of the progress reports and domain events of a workflow.

        Args:
            workflow: The workflow.
            team: The team; None for all teams.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.event.{_one_or_all(team, 'team')}.{token(workflow, 'workflow')}.>"

    def workflow_questions(self, workflow: str | None = None, team: str | None = None) -> str:
        """Build the filter of questions to persons.

        Args:
            workflow: The workflow; None for all workflows.
            team: The team; None for all teams.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.question.{_one_or_all(team, 'team')}.{_one_or_all(workflow, 'workflow')}.*"

    def agent_messages(self, agent: str, team: str, workflow: str) -> str:
        """Build the filter of the messages to a workflow, as one agent receives them.

        Args:
            agent: The agent.
            team: The team.
            workflow: The workflow.

        Returns:
            The subject filter.
        """
        names = (token(agent, "agent"), token(team, "team"), token(workflow, "workflow"))
        return f"{self.namespace}.message.{'.'.join(names)}.*"

    def workflow_deltas(self, team: str, workflow: str) -> str:
        """Build the filter of the text that the models of a workflow write.

        Args:
            team: The team.
            workflow: The workflow.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.delta.{token(team, 'team')}.{token(workflow, 'workflow')}.*"

    @property
    def cancellations(self) -> str:
        """The filter of all broadcasts of cancelled tasks."""
        return f"{self.namespace}.cancelled.*.*"

    @property
    def objects(self) -> str:
        """The filter of the metadata of large bodies in the object store."""
        return f"$O.{self.artifacts_bucket}.M.>"

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

    @property
    def deliveries(self) -> str:
        """The filter of all deliveries to webhooks, also of orders to send an event again."""
        return f"{self.namespace}.delivery.*.*.*.*"

    def workflow_deliveries(self, workflow: str) -> str:
        """Build the filter of the deliveries of events of a workflow.

        Args:
            workflow: The workflow.

        Returns:
            The subject filter.
        """
        return f"{self.namespace}.delivery.*.{token(workflow, 'workflow')}.*.*"

    def receipts(self, endpoint: str | None = None, *, workflow: str | None = None, event: str | None = None) -> str:
        """Build the filter of the states of deliveries. None stands for any value.

        Args:
            endpoint: The endpoint.
            workflow: The workflow.
            event: The id of the event.

        Returns:
            The subject filter.
        """
        one = (_one_or_all(endpoint, "endpoint"), _one_or_all(workflow, "workflow"), _one_or_all(event, "event"))
        return f"{self.namespace}.receipt.{'.'.join(one)}"

    @property
    def audits(self) -> str:
        """The filter of the records of operations."""
        return f"{self.namespace}.audit.>"

    # Parsing

    def kind_of(self, subject: str) -> str:
        """Return the kind of a subject: the token after the namespace.

        Args:
            subject: A subject.

        Returns:
            The kind, such as `request`; empty for a subject outside the namespace.
        """
        prefix = self.namespace + "."
        return subject[len(prefix) :].split(".", 1)[0] if subject.startswith(prefix) else ""

    def workflow_of(self, subject: str) -> str:
        """Return the workflow that a subject names.

        Args:
            subject: A subject, of any publisher.

        Returns:
            The workflow; empty for a subject that names no workflow.
        """
        tokens = subject.removeprefix(self.namespace + ".").split(".")
        position = _WORKFLOW_TOKEN_INDEX.get(self.kind_of(subject), len(tokens)) + 1
        return tokens[position] if position < len(tokens) and is_token(tokens[position]) else ""

    def parse_request(self, subject: str) -> RequestAddress:
        """Parse the subject of a request.

        Args:
            subject: A subject.

        Returns:
            The parts of the subject.

        Raises:
            ContractError: The subject is not that of a request of this namespace.
        """
        match self._split(subject):
            case ["request", team, caller]:
                return RequestAddress(team, caller)
        raise self._unexpected(subject, "request.TEAM.CALLER")

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
            case ["handoff", agent, team, workflow, task, attempt] if _ATTEMPT_PATTERN.fullmatch(attempt):
                return HandoffAddress(agent, team, workflow, task, int(attempt))
        raise self._unexpected(subject, "handoff.AGENT.TEAM.WORKFLOW.TASK.ATTEMPT")

    def parse_result(self, subject: str) -> ResultAddress:
        """Parse the subject of a result.

        Args:
            subject: A subject.

        Returns:
            The parts of the subject.

        Raises:
            ContractError: The subject is not that of a result of this namespace.
        """
        match self._split(subject):
            case ["result", team, agent, workflow, task, attempt, last] if _ATTEMPT_PATTERN.fullmatch(attempt):
                return ResultAddress(team, agent, workflow, task, int(attempt), last)
        raise self._unexpected(subject, "result.TEAM.AGENT.WORKFLOW.TASK.ATTEMPT.TOKEN")

    def parse_control(self, subject: str) -> ControlAddress:
        """Parse the subject of a control event.

        Args:
            subject: A subject.

        Returns:
            The parts of the subject.

        Raises:
            ContractError: The subject is not that of a control event of this namespace.
        """
        match self._split(subject):
            case ["control", team, workflow, action, actor, name]:
                return ControlAddress(team, workflow, action, actor, name)
        raise self._unexpected(subject, "control.TEAM.WORKFLOW.ACTION.ACTOR.ID")

    def parse_timer(self, subject: str) -> TimerAddress:
        """Parse the subject of a timer that fired.

        Args:
            subject: A subject.

        Returns:
            The parts of the subject.

        Raises:
            ContractError: The subject is not that of a timer of this namespace.
        """
        match self._split(subject):
            case ["timer", team, workflow, name]:
                return TimerAddress(team, workflow, name)
        raise self._unexpected(subject, "timer.TEAM.WORKFLOW.NAME")

    def parse_delivery(self, subject: str) -> DeliveryAddress:
        """Parse the subject of a delivery, or of its state.

        Args:
            subject: A subject.

        Returns:
            The parts of the subject.

        Raises:
            ContractError: The subject is not that of a delivery of this namespace.
        """
        match self._split(subject):
            case ["delivery", endpoint, workflow, event, "message" | "resend"] | ["receipt", endpoint, workflow, event]:
                return DeliveryAddress(endpoint, None if workflow == "none" else workflow, event)
        raise self._unexpected(subject, "delivery.ENDPOINT.WORKFLOW.EVENT.message")

    def _unexpected(self, subject: str, form: str) -> ContractError:
        return ContractError(f"subject is {subject!r}; expected {self.namespace}.{form}")

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


def _delivery(endpoint: str, workflow: str | None, event: str) -> str:
    token(endpoint, "endpoint")
    token(workflow or "none", "workflow")
    token(event, "event")
    return f"{endpoint}.{workflow or 'none'}.{event}"


def _one_or_all(name: str | None, what: str) -> str:
    return "*" if name is None else token(name, what)
