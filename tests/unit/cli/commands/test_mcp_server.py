"""The command `mcp` refuses an invalid team name before it connects."""

from __future__ import annotations

import pytest

from pointsman.cli.commands import mcp_server
from pointsman.cli.support import session as sessions
from pointsman.errors import ContractError


def test_invalid_name_is_refused_before_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "session", pytest.fail)

    with pytest.raises(ContractError, match="no team"):
        mcp_server.mcp("no team", timeout=1.0)
