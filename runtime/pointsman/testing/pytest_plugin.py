"""Pytest plugin that forbids calls of paid models, except in tests with the marker `real_model`.

Enable the plugin with `pytest_plugins = ["pointsman.testing.pytest_plugin"]` in the top `conftest.py`.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from pointsman.llm.network_guard import forbid_real_models

__all__ = ["pytest_configure", "pytest_runtest_call"]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "real_model: calls a paid model provider")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Forbid paid models in every test without the marker."""
    if item.get_closest_marker("real_model") is not None:
        return (yield)
    with forbid_real_models():
        return (yield)
