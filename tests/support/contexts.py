"""Contexts of attempts for tests, with the parts that the runtime adds."""

from __future__ import annotations

from typing import Any

from pointsman.authoring.attempt_state import AttemptState
from pointsman.authoring.context import Context, state_of
from pointsman.authoring.ports import RecordingReporter
from pointsman_schemas.events import Handoff

__all__ = ["new_context", "new_state", "recorded"]


def new_state(
    handoff: Handoff | None = None, *, reporter: RecordingReporter | None = None, **more: Any
) -> AttemptState:
    """Return the state of an attempt at `handoff`; by default at the handoff of `Context.for_test()`."""
    given = Context.for_test().handoff if handoff is None else handoff
    return AttemptState(given, RecordingReporter() if reporter is None else reporter, **more)


def new_context(handoff: Handoff | None = None, *, update: dict[str, Any] | None = None, **more: Any) -> Context:
    """Return a context for `handoff` with the fields of `update` changed."""
    given = Context.for_test().handoff if handoff is None else handoff
    return Context(new_state(given.model_copy(update=update or {}), **more))


def recorded(context: Context) -> RecordingReporter:
    """Return the reports of `context`."""
    reporter = state_of(context).reporter
    assert isinstance(reporter, RecordingReporter)
    return reporter
