"""Read a file of lines that another process appends to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["documents_of", "lines_of"]


def lines_of(path: Path) -> list[str]:
    """Return the whole lines; none if the file does not exist. A file exists before its first line is written."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def documents_of(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of the whole lines."""
    return [json.loads(line) for line in lines_of(path)]
