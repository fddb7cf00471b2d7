"""Connect a command to the broker."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial, wraps
from inspect import Parameter
from typing import Any, TypeAlias

from pointsman import telemetry
from pointsman.cli.arguments import Namespace, Url
from pointsman.cli.render.output import Code, print_error, use_connection_options
from pointsman.client.client import Client, connect
from pointsman.settings import Settings, misspelled_variables

__all__ = ["Execution", "Session", "broker_command", "session", "settings_for"]

Session: TypeAlias = Callable[..., AbstractAsyncContextManager[Client]]
"""The first parameter of a command, a function that connects to the broker: `async with session() as client`."""

Execution: TypeAlias = Coroutine[Any, Any, Code | None]
"""The coroutine of a command. It returns the exit code, or None for success."""

_OPTIONS = (
    Parameter("url", Parameter.KEYWORD_ONLY, default=None, annotation=Url),
    Parameter("namespace", Parameter.KEYWORD_ONLY, default=None, annotation=Namespace),
)


def broker_command(function: Callable[..., Execution]) -> Callable[..., Code]:
    """Turn a coroutine function into a command that also has the options `--url` and `--namespace`.

    Args:
        function: The function. Its first parameter is a `Session`. If the function reads standard input, it must be a
            plain function that first reads and then returns a coroutine. A read within the event loop could not be
            interrupted with Ctrl-C.

    Returns:
        The command. It runs the coroutine in its own event loop.
    """
    own = inspect.signature(function, eval_str=True)
    first = [each for name, each in own.parameters.items() if name not in ("session", "json")]
    last = [each.replace(kind=Parameter.KEYWORD_ONLY) for name, each in own.parameters.items() if name == "json"]

    @wraps(function)
    def command(*given: Any, url: str | None = None, namespace: str | None = None, **options: Any) -> Code:
        return asyncio.run(function(partial(session, url, namespace), *given, **options)) or Code.OK

    command.__signature__ = own.replace(parameters=[*first, *_OPTIONS, *last])  # type: ignore[attr-defined]
    return command


def settings_for(url: str | None, namespace: str | None, *, log_level: str | None = None) -> Settings:
    """Load the settings of a command. Options replace the settings of the environment.

    Args:
        url: The value of `--url`, or None.
        namespace: The value of `--namespace`, or None.
        log_level: The log level if the environment does not set a level. Default: `info`.

    Returns:
        The settings.
    """
    use_connection_options(url, namespace)
    settings = Settings.load(url=url, namespace=namespace)
    if log_level is None or "log_level" in settings.model_fields_set:
        return settings
    return Settings.load(**{**settings.model_dump(exclude_unset=True), "log_level": log_level})


@asynccontextmanager
async def session(url: str | None, namespace: str | None, *, create: bool = False) -> AsyncIterator[Client]:
    """Connect a client for one command. Only errors are logged, because the command prints everything else.

    Args:
        url: The value of `--url`, or None.
        namespace: The value of `--namespace`, or None.
        create: Create the namespace if it does not exist. Default: False, for commands that only read.

    Yields:
        The client.
    """
    for variable, meant in misspelled_variables().items():
        print_error(f"{variable} is not a setting; did you mean {meant}?")
    settings = settings_for(url, namespace, log_level="error")
    observed = telemetry.setup("pointsman-cli", settings=settings)
    try:
        async with connect(settings=settings, create=create) as client:
            with client.bus.optional_requests(""):  # a refusal is not logged, because the command prints the error
                yield client
    finally:
        await observed.shutdown()
