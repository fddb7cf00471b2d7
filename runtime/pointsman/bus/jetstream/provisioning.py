"""Create the streams of a namespace, map each kind of stream to its name, and create lost streams again."""

from __future__ import annotations

import asyncio

from pointsman.bus.jetstream.connection import RECONNECT_INTERVAL_S, NatsConnection
from pointsman.bus.jetstream.protocol import ADVICE, INCURABLE, with_advice
from pointsman.bus.jetstream.request_reply import ApiUnavailableError, NoRespondersError
from pointsman.bus.jetstream.stream_config import ensure_streams, unconsumed_subjects
from pointsman.bus.stream_names import stream_names
from pointsman.errors import (
    BusUnavailableError,
    ConfigurationError,
    PeerError,
    PermissionDeniedError,
    PublishOutcomeUnknownError,
)
from pointsman.ports.bus import StreamKind
from pointsman.ports.clock import Clock
from pointsman.settings import Settings
from pointsman.util.lazy_import import structlog
from pointsman_schemas.subjects import Subjects

__all__ = ["StreamProvisioner"]

_log = structlog.get_logger(__name__)

_DOMAIN_TIMEOUT_S = 5.0  # seconds to wait for the domain, because a leaf node tries only once a second to reach its hub
# Seconds of retries after the first error that is usually permanent. Just after its start, a server can return such an
# error for a request that it accepts later.
_INCURABLE_TIMEOUT_S = 1.0
_MISSING_TIMEOUT_S = 0.5  # seconds to wait for a stream; short, because a direct get does not wait for a leader
_SETUP_TIMEOUT_S = 30.0  # seconds that `set_up` waits for a cluster to elect its leaders


class StreamProvisioner:
    """Creates and restores the streams of the namespace of `subjects` over `connection`.

    After `set_up`, `separate_handoffs` is True if handoffs have a separate stream, which the broker does not have to
    sync to disk.
    """

    def __init__(self, connection: NatsConnection, subjects: Subjects, settings: Settings, clock: Clock) -> None:
        self._connection = connection
        self._subjects = subjects
        self._settings = settings
        self._clock = clock
        self._unconsumed = unconsumed_subjects(subjects)
        self._created = False
        self._restore_task: asyncio.Task[None] | None = None
        self.separate_handoffs = False
        self.domain = ""
        self._names = stream_names(subjects, apart=False)

    def __getitem__(self, stream: StreamKind) -> str:
        """Return the name of a stream at the broker."""
        return self._names[stream]

    async def set_up(self, *, create: bool) -> None:
        """Create or check the streams, as `ports.Bus` describes.

        Without permission to read the configuration of a stream, use the existing streams without changes.
        """
        if self._settings.provision:
            api = self._connection.api_subject
            try:
                with self._connection.optional_requests(api("INFO"), api("STREAM.INFO.")):
                    await self._ensure(create=create)
            except PermissionDeniedError:
                pass
            else:
                return
        await self._use_existing()

    async def _use_existing(self) -> None:
        """Use the existing streams. Check only the stream of the cards, which each process is allowed to read.

        Raises:
            ConfigurationError: The broker does not have the stream of the cards.
        """
        self.separate_handoffs = self._settings.unsynced_handoffs
        self._names = stream_names(self._subjects, apart=self.separate_handoffs)
        stream = f"KV_{self._subjects.agents_bucket}"
        subject = self._connection.api_subject(f"DIRECT.GET.{stream}.$KV.{self._subjects.agents_bucket}.none.none")
        began = self._clock.monotonic()
        while True:
            try:
                with self._connection.optional_requests(subject):
                    await self._connection.ask(subject)
            except PermissionDeniedError:  # the check is not possible; if the stream is missing, a later request fails
                return
            except NoRespondersError:
                if self._clock.monotonic() - began > _MISSING_TIMEOUT_S:
                    raise ConfigurationError(
                        f"there is no namespace {self._subjects.namespace!r} at {self._settings.servers}: the stream "
                        f"{stream} is missing; `pointsman provision` creates the streams"
                    ) from None
                await asyncio.sleep(RECONNECT_INTERVAL_S)
            else:
                return

    async def _ensure(self, *, create: bool) -> None:
        began = self._clock.monotonic()
        client = self._connection.client
        reason, first_incurable = "", None
        while True:
            try:
                self.separate_handoffs, self.domain = await ensure_streams(
                    self._connection,
                    self._subjects,
                    self._settings,
                    create=create,
                    again=self._created,
                    clustered=client.is_clustered,
                )
                self._names = stream_names(self._subjects, apart=self.separate_handoffs)
                self._created = self._created or create
                return
            except BusUnavailableError as error:
                now = self._clock.monotonic()
                waited = now - began
                code = error.code if isinstance(error, ApiUnavailableError) else 0
                if code in INCURABLE and first_incurable is None:
                    first_incurable = now
                if (fault := self._fault_of(error, waited, now - (first_incurable or now))) is not None:
                    raise fault from error
                if waited > _SETUP_TIMEOUT_S:
                    raise
                if reason != str(error):  # log each reason once
                    reason = str(error)
                    hint = ADVICE.get(code, "the setup is repeated; check the broker with `pointsman doctor`")
                    _log.warning("streams_not_ready", reason=reason, server=self._settings.servers, hint=hint)
                await asyncio.sleep(RECONNECT_INTERVAL_S)

    def _fault_of(self, error: BusUnavailableError, waited: float, retried: float) -> ConfigurationError | None:
        """Return the error to raise; None if a retry might still succeed.

        Args:
            error: The newest error.
            waited: Seconds since the start of the setup.
            retried: Seconds since the first error that is usually permanent.
        """
        where, domain = self._settings.servers, self._settings.jetstream_domain
        if domain is not None and isinstance(error, NoRespondersError) and waited > _DOMAIN_TIMEOUT_S:
            return ConfigurationError(
                f"no JetStream of the domain {domain!r} answers at {where}; check POINTSMAN_JETSTREAM_DOMAIN, and "
                "the connection of the leaf node"
            )
        if domain is None and self._connection.connected and not self._connection.client.has_jetstream:
            return ConfigurationError(
                f"{where} runs without JetStream; start it with -js, or name the domain of another server in "
                "POINTSMAN_JETSTREAM_DOMAIN"
            )
        if isinstance(error, ApiUnavailableError) and error.code in INCURABLE and retried > _INCURABLE_TIMEOUT_S:
            return ConfigurationError(with_advice(f"{where}: {error}", error.code))
        return None

    def on_no_responders(self, subject: str) -> None:
        """Restore the streams after a request without a subscriber, if its `subject` belongs to a stream."""
        if subject.startswith(tuple(self._unconsumed.values())):
            self.start_restore()

    async def retry_missing(self, stream: str) -> bool:
        """Restore the missing `stream`. Return True if a second try of the caller might succeed."""
        if stream not in self._unconsumed:
            return False
        self.start_restore()
        if self._restore_task is None:
            return False
        await asyncio.wait({self._restore_task})
        return True

    def start_restore(self) -> None:
        """Start to restore the streams that `set_up` created and that are missing now."""
        if self._created and not self._connection.closed and (self._restore_task is None or self._restore_task.done()):
            self._restore_task = asyncio.create_task(self._restore())

    async def close(self) -> None:
        if self._restore_task is not None:
            self._restore_task.cancel()
            await asyncio.gather(self._restore_task, return_exceptions=True)

    async def _restore(self) -> None:
        try:
            await self.set_up(create=True)
        except (BusUnavailableError, ConfigurationError, PeerError, PublishOutcomeUnknownError) as error:
            _log.error(
                "stream_setup_failed",
                reason=str(error),
                hint="start any process of the namespace to create the streams",
            )
