"""The tests' server with users refuses forbidden subjects and logs each refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.permission_server import Rights, permission_server
from support.waiting import until

from pointsman.bus.jetstream.bus import connect
from pointsman.errors import PermissionDeniedError
from pointsman.settings import Settings


async def test_a_user_has_the_rights_of_the_test_and_no_other(tmp_path: Path) -> None:
    users = {"ada": Rights(publish=["own.log.team.v"], subscribe=["_INBOX.>"]), "root": None}
    async with permission_server(tmp_path, users) as server:
        root = await connect(Settings(url=server.url("root"), namespace="own"), name="root", wait=10)
        await root.set_up()
        await root.close()
        bus = await connect(Settings(url=server.url("ada"), namespace="own"), name="ada", wait=10)

        assert await bus.publish("own.log.team.v", b"{}", {}) == 1
        with pytest.raises(PermissionDeniedError):
            await bus.publish("own.log.team.w", b"{}", {})
        with pytest.raises(PermissionDeniedError):
            await bus.listen("own.>", lambda message: None)  # type: ignore[arg-type, return-value]
        await bus.close()
        await until(lambda: len(server.violations()) == 2)

        assert server.violations("ada") == ["Publish own.log.team.w", "Subscription own.>"]
        assert server.violations("root") == []
