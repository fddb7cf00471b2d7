"""Secrets are hidden everywhere. Ordinary text stays unchanged."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.errors import describe_error
from pointsman.settings import Settings
from pointsman.util.scrubber import HIDDEN_TEXT, hide_secret, scrub, scrub_json, scrub_traceback

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    "secret",
    [
        "sk-abcdefghijklmnop",
        "sk-proj-abcdefghijkl_mnop-1234567890",
        "sk-ant-api03-abcdefghijklmnop",
        "sk_live_abcdefghijklmnop",
        "AKIAIOSFODNN7EXAMPLE",
        "ASIAIOSFODNN7EXAMPLE",
        "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "ghp_abcdefghijklmnopqrstuvwxyz012345",
        "github_pat_11ABCDEFG0abcdefghijkl",
        "glpat-abcdefghij0123456789",
        "hf_abcdefghijklmnopqrstuvwx",
        "xoxb-1234567890-abcdefghij",
        "Bearer abcdef1234567890",
        "bearer abcdef1234567890",
        "Basic dXNlcjpwYXNzd29yZDE=",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-_DEF",
        "SUAIBDPBAUTWCWBKIO6XHQNINK5FWJW4OHLXC3HQ2KFE4PEJUA44CNHTC4",
        "password=hunter2!",
        "gsk_abcdefghijklmnopqrstuvwxyz",
        "npm_abcdefghijklmnopqrstuvwxyz0123456789",
        "pypi-AgEIcHlwaS5vcmcCJGFiY2RlZmdo",
        "whsec_abcdefghijklmnopqrstuv",
        "SG.abcdefghijklmnop.qrstuvwxyz0123456789",
        "ya29.a0AfH6SMBabcdefghijklmnop",
        KEY,
    ],
)
def test_secret_is_hidden_and_its_context_kept(secret: str) -> None:
    assert scrub(f"before {secret} after") == f"before {HIDDEN_TEXT} after"


@pytest.mark.parametrize(
    "text",
    [
        "I was charged twice on my card ending 4242",
        "the basic plan and the bearer of bad news",
        "task-1 asks sk-8 and risk-assessment-of-the-quarter",
        "https://example.com/a?b=c#d",
        "12345 tokens at $0.0021",
        '{"token_count": 12, "max_tokens": 5, "secretary": "Ada"}',
        "the password: it was reset",
        "Here is the token: use it well",
        "ask ada@example.com",
    ],
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert scrub(text) == text


def test_the_address_of_a_server_stays_without_the_password_in_it() -> None:
    assert scrub("nats://ada:secret1@broker:4222") == f"nats://{HIDDEN_TEXT}@broker:4222"


@pytest.mark.parametrize(
    "text",
    [
        '{"user": "ada", "password": "{}", "n": 1}',
        '{"user":"ada","api_key":"{}"}',
        "{'client_secret': '{}'}",
        '"{\\"accessToken\\": \\"{}\\"}"',
        "x-api-key: {}",
        "password: {}",
    ],
)
def test_a_text_that_holds_data_is_scrubbed_by_its_keys_too(text: str) -> None:
    assert scrub(text.replace("{}", "hunter2")) == text.replace("{}", HIDDEN_TEXT)


@pytest.mark.parametrize(
    "code",
    [
        "db_password = 'hunter2'",
        "token: str | None = f'hunter2'",
        'OPENAI_API_KEY="hunter2", model="small"',
        'if password != "hunter2":',
        'if (secret := "hunter2"):',
        'for name, value in (("password", "hunter2"), ("user", "me")):',
        'os.environ["API_KEY"] = "hunter2"',
        'call(api_key="blanks in hunter2", model="small")',
        'call(api_key="hunter2',
        'db_password = """hunter2"""',
        'call("first\\nsk-hunter2-abcdefghijklmnop")',
    ],
)
def test_literal_in_a_source_line_is_hidden_by_name_or_form(code: str) -> None:
    shown = scrub_traceback(f"    {code}\nValueError: no")

    assert "hunter2" not in shown
    assert HIDDEN_TEXT in shown
    assert shown.endswith("\nValueError: no")


@pytest.mark.parametrize("code", ['token = read("/etc/token")', 'call("tokens", "left")', "password = given or ''"])
def test_other_lines_of_code_stay(code: str) -> None:
    assert scrub_traceback(code) == code


@pytest.mark.parametrize("begins", ["password:", 'password"', "password: x", "password"])
def test_exception_text_with_much_white_space_is_scrubbed_quickly(begins: str) -> None:
    began = process_time()

    scrub_traceback(begins + " " * 4_000)

    assert process_time() - began < 0.2  # seconds; a few milliseconds are normal


def test_addresses_are_hidden_where_that_is_asked_for() -> None:
    assert scrub("ask ada.l+x@mail.example.com.", emails=True) == f"ask {HIDDEN_TEXT}."


def test_data_is_scrubbed_by_text_and_key_at_any_depth() -> None:
    value = {
        "headers": [
            {"Authorization": "abc"},
            {"api_key": "x", "apiKey": "y", "accessToken": "z", "client_secret": "w"},
        ],
        "tokens": 17,
        "max_token": 5,
        "note": "use sk-abcdefghijklmnop",
    }

    assert scrub_json(value) == {  # type: ignore[arg-type]
        "headers": [
            {"Authorization": HIDDEN_TEXT},
            dict.fromkeys(("api_key", "apiKey", "accessToken", "client_secret"), HIDDEN_TEXT),
        ],
        "tokens": 17,
        "max_token": 5,
        "note": f"use {HIDDEN_TEXT}",
    }


def test_a_lone_surrogate_is_shown_by_its_code() -> None:
    assert scrub("no file \udce9 in café") == "no file \\udce9 in café"


@given(st.text(max_size=200))
def test_scrubbing_twice_is_scrubbing_once(text: str) -> None:
    assert scrub(scrub(text)) == scrub(text)


@pytest.mark.usefixtures("no_secrets_in_use")
@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("correct horse battery", "login with correct horse battery failed", "login with [hidden] failed"),
        ("p@ss/w", "nats://u:p%40ss%2Fw is refused; p@ss/w", "nats://u:[hidden] is refused; [hidden]"),
        ("hunter2", "hunter2 and hunter22", "[hidden] and hunter22"),
        ("(a+)+$", "the password (a+)+$ is wrong", "the password [hidden] is wrong"),
        ("long-enough-secret", "xlong-enough-secretx", "x[hidden]x"),
        ("EMPTY", "an EMPTY answer", "an EMPTY answer"),
        ("ollama", "the server ollama is away", "the server ollama is away"),
    ],
)
def test_a_secret_in_use_is_hidden_by_its_value(secret: str, text: str, shown: str) -> None:
    """A secret of this process is hidden in every form. Placeholders and short words are not hidden."""
    hide_secret(secret)

    assert scrub(text) == shown


@pytest.mark.usefixtures("no_secrets_in_use")
def test_of_two_secrets_the_longer_is_hidden_whole() -> None:
    hide_secret("first-secret")
    hide_secret("first-secret-and-more")

    assert scrub("it was first-secret-and-more") == f"it was {HIDDEN_TEXT}"


@pytest.mark.usefixtures("no_secrets_in_use")
@pytest.mark.parametrize(
    "given",
    [
        {"password": "of no known form", "user": "me"},
        {"token": "of no known form"},
        {"dashboard_token": "of no known form"},
        {"url": "nats://me:of%20no%20known%20form@broker:4222"},
        {"url": "nats://other:4222,nats://of%20no%20known%20form@broker:4222"},
    ],
)
def test_the_text_of_an_error_hides_the_secrets_of_the_settings(given: dict[str, str]) -> None:
    """Events, dead letters, logs and commands use `describe_error`, so it must hide secrets."""
    Settings.load(**given)

    assert describe_error(ValueError("the login of no known form is refused")) == (
        f"ValueError: the login {HIDDEN_TEXT} is refused"
    )


def test_the_text_of_an_error_hides_a_secret_by_its_form() -> None:
    assert describe_error(RuntimeError("password=hunter2 broke")) == f"RuntimeError: {HIDDEN_TEXT} broke"


def test_a_traceback_of_megabytes_loses_its_middle() -> None:
    """The lines of code at the beginning and the end of the message stay."""
    text = scrub_traceback("Traceback: " + "x " * 5_000_000 + "the end")

    assert len(text) < 40_000
    assert text.startswith("Traceback: x")
    assert "characters left out" in text
    assert text.endswith("the end")
