"""Messages are converted to webhook events for the endpoints that may receive them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pointsman.ports.bus import StoredMessage
from pointsman.webhooks.endpoints import EVENT_TYPES, Endpoint, EventType
from pointsman.webhooks.events import WebhookEvent, read_event
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, DeadLetter, Event, Outcome, Question
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUBJECTS = Subjects("own")


def event_of(subject: str, content: Event) -> WebhookEvent:
    envelope = Envelope(id="e1", type=content.event_type, source="/test", time=NOW)
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    stored = StoredMessage(subject, dump(content), {**encode(envelope), **trace}, 1, NOW)
    event = read_event(stored, SUBJECTS, max_body=100_000)
    assert event is not None
    assert event.trace == trace
    return event


def outcome(**more: Any) -> WebhookEvent:
    content = Outcome(
        workflow_id="wf_1", team="crew", status="completed", correlation_id="c", trace_id="a" * 32, started_at=NOW,
        ended_at=NOW, elapsed=1, sequential=1, **more,
    )  # fmt: skip
    return event_of(SUBJECTS.outcome("crew", "wf_1"), content)


def question(**more: Any) -> WebhookEvent:
    content = Question(
        id="wf_1-q", workflow_id="wf_1", team="crew", about="information", asked_at=NOW,
        expires_at=NOW + timedelta(days=1), reply_to="reply", **more,
    )  # fmt: skip
    return event_of(SUBJECTS.question("crew", "wf_1", "wf_1-q"), content)


def letter() -> WebhookEvent:
    cause = AttemptError(kind="undecodable", message="no JSON")
    content = DeadLetter(id="dl", origin="crew", team="crew", cause=cause, attempts=1, subject="s", body="", at=NOW)
    return event_of(SUBJECTS.dead_letter("crew", None, "dl"), content)


def endpoint(caller: str | None, *events: EventType, teams: tuple[str, ...] | None = None) -> Endpoint:
    return Endpoint(
        id="wh_1", url="https://a.b/", caller=caller, events=events or EVENT_TYPES, teams=teams, created_at=NOW
    )


def test_the_place_of_a_removed_dead_letter_is_no_event() -> None:
    place = StoredMessage(SUBJECTS.dead_letter("writer", "wf_1", "dl_1"), b"", {}, 1, NOW)

    assert read_event(place, SUBJECTS, max_body=1000) is None


@pytest.mark.parametrize(
    ("event", "of_ada", "of_team", "of_operators"),
    [
        (outcome(caller="ada"), True, False, True),
        (question(caller="ada"), True, False, True),
        (outcome(caller="ben"), False, False, True),
        (question(), False, False, True),
        (outcome(caller="desk", parent="wf_0"), False, False, True),  # a task of the team `desk`
        (question(caller="desk", parent="wf_0"), False, False, True),
        (letter(), False, False, True),
    ],
)
def test_a_caller_receives_events_of_its_own_workflows_only(
    event: WebhookEvent, of_ada: bool, of_team: bool, of_operators: bool
) -> None:
    assert endpoint("ada").wants(event) is of_ada
    assert endpoint("desk").wants(event) is of_team  # a caller that has the name of a team
    assert endpoint(None).wants(event) is of_operators


def test_teams_and_types_restrict_the_endpoint_of_a_caller() -> None:
    mine = outcome(caller="ada")

    assert endpoint("ada", "workflow.ended", teams=("crew",)).wants(mine)
    assert not endpoint("ada", "question.asked").wants(mine)
    assert not endpoint("ada", teams=("other",)).wants(mine)
