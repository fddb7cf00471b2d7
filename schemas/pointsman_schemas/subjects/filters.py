"""Build the subject filters for consumers and readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pointsman_schemas.ids import token
from pointsman_schemas.subjects.addresses import WORKFLOW_TOKEN_INDEX
from pointsman_schemas.subjects.namespace import Namespace

__all__ = ["SubjectFilters"]


@dataclass(frozen=True, slots=True)
class SubjectFilters(Namespace):
    """The filters of the subjects of one namespace."""

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
        return f"{self._subject('request', team=team)}.*"

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
        if WORKFLOW_TOKEN_INDEX[kind] == 2:  # a result has its agent after the team, other kinds have it before
            names.insert(1 if kind == "result" else 0, "*")
        return f"{self.namespace}.{kind}.{'.'.join(names)}.>"

    def team_controls(self, team: str) -> str:
        """Build the filter of the control events of a team's workflows.

        Args:
            team: The team.

        Returns:
            The subject filter.
        """
        return f"{self._subject('control', team=team)}.>"

    def team_results(self, team: str) -> str:
        """Build the filter of the results for a team.

        Args:
            team: The team.

        Returns:
            The subject filter.
        """
        return f"{self._subject('result', team=team)}.>"

    def attempt_results(self, team: str, agent: str, workflow: str, task: str, attempt: int) -> str:
        """Build the filter of the results of an attempt, with any token.

        Args:
            team: The team.
            agent: The agent.
            workflow: The workflow.
            task: The task.
            attempt: The number of the attempt, from 1.

        Returns:
            The subject filter.
        """
        attempts = self._subject("result", team=team, agent=agent, workflow=workflow, task=task, attempt=str(attempt))
        return f"{attempts}.*"

    def team_timers(self, team: str) -> str:
        """Build the filter of the timers of a team.

        Args:
            team: The team.

        Returns:
            The subject filter.
        """
        return f"{self._subject('timer', team=team)}.>"

    def agent_handoffs(self, agent: str, team: str | None = None) -> str:
        """Build the filter of the handoffs of an agent.

        Args:
            agent: The agent.
            team: The team that sends the handoffs; None for all teams.

        Returns:
            The subject filter.
        """
        names = {"agent": agent} if team is None else {"agent": agent, "team": team}
        return f"{self._subject('handoff', **names)}.>"

    def threads(self, team: str | None = None, caller: str | None = None) -> str:
        """Build the filter of the records of threads.

        Args:
            team: The team; None for all teams.
            caller: The caller; None for all callers.

        Returns:
            The subject filter.
        """
        return self._filter("thread", team=team, caller=caller, thread=None)

    def crons(self, team: str | None = None, caller: str | None = None, schedule: str | None = None) -> str:
        """Build the filter of the records of schedules.

        Args:
            team: The team; None for all teams.
            caller: The caller; None for all callers.
            schedule: The name of the schedule; None for all schedules.

        Returns:
            The subject filter.
        """
        return self._filter("cron", team=team, caller=caller, schedule=schedule)

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
        attempts = self._subject("step", agent=agent, team=team, workflow=workflow, task=task, attempt=str(attempt))
        return f"{attempts}.*"

    def team_logs(self, team: str | None = None) -> str:
        """Build the filter of logs.

        Args:
            team: The team; None for all teams.

        Returns:
            The subject filter.
        """
        return self._filter("log", team=team, workflow=None)

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
        return self._filter("outcome", team=team, workflow=None)

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
        return f"{self._filter('event', team=team, workflow=workflow)}.>"

    def workflow_questions(self, workflow: str | None = None, team: str | None = None) -> str:
        """Build the filter of questions to persons.

        Args:
            workflow: The workflow; None for all workflows.
            team: The team; None for all teams.

        Returns:
            The subject filter.
        """
        return self._filter("question", team=team, workflow=workflow, question=None)

    def agent_messages(self, agent: str, team: str, workflow: str) -> str:
        """Build the filter of the messages to a workflow that are for one agent.

        Args:
            agent: The agent.
            team: The team.
            workflow: The workflow.

        Returns:
            The subject filter.
        """
        return f"{self._subject('message', agent=agent, team=team, workflow=workflow)}.*"

    def workflow_deltas(self, team: str, workflow: str) -> str:
        """Build the filter of the text that the models of a workflow write.

        Args:
            team: The team.
            workflow: The workflow.

        Returns:
            The subject filter.
        """
        return f"{self._subject('delta', team=team, workflow=workflow)}.*"

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
        return self._filter("dead", origin=origin or None, workflow=workflow or None, dead_letter=name or None)

    @property
    def deliveries(self) -> str:
        """The filter of all deliveries to webhooks and of all orders to send an event again."""
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
        return self._filter("receipt", endpoint=endpoint, workflow=workflow, event=event)

    @property
    def audits(self) -> str:
        """The filter of the records of operations."""
        return f"{self.namespace}.audit.>"
