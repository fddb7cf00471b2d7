"""Configurations of push notifications that cannot be delivered are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError

from pointsman.gateway.a2a.push import check_config
from pointsman.settings import Settings

URL = "https://example.com/hook"


def check(*, private: bool = False, **fields: Any) -> None:
    context: Any = SimpleNamespace(settings=Settings(webhook_private_networks=private))
    check_config(context, pb.TaskPushNotificationConfig(**{"url": URL, **fields}))


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/x",
        "https://user:pass@example.com/",
        "https:///x",
        "https://example.com/\r\nx",
        "https://example.com/a b",
        "https://example.com:99999/",
        "https://[::1/",
        f"https://example.com/{'x' * 3000}",
        "",
    ],
)
def test_a_url_that_is_not_https_or_not_a_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidParamsError, match="URL of push notifications"):
        check(url=url)


@pytest.mark.parametrize(
    "fields",
    [
        {"token": "a\r\nx-admin: 1"},
        {"authentication": {"scheme": "Bearer x", "credentials": "s"}},
        {"authentication": {"scheme": "Bearer", "credentials": "s\n"}},
        {"authentication": {"credentials": "s"}},
        {"id": "x" * 300},
    ],
)
def test_a_value_that_is_no_header_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidParamsError):
        check(**fields)


def test_plain_http_is_for_private_networks() -> None:
    check(url="http://10.0.0.1/hook", private=True)
    check(token="t", authentication={"scheme": "Bearer", "credentials": "s-1"})
