"""What is piped into a command: UTF-8, whatever the terminal's encoding is."""

from __future__ import annotations

import sys

from pointsman.errors import ConfigurationError

__all__ = ["read_stdin"]


def read_stdin() -> str:
    """Standard input as text, without the mark that some programs write before it. Raises `ConfigurationError`."""
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"standard input is not UTF-8: its byte {error.start} is 0x{data[error.start]:02x}; send text, or a "
            "reference to where the data is"
        ) from None
