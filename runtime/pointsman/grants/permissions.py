"""The table of rights, with the subjects that each role may publish on and subscribe to.

A right is a subject of the broker. `Subjects` builds the subjects of the namespace with placeholders for the names of a
grant; `permissions` replaces the placeholders.

Two accounts separate the roles. The trusted account has the streams. The roles of the edge account reach the streams
through imported services. Two accounts are needed, because the broker checks the subject of a request but not the reply
subject. In one account, each user with a right to read could use `$JS.API.STREAM.DELETE.X` as the reply subject of a
read. The broker would then publish the answer on this subject, and so delete the stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from pointsman.bus.jetstream.reader_names import READER_SLOTS, reader_name
from pointsman.engine.process.consumers import webhook_consumers
from pointsman.errors import ConfigurationError
from pointsman_schemas.ids import token
from pointsman_schemas.subjects import Subjects

__all__ = [
    "ACTIONS",
    "EDGE_DOMAIN",
    "TRUSTED_ROLES",
    "Grant",
    "GrantRole",
    "Permissions",
    "inbox_prefix",
    "permissions",
    "role_permissions",
]


class GrantRole(StrEnum):
    """The role of a user at the broker."""

    CALLER = "caller"
    WORKER = "worker"
    SUPERVISOR = "supervisor"
    OPERATOR = "operator"
    DASHBOARD = "dashboard"
    GATEWAY = "gateway"
    WEBHOOKS = "webhooks"
    OBSERVER = "observer"
    PROVISIONER = "provisioner"


TRUSTED_ROLES = frozenset({GrantRole.SUPERVISOR, GrantRole.OPERATOR, GrantRole.PROVISIONER})
"""The roles of the account with the streams. The users of the other roles are in the edge account."""

EDGE_DOMAIN = "edge"
"""The value of POINTSMAN_JETSTREAM_DOMAIN for users of the edge account. Their API subjects begin with `$JS.edge.API.`.
"""

_WORKFLOWS = ("cancel", "tell", "approve", "reject", "answer", "resume")
_SCHEDULES = ("schedule", "schedule-others")

ACTIONS: Mapping[GrantRole, tuple[str, ...]] = {
    GrantRole.CALLER: ("cancel", "tell", "schedule"),
    GrantRole.GATEWAY: (*_WORKFLOWS, *_SCHEDULES, "replay", "discard", "webhooks"),
    GrantRole.DASHBOARD: (*_WORKFLOWS, *_SCHEDULES, "replay", "discard", "submit", "webhooks"),
    GrantRole.OPERATOR: (
        *_WORKFLOWS,
        *_SCHEDULES,
        "replay",
        "discard",
        "submit",
        "import",
        "forget",
        "keys",
        "webhooks",
    ),
}
"""The actions that a grant of a role may name."""

# placeholders; a token has no `<`, so no name equals a placeholder
_USER, _TEAM, _AGENT = "<user>", "<team>", "<agent>"
_PLACEHOLDERS = (_USER, _TEAM, _AGENT)
_EVERY = "*"
_API, _EDGE_API = "$JS.API.", f"$JS.{EDGE_DOMAIN}.API."


@dataclass(frozen=True, slots=True)
class Grant:
    """The grant of one user: a role, and the teams, agents and actions to which the role is limited.

    Args:
        role: The role.
        name: The name of the user. It must be a token, because it is a part of subjects on which the user publishes.
        teams: The teams; `*` means all teams. Empty for a role whose rights contain no team, such as a worker.
        agents: The agents of a worker; empty for other roles.
        actions: The actions, see `ACTIONS`.
    """

    role: GrantRole
    name: str
    teams: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the names and the actions.

        Raises:
            ConfigurationError: An action does not belong to the role, or teams or agents are missing or not allowed.
            InvalidTokenError: A name is not a token of a subject.
        """
        token(self.name, "user")
        for name in self.teams:
            if name != _EVERY:
                token(name, "team")
        for name in self.agents:
            token(name, "agent")
        allowed = ACTIONS.get(self.role, ())
        if unknown := [action for action in self.actions if action not in allowed]:
            raise ConfigurationError(
                f"the action {unknown[0]!r} is not an action of the role {self.role}; choose from: "
                f"{', '.join(allowed) or 'none'}"
            )
        uses = _uses(self.role)
        for placeholder, given, option in ((_TEAM, self.teams, "--team"), (_AGENT, self.agents, "--agent")):
            if placeholder in uses and not given:
                raise ConfigurationError(f"the role {self.role} needs {option}; add at least one {option}")
            if placeholder not in uses and given:
                raise ConfigurationError(f"the role {self.role} has no {option}; omit the option")

    @property
    def trusted(self) -> bool:
        """True for a role of the account with the streams."""
        return self.role in TRUSTED_ROLES


@dataclass(frozen=True, slots=True)
class Permissions:
    """The allowed subjects of a user. All other subjects are refused.

    Attributes:
        publish: The subjects that the user may publish on, sorted.
        subscribe: The subjects that the user may subscribe to, sorted.
        responses: True if the user may answer each request once, on the reply subject of the request.
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    responses: bool = False


def inbox_prefix(grant: Grant) -> str:
    """Return the prefix of the inboxes of a user, for POINTSMAN_INBOX_PREFIX.

    The edge account imports `_INBOX.>` from the account with the streams, to get outcomes. Users of the account with
    the streams have a different prefix, so the edge account does not get the answers to their requests.

    Args:
        grant: The grant.

    Returns:
        The prefix, without the dot at the end.
    """
    return _inbox(grant.role, grant.name)


def _inbox(role: GrantRole, name: str) -> str:
    return f"{'_TRUSTED' if role in TRUSTED_ROLES else '_INBOX'}.{name}"


def permissions(grant: Grant, namespace: str) -> Permissions:
    """Return the rights of a grant in a namespace.

    Args:
        grant: The grant.
        namespace: The namespace.

    Returns:
        The rights.
    """
    values = {_USER: (grant.name,), _TEAM: grant.teams, _AGENT: grant.agents}
    return _expand(grant.role, _rows(grant.role, Subjects(namespace), grant.actions), values)


def role_permissions(
    role: GrantRole,
    namespace: str,
    *,
    user: str = _EVERY,
    team: str = _EVERY,
    agent: str = _EVERY,
    actions: Sequence[str] | None = None,
) -> Permissions:
    """Return the rights of a role, with the given texts in place of the placeholders.

    Args:
        role: The role.
        namespace: The namespace.
        user: The text for the user; default `*`.
        team: The text for the teams; default `*`.
        agent: The text for the agents; default `*`.
        actions: The actions; default: all actions of the role.

    Returns:
        The rights.
    """
    values = {_USER: (user,), _TEAM: (team,), _AGENT: (agent,)}
    chosen = ACTIONS.get(role, ()) if actions is None else actions
    return _expand(role, _rows(role, Subjects(namespace), chosen), values)


def _uses(role: GrantRole) -> set[str]:
    """Return the placeholders in the rights of a role."""
    rows = _rows(role, Subjects("ns"), ACTIONS.get(role, ()))
    return {each for each in _PLACEHOLDERS for subject in (*rows.publish, *rows.subscribe) if each in subject}


def _expand(role: GrantRole, rows: Permissions, values: Mapping[str, Sequence[str]]) -> Permissions:
    publish = {each for row in rows.publish for each in _names(row, values)}
    if role not in TRUSTED_ROLES:
        publish = {_EDGE_API + each.removeprefix(_API) if each.startswith(_API) else each for each in publish}
    subscribe = {each for row in rows.subscribe for each in _names(row, values)}
    return Permissions(_sorted(publish), _sorted(subscribe), rows.responses)


def _sorted(subjects: Iterable[str]) -> tuple[str, ...]:
    """Return the subjects, with `*` in place of each token that contains `*`.

    A wildcard of NATS is always a whole token, so `request-*` would match only this literal name.
    """
    whole = {".".join("*" if "*" in each else each for each in subject.split(".")) for subject in subjects}
    return tuple(sorted(whole))


def _names(row: str, values: Mapping[str, Sequence[str]]) -> Iterator[str]:
    used = [each for each in _PLACEHOLDERS if each in row]
    for chosen in product(*(values[each] for each in used)):
        subject = row
        for placeholder, value in zip(used, chosen, strict=True):
            subject = subject.replace(placeholder, value)
        yield subject


# The table


def _rows(role: GrantRole, subjects: Subjects, actions: Sequence[str]) -> Permissions:
    """Return the rights of a role, with placeholders."""
    table = _Table(subjects, _inbox(role, _USER))
    publish, subscribe = {
        GrantRole.CALLER: table.caller,
        GrantRole.GATEWAY: table.gateway,
        GrantRole.WORKER: table.worker,
        GrantRole.WEBHOOKS: table.webhooks,
        GrantRole.OBSERVER: table.observer,
        GrantRole.DASHBOARD: table.dashboard,
        GrantRole.OPERATOR: table.operator,
        GrantRole.SUPERVISOR: table.supervisor,
        GrantRole.PROVISIONER: table.provisioner,
    }[role](actions)
    # Each process tests its connection by a read of a card that no agent has, so each role needs this right.
    publish.append(f"$JS.API.DIRECT.GET.{table.registry}.{table.bucket}.none.none")
    return Permissions(tuple(publish), (f"{_inbox(role, _USER)}.>", *subscribe), role is GrantRole.WORKER)


_Rights = tuple[list[str], list[str]]


class _Table:
    """The rows of the table for each role. A row has placeholders for the names of a grant."""

    def __init__(self, subjects: Subjects, inbox: str) -> None:
        self._inbox = inbox
        self.ns = subjects.namespace
        self.requests = subjects.request_stream
        self.controls = subjects.control_stream
        self.results = subjects.result_stream
        self.work = subjects.work_stream
        self.handoffs = subjects.handoff_stream
        self.log = subjects.log_stream
        self.dead = subjects.dead_letter_stream
        self.deliveries, self.delivery_filter = subjects.delivery_stream, subjects.deliveries
        self.limits = subjects.limits_stream
        self.bucket, self.objects = f"$KV.{subjects.agents_bucket}", f"$O.{subjects.artifacts_bucket}"
        self.registry, self.artifacts = f"KV_{subjects.agents_bucket}", f"OBJ_{subjects.artifacts_bucket}"
        self.keys, self.key_values = f"KV_{subjects.gateway_bucket}", f"$KV.{subjects.gateway_bucket}"
        self.endpoints, self.endpoint_values = f"KV_{subjects.webhooks_bucket}", f"$KV.{subjects.webhooks_bucket}"
        self.secrets, self.secret_values = (
            f"KV_{subjects.webhook_secrets_bucket}",
            f"$KV.{subjects.webhook_secrets_bucket}",
        )
        self.webhook_consumers = webhook_consumers(subjects)
        self.streams = (
            self.requests, self.controls, self.results, self.work, self.handoffs, self.log, self.dead, self.deliveries,
            self.limits, self.registry, self.artifacts,
        )  # fmt: skip

    # Roles of the edge account

    def caller(self, actions: Sequence[str]) -> _Rights:
        ns = self.ns
        publish = [
            f"{ns}.request.{_TEAM}.{_USER}",
            *self._controls(actions),
            *self._last(self.log, f"{ns}.outcome.{_TEAM}.*", f"{ns}.thread.{_TEAM}.{_USER}.*"),
            *self._follow(self.results, f"{ns}.event.{_TEAM}.>"),
            *self._follow(self.log, f"{ns}.cron.{_TEAM}.{_USER}.*"),
            *self._read_bodies(),
            *self._write_bodies(),
        ]
        own = f"{ns}.cron.{_TEAM}.{_USER}.*"
        return publish, [own, f"{ns}.outcome.{_TEAM}.*", f"{ns}.event.{_TEAM}.>", f"{ns}.delta.{_TEAM}.>"]

    def gateway(self, actions: Sequence[str]) -> _Rights:
        ns = self.ns
        publish, subscribe = self.caller(())
        publish += [
            f"{ns}.request.{_TEAM}.*",  # in the name of any caller, because the gateway verifies its callers
            *self._operate(actions, "*"),
            *self._last(self.log, f"{ns}.log.{_TEAM}.*", f"{ns}.question.{_TEAM}.>"),
            *self._last(self.controls, f"{ns}.control.{_TEAM}.>"),
            *self._last(self.requests, f"{ns}.request.{_TEAM}.*"),  # requests that wait for admission
            *self._follow(self.requests, f"{ns}.request.{_TEAM}.*"),
            f"$JS.API.STREAM.INFO.{self.requests}",
            f"$JS.API.CONSUMER.INFO.{self.requests}.request-{_TEAM}",
            f"$JS.API.STREAM.INFO.{self.keys}",
            f"{self.key_values}.batch.*",
            f"{self.key_values}.push.*",
            *self._follow(self.keys, f"{self.key_values}.>"),
            *self._follow(self.log, f"{ns}.log.{_TEAM}.*", f"{ns}.outcome.{_TEAM}.*", f"{ns}.question.{_TEAM}.>"),
            *self._follow(self.log, f"{ns}.cron.{_TEAM}.>"),
            *self._last(self.registry, f"{self.bucket}.>"),
            *self._follow(self.registry, f"{self.bucket}.>"),
        ]
        if "webhooks" in actions:
            publish += [*self._manage_webhooks(), *self._follow(self.deliveries, f"{ns}.receipt.>")]
        if {"replay", "discard"} & set(actions):  # for callers with the right `operator`
            publish += self._follow(self.dead, f"{ns}.dead.>")
        return publish, [*subscribe, f"{ns}.log.{_TEAM}.*", f"{ns}.question.{_TEAM}.>", f"{ns}.cron.{_TEAM}.>"]

    def worker(self, actions: Sequence[str]) -> _Rights:
        ns = self.ns
        publish = [
            f"{ns}.result.*.{_AGENT}.>",
            f"{ns}.step.{_AGENT}.>",
            f"{ns}.event.*.*.{_AGENT}.>",
            f"{ns}.delta.*.*.{_AGENT}",
            f"{ns}.dead.{_AGENT}.>",
            f"{ns}.limit.*",
            f"{self.bucket}.{_AGENT}.*",
            *self._follow(self.registry, f"{self.bucket}.>"),  # to find agents of its name with different schemas
            *self._consume(f"agent-{_AGENT}", self.work, self.handoffs),
            *self._last(self.results, f"{ns}.result.*.{_AGENT}.>", f"{ns}.step.{_AGENT}.>"),
            *self._follow(self.results, f"{ns}.step.{_AGENT}.>"),
            *self._last(self.limits, f"{ns}.limit.*"),
            *self._last(self.log, f"{ns}.message.{_AGENT}.>"),
            *self._read_bodies(),
            *self._write_bodies(),
        ]
        return publish, [
            f"{ns}.cancelled.>",
            *(f"$SRV.{verb}{scope}" for verb in ("PING", "INFO", "STATS") for scope in ("", f".{_AGENT}.>")),
            *(f"$SRV.{verb}.{_AGENT}" for verb in ("PING", "INFO", "STATS")),
        ]

    def webhooks(self, actions: Sequence[str]) -> _Rights:
        ns = self.ns
        names = {"log": self.log, "dead": self.dead, "deliveries": self.deliveries}
        publish = [
            f"{ns}.delivery.*.*.*.message",
            f"{ns}.receipt.*.*.*",
            f"{self.endpoint_values}.*",  # to disable an endpoint that answers 410
            *(f"$JS.API.STREAM.INFO.{bucket}" for bucket in (self.endpoints, self.secrets)),
            *self._follow(self.endpoints, f"{self.endpoint_values}.>"),
            *self._follow(self.secrets, f"{self.secret_values}.>"),
            *(each for wanted in self.webhook_consumers for each in self._consume(wanted.name, names[wanted.stream])),
            *self._last(self.deliveries, f"{ns}.delivery.>"),
            *self._follow(self.deliveries, self.delivery_filter, f"{ns}.receipt.>"),  # to find the oldest open attempt
            *self._read_bodies(),
        ]
        return publish, []

    def observer(self, actions: Sequence[str]) -> _Rights:
        publish = [
            "$JS.API.INFO",
            *(f"$JS.API.STREAM.INFO.{stream}" for stream in self.streams),
            *(f"$JS.API.STREAM.MSG.GET.{stream}" for stream in self.streams),
            *(f"$JS.API.DIRECT.GET.{stream}{rest}" for stream in self.streams for rest in ("", ".>")),
            *(f"$JS.API.CONSUMER.INFO.{stream}.*" for stream in self.streams),
            *(each for stream in self.streams for each in self._follow(stream, ">")),
        ]
        kinds = ("outcome", "event", "delta", "log", "question", "thread", "cron", "cancelled")
        return publish, [f"{self.ns}.{kind}.>" for kind in kinds]

    def dashboard(self, actions: Sequence[str]) -> _Rights:
        publish, subscribe = self.observer(actions)
        publish += [
            *self._operate(actions, "*"),  # with the name of any actor, because the dashboard verifies its users
            f"$JS.API.STREAM.INFO.{self.keys}",
            *self._follow(self.keys, f"{self.key_values}.batch.*"),
        ]
        if "submit" in actions:
            publish += [f"{self.key_values}.batch.*", f"{self.ns}.request.{_TEAM}.*"]
        if "webhooks" in actions:
            publish += self._manage_webhooks()
        return publish, subscribe

    # Roles of the account with the streams

    def operator(self, actions: Sequence[str]) -> _Rights:
        publish, subscribe = self.observer(actions)
        publish += self._operate(actions)
        if "import" in actions:
            publish += [f"{self.ns}.{kind}.>" for kind in ("log", "event", "outcome", "question", "message", "dead")]
            publish += self._write_bodies()
        if "forget" in actions:
            publish += [f"{self.ns}.audit.*.{_USER}.*", *self._remove("MSG.DELETE")]
        if "keys" in actions:
            publish += [f"{self.key_values}.*", f"$JS.API.STREAM.INFO.{self.keys}"]
            publish += self._follow(self.keys, f"{self.key_values}.>")
        if "webhooks" in actions:
            publish += self._manage_webhooks()
        return [*publish, *(f"$SRV.{verb}.>" for verb in ("PING", "INFO", "STATS"))], subscribe

    def supervisor(self, actions: Sequence[str]) -> _Rights:
        ns = self.ns
        own = {
            "request": self.requests,
            "control": self.controls,
            "result": self.results,
            "timer": self.work,
        }
        publish, subscribe = self.observer(())
        publish += [
            f"{ns}.handoff.*.{_TEAM}.>",
            f"{ns}.timer.{_TEAM}.>",
            f"{ns}.schedule.{_TEAM}.>",
            f"{ns}.log.{_TEAM}.*",
            f"{ns}.outcome.{_TEAM}.*",
            f"{ns}.question.{_TEAM}.>",
            f"{ns}.message.*.{_TEAM}.>",
            f"{ns}.thread.{_TEAM}.>",
            f"{ns}.cron.{_TEAM}.>",
            f"{ns}.request.{_TEAM}.*",  # in the name of callers, for schedules and for messages to ended turns
            f"{ns}.dead.>",  # dead letters of the team, and of agents whose tasks have failed
            f"{ns}.cancelled.{_TEAM}.*",
            f"{ns}.handed.>",
            f"{ns}.circuits",
            f"{ns}.result.*.{_TEAM}.>",  # a team answers its parent team in the same way as an agent
            f"{ns}.event.*.*.{_TEAM}.>",
            f"{ns}.delta.*.*.{_TEAM}",
            f"{ns}.control.*.*.*.{_TEAM}.*",  # to end child workflows at other teams
            f"{self.bucket}.{_TEAM}.*",
            "_INBOX.>",  # to send the outcome to the reply subject of a request
            *self._consume(f"agent-{_TEAM}", self.work, self.handoffs),
            *(each for kind, stream in own.items() for each in self._consume(f"{kind}-{_TEAM}", stream)),
            *(f"$JS.API.CONSUMER.CREATE.{stream}.{kind}-{_TEAM}.>" for kind, stream in own.items()),
            *(f"$JS.API.CONSUMER.CREATE.{stream}.agent-{_TEAM}.>" for stream in (self.work, self.handoffs)),
            *self._remove("PURGE", "MSG.DELETE"),
            *self._write_bodies(),
        ]
        return publish, [*subscribe, f"{ns}.handed.>"]

    def provisioner(self, actions: Sequence[str]) -> _Rights:
        publish = [
            "$JS.API.INFO",
            *(
                f"$JS.API.STREAM.{verb}.{stream}"
                for verb in ("CREATE", "UPDATE", "INFO")
                for stream in (*self.streams, self.keys, self.endpoints, self.secrets)
            ),
            *(f"$JS.API.CONSUMER.CREATE.{stream}.>" for stream in self.streams),
            *(f"$JS.API.CONSUMER.INFO.{stream}.*" for stream in self.streams),
        ]
        return publish, []

    # Groups of rights

    def _manage_webhooks(self) -> list[str]:
        """Return the rights to change endpoints, to write (not read) secrets, and to request a new delivery."""
        return [
            f"{self.endpoint_values}.*",
            f"{self.secret_values}.*",
            f"{self.ns}.delivery.*.*.*.resend",
            *(f"$JS.API.STREAM.INFO.{bucket}" for bucket in (self.endpoints, self.secrets)),
            *self._follow(self.endpoints, f"{self.endpoint_values}.>"),
        ]

    def _remove(self, *verbs: str) -> list[str]:
        streams = [stream for stream in self.streams if stream != self.registry]
        return [f"$JS.API.STREAM.{verb}.{stream}" for verb in verbs for stream in streams]

    def _controls(self, actions: Sequence[str], actor: str = _USER) -> list[str]:
        kinds = [
            action for action in actions if action not in ("discard", "submit", "import", "forget", "keys", "webhooks")
        ]
        return [f"{self.ns}.control.{_TEAM}.*.{action}.{actor}.*" for action in kinds]

    def _operate(self, actions: Sequence[str], actor: str = _USER) -> list[str]:
        """Return the rights for the actions of an operator, in the name of `actor`."""
        rights = self._controls(actions, actor)
        if {"replay", "discard"} & set(actions):
            rights += [f"{self.ns}.audit.*.{actor}.*", f"$JS.API.STREAM.MSG.DELETE.{self.dead}"]
        if "submit" in actions:
            rights += [f"{self.ns}.request.{_TEAM}.{_USER}", *self._write_bodies()]
        if "replay" in actions:  # a replayed request is published in the name of its original caller
            rights += [f"{self.ns}.request.{_TEAM}.*", *self._write_bodies()]
        return rights

    def _last(self, stream: str, *subjects: str) -> list[str]:
        return [f"$JS.API.DIRECT.GET.{stream}.{subject}" for subject in subjects]

    def _follow(self, stream: str, *filters: str) -> list[str]:
        """Return the rights to read the messages that match the filters, with consumers of the user's own names.

        A user with the right to create a consumer of any name could change a durable consumer of another process.
        """
        names = [reader_name(self._inbox, slot) for slot in range(READER_SLOTS)]
        return [
            *self._last(stream, *filters),
            *(f"$JS.API.CONSUMER.CREATE.{stream}.{name}.{each}" for name in names for each in filters),
            *(f"$JS.API.CONSUMER.DELETE.{stream}.{name}" for name in names),
            *(f"$JS.FC.{stream}.{name}.*" for name in names),
        ]

    def _consume(self, name: str, *streams: str) -> list[str]:
        """Return the rights to receive and acknowledge the messages of an existing durable consumer.

        An acknowledgement can also request the next message of its consumer. The subject of an acknowledgement has two
        forms. In the usual form, the stream and the consumer come first after `$JS.ACK`. With `js_ack_fc_v2`, a domain
        and an account come first. A right to `$JS.ACK.*.*.{stream}.{name}.>` would also match the usual form, with any
        stream and consumer in the place of `*.*`, so a user could receive the messages of each consumer. So the right
        has `_` in the place of the domain. A server without a JetStream domain has this domain, and no stream has this
        name.
        """
        return [
            right.format(stream=stream, name=name)
            for stream in streams
            for right in (
                "$JS.API.CONSUMER.INFO.{stream}.{name}",
                "$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}",
                "$JS.ACK.{stream}.{name}.>",
                "$JS.ACK._.*.{stream}.{name}.>",  # if `js_ack_fc_v2` is on: a domain and an account come first
            )
        ]

    def _read_bodies(self) -> list[str]:
        return [
            *self._last(self.artifacts, f"{self.objects}.M.*"),
            *self._follow(self.artifacts, f"{self.objects}.C.*"),
        ]

    def _write_bodies(self) -> list[str]:
        return [f"{self.objects}.C.*", f"{self.objects}.M.*"]
