"""Define the namespace of a tenant, and the names of the namespace's streams and buckets."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman_schemas.ids import token

__all__ = ["Namespace"]


@dataclass(frozen=True, slots=True)
class Namespace:
    """The streams and buckets of one namespace.

    Args:
        namespace: The tenant; default: `pointsman`.
    """

    namespace: str = "pointsman"

    def __post_init__(self) -> None:
        token(self.namespace, "namespace")

    @property
    def _stream_prefix(self) -> str:
        return self.namespace.upper()

    @property
    def request_stream(self) -> str:
        """The stream of requests."""
        return f"{self._stream_prefix}_REQUESTS"

    @property
    def control_stream(self) -> str:
        """The stream of control events and of records of operations."""
        return f"{self._stream_prefix}_CONTROLS"

    @property
    def result_stream(self) -> str:
        """The stream of results, steps, progress and domain events."""
        return f"{self._stream_prefix}_RESULTS"

    @property
    def work_stream(self) -> str:
        """The stream of handoffs and timers, and of the scheduled messages from which the broker publishes them."""
        return f"{self._stream_prefix}_WORK"

    @property
    def handoff_stream(self) -> str:
        """The stream of handoffs in a namespace with POINTSMAN_UNSYNCED_HANDOFFS."""
        return f"{self._stream_prefix}_HANDOFFS"

    @property
    def log_stream(self) -> str:
        """The stream of logs, outcomes, questions, messages to workflows, and the records of threads and schedules."""
        return f"{self._stream_prefix}_LOG"

    @property
    def dead_letter_stream(self) -> str:
        """The stream of dead letters."""
        return f"{self._stream_prefix}_DEAD"

    @property
    def delivery_stream(self) -> str:
        """The stream of deliveries to webhooks."""
        return f"{self._stream_prefix}_DELIVERIES"

    @property
    def webhooks_bucket(self) -> str:
        """The key-value bucket of the endpoints of webhooks, without their secrets."""
        return f"{self._stream_prefix}_WEBHOOKS"

    @property
    def webhook_secrets_bucket(self) -> str:
        """The key-value bucket of the secrets that sign webhooks."""
        return f"{self._stream_prefix}_WEBHOOK_SECRETS"

    @property
    def limits_stream(self) -> str:
        """The stream of the limits that all workers share, and of the open circuits."""
        return f"{self._stream_prefix}_LIMITS"

    @property
    def agents_bucket(self) -> str:
        """The key-value bucket of agent cards."""
        return f"{self._stream_prefix}_AGENTS"

    @property
    def gateway_bucket(self) -> str:
        """The key-value bucket of the gateway's API keys."""
        return f"{self._stream_prefix}_GATEWAY"

    @property
    def artifacts_bucket(self) -> str:
        """The object store of large bodies."""
        return f"{self._stream_prefix}_ARTIFACTS"

    def source(self, kind: str, name: str) -> str:
        """Build the CloudEvents source of a sender.

        Args:
            kind: `team`, `agent` or `client`.
            name: The name of the sender.

        Returns:
            The source.
        """
        return f"/{self.namespace}/{token(kind, 'kind of source')}/{token(name, 'source')}"

    def _subject(self, kind: str, **tokens: str) -> str:
        """Join the namespace, the kind and the tokens. An error names an invalid token by its keyword."""
        return ".".join((self.namespace, kind, *map(token, tokens.values(), tokens)))

    def _filter(self, kind: str, **tokens: str | None) -> str:
        """Join the namespace, the kind and the tokens to a filter. None matches any value."""
        names = ("*" if each is None else token(each, what) for what, each in tokens.items())
        return ".".join((self.namespace, kind, *names))
