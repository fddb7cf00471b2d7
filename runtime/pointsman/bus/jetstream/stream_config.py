"""What the streams and buckets of a namespace are: those that are missing are made, those that exist must fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from pointsman.errors import ConfigurationError, NotFoundError
from pointsman.settings import Settings
from pointsman.util.lazy_import import structlog
from pointsman_schemas.subjects import Subjects

__all__ = ["TOMBSTONE_TTL_S", "check_compatible", "ensure_streams", "stream_configs", "unconsumed_subjects"]

_log = structlog.get_logger(__name__)

TOMBSTONE_TTL_S = 60.0  # seconds a tombstone of the registry stays for watchers that were away
_DAY_S = 86_400.0
_DUPLICATE_WINDOW_S = 120.0  # seconds: the broker's own default, long enough for a client's retries
_CONSUMER_ADVISORY = "$JS.EVENT.ADVISORY.CONSUMER"
_ASYNC_PERSIST = "async"  # nats-server's own word for a stream that answers before it has written
_ONE_NODE = (
    "handoffs need not be synced on a broker of one node only: in a cluster a node may restart unnoticed, and three "
    "copies are written in groups; unset POINTSMAN_UNSYNCED_HANDOFFS, or run one node with POINTSMAN_REPLICAS=1"
)

_MIN_API_LEVEL = 3  # message schedules work from nats-server 2.12.8 on, which reports this level

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
)  # the rest (age, replicas, limits) is the operator's choice


class StreamLayout(NamedTuple):
    """The streams of a namespace as they exist: handoffs may have a stream of their own, in a JetStream domain."""

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
    """Make the streams that are missing, and return once all exist and fit.

    `again`: it was once; what is missing now has been lost. `clustered`: the broker is one of several nodes.

    Raises:
        ConfigurationError: the broker cannot do what is needed, or what exists does not fit.
        NotFoundError: something is missing, and `create` is not set.
    """
    info = await bus.api("INFO")
    if code := error_code(info):
        told = f"JetStream is not to be had at {settings.servers}: {error_text(info)}"
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
                    raise NotFoundError(f"the namespace {subjects.namespace!r} is without its stream {name}")
                there = ", ".join(await _namespaces(bus)) or "none yet: `pointsman up` makes one"
                where = f"{settings.servers}{f', in the JetStream domain {domain!r}' if domain else ''}"
                raise NotFoundError(
                    f"there is no namespace {subjects.namespace!r} at {where}; there is: {there}"
                    + "".join(f"; {obstacle}" for obstacle in _obstacles(info, settings, clustered=clustered))
                )
            if again:
                _log.warning("stream_lost", stream=name, hint="the broker is without it: it is made again, empty")
            answer = await bus.api(f"STREAM.CREATE.{name}", _bounded(wanted, settings))
            if error_code(answer) == STREAM_EXISTS_CODE:  # another process was faster, with other settings
                answer = await bus.api(f"STREAM.INFO.{name}")
        if code := error_code(answer):
            raise ConfigurationError(with_advice(f"the stream {name} cannot be made: {error_text(answer)}", code))
        config: Mapping[str, Any] = answer["config"]
        return config

    several = clustered or settings.replicas > 1
    if settings.unsynced_handoffs and several:
        raise ConfigurationError(_ONE_NODE)
    # Whoever made the streams has decided where handoffs are; either of the two may have been lost since.
    apart = settings.unsynced_handoffs or not error_code(await bus.api(f"STREAM.INFO.{subjects.handoff_stream}"))
    first, *_ = stream_configs(subjects, settings, apart=apart)
    work = await found(first)
    apart = f"{subjects.namespace}.handoff.>" not in work["subjects"]
    if apart and several:
        raise ConfigurationError(_ONE_NODE)
    if create and not again and settings.unsynced_handoffs and not apart:
        _log.warning(
            "unsynced_handoffs_ignored",
            stream=subjects.work_stream,
            hint="the namespace was made without POINTSMAN_UNSYNCED_HANDOFFS and goes on as it is; a new "
            "POINTSMAN_NAMESPACE has them apart",
        )
    first, *others = stream_configs(subjects, settings, apart=apart)
    check_compatible(first, work)
    for wanted in others:
        check_compatible(wanted, await found(wanted))
    return StreamLayout(apart, domain)


def _obstacles(info: Mapping[str, Any], settings: Settings, *, clustered: bool) -> Iterator[str]:
    """Yield what keeps a process with these settings from creating the streams, as far as the account shows that."""
    if settings.replicas > 1 and not clustered:
        yield f"POINTSMAN_REPLICAS={settings.replicas} needs a cluster of as many servers, and this is a single server"
    limits = info.get("limits") or {}
    if limits.get("max_bytes_required") and settings.stream_bytes is None:
        yield f"{ADVICE[MAX_BYTES_REQUIRED_CODE]}"
    if limits.get("max_storage") == 0 and not info.get("tiers"):
        yield "the account has no file storage"


def stream_configs(subjects: Subjects, settings: Settings, *, apart: bool = False) -> list[dict[str, Any]]:
    """The JetStream configurations of everything a namespace needs, the work stream first. Times are in nanoseconds.

    `apart`: handoffs, and those that wait for their time, have a stream of their own, which is not synced.

    `allow_direct` lets a long subject be read in batches; the reader asks the leader how far it has to get. What is not
    said of `discard` may be either: bounds are the operator's, and one that refuses what is beyond them loses nothing.
    What has no age is for supervisors to trim: the broker would drop what somebody is still owed.
    """
    ns, kept = subjects.namespace, to_nanoseconds(settings.retention_days * _DAY_S)
    common: dict[str, Any] = {
        "retention": "limits",
        "storage": "file",
        "num_replicas": settings.replicas,
        "duplicate_window": to_nanoseconds(_DUPLICATE_WINDOW_S),
        "max_msgs_per_subject": -1,
        "allow_direct": True,
    }
    work: dict[str, Any] = {
        **common,
        "discard": "old",  # the server has no other where there are schedules
        "name": subjects.work_stream,
        "allow_msg_schedules": True,
        "allow_msg_ttl": True,
        "allow_rollup_hdrs": True,
        # A request of more tokens would be stored and answered, and no team would read it.
        "subjects": [subjects.requests, *(f"{ns}.{kind}.>" for kind in ("handoff", "step", "inbox", "schedule"))],
    }
    working = [work]
    if apart:
        timers = f"{ns}.schedule.*.*"
        # What a schedule produces is stored where the schedule was: the two kinds of them go different ways.
        work["subjects"] = [subjects.requests, f"{ns}.step.>", f"{ns}.inbox.>", timers]
        theirs = [f"{ns}.handoff.>", f"{ns}.schedule.*.try.*"]
        working.append({**work, "name": subjects.handoff_stream, "subjects": theirs, "persist_mode": _ASYNC_PERSIST})
    return [
        *working,
        {
            **common,
            "name": subjects.log_stream,
            "subjects": [f"{ns}.{kind}.>" for kind in ("log", "event", "outcome")],
        },
        {
            **common,
            "name": subjects.dead_letter_stream,
            "max_age": kept,
            "subjects": [
                f"{ns}.dead.>",
                *(
                    f"{_CONSUMER_ADVISORY}.{kind}.{stream['name']}.>"
                    for stream in working
                    for kind in ("MAX_DELIVERIES", "MSG_TERMINATED")
                ),
            ],
        },
        {
            **common,
            "discard": "old",
            "name": subjects.limits_stream,
            "max_age": to_nanoseconds(_DAY_S),
            "max_msgs_per_subject": 1,
            "subjects": [f"{ns}.limit.*"],
        },
        {
            **common,
            "name": f"OBJ_{subjects.artifacts_bucket}",
            "subjects": [f"$O.{subjects.artifacts_bucket}.{part}.>" for part in ("C", "M")],
            "max_bytes": settings.artifacts_bytes or -1,
            "discard": "new",
            "allow_rollup_hdrs": True,
        },
        {
            **common,
            "name": f"KV_{subjects.agents_bucket}",
            "subjects": [f"$KV.{subjects.agents_bucket}.>"],
            "discard": "new",
            "max_msgs_per_subject": 1,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_msg_ttl": True,
            "subject_delete_marker_ttl": to_nanoseconds(TOMBSTONE_TTL_S),
        },
    ]


def _bounded(wanted: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    """Return `wanted` with the maximum size of the settings, unless the stream has one of its own.

    A full stream refuses what does not fit, except where `wanted` says that it drops its oldest messages.
    """
    if settings.stream_bytes is None or wanted.get("max_bytes", -1) > 0:
        return wanted
    return {"discard": "new", **wanted, "max_bytes": settings.stream_bytes}


def unconsumed_subjects(subjects: Subjects) -> dict[str, str]:
    """The streams that nobody has a consumer on, so that who writes or reads there is the first to miss one; each with
    what its subjects begin with."""
    return {
        subjects.dead_letter_stream: subjects.dead_letters.removesuffix(">"),
        subjects.limits_stream: f"{subjects.namespace}.limit.",
        f"OBJ_{subjects.artifacts_bucket}": f"$O.{subjects.artifacts_bucket}.",
        f"KV_{subjects.agents_bucket}": f"$KV.{subjects.agents_bucket}.",
    }


def check_compatible(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raises `ConfigurationError` when the stream that exists cannot do what is wanted of it."""
    for key in _REQUIRED_FIELDS:
        if (want := wanted.get(key)) is None:
            continue
        have = found.get(key) or type(want)()  # the server leaves out what is false or empty
        if isinstance(want, list):
            want, have = sorted(want), sorted(have)
        if have != want:
            raise ConfigurationError(
                f"the stream {wanted['name']} has {key} {have!r}, expected {want!r}; change it with "
                "the nats CLI, or choose another POINTSMAN_NAMESPACE"
            )


async def _namespaces(bus: Connection) -> list[str]:
    """Those that have a stream of work at this broker."""
    answer = await bus.api("STREAM.LIST", {"offset": 0})  # the first 256 streams: enough for a hint
    configs = [stream["config"] for stream in answer.get("streams") or ()]
    return sorted(config["subjects"][0].split(".")[0] for config in configs if config["name"].endswith("_WORK"))
