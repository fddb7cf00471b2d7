"""All variables are read with one rule. An empty or blank variable counts as unset, and outer white space is removed.

Class of fault: a shell, a Compose file or a manifest sets a variable to "", which counts as a value in one module and
as unset in another. Or a line feed at the end of a secret becomes a part of the secret.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pointsman.llm.factory import selected_model
from pointsman.llm.network_guard import resolve_base_url
from pointsman.settings import Settings, misspelled_variables
from pointsman.telemetry.content_capture import mode_of
from pointsman.telemetry.otel_env import requested_exporters
from pointsman.util.environment import normalise_variables, variable, variables

ROOT = Path(__file__).parents[3]
OWN_READERS = {
    "runtime/pointsman/util/environment.py",
    "runtime/pointsman/util/child_processes.py",  # passes the whole environment to children
}


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_a_blank_variable_is_unset_for_every_setting(monkeypatch: pytest.MonkeyPatch, name: str, blank: str) -> None:
    monkeypatch.setenv(f"POINTSMAN_{name.upper()}", blank)

    settings = Settings.load()

    assert getattr(settings, name) == Settings.model_fields[name].default
    assert name not in settings.model_fields_set


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_option_leaves_the_variable_in_force(monkeypatch: pytest.MonkeyPatch, blank: str) -> None:
    monkeypatch.setenv("POINTSMAN_NAMESPACE", "mine")
    monkeypatch.setenv("POINTSMAN_URL", "nats://there:4222")

    settings = Settings.load(namespace=blank, url=blank, dashboard_token=blank)

    assert (settings.namespace, settings.servers, settings.dashboard_token) == ("mine", "there:4222", None)


def test_white_space_around_secrets_urls_and_words_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "URL": " nats://one:4222 , nats://two:4222\n",
        "USER": "ada \n",
        "PASSWORD": "\tsecret\r\n",
        "TOKEN": "token\n",
        "NAMESPACE": " mine ",
        "LOG_LEVEL": "debug\n",
        "REPLICAS": " 3 ",
        "JOURNAL": " false ",
        "MODEL_LIMITS": ' {"openai": {"requests": 5}} ',
    }
    for name, value in given.items():
        monkeypatch.setenv(f"POINTSMAN_{name}", value)

    settings = Settings.load()

    assert settings.url == "nats://one:4222,nats://two:4222"
    assert (settings.user, settings.password, settings.token) == ("ada", "secret", "token")
    assert (settings.namespace, settings.log_level, settings.replicas) == ("mine", "debug", 3)
    assert (settings.journal, settings.model_limits["openai"].requests) == (False, 5)


def test_values_given_in_code_are_treated_like_variables() -> None:
    settings = Settings(url=" nats://one:4222 ", user="", password=" secret\n", namespace=" mine ")

    assert (settings.servers, settings.user, settings.password, settings.namespace) == (
        "one:4222",
        None,
        "secret",
        "mine",
    )


def test_model_keys_and_telemetry_variables_follow_the_same_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pointsman.llm.factory.ACTIVE_GUARDS", [])
    for name in ("POINTSMAN_MODEL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "OTEL_TRACES_EXPORTER"):
        monkeypatch.setenv(name, " ")
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", " full\n")

    assert selected_model() == "offline"
    assert resolve_base_url("openai", None) is None
    assert requested_exporters("TRACES") == []
    assert mode_of(Settings()) == "full"

    monkeypatch.setenv("ANTHROPIC_API_KEY", "key\n")
    monkeypatch.setenv("OPENAI_BASE_URL", " http://127.0.0.1:9/v1\n")
    assert selected_model().startswith("anthropic:")
    assert resolve_base_url("openai", None) == "http://127.0.0.1:9/v1"


def test_variables_that_libraries_read_by_themselves_are_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", " http://127.0.0.1:4318\n")
    monkeypatch.setenv("SOMEBODY_ELSES", " ")

    normalise_variables("OTEL_")

    found = variables("")
    assert "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" not in found
    assert found["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://127.0.0.1:4318"
    assert variable("OTEL_EXPORTER_OTLP_ENDPOINT") == "http://127.0.0.1:4318"


def test_a_blank_variable_is_not_called_misspelled() -> None:
    assert misspelled_variables({"POINTSMAN_ACKWAIT": " "}) == {}


def test_no_other_module_reads_the_environment() -> None:
    reading = re.compile(r"\benviron\b|\bgetenv\(")
    sources = [path for folder in ("runtime", "schemas") for path in (ROOT / folder).rglob("*.py")]

    found = {path.relative_to(ROOT).as_posix() for path in sources if reading.search(path.read_text(encoding="utf-8"))}

    assert found == OWN_READERS
