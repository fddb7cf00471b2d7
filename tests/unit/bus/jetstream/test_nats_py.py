"""nats-py still has each method that `NatsClient` overrides and each private name that it uses.

nats-py may change these names in any release, so pyproject.toml caps nats-py below its next minor release. Start an
upgrade here: correct `bus/jetstream/client.py` for each failure, then write the new signature into the table.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport, WebSocketTransport
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

from pointsman.bus.jetstream import client as ours

METHODS: dict[tuple[type, str], str] = {
    (Client, "__init__"): "(self)",
    (Client, "_connect_command"): "(self)",
    (Client, "_close"): "async (self, status, do_cbs=True)",
    (Client, "_connect_to_server"): "async (self, s)",
    (Client, "_flush_pending"): "async (self, force_flush=False)",
    (Client, "_parse_header_lines"): "(raw)",
    (Client, "_process_connect_init"): "async (self)",
    (Client, "_process_err"): "async (self, err_msg)",
    (Client, "_process_headers"): "async (self, headers)",
    (Client, "_process_info"): "async (self, info, initial_connection=False)",
    (Client, "_process_msg"): "async (self, sid, subject, reply, data, headers)",
    (Client, "_process_op_err"): "async (self, e)",
    (Client, "_process_pong"): "async (self)",
    (Client, "flush"): "async (self, timeout=10)",
    (TcpTransport, "__bool__"): "(self)",
    (TcpTransport, "__init__"): "(self)",
    (TcpTransport, "connect"): "async (self, uri, buffer_size, connect_timeout)",
    (TcpTransport, "connect_tls"): "async (self, uri, ssl_context, buffer_size, connect_timeout)",
    (TcpTransport, "write"): "(self, payload)",
    (WebSocketTransport, "connect"): "async (self, uri, buffer_size, connect_timeout)",
    (WebSocketTransport, "connect_tls"): "async (self, uri, ssl_context, buffer_size, connect_timeout)",
    (TcpTransport, "wait_closed"): "async (self)",
    (TcpTransport, "writelines"): "(self, payload)",
}
"""Each overridden or called method with its signature, without annotations."""

ATTRIBUTES: dict[tuple[type, str], Any] = {
    (Client, "_auth_configured"): False,
    (Client, "_current_server"): None,
    (Client, "_flush_queue"): None,
    (Client, "_flusher_task"): None,
    (Client, "_inbox_prefix"): bytearray(b"_INBOX"),
    (Client, "_max_pending_size"): 0,
    (Client, "_pending"): [],
    (Client, "_pending_data_size"): 0,
    (Client, "_ping_interval_task"): None,
    (Client, "_pongs"): [],
    (Client, "_reading_task"): None,
    (Client, "_server_info"): {},
    (Client, "_server_pool"): [],
    (Client, "_sid"): 0,
    (Client, "_subs"): {},
    (Client, "_transport"): None,
    (TcpTransport, "_bare_io_reader"): None,
    (TcpTransport, "_bare_io_writer"): None,
    (TcpTransport, "_io_reader"): None,
    (TcpTransport, "_io_writer"): None,
}
"""Each private attribute that is read or written, with its value in a new object."""

OTHERS = {"_error_cb", "_ps", "_client", "_using_tls", "_ws"}
"""Private attributes that have their own tests below."""

_UPGRADE = "pointsman.bus.jetstream.client relies on this form; adapt it to nats-py {version}, then this table"


def _signature(method: Any) -> str:
    parameters = inspect.signature(method).parameters.values()
    plain = inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in parameters])
    return f"{'async ' if inspect.iscoroutinefunction(method) else ''}{plain}"


def _names_used_of_nats() -> set[tuple[type, str]]:
    """Return class and name of each override, and of each private attribute that a class of the client uses."""
    used: set[tuple[type, str]] = set()
    for node in ast.parse(Path(str(ours.__file__)).read_text()).body:
        for base in (Client, TcpTransport, WebSocketTransport):
            if isinstance(node, ast.ClassDef) and issubclass(getattr(ours, node.name), base):
                accessed = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
                private = {
                    name for name in accessed & {*dir(base), *base.__init__.__code__.co_names} if name.startswith("_")
                }
                overridden = {each.name for each in node.body if hasattr(each, "name")} & vars(base).keys()
                used |= {(base, name) for name in private | overridden}
    return used


@pytest.mark.parametrize(("owner", "name"), METHODS, ids=[f"{owner.__name__}.{name}" for owner, name in METHODS])
def test_nats_py_has_the_method_with_this_signature(owner: type, name: str) -> None:
    method = inspect.getattr_static(owner, name, None)

    assert method is not None, _UPGRADE.format(version=version("nats-py"))
    assert _signature(getattr(owner, name)) == METHODS[owner, name], _UPGRADE.format(version=version("nats-py"))
    assert isinstance(method, staticmethod) == (name == "_parse_header_lines")


@pytest.mark.parametrize(("owner", "name"), ATTRIBUTES, ids=[f"{owner.__name__}.{name}" for owner, name in ATTRIBUTES])
async def test_nats_py_has_the_attribute_with_this_first_value(owner: type, name: str) -> None:
    new = owner()

    assert vars(new).get(name, "missing") == ATTRIBUTES[owner, name], _UPGRADE.format(version=version("nats-py"))


async def test_nats_py_parses_into_a_buffer_and_reports_errors_to_a_coroutine() -> None:
    client = Client()

    assert isinstance(client._ps, Parser)
    assert (bytes(client._ps.buf), client._ps.state) == (b"", AWAITING_CONTROL_LINE)
    assert inspect.iscoroutinefunction(client._error_cb)


async def test_nats_py_opens_a_websocket_with_a_session_of_aiohttp() -> None:
    aiohttp = pytest.importorskip("aiohttp")
    transport = WebSocketTransport()

    assert isinstance(transport._client, aiohttp.ClientSession)
    assert (transport._ws, transport._using_tls) == (None, None)
    await transport._client.close()


async def test_nats_py_numbers_a_subscription_as_its_client_counts() -> None:
    async def receive(message: Msg) -> None:
        """Do nothing, because no message is sent in this test."""

    client = Client()
    client._sid = 7
    client._flush_queue = asyncio.Queue()

    subscription = await client.subscribe("a.subject", cb=receive)
    subscription._stop_processing()

    assert isinstance(subscription, Subscription)
    assert subscription._id == client._sid == 8
    assert client._subs == {8: subscription}


def test_every_name_of_nats_py_that_the_client_uses_is_listed() -> None:
    listed = {*METHODS, *ATTRIBUTES}

    assert {used for used in _names_used_of_nats() if used[1] not in OTHERS} == listed
