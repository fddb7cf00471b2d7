"""Read the files in messages. For each file, a message has either the content or the id of an upload."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from pointsman.gateway.problems import ProblemError

__all__ = ["FilePart", "file_part"]

_MEDIA = ("image", "audio", "video", "document")


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file in the content of a message.

    Attributes:
        name: The name; empty if the message has no name.
        media_type: The media type; empty if the type is unknown.
        content: The content; None for an upload.
        id: The id of an upload; empty for a file with content.
    """

    name: str = ""
    media_type: str = ""
    content: bytes | None = None
    id: str = ""


def file_part(part: Mapping[str, object]) -> FilePart | None:
    """Return the file in a part of a message. The part has the form of one of OpenAI's two APIs or of AG-UI.

    Args:
        part: The part.

    Returns:
        The file; None for a part that is not a file.

    Raises:
        ProblemError: The part has neither a content nor the id of an upload, or has only a URL of another host.
    """
    match part.get("type"):
        case "image_url":
            return _from_url(_field(part.get("image_url"), "url"))
        case "input_image":
            return _from_id(part) or _from_url(part.get("image_url"))
        case "file":
            given = part.get("file")
            return _from_file(given if isinstance(given, Mapping) else {})
        case "input_file":
            return _from_file(part)
        case "input_audio":
            sound = part.get("input_audio")
            kind = f"audio/{_field(sound, 'format')}"
            return FilePart("", kind, _decode(_field(sound, "data")))
        case kind if kind in _MEDIA and isinstance(source := part.get("source"), Mapping):
            value = source.get("value")
            if source.get("type") == "file":
                return FilePart(id=_text(value))
            if source.get("type") == "url":
                return _from_url(value)
            return FilePart("", _text(source.get("mimeType")), _decode(value))
    return None


def _from_file(given: Mapping[str, object]) -> FilePart:
    name = given.get("filename")
    if (found := _from_id(given)) is not None:
        return found
    data = given.get("file_data", given.get("file_url"))
    if isinstance(data, str) and not data.startswith("data:") and "file_data" in given:
        return FilePart(_text(name), "", _decode(data))
    return _from_url(data, name)


def _from_id(given: Mapping[str, object]) -> FilePart | None:
    id = given.get("file_id")
    return FilePart(id=id) if isinstance(id, str) else None


def _from_url(url: object, name: object = None) -> FilePart:
    """Return the file of a `data:` URL.

    If the gateway fetched other URLs, a client could read pages behind the firewall.

    Raises:
        ProblemError: The URL is not a `data:` URL.
    """
    if not isinstance(url, str) or not url.startswith("data:"):
        raise ProblemError(
            400,
            "unsupported_content",
            f"a file has the URL {str(url)[:80]!r} and no content; send a data URL, or upload the file with POST "
            f"/v1/files",
        )
    head, _, data = url.removeprefix("data:").partition(",")
    kind, *options = head.split(";")
    content = _decode(data) if "base64" in options else unquote_to_bytes(data)
    return FilePart(_text(name), kind, content)


def _decode(data: object) -> bytes:
    try:
        return b64decode(data if isinstance(data, str) else "?", validate=True)
    except (Base64Error, ValueError):
        raise ProblemError(
            400, "unsupported_content", "the content of a file is not base64; encode the content"
        ) from None


def _field(given: object, name: str) -> object:
    return given.get(name) if isinstance(given, Mapping) else given


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
