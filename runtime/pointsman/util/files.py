"""Read a file that a setting names. The error for an unreadable file has the setting's name and the path."""

from __future__ import annotations

import stat
from pathlib import Path

from pointsman.errors import ConfigurationError

__all__ = ["expand", "read_file"]

_MAX_BYTES = 1 << 20  # a larger file means that the path is wrong, because certificates and credentials have a few kB


def expand(path: str) -> Path:
    """Return `path` with the home directory in place of `~`."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # the user after ~ does not exist
        return Path(path)


def read_file(setting: str, path: str) -> str:
    """Return the text of the file at `path`.

    Args:
        setting: Name of the setting that holds the path, for the error.
        path: The path; `~` stands for the home directory.

    Returns:
        The whole text.

    Raises:
        ConfigurationError: The file does not exist, cannot be read, or is not a text of at most 1 MiB.
    """
    where = expand(path)
    try:
        status = where.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ConfigurationError(_problem_text(setting, path, "is a directory"))
        if not stat.S_ISREG(status.st_mode):  # refused, because a pipe would block, and cannot be read twice
            raise ConfigurationError(_problem_text(setting, path, "is not a regular file"))
        if status.st_size > _MAX_BYTES:
            seen = f"has {status.st_size} bytes; expected at most {_MAX_BYTES}"
            raise ConfigurationError(_problem_text(setting, path, seen))
        return where.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigurationError(_problem_text(setting, path, "does not exist")) from None
    except OSError as error:
        seen = f"cannot be read: {error.strerror or error}"
        raise ConfigurationError(_problem_text(setting, path, seen)) from None
    except UnicodeDecodeError:
        raise ConfigurationError(_problem_text(setting, path, "is not text")) from None
    except ValueError:  # a NUL in the path
        raise ConfigurationError(_problem_text(setting, path, "is not a path")) from None


def _problem_text(setting: str, path: str, seen: str) -> str:
    where = str(expand(path))
    return f"{setting}: {path}{'' if where == path else f' ({where})'} {seen}"
