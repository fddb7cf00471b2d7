"""Read suites. A suite contains labelled requests for a team or an agent, and is written in YAML, JSON or Python."""

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
from pointsman_schemas.strict_json import as_json_value, describe, parse_json

__all__ = ["Case", "Check", "Suite", "load_suite"]

Check: TypeAlias = Callable[[Any], object]
"""Function that judges the `Outcome` of a team, or the `Result` of an agent. The function may be async. To reject the
result, the function returns False or the problem as a text, or raises an AssertionError."""


class Case(BaseModel):
    """A request and its labels. Labels that are not given are not compared.

    Exactly the agents in `agents` must work on the request. `answer` is the expected answer. If `answer` is an object,
    its fields must be equal in the real answer, which may have more fields. Any other `answer` must be equal except for
    white space and for upper and lower case. `contains` are texts that the real answer must contain, in upper or lower
    case. `status` is the expected final status. `check` is a Python function, or its name as `module:function`.
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
        """Return the function of `check`, and import it if `check` is a name.

        Returns:
            The function; None if the case has no check.

        Raises:
            ConfigurationError: The function does not exist, or its module cannot be imported.
        """
        if self.check is None or not isinstance(self.check, str):
            return self.check
        module, _, name = self.check.partition(":")
        try:
            found: Check = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, TypeError, ValueError) as error:  # TypeError for a path like `./checks.py`
            raise ConfigurationError(
                f"the check {self.check!r} does not exist: {error}; expected module:function"
            ) from None
        except Exception as error:
            raise ConfigurationError(
                f"the check {self.check!r} cannot be imported: its module raised {describe_error(error)}; "
                f"correct {module}"
            ) from error
        if not callable(found):
            raise ConfigurationError(f"the check {self.check!r} is a {type(found).__name__}; expected a function")
        return found


class Suite(BaseModel):
    """Labelled requests for `team` or for `agent`.

    `target` is the `module` or `file.py` that `pointsman eval --embedded` runs. `threshold` is the share of cases
    that must pass, from 0 to 1, by default 1. `timeout` is the limit of each case in seconds, by default 120.
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
            raise ValueError("a suite has either a team or an agent: give one of them")
        for place, case in enumerate(self.cases if self.team is not None else ()):
            if not isinstance(case.input, str | dict):
                raise ValueError(
                    f"the input of cases.{place} is neither a text nor an object; a team accepts only these"
                )
        return self


def load_suite(path: Path) -> Suite:
    """Read the suite in a YAML, JSON or Python file.

    The folder of the file is added to the import path, because checks may be in modules of this folder.

    Args:
        path: The path of the file.

    Returns:
        The suite.

    Raises:
        ConfigurationError: The file does not exist, cannot be parsed, or does not have the form of a suite.
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
            raise ConfigurationError(f"the suite {path} is not valid: {unknown}")
        suite = Suite.model_validate(value)
    except (ContractError, ValidationError) as error:
        problem = describe(error) if isinstance(error, ValidationError) else str(error)
        raise ConfigurationError(f"the suite {path} is not valid: {problem}") from None
    for case in suite.cases:
        case.load_check()  # loaded now, so that a missing check is reported before any model call costs money
    return suite


def _unknown_field(value: object) -> str:
    """Return a message on the first unknown field of a suite's data, with the closest known field; "" for none."""
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

        from pointsman.evaluation.yaml_reader import read_yaml
    except ModuleNotFoundError:
        raise ConfigurationError(f"{path} is YAML, which needs PyYAML: pip install 'pointsman[eval]'") from None
    try:
        return as_json_value(read_yaml(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = str(error)
        if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
            mark = error.problem_mark
            problem = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
        raise ConfigurationError(f"{path} is not valid YAML: {problem}") from None
