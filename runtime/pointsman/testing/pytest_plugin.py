"""With this plugin no test calls a model that costs money, but those marked `real_model`.

`pytest_plugins = ["pointsman.testing.pytest_plugin"]` in the top `conftest.py` switches it on.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from pointsman.llm.network_guard import forbid_real_models

__all__ = ["pytest_configure", "pytest_runtest_call"]


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", "real_model: calls a paid model provider")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Around every test."""
    if item.get_closest_marker("real_model") is not None:
        return (yield)
    with forbid_real_models():
        return (yield)
