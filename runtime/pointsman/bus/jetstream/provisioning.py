"""The streams of a namespace as one connection knows them: under which name, and made again when they were lost."""

from __future__ import annotations

import asyncio

from pointsman.bus.jetstream.connection import RECONNECT, NatsConnection
from pointsman.bus.jetstream.stream_config import ensure_streams, unattended
from pointsman.bus.stream_names import stream_names
from pointsman.errors import BusUnavailable, ConfigurationError, PeerError, UnknownOutcome
from pointsman.ports.bus import StreamKind
from pointsman.ports.clock import Clock
from pointsman.settings import Settings
from pointsman.util.lazy_import import structlog
from pointsman_schemas.subjects import Subjects

__all__ = ["StreamKeeper"]

_log = structlog.get_logger(__name__)

_PATIENCE = 30.0  # seconds set_up waits for a cluster that is still electing its leaders


class StreamKeeper:
    """Keeps the streams of the namespace of `subjects`, at the broker of `connection`.

    `apart`: handoffs have a stream of their own, which the broker need not sync. Known after `set_up`.
    """

    def __init__(self, connection: NatsConnection, subjects: Subjects, settings: Settings, clock: Clock) -> None:
        self._connection = connection
        self._subjects = subjects
        self._settings = settings
        self._clock = clock
        self._unattended = unattended(subjects)
        self._made = False
        self._restoring: asyncio.Task[None] | None = None
        self.apart = False
        self._names = stream_names(subjects, apart=False)

    def __getitem__(self, stream: StreamKind) -> str:
        """Its name at the broker."""
        return self._names[stream]

    async def set_up(self, *, create: bool) -> None:
        """See `ports.Bus`."""
        deadline = self._clock.monotonic() + _PATIENCE
        client = self._connection.client
        while True:
            try:
                self.apart = await ensure_streams(
                    self._connection,
                    self._subjects,
                    self._settings,
                    create=create,
                    again=self._made,
                    clustered=client.is_clustered,
                )
                self._names = stream_names(self._subjects, apart=self.apart)
                self._made = self._made or create
                return
            except BusUnavailable as error:
                if self._connection.connected and not client.has_jetstream:
                    where = self._settings.servers
                    raise ConfigurationError(f"{where} runs without JetStream; start it with -js") from error
                if self._clock.monotonic() > deadline:
                    raise
                await asyncio.sleep(RECONNECT)

    def unheard(self, subject: str) -> None:
        """Nobody answers on `subject`."""
        if subject.startswith(tuple(self._unattended.values())):
            self.restore()

    async def missing(self, stream: str) -> bool:
        """Whether `stream`, which the broker is without, is worth another look."""
        if stream not in self._unattended:
            return False
        self.restore()
        if self._restoring is None:
            return False
        await asyncio.wait({self._restoring})
        return True

    def restore(self) -> None:
        """Begin to make again what `set_up` made, should the broker be without it: consumers, readers and letters
        wait."""
        if self._made and not self._connection.closed and (self._restoring is None or self._restoring.done()):
            self._restoring = asyncio.create_task(self._restore())

    async def close(self) -> None:
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.gather(self._restoring, return_exceptions=True)

    async def _restore(self) -> None:
        try:
            await self.set_up(create=True)
        except (BusUnavailable, ConfigurationError, PeerError, UnknownOutcome) as error:
            _log.error("streams_unsure", reason=str(error), hint="start any process of the namespace to make them")
