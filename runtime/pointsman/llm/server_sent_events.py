"""Decode a stream of server-sent events from chunks of any size."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

__all__ = ["EventDecoder"]


class EventDecoder:
    """Decode the data of events. Comments, ids and retry times are ignored.

    Some servers write one JSON value per line without `data:`. Such a line is also an event.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Yield the data of each event that `chunk` completes."""
        self._rest += self._decode(chunk)
        held = "\r" if self._rest.endswith("\r") else ""  # may be half of `\r\n`, so wait for the next chunk
        *lines, rest = _with_line_feeds(self._rest.removesuffix(held)).split("\n")
        self._rest = rest + held
        for line in lines:
            yield from self._line(line)

    def close(self) -> Iterator[str]:
        """Yield the data of the last event if the stream ended without the empty line that ends an event."""
        for line in (*_with_line_feeds(self._rest + self._decode(b"", True)).split("\n"), ""):
            yield from self._line(line)
        self._rest = ""

    def _line(self, line: str) -> Iterator[str]:
        line = line.removeprefix("\ufeff")
        if line.startswith("{"):
            yield from self._flush()
            yield line
        elif not line.strip():
            yield from self._flush()
        elif line.startswith("data:"):
            data = line.removeprefix("data:").removeprefix(" ")
            if self._data and self._data[-1].endswith(("}", "[DONE]")) and data.startswith(("{", "[DONE]")):
                yield from self._flush()  # a new event, because some servers omit the empty line between two events
            self._data.append(data)

    def _flush(self) -> Iterator[str]:
        if self._data:
            yield "\n".join(self._data)
        self._data = []


def _with_line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
