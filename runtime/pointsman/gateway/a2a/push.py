"""Register the receivers of push notifications."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError

from pointsman.gateway.a2a.calls import Call
from pointsman.gateway.a2a.push_store import PushReceiver, PushStore, now
from pointsman.gateway.context import Context
from pointsman_schemas.ids import derive_id

__all__ = ["check_config", "config_of", "find_receiver", "register"]

_MAX_PER_TASK = 10
_MAX_PER_CALLER = 1_000  # active receivers
_MAX_URL_CHARS = 2_048
_MAX_SECRET_CHARS = 4_096
_MAX_ID_CHARS = 256
_HEADER = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+._-]{0,31}")


async def register(
    context: Context, store: PushStore, call: Call, task: str, config: pb.TaskPushNotificationConfig, position: str
) -> PushReceiver:
    """Store a receiver of the events of a task.

    Args:
        context: The parts of the gateway.
        store: The receivers.
        call: The call.
        task: The task, which belongs to the caller.
        config: The configuration.
        position: The position after which events are delivered; empty for all events.

    Returns:
        The receiver.

    Raises:
        InvalidParamsError: The URL or a header is not valid, or there are too many receivers.
    """
    check_config(context, config)
    receiver = PushReceiver(
        id=config.id or derive_id("push-config", task, config.url, length=16),
        task=task,
        team=call.team,
        caller=call.caller.name,
        origin=call.origin,
        url=config.url,
        token=config.token,
        scheme=config.authentication.scheme,
        credentials=config.authentication.credentials,
        position=position,
        changed_at=now(),
    )
    found = await store.of_task(task)
    for each in found:
        if each.id == receiver.id and config_of(each) == config_of(receiver):
            return each  # a repeated message must not deliver the events again
    others = [each for each in found if each.id != receiver.id]
    if len(others) >= _MAX_PER_TASK:
        raise InvalidParamsError(f"the task has {len(others)} receivers, and more are not allowed; delete a receiver")
    active = [each.receiver for each in store.known.values() if each.receiver.status == "active"]
    if sum(each.caller == receiver.caller for each in active) >= _MAX_PER_CALLER:
        raise InvalidParamsError(
            f"you have {_MAX_PER_CALLER} receivers of running tasks, and more are not allowed; delete a receiver"
        )
    await store.put(receiver)
    return receiver


def check_config(context: Context, config: pb.TaskPushNotificationConfig) -> None:
    """Refuse a configuration to which nothing can be delivered.

    The IP addresses of the host are not checked here, but each time the gateway connects to the host.

    Args:
        context: The parts of the gateway.
        config: The configuration.

    Raises:
        InvalidParamsError: The URL or a header is not valid.
    """
    allowed = ("https", "http") if context.settings.webhook_private_networks else ("https",)
    try:
        parts = urlsplit(config.url)
        valid = parts.scheme in allowed and bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:
        valid = False
    if not valid or len(config.url) > _MAX_URL_CHARS or not _HEADER.fullmatch(config.url) or " " in config.url:
        schemes = " or ".join(f"{each}://" for each in allowed)
        raise InvalidParamsError(
            f"the URL of push notifications is {config.url[:200]!r}; send a {schemes} URL without a user name, with at "
            f"most {_MAX_URL_CHARS} characters"
        )
    for name, value, pattern in (
        ("token", config.token, _HEADER),
        ("authentication.scheme", config.authentication.scheme, _SCHEME),
        ("authentication.credentials", config.authentication.credentials, _HEADER),
    ):
        if value and (len(value) > _MAX_SECRET_CHARS or not pattern.fullmatch(value)):
            raise InvalidParamsError(
                f"the {name} of push notifications cannot be sent in a header; send printable ASCII with at most "
                f"{_MAX_SECRET_CHARS} characters"
            )
    if len(config.id) > _MAX_ID_CHARS:
        raise InvalidParamsError(f"the id of the configuration has more than {_MAX_ID_CHARS} characters")
    if config.authentication.credentials and not config.authentication.scheme:
        raise InvalidParamsError("the credentials of push notifications have no scheme; send a scheme, such as Bearer")


def config_of(receiver: PushReceiver) -> pb.TaskPushNotificationConfig:
    """Return the configuration of a receiver.

    Args:
        receiver: The receiver.
    """
    config = pb.TaskPushNotificationConfig(
        id=receiver.id, task_id=receiver.task, url=receiver.url, token=receiver.token
    )
    if receiver.scheme:
        config.authentication.scheme = receiver.scheme
        config.authentication.credentials = receiver.credentials
    return config


def find_receiver(receivers: Sequence[PushReceiver], id: str) -> PushReceiver:
    """Return the receiver with an id.

    Args:
        receivers: The receivers of a task.
        id: The id.

    Returns:
        The receiver.

    Raises:
        TaskNotFoundError: There is no such receiver.
    """
    for each in receivers:
        if each.id == id:
            return each
    raise TaskNotFoundError(f"the task has no push notification configuration {id[:100]!r}; list the configurations")
