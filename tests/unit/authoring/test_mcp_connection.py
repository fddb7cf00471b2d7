"""The connection to an MCP server is shared, reconnected and closed. The tests use a fake of the SDK's client."""

from __future__ import annotations

import asyncio

import pytest
from mcp import MCPError, types  # imported here, because the import takes seconds
from support.mcp_server import FakeMcpClient, FakeMcpServer, serving, source

from pointsman.errors import TaskError


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeMcpServer:
    return serving(monkeypatch)


@pytest.mark.parametrize("error", [MCPError(types.CONNECTION_CLOSED, "closed"), OSError("gone")])
async def test_after_a_broken_connection_the_next_call_opens_another(error: Exception, server: FakeMcpServer) -> None:
    calc, sound = source(server), server.does
    await calc.client()
    server.does = server.gone = error

    with pytest.raises(TaskError, match=r"the connection to calc broke: .*(closed|gone)") as caught:
        await calc.call("add", {})
    left = server.left
    server.does, server.gone = sound, None
    again = await calc.call("add", {"a": 1})
    await calc.close()

    assert (caught.value.retryable, left, again, server.connected) == (True, 1, "done", 2)
    assert server.asked[-1] == ("add", {"a": 1})


async def test_concurrent_users_share_one_connection_and_a_closed_one_reopens(
    server: FakeMcpServer,
) -> None:
    calc = source(server)
    await calc.close()  # no connection exists yet

    offered = await asyncio.gather(*(calc.tools() for _ in range(5)))
    connected = server.connected
    await calc.close()
    left = server.left
    await calc.close()
    await calc.tools()
    await calc.close()

    assert [[tool.name for tool in each] for each in offered] == [["add"]] * 5
    assert (connected, left, server.connected, server.left_by) == (1, 1, 2, [None, None])
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_connection_that_ended_by_itself_is_made_again(server: FakeMcpServer) -> None:
    calc = source(server)
    await calc.tools()
    assert calc._connection_task is not None
    calc._connection_task.cancel()
    await asyncio.wait({calc._connection_task})

    await calc.call("add", {})
    await calc.close()

    assert (server.connected, server.asked) == (2, [("add", {})])


async def test_each_event_loop_has_a_connection_of_its_own(server: FakeMcpServer) -> None:
    calc = source(server)
    await calc.tools()
    here = calc._connection_task

    async def elsewhere() -> int:
        await calc.tools()
        connected = server.connected
        await calc.close()
        return connected

    assert await asyncio.to_thread(asyncio.run, elsewhere()) == 2
    assert here is not None
    here.cancel()


async def test_a_connection_is_ended_by_its_own_event_loop_alone(
    server: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman.authoring.mcp._CLOSE_TIMEOUT_S", 0.1)
    calc = source(server)
    await calc.tools()

    await asyncio.to_thread(asyncio.run, calc.close())
    for _ in range(5):
        await asyncio.sleep(0)
    left = server.left
    await calc.close()

    assert (left, server.left) == (0, 1)


async def test_connection_closed_during_its_start_ends_at_once(server: FakeMcpServer) -> None:
    calc, server.opening = source(server), asyncio.Event()
    asking = asyncio.create_task(calc.tools())
    while not server.connected:
        await asyncio.sleep(0)

    async with asyncio.timeout(4):  # shorter than the 5 s for an orderly disconnection
        await calc.close()
    with pytest.raises(TaskError, match="the connection to calc was closed before it was ready") as caught:
        await asking

    assert caught.value.retryable
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_wait_for_a_server_that_does_not_stop_is_bounded(
    server: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stay(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("pointsman.authoring.mcp._CLOSE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(FakeMcpClient, "__aexit__", stay)
    calc = source(server)
    await calc.tools()

    await calc.close()
    await asyncio.sleep(0)

    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_connection_without_waiters_is_dropped(server: FakeMcpServer) -> None:
    calc, server.opening = source(server), asyncio.Event()
    asking = asyncio.create_task(calc.tools())
    while not server.connected:
        await asyncio.sleep(0)

    asking.cancel()
    await asyncio.wait({asking})
    await asyncio.sleep(0)

    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    ("error", "said", "retryable"),
    [
        (ExceptionGroup("g", [ExceptionGroup("h", [OSError("refused")])]), "calc cannot be reached: .*refused", True),
        (TaskError("it is full"), "^it is full$", False),
    ],
)
async def test_failed_connection_names_the_reason(
    error: Exception, said: str, retryable: bool, server: FakeMcpServer
) -> None:
    server.opening = error

    with pytest.raises(TaskError, match=said) as caught:
        await source(server).tools()

    assert caught.value.retryable is retryable


async def test_the_start_of_a_silent_server_is_abandoned(
    server: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman.authoring.mcp._START_TIMEOUT_S", 0.01)
    calc, server.opening = source(server), asyncio.Event()

    with pytest.raises(TaskError, match=r"cannot be reached: no answer within 0\.01 s") as caught:
        await calc.tools()

    assert caught.value.retryable
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    "error",
    [MCPError(types.CONNECTION_CLOSED, "database is locked"), RuntimeError("Invalid structured content")],
    ids=["code -32000", "a bad structured result"],
)
async def test_failed_call_of_a_live_server_keeps_the_connection(error: Exception, server: FakeMcpServer) -> None:
    calc = source(server)
    await calc.client()
    server.does = error

    with pytest.raises(TaskError, match=r"database is locked|gave a result that cannot be read") as caught:
        await calc.call("add", {})
    await calc.client()

    assert (caught.value.retryable, server.connected, server.left) == (False, 1, 0)
    await calc.close()


async def test_changed_list_is_read_again(server: FakeMcpServer) -> None:
    calc = source(server)
    before = [tool.name for tool in await calc.tools()]
    server.pages = 2
    await calc._on_message(types.ToolListChangedNotification())

    after = [tool.name for tool in await calc.tools()]

    assert (before, after, server.connected) == (["add"], ["add", "add_1"], 1)
    await calc.close()
