"""A suite is labelled requests for a team or an agent, written in YAML, JSON or Python."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from pointsman.engine.process.discovery import load_objects
from pointsman.errors import ConfigurationError, ContractError, describe_error
from pointsman_schemas.base import unknown_name_message
from pointsman_schemas.ids import AgentName, TeamName
from pointsman_schemas.strict_json import describe, parse_json

__all__ = ["Case", "Check", "Suite", "load_suite"]

Check: TypeAlias = Callable[[Any], object]
"""It is given the `Outcome` (or an agent's `Result`), and may be async. False, a text or an AssertionError says that it
is not good."""


class Case(BaseModel):
    """A request, and what is right for it. What is not given is not looked at.

    `agents` are those who must work on it, and no others. `answer` is the golden answer: a text or a value, equal
    but for case and spaces, or an object, whose fields must be equal and may be joined by others. `contains` are texts
    that the answer must have in it, in any case. `check` is a function in Python, as `module:function` or itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    input: JsonValue
    name: str = ""
    agents: tuple[AgentName, ...] | None = None
    answer: JsonValue = None
    contains: tuple[str, ...] = ()
    status: Literal["completed", "partial", "failed", "cancelled", "refused"] = "completed"
    check: str | Check | None = None

    def load_check(self) -> Check | None:
        """The function that `check` names or is. Raises `ConfigurationError` when it is not there."""
        if self.check is None or not isinstance(self.check, str):
            return self.check
        module, _, name = self.check.partition(":")
        try:
            found: Check = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, TypeError, ValueError) as error:  # `./checks.py` is a TypeError
            raise ConfigurationError(
                f"the check {self.check!r} is not there: {error}; expected module:function"
            ) from None
        except Exception as error:
            raise ConfigurationError(
                f"the check {self.check!r} cannot be had: its module raised {describe_error(error)}; mend {module}"
            ) from error
        if not callable(found):
            raise ConfigurationError(f"the check {self.check!r} is a {type(found).__name__}; expected a function")
        return found


class Suite(BaseModel):
    """Labelled requests for `team`, or for one `agent`.

    `target` says what `--embedded` runs: `module` or `file.py`. `threshold` is the share of cases that must be right.
    `timeout`, in seconds, bounds each case.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    team: TeamName | None = None
    agent: AgentName | None = None
    target: str | None = None
    threshold: Annotated[float, Field(ge=0, le=1)] = 1.0
    timeout: Annotated[float, Field(gt=0)] = 120.0
    cases: Annotated[tuple[Case, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        if (self.team is None) == (self.agent is None):
            raise ValueError("a suite is for a team or for an agent: give one of them")
        for place, case in enumerate(self.cases if self.team is not None else ()):
            if not isinstance(case.input, str | dict):
                raise ValueError(f"the input of cases.{place} is no text and no object, as a team's request is")
        return self


def load_suite(path: Path) -> Suite:
    """The suite in a YAML, JSON or Python file. Checks are found beside it, too.

    Raises:
        ConfigurationError: it is not there, cannot be read, or does not fit.
    """
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}; give a suite in YAML, JSON or Python")
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)
    if path.suffix == ".py":
        suites = load_objects(str(path), Suite)
        if len(suites) != 1:
            raise ConfigurationError(f"{path} defines {len(suites)} suites; define one Suite(...)")
        return suites[0]
    text = path.read_bytes()
    try:
        value = parse_json(text) if path.suffix == ".json" else _yaml(text, path)
        if not isinstance(value, dict):
            seen = "empty" if value is None else f"a {type(value).__name__}"
            raise ConfigurationError(
                f"the suite {path} is {seen}; expected an object with a `team` or an `agent`, and `cases`"
            )
        if unknown := _unknown_field(value):
            raise ConfigurationError(f"the suite {path} does not fit: {unknown}")
        suite = Suite.model_validate(value)
    except (ContractError, ValidationError) as error:
        said = describe(error) if isinstance(error, ValidationError) else str(error)
        raise ConfigurationError(f"the suite {path} does not fit: {said}") from None
    for case in suite.cases:
        case.load_check()  # a check that is not there is told before anything is paid for
    return suite


def _unknown_field(value: object) -> str:
    """The first name in a suite's data that it does not know, and what may have been meant; nothing when there is
    none."""
    cases = value.get("cases") if isinstance(value, dict) else None
    parts: list[tuple[str, type[BaseModel], object]] = [("it", Suite, value)]
    parts += [(f"cases.{place}", Case, case) for place, case in enumerate(cases if isinstance(cases, list) else ())]
    for place, model, part in parts:
        for name in part if isinstance(part, dict) else ():
            if name not in model.model_fields:
                return f"{place} {unknown_name_message(name, model.model_fields)}"
    return ""


def _yaml(text: bytes, path: Path) -> object:
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigurationError(f"{path} is YAML, which needs PyYAML: pip install 'pointsman[eval]'") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} is no YAML: {error}") from None
