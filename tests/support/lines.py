"""Read a file of lines while another process appends to the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["documents_of", "lines_of"]


def lines_of(path: Path) -> list[str]:
    """Return the complete lines, or no lines if the file does not exist. The last line may still be incomplete."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def documents_of(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of the complete lines."""
    return [json.loads(line) for line in lines_of(path)]
