"""Parse subjects into their parts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeVar

from pointsman_schemas.errors import ContractError
from pointsman_schemas.ids import is_token, token
from pointsman_schemas.subjects.namespace import Namespace

__all__ = [
    "WORKFLOW_TOKEN_INDEX",
    "AddressParser",
    "ControlAddress",
    "DeliveryAddress",
    "HandoffAddress",
    "ResultAddress",
    "TimerAddress",
]

WORKFLOW_TOKEN_INDEX = {
    "control": 1, "event": 1, "timer": 1, "schedule": 1, "log": 1, "outcome": 1, "question": 1, "dead": 1,
    "delivery": 1, "receipt": 1,
    "result": 2, "step": 2, "handoff": 2, "message": 2,
}  # fmt: skip
"""The index of the workflow in the tokens after the kind, for each kind of subject."""

_TOKEN = r"[A-Za-z0-9_-]{1,64}"  # the form that `ids.token` accepts
_ATTEMPT = r"[1-9][0-9]{0,8}"  # without a leading zero, so each attempt has only one address
_TOKENS_PATTERN = re.compile(rf"{_TOKEN}(?:\.{_TOKEN})*")

AddressT = TypeVar("AddressT")


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
        actor: The user, or the team of a parent workflow. The broker's permissions allow a user only its own name here.
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


_FORMS: dict[type, tuple[str, ...]] = {
    HandoffAddress: ("handoff", "AGENT", "TEAM", "WORKFLOW", "TASK", "ATTEMPT"),
    ResultAddress: ("result", "TEAM", "AGENT", "WORKFLOW", "TASK", "ATTEMPT", "TOKEN"),
    ControlAddress: ("control", "TEAM", "WORKFLOW", "ACTION", "ACTOR", "ID"),
    TimerAddress: ("timer", "TEAM", "WORKFLOW", "NAME"),
}
"""The kind and the tokens of a subject. The fields of the address class have the order of the tokens."""


def _pattern(kind: str, *names: str) -> re.Pattern[str]:
    parts = (f"(?P<attempt>{_ATTEMPT})" if name == "ATTEMPT" else f"({_TOKEN})" for name in names)
    return re.compile(r"\.".join((kind, *parts)))


_PATTERNS = {form: _pattern(*tokens) for form, tokens in _FORMS.items()}


@dataclass(frozen=True, slots=True)
class AddressParser(Namespace):
    """The parsers of the subjects of one namespace."""

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
        """Return the workflow in a subject.

        Args:
            subject: Any subject, even one that no process of Pointsman has built.

        Returns:
            The workflow; empty for a subject without a workflow.
        """
        tokens = subject.removeprefix(self.namespace + ".").split(".")
        position = WORKFLOW_TOKEN_INDEX.get(self.kind_of(subject), len(tokens)) + 1
        return tokens[position] if position < len(tokens) and is_token(tokens[position]) else ""

    def parse(self, subject: str, form: type[AddressT]) -> AddressT:
        """Parse the subject of one kind of message.

        Args:
            subject: A subject.
            form: The class of its address: `HandoffAddress`, `ResultAddress`, `ControlAddress` or `TimerAddress`.

        Returns:
            The parts of the subject.

        Raises:
            ContractError: The subject has a different form or a different namespace.
        """
        prefix = self.namespace + "."
        found = _PATTERNS[form].fullmatch(subject, len(prefix)) if subject.startswith(prefix) else None
        if found is None:
            self._split(subject)  # if a token is not valid, this call raises an error that names the token
            raise self._unexpected(subject, ".".join(_FORMS[form]))
        parts: list[Any] = list(found.groups())
        if attempt := found.re.groupindex.get("attempt"):
            parts[attempt - 1] = int(parts[attempt - 1])
        return form(*parts)

    def parse_delivery(self, subject: str) -> DeliveryAddress:
        """Parse the subject of a delivery, or of its state.

        Args:
            subject: A subject.

        Returns:
            The parts of the subject.

        Raises:
            ContractError: The subject is not the subject of a delivery in this namespace.
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
