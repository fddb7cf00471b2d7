"""Write images and documents as content blocks of the three APIs: chat completions, responses and messages."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

from pointsman.ports.model import Attachment

__all__ = ["NATIVE_TYPES", "anthropic_block", "chat_part", "is_image", "response_part"]

_IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
NATIVE_TYPES: Final = _IMAGE_TYPES | {"application/pdf"}
"""The media types for which each of the three APIs has a block."""


def is_image(attachment: Attachment) -> bool:
    """Return True if the attachment is an image of a type that the three APIs accept."""
    return attachment.media_type in _IMAGE_TYPES


def chat_part(attachment: Attachment) -> dict[str, Any]:
    """Return a file as a content part of OpenAI's chat completions API.

    Args:
        attachment: The file.

    Returns:
        The part.
    """
    if is_image(attachment):
        return {"type": "image_url", "image_url": {"url": _data_url(attachment)}}
    return {"type": "file", "file": {"filename": attachment.name, "file_data": _data_url(attachment)}}


def response_part(attachment: Attachment) -> dict[str, Any]:
    """Return a file as a content part of OpenAI's responses API.

    Args:
        attachment: The file.

    Returns:
        The part.
    """
    if is_image(attachment):
        return {"type": "input_image", "detail": "auto", "image_url": _data_url(attachment)}
    return {"type": "input_file", "filename": attachment.name, "file_data": _data_url(attachment)}


def anthropic_block(attachment: Attachment) -> dict[str, Any]:
    """Return a file as a content block of Anthropic's messages API.

    Args:
        attachment: The file.

    Returns:
        The block.
    """
    source = {"type": "base64", "media_type": attachment.media_type, "data": b64encode(attachment.data).decode()}
    if is_image(attachment):
        return {"type": "image", "source": source}
    return {"type": "document", "source": source, "title": attachment.name}


def _data_url(attachment: Attachment) -> str:
    return f"data:{attachment.media_type};base64,{b64encode(attachment.data).decode()}"
