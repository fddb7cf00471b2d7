"""Read environment variables. A blank variable is unset, and white space around a value is removed.

Shells, Compose files and Kubernetes manifests write `NAME=` or `NAME=""` for a missing value, and secrets from files
end with a line feed. So every module of the package reads the environment here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

__all__ = ["child_environment", "normalise_variables", "unset_variables", "variable", "variables"]


_OWN_SECRETS = re.compile(
    r"POINTSMAN_.*|(OPENAI|ANTHROPIC|AZURE_OPENAI)_(?!BASE_URL$|LOG$).*(KEY|TOKEN|SECRET)|OTEL_EXPORTER_OTLP_(\w+_)?HEADERS"
)
"""Names of the variables with secrets of this process: model keys, logins at the broker and the collector's headers."""


def child_environment(secrets: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables of this process for a command that a tool runs, without the secrets of this process.

    Args:
        secrets: Names of secret variables that the command receives nevertheless. Default: none.

    Returns:
        The variables by name, without model keys, `POINTSMAN_*` and the headers for the telemetry collector.
    """
    allowed = set(secrets)
    return {name: value for name, value in os.environ.items() if name in allowed or not _OWN_SECRETS.fullmatch(name)}


def variable(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of a variable, without white space around the value; None if the variable is unset or blank."""
    return environment.get(name, "").strip() or None


def variables(prefix: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that begin with `prefix`, by name, without blank variables."""
    found = {name: variable(name, environment) for name in environment if name.startswith(prefix)}
    return {name: value for name, value in found.items() if value is not None}


def unset_variables(*names: str) -> None:
    """Remove variables from the environment of this process and of the processes that it starts later."""
    for name in names:
        os.environ.pop(name, None)


def normalise_variables(*prefixes: str) -> None:
    """Clean the variables that other libraries read by themselves, such as the SDKs of the model providers.

    Such a library would take an empty `OPENAI_BASE_URL` as an address. So the blank variables that begin with one of
    `prefixes` are removed from the environment of this process, and white space around other values is removed.
    """
    for name in [name for name in os.environ if name.startswith(prefixes)]:
        if (value := variable(name)) is None:
            del os.environ[name]
        elif value != os.environ[name]:
            os.environ[name] = value
