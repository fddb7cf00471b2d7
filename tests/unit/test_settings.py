"""Settings hide their secrets. The error for an invalid value names the setting."""

from __future__ import annotations

import pytest

from pointsman.errors import ConfigurationError
from pointsman.settings import Settings, misspelled_variables
from pointsman_schemas.team import Limits


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://127.0.0.1:4222", "127.0.0.1:4222"),
        ("nats://ada:secret@a:4222,tls://b:4222", "a:4222, b:4222"),
        ("ada:secret@a:4222", "a:4222"),
    ],
)
def test_servers_are_shown_without_their_credentials(url: str, shown: str) -> None:
    assert Settings(url=url).servers == shown


def test_unparsable_url_is_refused_without_its_secrets() -> None:
    with pytest.raises(ConfigurationError, match=r"^url: .*expected nats://HOST:PORT") as caught:
        Settings.load(url="nats://ada:s[cret@a:4222")

    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("MODEL_LIMITS", "foo", "not JSON"),
        ("MODEL_LIMITS", "[]", "it should be a valid dictionary"),
        ("REPLICAS", "9", "less than or equal to 5"),
        ("ACK_WAIT", "soon", "a valid number"),
        ("LOG_LEVEL", "loud", "'debug', 'info', 'warning' or 'error'"),
        ("LOG_FORMAT", "yaml", "'auto', 'console' or 'json'"),
        ("NAMESPACE", "not a name", "1 to 64 letters, digits, - and _"),
    ],
)
def test_invalid_variable_is_named_with_its_value_and_the_choices(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, allowed: str
) -> None:
    monkeypatch.setenv(f"POINTSMAN_{name}", value)

    with pytest.raises(ConfigurationError) as caught:
        Settings.load()

    assert str(caught.value).startswith(f"POINTSMAN_{name} is {value!r}: ")
    assert allowed in str(caught.value)


TIMES = ("ACK_WAIT", "HEARTBEAT", "REQUEST_TIMEOUT", "CIRCUIT_OPEN", "RETENTION_DAYS", "SHUTDOWN_GRACE")
COUNTS = ("MAX_RUNNING", "MAX_DELIVERIES", "CIRCUIT_FAILURES", "MAX_BODY", "ARTIFACTS_BYTES")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in TIMES for value in ("inf", "-inf", "nan", "1e308", "-1")),
        *((name, "1e-9") for name in TIMES[:-1]),
        *((name, "9" * 30) for name in COUNTS),
        *(
            ("MODEL_LIMITS", f'{{"openai": {{"{name}": {value}}}}}')
            for name in ("requests", "tokens", "concurrency")
            for value in ("true", "1e308", "0", "-1", '"5"')
        ),
    ],
)
def test_number_that_no_process_can_use_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"POINTSMAN_{name}", value)

    with pytest.raises(ConfigurationError, match=rf"^POINTSMAN_{name}\b.* is '.*': it should be "):
        Settings.load()


def test_shortest_retention_is_named_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_RETENTION_DAYS", "0")

    with pytest.raises(ConfigurationError) as caught:
        Settings.load()

    assert str(caught.value) == (
        "POINTSMAN_RETENTION_DAYS is '0': it should be a number of days, at least 0.00001158, which is one second"
    )


def test_invalid_item_inside_a_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_MODEL_LIMITS", '{"openai": {"requests": -1}}')

    with pytest.raises(ConfigurationError, match=r"POINTSMAN_MODEL_LIMITS, openai.requests, is '-1': it should be gre"):
        Settings.load()


def test_limits_of_models_are_read_from_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_MODEL_LIMITS", '{"openai": {"requests": 500}}')

    assert Settings.load().model_limits["openai"].requests == 500
    assert Settings.load(**Settings.load().model_dump(exclude_unset=True)) == Settings.load()


def test_argument_overrides_a_variable_and_is_not_named_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"^namespace is 'not a name': "):
        Settings.load(namespace="not a name")

    monkeypatch.setenv("POINTSMAN_NAMESPACE", "not a name")
    assert Settings.load(namespace="mine").namespace == "mine"


def test_non_nats_url_is_refused_with_an_example_and_no_password() -> None:
    with pytest.raises(ConfigurationError, match=r"http:// is not .* expected nats://HOST:PORT") as caught:
        Settings.load(url="nats://a:4222,http://ada:secret@127.0.0.1:8400")

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["nats://a:port", "nats://ada:s3cret@a:99999", "nats://:4222", "nats://", "a:4222,b:c", "tls://ada:s3cret@", "a:0"],
)
def test_url_without_a_host_or_with_another_port_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^url: .* expected nats://HOST:PORT, with a PORT of") as caught:
        Settings.load(url=url)

    assert "s3cret" not in str(caught.value)


def test_missing_value_is_looked_up_and_counts_as_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_HEALTH_PORT", "8080")
    monkeypatch.setenv("POINTSMAN_JOURNAL", "false")
    monkeypatch.setenv("POINTSMAN_UNKNOWN", "of a later version")

    settings = Settings(namespace="mine")

    assert (settings.health_port, settings.journal, settings.namespace) == (8080, False, "mine")
    assert settings.model_fields_set >= {"health_port", "journal", "namespace"}
    assert "ack_wait" not in settings.model_fields_set


def test_misspelled_variable_is_recognized() -> None:
    environment = {
        "POINTSMAN_ACKWAIT": "3",
        "POINTSMAN_ACK_WAIT": "3",
        "POINTSMAN_CUSTOMER_SERVICE_DATA": "data",
        "POINTSMAN_FAULT": "worker.received",
        "POINTSMAN_PORT": "tcp://10.0.0.1:8400",  # Kubernetes sets these variables for a service with this name
        "ACKWAIT": "3",
    }

    assert misspelled_variables(environment) == {"POINTSMAN_ACKWAIT": "POINTSMAN_ACK_WAIT"}


def test_crash_loop_is_detected_before_the_task_timeout() -> None:
    settings = Settings()

    assert settings.max_deliveries * settings.ack_wait < Limits().task_timeout
