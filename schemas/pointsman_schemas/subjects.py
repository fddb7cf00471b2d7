"""Every subject is built here, and every token in it is checked first.

| Subject | Carries |
|---|---|
| `{ns}.request.{team}` | requests |
| `{ns}.handoff.{agent}.{workflow}.{task}.{attempt}` | handoffs |
| `{ns}.step.{workflow}.{task}.{attempt}.{name}` | steps of a running attempt |
| `{ns}.inbox.{team}.{workflow}.result.{agent}.{task}.{attempt}` | results |
| `{ns}.inbox.{team}.{workflow}.control.{id}` | cancel, replay, approve, reject |
| `{ns}.inbox.{team}.{workflow}.timer.{name}` | timers that fired |
| `{ns}.schedule.{workflow}.{name}` | timers for later |
| `{ns}.schedule.{workflow}.try.{name}` | handoffs for later |
| `{ns}.log.{team}.{workflow}` | commits |
| `{ns}.event.{workflow}.{name}` | progress and domain events, kept |
| `{ns}.event.{workflow}.approval.{id}` | what a person is asked, kept |
| `{ns}.live.{workflow}.cancelled` | cancellations: not kept |
| `{ns}.live.{workflow}.delta` | text that models are writing: not kept |
| `{ns}.handed.{supervisor}.>` | what was delivered to another supervisor of the team, with its subject: not kept |
| `{ns}.limit.{id}` | what is left of a model provider's limits; `circuits`: the agents that are sent no work |
| `{ns}.outcome.{team}.{workflow}` | the one outcome |
| `{ns}.dead.{origin}.{workflow or "none"}.{id}` | dead letters |
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pointsman_schemas.errors import ContractError
from pointsman_schemas.ids import token

__all__ = ["HandoffAddress", "InboxAddress", "Subjects"]

_TOKENS = re.compile(r"[A-Za-z0-9_-]{1,64}(?:\.[A-Za-z0-9_-]{1,64})*")  # all as `token` wants each of them
_ATTEMPT = re.compile(r"[1-9][0-9]{0,8}")  # one way to write each, so that no attempt has a second address


@dataclass(frozen=True, slots=True)
class HandoffAddress:
    """What the subject of a handoff says."""

    agent: str
    workflow: str
    task: str
    attempt: int


@dataclass(frozen=True, slots=True)
class InboxAddress:
    """What the subject of an inbox message says. `agent`, `task` and `attempt` are set for results only."""

    team: str
    workflow: str
    kind: str
    name: str = ""
    agent: str = ""
    task: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects of one namespace. Every method raises `InvalidToken` for a name that may not stand in a subject."""

    namespace: str = "pointsman"

    def __post_init__(self) -> None:
        token(self.namespace, "namespace")

    # Streams and buckets

    @property
    def _upper(self) -> str:
        return self.namespace.upper()

    @property
    def work_stream(self) -> str:
        return f"{self._upper}_WORK"

    @property
    def handoffs_stream(self) -> str:
        return f"{self._upper}_HANDOFFS"

    @property
    def log_stream(self) -> str:
        return f"{self._upper}_LOG"

    @property
    def dead_stream(self) -> str:
        return f"{self._upper}_DEAD"

    @property
    def limits_stream(self) -> str:
        return f"{self._upper}_LIMITS"

    @property
    def agents_bucket(self) -> str:
        return f"{self._upper}_AGENTS"

    @property
    def artifacts_bucket(self) -> str:
        return f"{self._upper}_ARTIFACTS"

    # One message

    def request(self, team: str) -> str:
        return f"{self.namespace}.request.{token(team, 'team')}"

    def handoff(self, agent: str, workflow: str, task: str, attempt: int) -> str:
        token(agent, "agent")
        token(workflow, "workflow")
        token(task, "task")
        return f"{self.namespace}.handoff.{agent}.{workflow}.{task}.{attempt}"

    def step(self, workflow: str, task: str, attempt: int, name: str) -> str:
        token(workflow, "workflow")
        token(task, "task")
        return f"{self.namespace}.step.{workflow}.{task}.{attempt}.{token(name, 'step')}"

    def result(self, team: str, workflow: str, agent: str, task: str, attempt: int) -> str:
        token(team, "team")
        token(workflow, "workflow")
        token(agent, "agent")
        token(task, "task")
        return f"{self.namespace}.inbox.{team}.{workflow}.result.{agent}.{task}.{attempt}"

    def control(self, team: str, workflow: str, name: str) -> str:
        token(team, "team")
        token(workflow, "workflow")
        token(name, "control id")
        return f"{self.namespace}.inbox.{team}.{workflow}.control.{name}"

    def timer(self, team: str, workflow: str, name: str) -> str:
        token(team, "team")
        token(workflow, "workflow")
        token(name, "timer")
        return f"{self.namespace}.inbox.{team}.{workflow}.timer.{name}"

    def schedule(self, workflow: str, name: str) -> str:
        return f"{self.namespace}.schedule.{token(workflow, 'workflow')}.{token(name, 'schedule')}"

    def retry(self, workflow: str, name: str) -> str:
        return f"{self.namespace}.schedule.{token(workflow, 'workflow')}.try.{token(name, 'retry')}"

    def log(self, team: str, workflow: str) -> str:
        return f"{self.namespace}.log.{token(team, 'team')}.{token(workflow, 'workflow')}"

    def event(self, workflow: str, name: str) -> str:
        return f"{self.namespace}.event.{token(workflow, 'workflow')}.{token(name, 'event')}"

    def approval(self, workflow: str, name: str) -> str:
        return f"{self.namespace}.event.{token(workflow, 'workflow')}.approval.{token(name, 'approval')}"

    def live(self, workflow: str, name: str) -> str:
        return f"{self.namespace}.live.{token(workflow, 'workflow')}.{token(name, 'live event')}"

    def limit(self, name: str) -> str:
        return f"{self.namespace}.limit.{token(name, 'limit')}"

    def outcome(self, team: str, workflow: str) -> str:
        return f"{self.namespace}.outcome.{token(team, 'team')}.{token(workflow, 'workflow')}"

    def dead(self, origin: str, workflow: str | None, name: str) -> str:
        token(origin, "origin")
        token(workflow or "none", "workflow")
        token(name, "dead letter")
        return f"{self.namespace}.dead.{origin}.{workflow or 'none'}.{name}"

    # Who says it

    def source(self, kind: str, name: str) -> str:
        """The CloudEvents source of what `name` says: a `team`, an `agent`, a `client`."""
        return f"/{self.namespace}/{token(kind, 'kind of source')}/{token(name, 'source')}"

    # Many messages: filters for consumers and readers

    @property
    def requests(self) -> str:
        return f"{self.namespace}.request.*"

    def handoffs_of(self, agent: str) -> str:
        return f"{self.namespace}.handoff.{token(agent, 'agent')}.>"

    def steps_of(self, workflow: str, task: str, attempt: int) -> str:
        return f"{self.namespace}.step.{token(workflow, 'workflow')}.{token(task, 'task')}.{attempt}.*"

    def inbox_of(self, team: str) -> str:
        return f"{self.namespace}.inbox.{token(team, 'team')}.>"

    def controls_of(self, team: str, workflow: str) -> str:
        return f"{self.namespace}.inbox.{token(team, 'team')}.{token(workflow, 'workflow')}.control.*"

    def logs_of(self, team: str | None = None) -> str:
        return f"{self.namespace}.log.{token(team, 'team') if team else '*'}.*"

    def log_anywhere(self, workflow: str) -> str:
        return f"{self.namespace}.log.*.{token(workflow, 'workflow')}"

    def outcomes_of(self, team: str | None = None) -> str:
        return f"{self.namespace}.outcome.{token(team, 'team') if team else '*'}.*"

    def outcome_anywhere(self, workflow: str) -> str:
        return f"{self.namespace}.outcome.*.{token(workflow, 'workflow')}"

    @property
    def objects(self) -> str:
        """The descriptions of the bodies that are kept apart."""
        return f"$O.{self.artifacts_bucket}.M.>"

    def events_of(self, workflow: str) -> str:
        return f"{self.namespace}.event.{token(workflow, 'workflow')}.>"

    def approvals_of(self, workflow: str | None = None) -> str:
        return f"{self.namespace}.event.{token(workflow, 'workflow') if workflow else '*'}.approval.*"

    @property
    def cancellations(self) -> str:
        return f"{self.namespace}.live.*.cancelled"

    @property
    def dead_letters(self) -> str:
        return f"{self.namespace}.dead.>"

    def dead_letters_of(
        self, *, origin: str | None = None, workflow: str | None = None, name: str | None = None
    ) -> str:
        """The dead letters of an origin, of a workflow, or the one called `name`; None is any."""
        one = [
            token(part, what) if part else "*"
            for part, what in ((origin, "origin"), (workflow, "workflow"), (name, "dead letter"))
        ]
        return f"{self.namespace}.dead.{'.'.join(one)}"

    # Reading an address back

    def parse_handoff(self, subject: str) -> HandoffAddress:
        """Raises `ContractError` when `subject` is not a handoff of this namespace."""
        match self._tokens(subject):
            case ["handoff", agent, workflow, task, attempt] if _ATTEMPT.fullmatch(attempt):
                return HandoffAddress(agent, workflow, task, int(attempt))
        raise ContractError(f"subject is {subject!r}; expected {self.namespace}.handoff.AGENT.WORKFLOW.TASK.ATTEMPT")

    def parse_inbox(self, subject: str) -> InboxAddress:
        """Raises `ContractError` when `subject` is not an inbox message of this namespace."""
        match self._tokens(subject):
            case ["inbox", team, workflow, "result", agent, task, attempt] if _ATTEMPT.fullmatch(attempt):
                return InboxAddress(team, workflow, "result", f"{task}-{attempt}", agent, task, int(attempt))
            case ["inbox", team, workflow, ("control" | "timer") as kind, name]:
                return InboxAddress(team, workflow, kind, name)
        raise ContractError(
            f"subject is {subject!r}; expected {self.namespace}.inbox.TEAM.WORKFLOW followed by "
            "result.AGENT.TASK.ATTEMPT, control.ID or timer.NAME"
        )

    def _tokens(self, subject: str) -> list[str]:
        prefix = self.namespace + "."
        if not subject.startswith(prefix):
            raise ContractError(f"subject is {subject!r}; expected it to begin with {prefix!r}")
        rest = subject[len(prefix) :]
        tokens = rest.split(".")
        if not _TOKENS.fullmatch(rest):
            for part in tokens:
                token(part, "a token of the subject")
        return tokens
