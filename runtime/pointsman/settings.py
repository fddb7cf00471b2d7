"""Configuration from the environment: every field is `POINTSMAN_` and its upper-case name.

An empty or blank value is unset, in the environment, on the command line and in code. White space around a value is
removed.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from pointsman.core.budget.token_bucket import ModelLimits
from pointsman.errors import ConfigurationError, ContractError
from pointsman.util.environment import variables
from pointsman_schemas.base import Options, closest_match
from pointsman_schemas.claim_check import MAX_BODY_BYTES
from pointsman_schemas.ids import Token
from pointsman_schemas.strict_json import parse_json

__all__ = ["Settings", "misspelled_variables"]

_PREFIX = "POINTSMAN_"
_SCHEMES = ("nats", "tls", "ws", "wss")
_SECRET_FIELDS = {
    "url",
    "credentials",
    "user",
    "password",
    "token",
    "dashboard_token",
}  # whose values no message repeats
_MAX_SHOWN_CHARS = 80  # characters of a value that a message repeats
_MAX_INBOX_PREFIX = 128  # characters


class Settings(Options, BaseModel):
    """How a process finds its broker and behaves there: as it is told, else as the environment says. Times are in
    seconds."""

    model_config = ConfigDict(frozen=True, extra="ignore", validate_default=True)

    url: str = "nats://127.0.0.1:4222"
    """NATS servers, comma-separated."""
    credentials: str | None = None
    """Path of a NATS credentials file."""
    user: str | None = None
    password: str | None = None
    token: str | None = None
    tls_ca: str | None = None
    """Path of a PEM file with the CA of the NATS servers' certificates. Unset: the CAs that the system trusts."""
    tls_cert: str | None = None
    """Path of a PEM file with the client certificate."""
    tls_key: str | None = None
    """Path of a PEM file with the key of the client certificate. Unset: the key is in the file of `tls_cert`."""
    tls_handshake_first: bool = False
    """Begin TLS before the server's first line, for servers with `handshake_first`."""
    namespace: Token = "pointsman"
    """The tenant: a prefix on every subject and stream."""
    inbox_prefix: str = "_INBOX"
    """Prefix of the subjects on which answers arrive: the account must allow subscriptions to `PREFIX.>`."""
    jetstream_domain: Token | None = None
    """JetStream domain of the namespace's streams. Unset: the domain of the server that this process connects to."""
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    """Copies the broker keeps of each stream this process creates. 3 on a cluster of three."""
    unsynced_handoffs: bool = False
    """Whether a namespace that this process makes keeps handoffs in a stream of their own, which the broker syncs to
    the disk when it likes, whatever its `sync_interval`: what it forgets of them is sent again from the log. For one
    node with `sync_interval: always`. A namespace that is there stays as it was made."""
    ack_wait: Annotated[float, Field(gt=0)] = 20.0
    """A message nobody settles or reports progress on for this long is handed to somebody else."""
    max_deliveries: Annotated[int, Field(ge=1)] = 5
    """Times a handoff may be delivered without a result before it is given up as one that kills its worker. Handing it
    back on a restart counts too. As many `ack_wait` as this are less than a task's time by default, 120 s: the cause
    is found out before the time is over."""
    request_timeout: Annotated[float, Field(gt=0)] = 5.0
    """How long one answer of the broker is waited for."""
    heartbeat: Annotated[float, Field(gt=0)] = 5.0
    """How often an agent refreshes its card; it counts as gone after three times that."""
    shutdown_grace: Annotated[float, Field(ge=0)] = 10.0
    """How long running work may go on after the first SIGTERM."""
    circuit_failures: Annotated[int, Field(ge=0)] = 5
    """Tasks in a row that may fail at an agent, as one supervisor sees it, before the agent is sent no more: one task
    in ten failing by chance opens a circuit once in 100,000 tasks. 0: it is sent work whatever happens."""
    circuit_open: Annotated[float, Field(gt=0)] = 10.0
    """How long it is then sent nothing, before one task is a probe; twice as long after each that fails, up to five
    minutes. A worker that was restarted, or a provider's minute that is over, is found out about soon."""
    max_running: Annotated[int, Field(ge=1)] = 1000
    """Workflows one supervisor process admits before it stops taking requests."""
    retention_days: Annotated[float, Field(gt=0)] = 30.0
    """How long logs are kept after the end of their workflow, and dead letters. What was done for it is kept for 7 days
    at most."""
    max_body: Annotated[int, Field(ge=1024)] = MAX_BODY_BYTES
    """Bytes of headers and body that one event may have. What does not fit into one message of the broker is kept in
    the object store. A process holds the bodies it works on, and reads JSON at some 50 MB a second."""
    artifacts_bytes: Annotated[int, Field(gt=0)] | None = None
    """Bytes the object store may take when this process creates it; unset: as much as there is. When it is full, what
    is large waits until something has aged out."""
    stream_bytes: Annotated[int, Field(ge=1_048_576)] | None = None
    """Maximum size in bytes of each stream that this process creates, for accounts that require one. Unset: no limit
    but the account's. The object store takes `artifacts_bytes` instead, if that is set."""
    model_limits: dict[str, ModelLimits] = {}
    """What the model providers allow, as JSON: `{"openai:gpt-4.1-mini": {"requests": 500, "tokens": 200000,
    "concurrency": 16}}`, by `provider:model`, or by `provider` for each of its models. All workers of a namespace with
    the same key keep them together; where one is told to wait, all do."""
    journal: bool = True
    """Whether the steps of an agent's tool loop are kept on the bus, so that another worker continues an attempt whose
    worker has died. False saves a message for each of them; such an attempt then begins anew."""
    health_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    """Where `/healthz` and `/readyz` are answered. 0 is a free port, which the log names; unset: nowhere."""
    health_host: str = "127.0.0.1"
    """The address they are answered on."""
    dashboard_host: str = "127.0.0.1"
    """The address of the dashboard. One that others can reach needs a token."""
    dashboard_port: Annotated[int, Field(ge=0, le=65_535)] = 8400
    """Its port; 0 is a free one."""
    dashboard_token: str | None = None
    """What somebody must know to see the dashboard; at least 16 characters."""
    model: str | None = None
    """`openai:NAME`, `openai-responses:NAME`, `anthropic:NAME` or `offline`, for the agents that name none. Unset:
    chosen by the keys that are set."""
    trace_broker: bool = False
    """Whether each server of the broker that a message goes over is a span as well. It takes nats-server 2.11."""
    capture_content: Literal["none", "redacted", "full"] | None = None
    """Whether prompts, answers and tool arguments stand on spans. Unset: as
    `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` says, by default not."""
    redact_emails: bool = False
    """Where they are redacted: hide e-mail addresses as well as keys, tokens and passwords."""
    log_format: Literal["auto", "console", "json"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def servers(self) -> str:
        """The addresses in `url`, without credentials: what a message or a log line may show."""
        urls = (url if "//" in url else f"//{url}" for url in self.url.split(","))
        return ", ".join(urlsplit(url).netloc.rpartition("@")[2] for url in urls)

    @model_validator(mode="before")
    @classmethod
    def _apply_environment(cls, given: Any) -> Any:
        """Add the variables of fields that were not given."""
        if not isinstance(given, dict):
            return given
        found = {name.removeprefix(_PREFIX).lower(): value for name, value in variables(_PREFIX).items()}
        stripped = {name: value.strip() if isinstance(value, str) else value for name, value in given.items()}
        return {name: found[name] for name in cls.model_fields.keys() & found.keys()} | {
            name: value for name, value in stripped.items() if value != ""
        }

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        urls = [each.strip() for each in url.split(",") if each.strip()]
        if not urls:
            raise ValueError("there is no address in it; expected nats://HOST:PORT")
        for each in urls:
            scheme, found, _ = each.partition("://")
            try:
                urlsplit(each if found else f"//{each}")
            except ValueError:
                said = "an address cannot be read; expected nats://HOST:PORT, and a password with [ or ] beside it"
                raise ValueError(f"{said}, by {_PREFIX}USER and {_PREFIX}PASSWORD") from None
            if found and scheme not in _SCHEMES:
                raise ValueError(f"{scheme}:// is not of a NATS server; expected nats://HOST:PORT, or tls, ws, wss")
        if len({each.startswith(("ws://", "wss://")) for each in urls}) > 1:
            raise ValueError("ws:// and wss:// cannot be mixed with nats:// and tls://; use one kind")
        return ",".join(urls)

    @field_validator("inbox_prefix")
    @classmethod
    def _is_inbox_prefix(cls, prefix: str, info: ValidationInfo) -> str:
        if not re.fullmatch(r"[^\s.*>$][^\s.*>]*(\.[^\s.*>]+)*", prefix) or len(prefix) > _MAX_INBOX_PREFIX:
            raise ValueError("expected names joined by dots, without wildcards, such as _INBOX.worker")
        namespace = info.data.get("namespace")
        if prefix.split(".")[0] == namespace:
            raise ValueError(f"the streams of the namespace {namespace!r} would store what arrives there")
        return prefix

    @field_validator("model_limits", mode="before")
    @classmethod
    def _parse_model_limits(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return parse_json(value.encode())
        except ContractError as error:
            raise ValueError(f'{error}, such as {{"openai:gpt-4.1-mini": {{"requests": 500}}}}') from None

    @classmethod
    def load(cls, **overrides: object) -> Settings:
        """Settings from the environment, with `overrides` that are not None on top.

        Raises:
            ConfigurationError: a value is not of the form its field needs.
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            told = "; ".join(_problem_text(problem, given) for problem in error.errors(include_url=False)[:3])
            raise ConfigurationError(told) from None


def misspelled_variables(environment: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """The variables that are set and no setting, but like one: each with what it is like. Others are of somebody
    else: agents have their own, and Kubernetes sets some for a service of that name."""
    known = {name.upper() for name in Settings.model_fields}
    found = variables(_PREFIX) if environment is None else variables(_PREFIX, environment)
    given = sorted(name.removeprefix(_PREFIX) for name in found)
    like = {f"{_PREFIX}{name}": closest_match(name, known) for name in given if name not in known}
    return {name: f"{_PREFIX}{meant}" for name, meant in like.items() if meant}


def _problem_text(problem: ErrorDetails, given: Container[str]) -> str:
    """Which setting it is, under the name it was given by, its value, and what it should be."""
    name, *path = (str(part) for part in problem["loc"])
    told = name if name in given else f"{_PREFIX}{name.upper()}"
    inside = f", {'.'.join(path)}," if path else ""
    value = "" if name in _SECRET_FIELDS else f" is {str(problem['input'])[:_MAX_SHOWN_CHARS]!r}"
    if problem["type"] == "string_pattern_mismatch":  # of a Token, the only field that has a pattern
        return f"{told}{value}: it should be 1 to 64 letters, digits, - and _"
    allowed = problem["msg"].removeprefix("Value error, ").replace("Input should be", "it should be")
    return f"{told}{inside}{value}: {allowed}"
