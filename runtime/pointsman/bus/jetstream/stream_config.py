"""Define the streams and buckets of a namespace, create missing streams, and check existing streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from pointsman.bus.jetstream.protocol import (
    ADVICE,
    MAX_BYTES_REQUIRED_CODE,
    NO_STREAM_CODE,
    STREAM_EXISTS_CODE,
    Connection,
    error_code,
    error_text,
    to_nanoseconds,
    with_advice,
)
from pointsman.bus.validation import DUPLICATE_WINDOW_S, REQUEST_DUPLICATE_WINDOW_S
from pointsman.errors import ConfigurationError, NotFoundError, PermissionDeniedError
from pointsman.settings import Settings
from pointsman.util.lazy_import import structlog
from pointsman_schemas.subjects import Subjects

__all__ = ["TOMBSTONE_TTL_S", "check_compatible", "ensure_streams", "stream_configs", "unconsumed_subjects"]

_log = structlog.get_logger(__name__)

TOMBSTONE_TTL_S = 60.0  # seconds for which the registry stores a tombstone, for watchers that were disconnected
_DAY_S = 86_400.0
_MAX_NAMED = 10  # maximum number of namespaces in an error
_DELIVERY_DAYS = 7  # days that a delivery is stored; longer than its retries take, see Settings.webhook_retries
_CONSUMER_ADVISORY = "$JS.EVENT.ADVISORY.CONSUMER"
_ASYNC_PERSIST = "async"  # nats-server's name for a stream that acknowledges a message before the write
_ONE_NODE = (
    "unsynced handoffs need a broker of one node: in a cluster, a node can restart unnoticed, and a cluster already "
    "writes messages in groups; unset POINTSMAN_UNSYNCED_HANDOFFS, or run one node with POINTSMAN_REPLICAS=1"
)

_MIN_API_LEVEL = 3  # nats-server 2.12.8, the first version with working message schedules, reports this level

_REQUIRED_FIELDS = (
    "subjects",
    "retention",
    "storage",
    "discard",
    "allow_direct",
    "allow_rollup_hdrs",
    "allow_msg_ttl",
    "allow_msg_schedules",
    "max_msgs_per_subject",
    "persist_mode",
)  # the operator chooses all other properties: age, replicas, limits


_NO_RIGHTS_OVER_OTHERS: Mapping[str, bool] = {
    "allow_msg_schedules": False,
    "allow_msg_ttl": False,
    "allow_rollup_hdrs": False,
}
"""Options of streams whose publishers must not delete messages of other publishers, or publish on their subjects."""


class StreamLayout(NamedTuple):
    """The layout of the streams of a namespace. `domain` is empty for streams without a JetStream domain."""

    separate_handoffs: bool
    domain: str


async def ensure_streams(
    bus: Connection,
    subjects: Subjects,
    settings: Settings,
    *,
    create: bool,
    again: bool = False,
    clustered: bool = False,
) -> StreamLayout:
    """Create the missing streams, and return once all streams exist and are compatible.

    Args:
        bus: The connection to the broker.
        subjects: The subjects of the namespace.
        settings: The limits and options of the streams.
        create: True to create missing streams; False to raise an error for a missing stream.
        again: True if the streams existed before, so a missing stream was lost. Default: False.
        clustered: True if the broker is a cluster of several nodes. Default: False.

    Returns:
        The layout of the streams.

    Raises:
        ConfigurationError: The broker lacks a needed function, or an existing stream is not compatible.
        NotFoundError: A stream is missing, and `create` is False.
    """
    info = await bus.api("INFO")
    if code := error_code(info):
        told = f"JetStream is not available at {settings.servers}: {error_text(info)}"
        raise ConfigurationError(with_advice(told, code))
    domain = str(info.get("domain") or "")
    level = int(info.get("api", {}).get("level", 0))
    if level < _MIN_API_LEVEL:
        raise ConfigurationError(
            f"the broker has JetStream API level {level}, expected {_MIN_API_LEVEL} or more for message schedules; "
            "run nats-server 2.12.8 or newer"
        )

    async def found(wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        name = wanted["name"]
        answer = await bus.api(f"STREAM.INFO.{name}")
        if error_code(answer) == NO_STREAM_CODE:
            if not create:
                if wanted is not first:
                    raise NotFoundError(
                        f"the namespace {subjects.namespace!r} lacks its stream {name}; run `pointsman up`"
                    )
                there = await _others(bus, subjects.namespace) or "none yet"
                where = f"{settings.servers}{f', in the JetStream domain {domain!r}' if domain else ''}"
                raise NotFoundError(
                    f"there is no namespace {subjects.namespace!r} at {where}; a supervisor, a worker, "
                    f"`pointsman up` or `pointsman provision` creates a namespace; existing namespaces: {there}"
                    + "".join(f"; {obstacle}" for obstacle in _obstacles(info, settings, clustered=clustered))
                )
            if again:
                _log.warning("stream_lost", stream=name, hint="the broker lost the stream; an empty stream is created")
            try:
                answer = await bus.api(f"STREAM.CREATE.{name}", _bounded(wanted, settings))
            except PermissionDeniedError as error:
                raise ConfigurationError(
                    f"the stream {name} is missing; run `pointsman provision` as a user with this permission: {error}"
                ) from None
            if error_code(answer) == STREAM_EXISTS_CODE:  # a process with different settings created the stream first
                answer = await bus.api(f"STREAM.INFO.{name}")
        if code := error_code(answer):
            raise ConfigurationError(with_advice(f"the stream {name} cannot be made: {error_text(answer)}", code))
        config: Mapping[str, Any] = answer["config"]
        return config

    several = clustered or settings.replicas > 1
    if settings.unsynced_handoffs and several:
        raise ConfigurationError(_ONE_NODE)
    # The process that created the namespace chose whether handoffs have a separate stream. If the work stream was lost
    # later, an existing stream of handoffs shows the choice.
    apart = settings.unsynced_handoffs or not error_code(await bus.api(f"STREAM.INFO.{subjects.handoff_stream}"))
    first, *_ = stream_configs(subjects, settings, apart=apart)
    work = await found(first)
    apart = _handoff_subjects(subjects)[0] not in work["subjects"]
    if apart and several:
        raise ConfigurationError(_ONE_NODE)
    if create and not again and settings.unsynced_handoffs and not apart:
        _log.warning(
            "unsynced_handoffs_ignored",
            stream=subjects.work_stream,
            hint="the namespace was created without POINTSMAN_UNSYNCED_HANDOFFS and does not change; only a new "
            "POINTSMAN_NAMESPACE has a separate stream for handoffs",
        )
    first, *others = stream_configs(subjects, settings, apart=apart)
    check_compatible(first, work)
    for wanted in others:
        check_compatible(wanted, await found(wanted))
    return StreamLayout(apart, domain)


def _obstacles(info: Mapping[str, Any], settings: Settings, *, clustered: bool) -> Iterator[str]:
    """Yield the reasons why the broker would refuse to create the streams with these settings."""
    if settings.replicas > 1 and not clustered:
        yield f"POINTSMAN_REPLICAS={settings.replicas} needs a cluster of {settings.replicas} servers, not one server"
    limits = info.get("limits") or {}
    if limits.get("max_bytes_required") and settings.stream_bytes is None:
        yield f"{ADVICE[MAX_BYTES_REQUIRED_CODE]}"
    if limits.get("max_storage") == 0 and not info.get("tiers"):
        yield "the account has no file storage"


def stream_configs(subjects: Subjects, settings: Settings, *, apart: bool = False) -> list[dict[str, Any]]:
    """Return the JetStream configurations of a namespace, the work stream first. Times are in nanoseconds.

    `allow_direct` permits batched reads of a subject with many messages. A replica that lags can answer such a read, so
    the reader reads the last sequence from the leader. If a configuration has no `discard`, the operator may choose the
    value together with the limits: a stream that refuses new messages at its limit loses no messages. Most streams have
    no `max_age`, because the broker would delete messages that are still pending; supervisors trim these streams.

    Args:
        subjects: The subjects of the namespace.
        settings: The limits and options of the streams.
        apart: True to store handoffs and delayed handoffs in a separate stream that is not synced to disk. Default:
            False.

    Returns:
        One configuration for each stream.
    """
    ns, kept = subjects.namespace, to_nanoseconds(settings.retention_days * _DAY_S)
    common: dict[str, Any] = {
        "retention": "limits",
        "storage": "file",
        "num_replicas": settings.replicas,
        "duplicate_window": to_nanoseconds(DUPLICATE_WINDOW_S),
        "max_msgs_per_subject": -1,
        "allow_direct": True,
    }
    # Regardless of its permissions, a publisher can store a message on any subject of these streams by a schedule, and
    # delete all messages of these streams by rollup. So only supervisors may write to these streams.
    of_supervisors: dict[str, Any] = {
        **common,
        "discard": "old",  # the server requires this for schedules
        "allow_msg_schedules": True,
        "allow_msg_ttl": True,
        "allow_rollup_hdrs": True,
    }
    # Each subject has an exact number of tokens. Otherwise a message on a subject with more tokens would be stored and
    # acknowledged, but no consumer would read the message.
    timers = [f"{ns}.timer.*.*.*", f"{ns}.schedule.*.*.timer.*"]
    # When a schedule fires, the broker stores the message in the stream of the schedule. So handoffs and their
    # schedules share one stream, and timers and their schedules share one stream. The two streams can differ.
    handoffs = _handoff_subjects(subjects)
    working: list[dict[str, Any]] = [
        {**of_supervisors, "name": subjects.work_stream, "subjects": timers if apart else [*handoffs, *timers]}
    ]
    if apart:
        working.append(
            {
                **of_supervisors,
                "name": subjects.handoff_stream,
                "subjects": handoffs,
                "persist_mode": _ASYNC_PERSIST,
            }
        )
    plain: dict[str, Any] = {**common, **_NO_RIGHTS_OVER_OTHERS}
    inbound: list[dict[str, Any]] = [
        {
            **plain,
            "name": subjects.request_stream,
            "subjects": [subjects.requests],
            "duplicate_window": to_nanoseconds(REQUEST_DUPLICATE_WINDOW_S),
        },
        {
            **plain,
            "name": subjects.control_stream,
            "subjects": [f"{ns}.control.*.*.*.*.*", f"{ns}.audit.*.*.*"],
        },
        {
            **plain,
            "name": subjects.result_stream,
            "subjects": [f"{ns}.result.*.*.*.*.*.*", f"{ns}.step.*.*.*.*.*.*", f"{ns}.event.*.*.*.*"],
        },
    ]
    return [
        *working,
        *inbound,
        {
            **plain,
            "name": subjects.log_stream,
            "subjects": [
                f"{ns}.log.*.*",
                f"{ns}.outcome.*.*",
                f"{ns}.question.*.*.*",
                f"{ns}.message.*.*.*.*",
                f"{ns}.thread.*.*.*",
                f"{ns}.cron.*.*.*",
            ],
        },
        {
            **plain,
            "name": subjects.dead_letter_stream,
            "max_age": kept,
            "subjects": [
                subjects.dead_letters_for(),
                *(
                    f"{_CONSUMER_ADVISORY}.{kind}.{stream['name']}.>"
                    for stream in (*working, *inbound)
                    for kind in ("MAX_DELIVERIES", "MSG_TERMINATED")
                ),
            ],
        },
        {
            **plain,
            "name": subjects.delivery_stream,
            "max_age": to_nanoseconds(_DELIVERY_DAYS * _DAY_S),
            "max_msgs_per_subject": 1,
            "subjects": [f"{ns}.delivery.*.*.*.*", f"{ns}.receipt.*.*.*"],
        },
        {
            **plain,
            "discard": "old",
            "name": subjects.limits_stream,
            "max_age": to_nanoseconds(_DAY_S),
            "max_msgs_per_subject": 1,
            "subjects": [f"{ns}.limit.*", subjects.circuits],
        },
        {
            **plain,
            "name": f"OBJ_{subjects.artifacts_bucket}",
            "subjects": [f"$O.{subjects.artifacts_bucket}.{part}.>" for part in ("C", "M")],
            "max_bytes": settings.artifacts_bytes or -1,
            "discard": "new",
        },
        {
            **plain,
            "name": f"KV_{subjects.agents_bucket}",
            "subjects": [f"$KV.{subjects.agents_bucket}.>"],
            "discard": "new",
            "max_msgs_per_subject": 1,
            "deny_delete": True,
            "allow_msg_ttl": True,
        },
    ]


def _handoff_subjects(subjects: Subjects) -> list[str]:
    ns = subjects.namespace
    return [f"{ns}.handoff.*.*.*.*.*", f"{ns}.schedule.*.*.handoff.*"]


def _bounded(wanted: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    """Return `wanted` with the maximum size of the settings. A maximum size in `wanted` stays unchanged.

    A full stream refuses new messages, except if `wanted` has a `discard` that drops the oldest messages.
    """
    if settings.stream_bytes is None or wanted.get("max_bytes", -1) > 0:
        return wanted
    return {"discard": "new", **wanted, "max_bytes": settings.stream_bytes}


def unconsumed_subjects(subjects: Subjects) -> dict[str, str]:
    """Return the prefix of the subjects of each stream without a durable consumer.

    No consumer detects the loss of such a stream. The first read or write on one of these subjects detects the loss.

    Args:
        subjects: The subjects of the namespace.

    Returns:
        The prefix by the name of the stream.
    """
    return {
        subjects.dead_letter_stream: subjects.dead_letters.removesuffix(">"),
        subjects.limits_stream: f"{subjects.namespace}.limit.",
        f"OBJ_{subjects.artifacts_bucket}": f"$O.{subjects.artifacts_bucket}.",
        f"KV_{subjects.agents_bucket}": f"$KV.{subjects.agents_bucket}.",
    }


def check_compatible(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` if the existing stream lacks a required property."""
    for key in _REQUIRED_FIELDS:
        if (want := wanted.get(key)) is None:
            continue
        have = found.get(key) or type(want)()  # the server leaves out false and empty values
        if isinstance(want, list):
            want, have = sorted(want), sorted(have)
        if have != want:
            raise ConfigurationError(
                f"the stream {wanted['name']} has {key} {have!r}, expected {want!r}; change it with "
                "the nats CLI, or choose another POINTSMAN_NAMESPACE"
            )


async def _others(bus: Connection, missing: str) -> str:
    """Return the namespaces at this broker, first the namespaces with a similar name."""
    answer = await bus.api("STREAM.LIST", {"offset": 0, "subject": "*.handoff.>"})  # the first 256 suffice for a hint
    found = sorted(stream["config"]["subjects"][0].split(".")[0] for stream in answer.get("streams") or ())
    similar = get_close_matches(missing, found, _MAX_NAMED)
    named = [*similar, *(name for name in found if name not in similar)][:_MAX_NAMED]
    more = len(found) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
