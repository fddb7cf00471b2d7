"""Define references to files in the object store of a namespace. Events contain references, and never the content."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from pointsman_schemas.base import Frozen
from pointsman_schemas.ids import Token

__all__ = ["MAX_FILE_BYTES", "MEDIA_TYPE_PATTERN", "SHARED_OWNER", "File", "FileName", "find_file_fault"]

MAX_FILE_BYTES = 268_435_456
"""Default limit of the size of a file that a process stores, in bytes."""

MEDIA_TYPE_PATTERN = r"^[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}$"

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f/\\\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _plain_name(name: str) -> str:
    if name in (".", "..") or _FORBIDDEN.search(name):
        raise ValueError("a file name without slashes and control characters is expected")
    return name


FileName = Annotated[str, StringConstraints(min_length=1, max_length=255), AfterValidator(_plain_name)]
"""A file name without a folder. It has no slash, no control character and no character that reverses the text."""


SHARED_OWNER = "shared"
"""The owner of a file that was stored for several requests."""


class File(Frozen):
    """A file in the object store. The object is named after owner and digest, so an owner has equal files only once."""

    name: FileName = Field(description="The name of the file, without a folder.")
    media_type: Annotated[str, StringConstraints(pattern=MEDIA_TYPE_PATTERN)] = Field(
        description="The media type, such as `application/pdf`, without parameters."
    )
    size: int = Field(ge=0, description="The size in bytes.")
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] = Field(
        description="The SHA-256 of the content, in lower-case hexadecimal digits."
    )
    owner: Token = Field(
        description="The id of the workflow or the schedule to which the file belongs, or `shared` for a file of "
        "several requests. The file is deleted together with this workflow or schedule."
    )

    @property
    def object_name(self) -> str:
        """The name of the object. The name begins with the owner, as the names of large bodies do."""
        return f"{self.owner}-{self.sha256}"


def find_file_fault(files: Sequence[File], most: int, max_bytes: int, types: Sequence[str]) -> str:
    """Check files against the limits of a team, and return the first fault.

    Args:
        files: The files.
        most: Largest number of files.
        max_bytes: Largest size of a file, in bytes.
        types: Allowed media types, such as `image/*`; empty to allow all.

    Returns:
        The fault in one sentence; an empty text for files without a fault.
    """
    if not files:
        return ""
    if len(files) > most:
        return f"{len(files)} files were given; at most {most} are allowed"
    for file in files:
        if file.size > max_bytes:
            return f"the file {file.name!r} has {file.size} bytes; at most {max_bytes} are allowed"
        if types and not any(fnmatchcase(file.media_type, allowed) for allowed in types):
            return f"the file {file.name!r} is {file.media_type}; expected one of {', '.join(types)}"
    names = [file.name for file in files]
    if twice := next((name for name in names if names.count(name) > 1), None):
        return f"two files are called {twice!r}; give one of them another name"
    return ""
