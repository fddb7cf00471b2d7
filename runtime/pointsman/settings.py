"""Configuration from the environment. The variable of a field is `POINTSMAN_` and the name of the field in upper case.

An empty or blank value counts as unset, in the environment, on the command line and in code. White space around a value
is removed.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import (
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
from pointsman.util.scrubber import hide_secret
from pointsman_schemas.base import Options, closest_match
from pointsman_schemas.claim_check import MAX_BODY_BYTES
from pointsman_schemas.files import MAX_FILE_BYTES
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
}  # no message repeats the values of these fields
_MAX_SHOWN_CHARS = 80  # number of characters of a value that a message repeats
_MAX_INBOX_PREFIX = 128  # largest number of characters
_MIN_S, _MAX_S = 0.01, 86_400  # seconds: a broker takes longer than 0.01 s to answer; 86,400 s is a day
# Days: the minimum is one second, and the maximum a hundred years, which the broker can still count in nanoseconds.
_MIN_DAYS, _MAX_DAYS = 1 / 86_400, 36_500
_MAX_RETRIES_S = 5 * 86_400  # seconds: five days
_MAX_COUNT = 1_000_000
_MAX_EVENT_BYTES = 1 << 30
_MAX_STREAM_BYTES = (1 << 63) - 1  # the largest number of bytes that the broker can represent


class Settings(Options):
    """Settings of a process: the address of its broker, limits, intervals and output.

    A value given in code or on the command line replaces the value of the environment. Times are in seconds.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", validate_default=True)

    url: str = "nats://127.0.0.1:4222"
    """NATS servers, comma-separated."""
    credentials: str | None = None
    """Path of a NATS credentials file."""
    user: str | None = None
    """The name of the user in the subjects of requests and controls. With `password`, the name is also the login at the
    broker. Unset: the user of the login; without a login, the user of the operating system."""
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
    """Prefix of the subjects on which answers arrive. The account must allow subscriptions to `PREFIX.>`."""
    jetstream_domain: Token | None = None
    """JetStream domain of the namespace's streams. Unset: the domain of the server that this process connects to."""
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    """Number of copies that the broker stores of each stream that this process creates. Use 3 on a cluster of three
    servers."""
    unsynced_handoffs: bool = False
    """Create a new namespace with a separate stream for handoffs. The broker acknowledges a message of this stream
    before the message is on disk, even with `sync_interval: always`. If the broker loses a handoff, the supervisor
    sends the handoff again from the log. Use the setting for a broker of one node with `sync_interval: always`. The
    setting does not change a namespace that exists."""
    provision: bool = True
    """Create missing streams and consumers, if the broker permits this process to create streams and consumers. With
    false, the process uses the streams and consumers that `pointsman provision` has created, and sends no request about
    their configuration."""
    ack_wait: Annotated[float, Field(ge=_MIN_S, le=_MAX_S)] = 20.0
    """Seconds after which the broker delivers a message again, if its consumer has not settled the message and has not
    reported progress."""
    max_deliveries: Annotated[int, Field(ge=1, le=_MAX_COUNT)] = 5
    """Number of deliveries of a handoff, without a result, after which its attempt fails as `crashed`. Such a handoff
    seems to kill its workers. A delivery also counts if a restarting worker returns the handoff. By default,
    `max_deliveries` times `ack_wait` is 100 s. That is less than the timeout of a task, 120 s, so the attempt fails
    with this cause before the task times out."""
    request_timeout: Annotated[float, Field(ge=_MIN_S, le=_MAX_S)] = 5.0
    """Maximum time to wait for one answer of the broker."""
    heartbeat: Annotated[float, Field(ge=_MIN_S, le=_MAX_S)] = 5.0
    """Interval at which an agent refreshes its card. After three intervals without a refresh, the agent counts as
    unavailable."""
    shutdown_grace: Annotated[float, Field(ge=0, le=_MAX_S)] = 10.0
    """Time after the first SIGTERM in which running work may finish."""
    loop_block_threshold: Annotated[float, Field(ge=0, le=_MAX_S)] = 1.0
    """Time for which the agents' event loop may be blocked before a worker logs `event_loop_blocked`. The log entry
    names the agent and the code that block the loop. A shorter block hardly delays other agents. 0: no watch."""
    circuit_failures: Annotated[int, Field(ge=0, le=_MAX_COUNT)] = 5
    """Number of consecutive failed tasks of an agent after which a supervisor opens the agent's circuit and sends no
    tasks to it. Random failures rarely reach 5: if one task in ten fails at random, a circuit opens once in 100,000
    tasks. 0: no circuit opens."""
    circuit_open: Annotated[float, Field(ge=_MIN_S, le=_MAX_S)] = 10.0
    """Time that a circuit stays open before the supervisor sends one task as a probe. The time doubles after each
    failed probe, up to five minutes. The time is short at first because the cause often ends soon: for example,
    a worker is restarted, or a rate limit of the provider ends with the minute."""
    max_running: Annotated[int, Field(ge=1, le=_MAX_COUNT)] = 1000
    """Number of running workflows at which a supervisor process stops accepting requests."""
    max_schedules: Annotated[int, Field(ge=0, le=_MAX_COUNT)] = 1000
    """Number of schedules of one team at which its supervisors refuse to create another schedule."""
    max_caller_schedules: Annotated[int, Field(ge=0, le=_MAX_COUNT)] = 200
    """Number of schedules of one caller with one team at which the supervisors of the team refuse to create another
    schedule."""
    retention_days: Annotated[float, Field(ge=_MIN_DAYS, le=_MAX_DAYS)] = 30.0
    """Days to keep the log of a workflow after its end, and to keep dead letters. Handoffs and results are kept for 7
    days at most."""
    max_body: Annotated[int, Field(ge=1024, le=_MAX_EVENT_BYTES)] = MAX_BODY_BYTES
    """Maximum size in bytes of the headers and the body of one event. A body that does not fit into one message of the
    broker is stored in the object store. Large bodies cost memory and time, because a process has the bodies of its
    present messages in memory, and parses JSON at some 50 MB a second."""
    max_file_bytes: Annotated[int, Field(ge=0, le=_MAX_STREAM_BYTES)] = MAX_FILE_BYTES
    """Maximum size in bytes of a file that this process stores. Files are stored and read in pieces, so their size does
    not count in memory. `Limits.file_bytes` of a team is a further bound."""
    artifacts_bytes: Annotated[int, Field(gt=0, le=_MAX_STREAM_BYTES)] | None = None
    """Maximum size in bytes of the object store, if this process creates the store. Unset: only the limit of the
    account. While the store is full, large bodies wait until older bodies have expired."""
    stream_bytes: Annotated[int, Field(ge=1_048_576, le=_MAX_STREAM_BYTES)] | None = None
    """Maximum size in bytes of each stream that this process creates, for accounts that require a maximum. Unset: only
    the limit of the account. The limit of the object store is `artifacts_bytes`, if `artifacts_bytes` is set."""
    model_limits: dict[str, ModelLimits] = Field(default={})
    """Rate limits of the model providers, as JSON, such as `{"openai:gpt-4.1-mini": {"requests": 500, "tokens": 200000,
    "concurrency": 16}}`. A key is `provider:model`, or `provider` for each of its models. All workers of a namespace
    with the same API key share the limits. If the provider requests a pause from one worker, all these workers wait."""
    journal: bool = True
    """Store the steps of an agent's tool loop on the bus. If a worker dies, another worker continues the attempt after
    the last step. False saves one message for each step, but the other worker then starts the attempt again."""
    health_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    """Port of `/healthz` and `/readyz`. 0: any free port, which the log names. Unset: the process has no such port."""
    health_host: str = "127.0.0.1"
    """Address of `/healthz` and `/readyz`."""
    dashboard_host: str = "127.0.0.1"
    """Address of the dashboard. An address that other hosts can reach requires `dashboard_token` or
    `dashboard_users`."""
    dashboard_port: Annotated[int, Field(ge=0, le=65_535)] = 8400
    """Port of the dashboard. 0: any free port."""
    dashboard_token: str | None = None
    """Token of at least 16 characters that the dashboard requires."""
    dashboard_users: str | None = None
    """Path of the JSON file with the users of the dashboard and their roles; `pointsman dashboard-user` writes it."""
    dashboard_plain_http: bool = False
    """Let users of other machines log in over plain HTTP, although others can read the token on the network."""
    batch_rows: Annotated[int, Field(ge=1, le=_MAX_COUNT)] = 10_000
    """Maximum number of rows of one batch of the dashboard or the gateway."""
    batch_bytes: Annotated[int, Field(ge=1024, le=_MAX_EVENT_BYTES)] = 33_554_432
    """Maximum size in bytes of the rows of one batch of the dashboard or the gateway."""
    gateway_host: str = "127.0.0.1"
    """Address of the gateway. An address that other hosts can reach requires an API key or `gateway_oidc_issuer`."""
    gateway_port: Annotated[int, Field(ge=0, le=65_535)] = 8410
    """Port of the gateway. 0: any free port."""
    gateway_require_key: bool = False
    """Require a key or a token on loopback, too. Use the setting for a gateway behind a proxy on the same machine."""
    gateway_origins: str | None = None
    """Origins of web pages that may call the gateway, comma-separated, such as `https://app.example.org`. Unset: no
    web page may call the gateway."""
    gateway_max_body: Annotated[int, Field(ge=1024, le=_MAX_EVENT_BYTES)] = 1_048_576
    """Maximum size in bytes of the body of a request to the gateway."""
    gateway_upload_timeout: Annotated[float, Field(ge=_MIN_S, le=_MAX_S)] = 600.0
    """Seconds in which a client of the gateway must send a file. Each piece must arrive within 30 seconds."""
    gateway_max_requests: Annotated[int, Field(ge=1, le=_MAX_COUNT)] = 2_000
    """Maximum number of requests and streams that one gateway serves at a time."""
    gateway_caller_requests: Annotated[int, Field(ge=1, le=_MAX_COUNT)] = 200
    """Maximum number of requests and streams of one caller that one gateway serves at a time. The same number limits
    the signed webhooks of all senders together."""
    gateway_requests_per_minute: Annotated[int, Field(ge=1, le=_MAX_COUNT)] = 600
    """Maximum number of requests of one caller in a minute at one gateway, for API keys that do not set this limit."""
    gateway_running: Annotated[int, Field(ge=1, le=_MAX_COUNT)] = 100
    """Maximum number of running workflows of one caller, for API keys that do not set this limit."""
    gateway_daily_bytes: Annotated[int, Field(ge=1024, le=_MAX_STREAM_BYTES)] = 10_737_418_240
    """Maximum size in bytes of all bodies that one caller sends to one gateway in a day, uploads included."""
    gateway_daily_calls: Annotated[int, Field(ge=0)] | None = None
    """Maximum number of model calls of one caller's workflows in a day (UTC), for API keys that do not set this limit.
    Unset: no limit."""
    gateway_daily_tokens: Annotated[int, Field(ge=0)] | None = None
    """Maximum number of tokens of one caller's workflows in a day (UTC), for API keys that do not set this limit.
    Unset: no limit."""
    gateway_daily_cost: Annotated[float, Field(ge=0)] | None = None
    """Maximum cost of one caller's workflows in a day (UTC), in US dollars, for API keys that do not set this limit.
    Unset: no limit."""
    gateway_hooks: str | None = None
    """TOML file with the signed webhooks that the gateway receives. Unset: the gateway receives no signed webhooks."""
    gateway_webhooks: Annotated[int, Field(ge=0, le=1_000)] = 5
    """Maximum number of webhook endpoints of one caller. 0: only operators may create endpoints."""
    gateway_all_webhooks: Annotated[int, Field(ge=0, le=10_000)] = 500
    """Maximum number of webhook endpoints of all callers together. Each event is compared with each endpoint."""
    gateway_public_url: str | None = None
    """URL under which clients reach the gateway, for the addresses in agent cards and A2A tasks, such as
    `https://gateway.example.org`. Unset: the address to which the client sent its request."""
    gateway_a2a_signing_key: str | None = None
    """PEM file with a private key of the curve P-256 that signs agent cards. Unset: no signatures."""
    gateway_a2a_reused_message_ids: bool = False
    """Begin a new A2A task for each message without a task, even if an earlier message had the same message id. Use the
    setting for clients that use a message id again."""
    webhook_retries: str = "5,300,1800,7200,18000,36000,50400,72000,86400"
    """Pauses between the attempts at a delivery to a webhook, comma-separated, in seconds. Each pause is lengthened at
    random by up to a tenth. The pauses together are at most five days, because deliveries are stored for seven days."""
    webhook_timeout: Annotated[float, Field(ge=_MIN_S, le=300)] = 15.0
    """Time in which an endpoint of a webhook must accept the connection, read the delivery and respond."""
    webhook_concurrency: Annotated[int, Field(ge=1, le=1000)] = 32
    """Maximum number of deliveries that one process sends at a time. At most a quarter of them goes to one endpoint or
    one caller."""
    webhook_max_body: Annotated[int, Field(ge=1024, le=_MAX_EVENT_BYTES)] = 262_144
    """Maximum size in bytes of the body of a delivery. A larger event is sent without its data, but with its ids."""
    webhook_private_networks: bool = False
    """Deliver also to private addresses, and over plain HTTP. Use the setting for receivers in your own network."""
    gateway_oidc_issuer: str | None = None
    """Issuer of the bearer tokens that the gateway accepts, as in their claim `iss`."""
    gateway_oidc_audience: str = "pointsman"
    """Audience of the bearer tokens that the gateway accepts, as in their claim `aud`."""
    gateway_oidc_jwks: str | None = None
    """URL of the issuer's keys. Unset: the gateway reads the URL from `/.well-known/openid-configuration`."""
    gateway_oidc_caller: str = "sub"
    """Claim that names the caller."""
    gateway_oidc_teams: str = "pointsman_teams"
    """Claim with the list of the teams that the caller may use; `*` means all teams. A caller without the claim may use
    no team."""
    gateway_oidc_operator: str = "pointsman_operator"
    """Claim that is true for operators."""
    model: str | None = None
    """Model of the agents that do not name a model: `openai:NAME`, `openai-responses:NAME`, `anthropic:NAME` or
    `offline`. Unset: the API keys in the environment determine the model."""
    trace_broker: bool = False
    """Record a span for each server of the broker that a message passes. Needs nats-server 2.11."""
    capture_content: Literal["none", "redacted", "full"] | None = None
    """Record prompts, answers and tool arguments on spans. Unset: the value of
    `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`, by default no content."""
    redact_emails: bool = False
    """With `capture_content` `redacted`, hide e-mail addresses as well as keys, tokens and passwords."""
    log_format: Literal["auto", "console", "json"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def servers(self) -> str:
        """The addresses in `url` without credentials, for messages and log lines."""
        urls = (url if "//" in url else f"//{url}" for url in self.url.split(","))
        return ", ".join(urlsplit(url).netloc.rpartition("@")[2] for url in urls)

    @model_validator(mode="before")
    @classmethod
    def _apply_environment(cls, given: Any) -> Any:
        """Fill fields that were not given from the environment variables."""
        if not isinstance(given, dict):
            return given
        found = {name.removeprefix(_PREFIX).lower(): value for name, value in variables(_PREFIX).items()}
        stripped = {name: value.strip() if isinstance(value, str) else value for name, value in given.items()}
        return {name: found[name] for name in cls.model_fields.keys() & found.keys()} | {
            name: value for name, value in stripped.items() if value != ""
        }

    @model_validator(mode="after")
    def _hide_secrets(self) -> Settings:
        for address in self.url.split(","):
            login = urlsplit(address if "//" in address else f"//{address}").netloc.rpartition("@")[0]
            hide_secret(unquote(login.rpartition(":")[2]))
        for secret in (self.password, self.token, self.dashboard_token):
            hide_secret(secret)
        return self

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        urls = [each.strip() for each in url.split(",") if each.strip()]
        if not urls:
            raise ValueError("the value has no address; expected nats://HOST:PORT")
        for each in urls:
            scheme, found, _ = each.partition("://")
            try:
                parts = urlsplit(each if found else f"//{each}")
            except ValueError:
                problem = "an address cannot be parsed; expected nats://HOST:PORT"
                advice = f"give a password with [ or ] by {_PREFIX}USER and {_PREFIX}PASSWORD"
                raise ValueError(f"{problem}; {advice}") from None
            if found and scheme not in _SCHEMES:
                raise ValueError(
                    f"{scheme}:// is not the scheme of a NATS server; expected nats://HOST:PORT, or tls, ws, wss"
                )
            if fault := _address_fault(parts):
                raise ValueError(f"an address has {fault}; expected nats://HOST:PORT, with a PORT of 1 to 65535")
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
            raise ValueError(
                f"the streams of the namespace {namespace!r} would store the answers; use a name outside the namespace"
            )
        return prefix

    @field_validator("webhook_retries")
    @classmethod
    def _check_webhook_retries(cls, text: str) -> str:
        try:
            pauses = [float(each) for each in text.split(",")]
        except ValueError:
            raise ValueError("expected seconds with commas between them, such as 5,300,1800") from None
        if not all(_MIN_S <= each <= _MAX_S for each in pauses) or sum(pauses) > _MAX_RETRIES_S:
            raise ValueError(
                f"expected pauses of {_MIN_S:g} to {_MAX_S} seconds, and at most {_MAX_RETRIES_S} seconds together"
            )
        return text

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
        """Read the settings from the environment, and replace some of them.

        Args:
            overrides: Values by field name, which replace values of the environment. A value of None is ignored.

        Returns:
            The settings.

        Raises:
            ConfigurationError: A value does not have the form that its field requires.
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            problems = "; ".join(_problem_text(problem, given) for problem in error.errors(include_url=False)[:3])
            raise ConfigurationError(problems) from None


def misspelled_variables(environment: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Return the variables with the prefix `POINTSMAN_` that are not settings, but resemble a setting.

    Variables that resemble no setting are left out. Agents may have their own variables, and Kubernetes sets variables
    for each service, including a service with the name `pointsman`.

    Args:
        environment: The variables to check. Default: the environment of this process.

    Returns:
        The name of the setting that the user probably meant, by the name of the variable.
    """
    known = {name.upper() for name in Settings.model_fields}
    found = variables(_PREFIX) if environment is None else variables(_PREFIX, environment)
    given = sorted(name.removeprefix(_PREFIX) for name in found)
    like = {f"{_PREFIX}{name}": closest_match(name, known) for name in given if name not in known}
    return {name: f"{_PREFIX}{meant}" for name, meant in like.items() if meant}


def _address_fault(address: SplitResult) -> str:
    """Return the fault of a server's address, without its login; an empty text for an address without a fault."""
    if not address.hostname:
        return "no host"
    try:
        return "the port 0" if address.port == 0 else ""
    except ValueError:  # the port is not a number, or is too large
        return "a wrong port"


def _problem_text(problem: ErrorDetails, given: Container[str]) -> str:
    """Return a sentence with the name of the setting as the user wrote it, its value, and the expected form."""
    name, *path = (str(part) for part in problem["loc"])
    setting = name if name in given else f"{_PREFIX}{name.upper()}"
    inside = f", {'.'.join(path)}," if path else ""
    value = "" if name in _SECRET_FIELDS else f" is {str(problem['input'])[:_MAX_SHOWN_CHARS]!r}"
    if problem["type"] == "string_pattern_mismatch":  # the field is a Token, because no other field has a pattern
        return f"{setting}{value}: it should be 1 to 64 letters, digits, - and _"
    allowed = problem["msg"].removeprefix("Value error, ").replace("Input should be", "it should be")
    if problem.get("ctx", {}).get("ge") == _MIN_DAYS:
        allowed = "it should be a number of days, at least 0.00001158, which is one second"
    return f"{setting}{inside}{value}: {allowed}"
