"""Describe the MCP server as a protected resource (RFC 9728). Clients read which issuer's tokens the server accepts."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import URL
from starlette.types import Scope

from pointsman.settings import Settings

__all__ = ["MCP_PATH", "METADATA_PATHS", "metadata_url", "protected_resource"]

MCP_PATH = "/mcp"
"""The path of the MCP server."""

_METADATA_PATH = "/.well-known/oauth-protected-resource"
METADATA_PATHS = (f"{_METADATA_PATH}{MCP_PATH}", _METADATA_PATH)
"""The path of the metadata of the MCP server, and the path of the metadata of the whole host."""


def metadata_url(scope: Scope) -> str:
    """Return the URL of the metadata, for the header `WWW-Authenticate` of a refused request.

    Args:
        scope: The scope of the request.
    """
    return str(URL(scope=scope).replace(path=METADATA_PATHS[0], query=""))


def protected_resource(settings: Settings, scope: Scope) -> dict[str, Any]:
    """Return the metadata.

    The value of `resource` is the audience of the tokens if the audience is a URL, and otherwise the URL of the MCP
    server.

    Args:
        settings: The settings, with an issuer.
        scope: The scope of the request.

    Returns:
        The metadata.
    """
    audience = settings.gateway_oidc_audience or ""
    here = str(URL(scope=scope).replace(path=MCP_PATH, query=""))
    return {
        "resource": audience if audience.startswith(("https://", "http://")) else here,
        "authorization_servers": [settings.gateway_oidc_issuer],
        "bearer_methods_supported": ["header"],
        "resource_name": "Pointsman gateway",
    }
