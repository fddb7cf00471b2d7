"""The A2A endpoint without its extra, and with an invalid signing key."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pointsman.errors import ConfigurationError
from pointsman.gateway.a2a import endpoint
from pointsman.gateway.a2a.signatures import CardSigner
from pointsman.gateway.problems import ProblemError


async def test_a_gateway_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "find_spec", lambda name: None)
    context: Any = SimpleNamespace(push=None)  # like a gateway that found no SDK
    mount: Any = endpoint.a2a_mount(context, open=True)

    with pytest.raises(ProblemError, match=r"pip install 'pointsman\[a2a\]'") as caught:
        await mount.app({"type": "http"}, None, None)

    assert caught.value.status == 501
    assert not endpoint.has_a2a()


@pytest.mark.parametrize("content", ["", "-----BEGIN PRIVATE KEY-----"])
def test_a_file_without_a_key_is_refused_with_the_command_that_makes_one(tmp_path: Path, content: str) -> None:
    file = tmp_path / "card.pem"
    file.write_text(content)

    with pytest.raises(ConfigurationError, match="openssl ecparam"):
        CardSigner(str(file))
