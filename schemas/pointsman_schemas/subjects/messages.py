"""Build the subject of one message."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman_schemas.subjects.namespace import Namespace

__all__ = ["MessageSubjects"]


@dataclass(frozen=True, slots=True)
class MessageSubjects(Namespace):
    """The subjects of single messages."""

    def request(self, team: str, caller: str) -> str:
        """Build the subject of a caller's requests to a team.

        Args:
            team: The team.
            caller: The caller.

        Returns:
            The subject.
        """
        return self._subject("request", team=team, caller=caller)

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
        return self._subject("control", team=team, workflow=workflow, action=action, actor=actor, control_id=id)

    def controls_of(self, team: str, workflow: str) -> str:
        """Build the beginning of the subjects of a workflow's control events: action, actor and id follow.

        Args:
            team: The team.
            workflow: The workflow.

        Returns:
            The beginning, without a dot at its end.
        """
        return self._subject("control", team=team, workflow=workflow)

    def audit(self, action: str, actor: str, id: str) -> str:
        """Build the subject of the record of an operation.

        Args:
            action: The operation, such as `discard`.
            actor: The user.
            id: The id of the record.

        Returns:
            The subject.
        """
        return self._subject("audit", action=action, actor=actor, audit_id=id)

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
        return self._subject(
            "result",
            team=team,
            agent=agent,
            workflow=workflow,
            task=task,
            attempt=str(attempt),
            attempt_token=attempt_token,
        )

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
        return self._subject(
            "step", agent=agent, team=team, workflow=workflow, task=task, attempt=str(attempt), step=name
        )

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
        return self._subject("event", team=team, workflow=workflow, agent=agent, event=name)

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
        return self._subject("handoff", agent=agent, team=team, workflow=workflow, task=task, attempt=str(attempt))

    def timer(self, team: str, workflow: str, name: str) -> str:
        """Build the subject on which a timer fires.

        Args:
            team: The team.
            workflow: The workflow.
            name: The name of the timer.

        Returns:
            The subject.
        """
        return self._subject("timer", team=team, workflow=workflow, timer=name)

    def schedule(self, team: str, workflow: str, name: str) -> str:
        """Build the subject of the scheduled message from which the broker publishes a timer.

        Args:
            team: The team.
            workflow: The workflow.
            name: The name of the timer.

        Returns:
            The subject.
        """
        return self._subject("schedule", team=team, workflow=workflow, target="timer", schedule=name)

    def retry(self, team: str, workflow: str, name: str) -> str:
        """Build the subject of the scheduled message from which the broker publishes a delayed handoff.

        Args:
            team: The team.
            workflow: The workflow.
            name: The name of the scheduled message, see `delayed_handoff_id`.

        Returns:
            The subject.
        """
        return self._subject("schedule", team=team, workflow=workflow, target="handoff", retry=name)

    def log(self, team: str, workflow: str) -> str:
        """Build the subject of the log of a workflow.

        Args:
            team: The team.
            workflow: The workflow.

        Returns:
            The subject.
        """
        return self._subject("log", team=team, workflow=workflow)

    def thread(self, team: str, caller: str, thread: str) -> str:
        """Build the subject of the record of a thread.

        Args:
            team: The team.
            caller: The caller to whom the thread belongs.
            thread: The id of the thread.

        Returns:
            The subject.
        """
        return self._subject("thread", team=team, caller=caller, thread=thread)

    def cron(self, team: str, caller: str, schedule: str) -> str:
        """Build the subject of the record of a schedule.

        Args:
            team: The team.
            caller: The caller to whom the schedule belongs.
            schedule: The name of the schedule.

        Returns:
            The subject.
        """
        return self._subject("cron", team=team, caller=caller, schedule=schedule)

    def outcome(self, team: str, workflow: str) -> str:
        """Build the subject of the outcome of a workflow.

        Args:
            team: The team.
            workflow: The workflow.

        Returns:
            The subject.
        """
        return self._subject("outcome", team=team, workflow=workflow)

    def question(self, team: str, workflow: str, id: str) -> str:
        """Build the subject of a question to a person.

        Args:
            team: The team.
            workflow: The workflow.
            id: The id of the question.

        Returns:
            The subject.
        """
        return self._subject("question", team=team, workflow=workflow, question=id)

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
        return self._subject("message", agent=agent, team=team, workflow=workflow, number=str(number))

    def limit(self, id: str) -> str:
        """Build the subject of a limit that all workers share.

        Args:
            id: The id of the limit.

        Returns:
            The subject.
        """
        return self._subject("limit", limit=id)

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
        return self._subject("cancelled", team=team, workflow=workflow)

    def delta(self, team: str, workflow: str, agent: str) -> str:
        """Build the subject of a broadcast of text that a model writes.

        Args:
            team: The team.
            workflow: The workflow.
            agent: The agent.

        Returns:
            The subject.
        """
        return self._subject("delta", team=team, workflow=workflow, agent=agent)

    def dead_letter(self, origin: str, workflow: str | None, name: str) -> str:
        """Build the subject of a dead letter.

        Args:
            origin: The team or agent that could not process the event.
            workflow: The workflow; None if it is unknown.
            name: The id of the dead letter.

        Returns:
            The subject.
        """
        return self._subject("dead", origin=origin, workflow=workflow or "none", dead_letter=name)

    def delivery(self, endpoint: str, workflow: str | None, event: str) -> str:
        """Build the subject of an event for a webhook.

        Args:
            endpoint: The endpoint.
            workflow: The workflow; None if the event belongs to no workflow.
            event: The id of the event.

        Returns:
            The subject.
        """
        return self._subject("delivery", endpoint=endpoint, workflow=workflow or "none", event=event, purpose="message")

    def resend(self, endpoint: str, workflow: str | None, event: str) -> str:
        """Build the subject of an order to send an event to a webhook again.

        Args:
            endpoint: The endpoint.
            workflow: The workflow; None if the event belongs to no workflow.
            event: The id of the event.

        Returns:
            The subject.
        """
        return self._subject("delivery", endpoint=endpoint, workflow=workflow or "none", event=event, purpose="resend")

    def receipt(self, endpoint: str, workflow: str | None, event: str) -> str:
        """Build the subject of the state of a delivery.

        Args:
            endpoint: The endpoint.
            workflow: The workflow; None if the event belongs to no workflow.
            event: The id of the event.

        Returns:
            The subject.
        """
        return self._subject("receipt", endpoint=endpoint, workflow=workflow or "none", event=event)
