"""Attacks by one user on the subjects and streams of other users, over a raw connection with the user's credentials."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from pointsman.bus.jetstream.connection import NatsConnection
from pointsman.bus.jetstream.protocol import WireMessage, header_bytes
from pointsman.bus.jetstream.refusals import Refusal
from pointsman.errors import PermissionDeniedError
from pointsman.grants.permissions import Permissions

__all__ = [
    "Attack",
    "Attacker",
    "Names",
    "borrowed_acknowledgements",
    "foreign_publishes",
    "foreign_subscriptions",
    "header_attacks",
    "matcher",
    "message_subjects",
    "reply_attacks",
    "snapshot",
    "targets",
]

_FUTURE = "2099-01-01T00:00:00Z"
_HEADERS: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    "rollup of all": {"Nats-Rollup": "all"},
    "rollup of the subject": {"Nats-Rollup": "sub"},
    "time to live": {"Nats-TTL": "1s"},
}


@dataclass(frozen=True)
class Names:
    """The names of a namespace that an attacker may have learned."""

    ns: str
    teams: Sequence[str]
    agents: Sequence[str]
    users: Sequence[str]
    workflow: str
    streams: Mapping[str, Sequence[str]]  # the subjects of each stream
    durables: Sequence[tuple[str, str, str]]  # stream, consumer, filter

    @property
    def bucket(self) -> str:
        return f"{self.ns.upper()}_AGENTS"

    @property
    def objects(self) -> str:
        return f"{self.ns.upper()}_ARTIFACTS"

    @property
    def key_values(self) -> Sequence[str]:
        """The buckets of the gateway and of webhooks."""
        return [f"{self.ns.upper()}_{name}" for name in ("GATEWAY", "WEBHOOKS", "WEBHOOK_SECRETS")]


@dataclass(frozen=True)
class Attack:
    """A message to publish."""

    what: str
    subject: str
    body: bytes = b"{}"
    reply: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


def message_subjects(names: Names) -> Iterator[str]:
    """Yield the subjects of every kind of message, for each team, agent and user."""
    ns, workflow = names.ns, names.workflow
    for team, user in product(names.teams, names.users):
        yield f"{ns}.request.{team}.{user}"
        yield from (
            f"{ns}.control.{team}.{workflow}.{action}.{user}.id"
            for action in ("cancel", "replay", "approve", "reject", "tell", "schedule", "schedule-others", "other")
        )
        yield f"{ns}.thread.{team}.{user}.th_1"
        yield f"{ns}.cron.{team}.{user}.sc_1"
        yield f"{ns}.audit.discard.{user}.id"
    for team, agent in product(names.teams, (*names.agents, *names.teams)):
        yield f"{ns}.result.{team}.{agent}.{workflow}.t1.1.{'0' * 32}"
        yield f"{ns}.step.{agent}.{team}.{workflow}.t1.1.turn-1"
        yield f"{ns}.event.{team}.{workflow}.{agent}.id"
        yield f"{ns}.delta.{team}.{workflow}.{agent}"
        yield f"{ns}.handoff.{agent}.{team}.{workflow}.t1.2"
        yield f"{ns}.message.{agent}.{team}.{workflow}.1"
    for team in names.teams:
        yield f"{ns}.timer.{team}.{workflow}.deadline"
        yield f"{ns}.schedule.{team}.{workflow}.timer.deadline"
        yield f"{ns}.schedule.{team}.{workflow}.handoff.t1"
        yield f"{ns}.log.{team}.{workflow}"
        yield f"{ns}.outcome.{team}.{workflow}"
        yield f"{ns}.question.{team}.{workflow}.id"
        yield f"{ns}.schedule.{team}.sc_1.timer.fire"
        yield f"{ns}.timer.{team}.sc_1.fire"
        yield f"{ns}.cancelled.{team}.{workflow}"
        yield f"{ns}.handed.{team}.1.request.{team}.shop"
    for origin in (*names.teams, *names.agents):
        yield f"{ns}.dead.{origin}.{workflow}.id"
        yield f"$KV.{names.bucket}.{origin}.1"
        yield f"$SRV.PING.{origin}.1"
    yield from (f"{ns}.limit.key", f"{ns}.circuits", ns, f"{ns}.new.kind", "$KV.OTHER.key")
    yield from (f"$O.{names.objects}.{part}.{'a' * 20}" for part in "CM")
    yield from (f"{ns}.delivery.ep_1.{workflow}.ev_1.{part}" for part in ("message", "resend"))
    yield f"{ns}.receipt.ep_1.{workflow}.ev_1"
    for bucket in names.key_values:
        yield from (f"$KV.{bucket}.{key}" for key in ("one", "batch.one", "push.one", "key.one"))
    yield from (f"{prefix}.{user}.reply" for prefix in ("_INBOX", "_TRUSTED") for user in names.users)


def api_requests(names: Names) -> Iterator[tuple[str, bytes]]:
    """Yield requests to the JetStream API that would read or change data. The subjects lack the API prefix."""
    body: dict[str, Any] | None
    for stream in names.streams:
        covered = matcher(names.streams[stream])
        config: dict[str, Any] = {"name": stream, "subjects": [f"{names.ns}.>"], "allow_msg_schedules": True}
        for verb, body in (
            ("STREAM.CREATE", config),
            ("STREAM.UPDATE", config),
            ("STREAM.DELETE", None),
            ("STREAM.PURGE", {}),
            ("STREAM.PURGE", {"filter": f"{names.ns}.log.>"}),
            ("STREAM.INFO", None),
            ("STREAM.INFO", {"subjects_filter": ">"}),
            ("STREAM.MSG.GET", {"seq": 1}),
            ("STREAM.MSG.GET", {"last_by_subj": ">"}),
            ("STREAM.MSG.DELETE", {"seq": 1}),
            ("STREAM.SNAPSHOT", {"deliver_subject": "_INBOX.x"}),
            ("STREAM.RESTORE", {"config": config}),
            ("STREAM.LEADER.STEPDOWN", {}),
            ("STREAM.PEER.REMOVE", {"peer": "x"}),
            ("CONSUMER.NAMES", {"offset": 0}),
            ("CONSUMER.LIST", {"offset": 0}),
            ("DIRECT.GET", {"batch": 100, "seq": 1}),
            ("DIRECT.GET", {"multi_last": [">"]}),
        ):
            yield f"{verb}.{stream}", json.dumps(body).encode() if body is not None else b""
        for subject in message_subjects(names):
            if covered(subject):
                yield f"DIRECT.GET.{stream}.{subject}", b""
        yield f"DIRECT.GET.{stream}.>", b""
        yield f"DIRECT.GET.{stream}.{names.ns}.>", b""
        for filter in (">", f"{names.ns}.>", "$KV.>", "$O.>"):
            spy = {"name": "spy", "filter_subject": filter, "ack_policy": "none"}
            order: dict[str, Any] = {"stream_name": stream, "config": spy}
            yield f"CONSUMER.CREATE.{stream}.spy.{filter}", json.dumps(order).encode()
            yield f"CONSUMER.CREATE.{stream}.spy", json.dumps(order).encode()
            yield f"CONSUMER.CREATE.{stream}", json.dumps(order).encode()
            durable = {**order, "config": {**order["config"], "durable_name": "spy"}}
            yield f"CONSUMER.DURABLE.CREATE.{stream}.spy", json.dumps(durable).encode()
    for stream, consumer, filter in names.durables:
        config = {"durable_name": consumer, "name": consumer, "ack_policy": "explicit"}
        for changed in (filter, ">", f"{names.ns}.event.>"):
            body = {"stream_name": stream, "config": {**config, "filter_subject": changed}}
            yield f"CONSUMER.CREATE.{stream}.{consumer}.{changed}", json.dumps(body).encode()
        for verb, body in (
            ("CONSUMER.DELETE", None),
            ("CONSUMER.INFO", None),
            ("CONSUMER.PAUSE", {"pause_until": _FUTURE}),
            ("CONSUMER.RESET", {}),
            ("CONSUMER.UNPIN", {"group": "a"}),
            ("CONSUMER.LEADER.STEPDOWN", {}),
            ("CONSUMER.MSG.NEXT", {"batch": 10, "no_wait": True}),
        ):
            yield f"{verb}.{stream}.{consumer}", json.dumps(body).encode() if body is not None else b""
    yield from (
        ("INFO", b""),
        ("STREAM.NAMES", b""),
        ("STREAM.LIST", b""),
        (
            "STREAM.CREATE.THIEF",
            json.dumps({"name": "THIEF", "sources": [{"name": each} for each in names.streams]}).encode(),
        ),
        ("META.LEADER.STEPDOWN", b"{}"),
        ("SERVER.REMOVE", b"{}"),
        ("ACCOUNT.PURGE.APP", b""),
    )


def foreign_publishes(names: Names, rights: Permissions) -> list[Attack]:
    """Return all messages and API requests that the rights do not allow."""
    attacks = [
        Attack(what, subject, headers=headers)
        for subject in message_subjects(names)
        for what, headers in (*_HEADERS.items(), ("schedule", schedule_of(names, subject)))
    ]
    attacks += [
        Attack("API", f"{prefix}{verb}", body, "_INBOX.x.y")
        for verb, body in api_requests(names)
        for prefix in ("$JS.API.", "$JS.edge.API.", "$JS.other.API.")
    ]
    attacks += [
        Attack("acknowledgement", f"$JS.ACK.{stream}.{consumer}.1.1.1.1.0", b"+TERM")
        for stream, consumer, _ in names.durables
    ]
    attacks += [
        Attack("system", subject)
        for subject in ("$SYS.REQ.SERVER.PING", "$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.USER.AUTH", "$JS.EVENT.ADVISORY.X")
    ]
    covered = matcher(rights.publish)
    return [attack for attack in attacks if not covered(attack.subject)]


def borrowed_acknowledgements(names: Names, rights: Permissions) -> list[Attack]:
    """Return pulls from the consumers of others, each in the form of an acknowledgement that names another consumer.

    `+NXT` takes a message from the consumer in the third and fourth tokens. The broker reads no number after them for
    `+NXT`, so these tokens can be the stream and the name of the attacker's own consumer.
    """
    covered = matcher(rights.publish)
    pulls = [(stream, consumer, f"$JS.ACK.{stream}.{consumer}") for stream, consumer, _ in names.durables]
    foreign = [prefix for _, _, prefix in pulls if not covered(f"{prefix}.1.1.1.1.0")]
    return [
        Attack("acknowledgement", f"{prefix}.{stream}.{consumer}.{'.'.join(['1'] * rest)}", b"+NXT")
        for prefix in foreign
        for stream, consumer, _ in pulls
        for rest in (3, 5)
    ]


def matcher(patterns: Sequence[str]) -> Callable[[str], object]:
    """Return `is_covered` for these patterns as one regular expression, which is quick for thousands of subjects."""
    tokens = {"*": "[^.>]+", ">": ".+"}
    joined = (r"\.".join(tokens.get(token) or re.escape(token) for token in each.split(".")) for each in patterns)
    return re.compile("|".join(joined) or "(?!)").fullmatch


def schedule_of(names: Names, subject: str) -> dict[str, str]:
    """Return the headers of a schedule that would immediately publish on the subject of a handoff."""
    target = f"{names.ns}.handoff.{names.agents[0]}.{names.teams[0]}.{names.workflow}.t1.9"
    return {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": target}


def header_attacks(names: Names, rights: Permissions) -> list[Attack]:
    """Return messages on the user's own subjects whose headers would delete messages or publish elsewhere."""
    own = list(filter(matcher(rights.publish), message_subjects(names)))
    own = [each for each in own if not each.startswith(("$SRV", "_INBOX", "$KV")) and ".delta." not in each]
    kinds = {name: headers for name, headers in _HEADERS.items() if name != "plain"}
    return [
        Attack(what, subject, b"{}", headers=headers)
        for subject in own
        for what, headers in (*kinds.items(), ("schedule", schedule_of(names, subject)))
    ]


def targets(names: Names) -> list[str]:
    """Return the subjects on which the broker must never publish a reply."""
    destructive = [
        f"{prefix}{verb}.{stream}"
        for prefix in ("$JS.API.", "$JS.edge.API.")
        for stream in names.streams
        for verb in ("STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.DELETE")
    ]
    destructive += [f"$JS.API.CONSUMER.DELETE.{stream}.{consumer}" for stream, consumer, _ in names.durables]
    return [*destructive, *(each for each in message_subjects(names) if not each.startswith(("$SRV", "_")))]


def reply_attacks(names: Names, own: Sequence[tuple[str, bytes]]) -> list[Attack]:
    """Return the user's own requests, each with a reply subject on which the user may not publish."""
    return [Attack("reply", subject, body, reply=target) for subject, body in own for target in targets(names)]


def foreign_subscriptions(names: Names, rights: Permissions) -> list[str]:
    """Return subjects that the rights do not allow the user to subscribe to."""
    wanted = [">", "*.>", f"{names.ns}.>", "_INBOX.>", "_TRUSTED.>", "$JS.>", "$KV.>", "$O.>", "$SYS.>", "$SRV.>"]
    wanted += [f"{prefix}.{user}.>" for prefix in ("_INBOX", "_TRUSTED") for user in names.users]
    wanted += [f"{names.ns}.{kind}.>" for kind in KINDS]
    wanted += list(message_subjects(names))
    covered = matcher(rights.subscribe)
    return [each for each in wanted if not covered(each)]


KINDS = (
    "request", "control", "audit", "result", "step", "event", "delta", "handoff", "timer", "schedule", "log", "outcome",
    "question", "cancelled", "handed", "dead", "limit", "circuits", "message", "thread", "cron", "delivery", "receipt",
)  # fmt: skip


class Attacker:
    """A raw connection that records the refusals of the broker."""

    def __init__(self, connection: NatsConnection) -> None:
        self.connection = connection
        self.refused = set[tuple[str, str]]()
        connection.refusal_listeners.add(self._on_refusal)

    def _on_refusal(self, refusal: Refusal, error: PermissionDeniedError) -> None:
        self.refused.add((refusal.operation, refusal.subject))

    async def publish(self, attacks: Sequence[Attack]) -> list[Attack]:
        """Publish every message and return those that the broker did not refuse."""
        with self.connection.optional_requests(""):  # a refusal would otherwise be logged as an error
            for attack in attacks:
                headers = header_bytes(attack.headers)
                await self.connection.send(attack.subject, attack.body, reply=attack.reply, headers=headers)
            await self.connection.flush()
        return [each for each in attacks if ("publish", each.subject) not in self.refused]

    async def subscribe(self, subjects: Sequence[str]) -> list[str]:
        """Subscribe to each subject and return the subjects that the broker did not refuse."""
        heard: list[WireMessage] = []
        with self.connection.optional_requests(""):
            for subject in subjects:
                await (await self.connection.subscribe(subject, heard.append)).unsubscribe()
            await self.connection.flush()
        assert heard == []
        return [each for each in subjects if ("subscribe", each) not in self.refused]


async def snapshot(observer: NatsConnection, builder: NatsConnection, names: Names) -> dict[str, Any]:
    """Return the data of all streams and durable consumers of a namespace.

    No user may read all buckets, so the data of a bucket is its configuration and its counts, which show each change.
    The webhook service's own consumers are omitted, because the service attacks, too, and may use its consumers.
    """
    state = dict[str, Any]()
    buckets = [f"KV_{bucket}" for bucket in names.key_values]
    for stream in buckets:
        info = await builder.api(f"STREAM.INFO.{stream}")
        found = info["state"]
        state[stream] = (info["config"], *(found[key] for key in ("messages", "first_seq", "last_seq")))
    for stream in names.streams:
        if stream in buckets:
            continue
        info = await observer.api(f"STREAM.INFO.{stream}")
        messages = []
        for sequence in range(1, info["state"]["last_seq"] + 1):
            answer = await observer.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence})
            messages.append(answer.get("message", {"deleted": sequence}))
        state[stream] = (info["config"], messages)
    for stream, consumer, _ in names.durables:
        if consumer.startswith("webhook-"):
            continue
        info = await observer.api(f"CONSUMER.INFO.{stream}.{consumer}")
        state[f"{stream} {consumer}"] = (info.get("config"), info.get("num_pending"), info.get("num_ack_pending"))
    return state
