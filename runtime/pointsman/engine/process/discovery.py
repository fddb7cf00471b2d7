"""Find agents, teams and other definitions of authors by name, in a module, a file, or an installed package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any, TypeVar

from pointsman.authoring.agent import Agent
from pointsman.authoring.interceptor import Interceptor, is_interceptor
from pointsman.authoring.lifespan import Lifespan
from pointsman.errors import ConfigurationError, describe_error
from pointsman_schemas.ids import derive_id

__all__ = ["ENTRY_POINT_GROUP", "WorkerParts", "installed_agents", "load_agents", "load_objects", "load_worker"]

ENTRY_POINT_GROUP = "pointsman.agents"
"""The entry-point group in which packages declare their agents."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """Definitions of authors that one worker runs.

    Attributes:
        agents: Agents without duplicates, in the order of the targets.
        interceptors: Interceptors, from the outermost to the innermost.
        lifespans: Lifespans in the order in which they are opened.
    """

    agents: tuple[Agent, ...]
    interceptors: tuple[Interceptor, ...] = ()
    lifespans: tuple[Lifespan[Any], ...] = ()


def load_worker(specs: Iterable[str]) -> WorkerParts:
    """Load the agents, interceptors and lifespans that `specs` name.

    The name of a module means all its members, including imported members. `module:name` means one agent, and the
    interceptors and lifespans of its module. A module may define only interceptors and lifespans.

    Args:
        specs: Modules, files and entry points, as for `load_objects`.

    Returns:
        The parts of the worker, in the order of `specs` and of the definitions within a module.

    Raises:
        ConfigurationError: A spec names no definition that a worker runs, a module cannot be imported, two different
            agents have the same name, no agent is defined, or an interceptor's class has no instance.
    """
    agents: dict[str, Agent] = {}
    interceptors: dict[int, Interceptor] = {}
    lifespans: dict[int, Lifespan[Any]] = {}
    modules: list[ModuleType] = []
    specs = tuple(specs)
    for spec in specs:
        value, name, module = _resolve(spec)
        members = _members_of(getattr(value, name, None) if name else value)
        around = _members_of(module) if module is not None else []
        modules += [module] if module is not None else []
        found = [*members, *around]
        interceptors |= {id(item): item for item in found if is_interceptor(item)}
        lifespans |= {id(item): item for item in found if isinstance(item, Lifespan)}
        others = any(is_interceptor(item) or isinstance(item, Lifespan) for item in members)
        listed = not name and isinstance(getattr(value, "agents", None), list | tuple)
        if others and not listed and not any(isinstance(item, Agent) for item in members):
            continue  # the module defines only interceptors and lifespans
        for agent in _members(value, name, Agent, spec):  # type: ignore[type-abstract]  # only for isinstance
            if agents.setdefault(agent.card.name, agent) is not agent:
                raise ConfigurationError(
                    f"two agents are called {agent.card.name}, the second one in {spec}; rename one"
                )
    if not agents:
        raise ConfigurationError(f"{', '.join(specs)} defines no Agent; name a module with agents, too")
    _check_instances(modules, tuple(interceptors.values()))
    return WorkerParts(tuple(agents.values()), tuple(interceptors.values()), tuple(lifespans.values()))


def load_agents(specs: Iterable[str]) -> tuple[Agent, ...]:
    """Load the agents that `specs` name.

    Args:
        specs: Modules, files and entry points, as for `load_objects`.

    Returns:
        The agents in the order of `specs`, without duplicates.

    Raises:
        ConfigurationError: No agent is found, a module cannot be imported, or two different agents have the same name.
    """
    found: dict[str, Agent] = {}
    for spec in specs:
        for agent in load_objects(spec, Agent):  # type: ignore[type-abstract]  # only for isinstance
            if found.setdefault(agent.card.name, agent) is not agent:
                raise ConfigurationError(
                    f"two agents are called {agent.card.name}, the second one in {spec}; rename one"
                )
    return tuple(found.values())


def load_objects(spec: str, kind: type[T]) -> tuple[T, ...]:
    """Load all objects of one type that `spec` names.

    `spec` names an object, a list of objects, or a module with objects.

    Args:
        spec: `package.module`, `package.module:name`, `path/file.py`, `path/file.py:name`, or the name of an entry
            point in the group `pointsman.agents`.
        kind: Type of the objects.

    Returns:
        The objects.

    Raises:
        ConfigurationError: No object is found or a module cannot be imported. The message names the
            object and the place of the search.
    """
    value, name, _ = _resolve(spec)
    return _members(value, name, kind, spec)


def installed_agents() -> dict[str, EntryPoint]:
    """Return the entry points that installed packages declare, by name."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _resolve(spec: str) -> tuple[Any, str, ModuleType | None]:
    """Return the value that `spec` names, the name of a member of this value, and the module."""
    place, _, name = spec.rpartition(":") if _has_name(spec) else (spec, "", "")
    if place.endswith(".py"):
        module = _from_file(Path(place))
        return module, name, module
    if not name and (entry := installed_agents().get(place)) is not None:
        try:
            value = entry.load()
        except (Exception, SystemExit) as error:
            raise ConfigurationError(
                f"the installed agents {place} ({entry.value}) cannot be loaded: {_describe(error)}"
            ) from error
        return value, "", sys.modules.get(entry.module)
    module = _from_module(place, spec)
    return module, name, module


def _members_of(value: object) -> list[object]:
    if isinstance(value, ModuleType):
        return list(vars(value).values())
    return list(value) if isinstance(value, list | tuple) else [value]


def _check_instances(modules: Sequence[ModuleType], interceptors: Sequence[Interceptor]) -> None:
    """Raise a `ConfigurationError` if an interceptor's class has no instance, because the class would never run."""
    for module in modules:
        for name, item in vars(module).items():
            if not (isinstance(item, type) and Interceptor in item.__mro__ and item.__module__ == module.__name__):
                continue
            if not any(item in type(each).__mro__ for each in interceptors):
                file = Path(module.__file__).name if module.__file__ else module.__name__
                raise ConfigurationError(
                    f"{file} defines the interceptor class {name} without an instance, so {name} would not run; add an "
                    f"instance to the module, such as {name.lower()} = {name}()"
                )


def _has_name(spec: str) -> bool:
    # The colon after a drive letter, as in C:\agents.py, does not begin the name of an object.
    return spec.rfind(":") > (1 if spec[1:3] in (":\\", ":/") else -1)


def _from_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}; give a path to a Python file, or `module:name`")
    name = f"pointsman_file_{path.stem}_{derive_id(str(path), length=8)}"
    if name in sys.modules:
        return sys.modules[name]
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # the file can then import its neighbours, as with `python file.py`
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise ConfigurationError(f"{path} cannot be loaded as a Python file; give a file ending in .py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # while the module runs, dataclasses and annotations search the module in `sys.modules`
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"{path}{_error_line(error, name)} cannot be loaded: {_describe(error)}") from error
    return module


def _from_module(name: str, spec: str) -> ModuleType:
    if "" not in sys.path and (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # without this, an installed command does not search the current folder
    try:
        return importlib.import_module(name)
    except ConfigurationError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and not (name == error.name or name.startswith(error.name + ".")):
            raise ConfigurationError(f"{name} imports {error.name}, which is missing; install {error.name}") from error
        known = ", ".join(sorted(installed_agents())) or "none"
        raise ConfigurationError(
            f"{spec!r} is neither a module, nor a file ending in .py, nor installed agents "
            f"(installed: {known}); check the spelling and the current folder"
        ) from error
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"{name}{_error_line(error, name)} cannot be imported: {_describe(error)}") from error


def _describe(error: Exception | SystemExit) -> str:
    """Describe an error of an import. Without a message for `SystemExit`, the process would end without a reason."""
    if isinstance(error, SystemExit):
        return f'it ends the process with sys.exit({error.code!r}); call sys.exit only under if __name__ == "__main__"'
    return describe_error(error)


def _error_line(error: BaseException, module: str) -> str:
    """Return the line of `module` that raised the error. Empty for a syntax error, whose text contains the line."""
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_globals.get("__name__") == module]
    return f", line {lines[-1]}," if lines else ""


def _members(value: Any, name: str, kind: type[T], spec: str) -> tuple[T, ...]:
    what = kind.__name__
    if isinstance(value, ModuleType):
        if name:
            if not hasattr(value, name):
                known = ", ".join(key for key, item in vars(value).items() if isinstance(item, kind)) or "none"
                raise ConfigurationError(f"{spec} has no {name!r}; its {what}s are: {known}")
            return _members(getattr(value, name), "", kind, spec)
        unique = {id(item): item for item in vars(value).values() if isinstance(item, kind)}
        found: tuple[T, ...] = tuple(unique.values())
        if not found and isinstance(listed := getattr(value, "agents", None), list | tuple):
            return _members(listed, "", kind, spec)
    elif isinstance(value, kind):
        return (value,)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        found = tuple(item for item in value if isinstance(item, kind))
    else:
        raise ConfigurationError(f"{spec} is a {type(value).__name__}; expected an {what}, a list, or a module")
    if not found:
        way = "decorate a function with @agent(...)" if kind is Agent else f"add {what}(...) to the module"
        raise ConfigurationError(f"{spec} defines no {what}; {way}, or name another module or file")
    return found
