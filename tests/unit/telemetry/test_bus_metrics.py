"""Messages are counted and timed by purpose, as the messaging conventions require."""

from __future__ import annotations

import json
from typing import Any, cast

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from support.prometheus import exposing, samples

from pointsman.ports.bus import Server
from pointsman.telemetry import bus_observer, metrics

SERVER = Server("broker.example", 4222)


def test_messages_are_counted_by_destination_without_workflow_ids() -> None:
    with exposing() as started:
        watching = bus_observer()
        assert watching is not None
        watching.on_published("ns.log.crew.w1", SERVER, 0.002, None)
        watching.on_published("ns.log.crew.w2", SERVER, 0.002, None)
        watching.on_published("ns.log.crew.w3", SERVER, 0.002, "conflict")
        watching.on_received("ns.result.crew.>", SERVER, "result-crew", 5)
        seen = samples(started)

    sent = seen["messaging_client_sent_messages_total"]
    assert {labels.get("error_type", ""): value for labels, value in sent} == {"": 2, "conflict": 1}
    assert {labels["messaging_destination_template"] for labels, _ in sent} == {"ns.log.crew.{workflow}"}
    assert {labels["server_address"] for labels, _ in sent} == {"broker.example"}
    ((labels, taken),) = seen["messaging_client_consumed_messages_total"]
    assert taken == 5
    assert labels["messaging_consumer_group_name"] == "result-crew"
    assert labels["messaging_system"] == "nats"
    assert sum(value for _, value in seen["messaging_client_operation_duration_seconds_count"]) == 3


def test_a_bus_is_not_watched_when_nothing_is_measured() -> None:
    metrics.configure(None)

    assert bus_observer() is None


def test_application_meter_counts_the_time_it_measures() -> None:
    reader = InMemoryMetricReader()
    metrics.configure(MeterProvider([reader], shutdown_on_exit=False).get_meter("its own"))
    watching = bus_observer()
    assert watching is not None
    watching.on_published("ns.log.crew.w1", SERVER, 0.002, None)
    watching.on_published("ns.log.crew.w2", SERVER, 0.002, None)
    data = json.loads(cast(Any, reader.get_metrics_data()).to_json())
    metrics.configure(None)

    (resource,) = data["resource_metrics"]
    (scope,) = resource["scope_metrics"]
    seen = {metric["name"]: metric["data"]["data_points"] for metric in scope["metrics"]}
    assert [point["count"] for point in seen["messaging.client.operation.duration"]] == [2]
    assert [point["value"] for point in seen["messaging.client.sent.messages"]] == [2]
