"""Print the OpenAPI document of the gateway: `python -m pointsman.gateway.openapi > docs/openapi.json`."""

from __future__ import annotations

import json
import sys

from pointsman.gateway.app import openapi_document

__all__ = ["openapi_text"]


def openapi_text() -> str:
    """Return the OpenAPI document as text."""
    return json.dumps(openapi_document(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(openapi_text())
