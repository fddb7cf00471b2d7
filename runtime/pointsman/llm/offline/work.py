"""A task without a language model: the tools that its words ask for, and an answer made of what they returned."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from pointsman.llm.json_extraction import strict_json
from pointsman.llm.offline.arguments import Sources, arguments, missing, required_of
from pointsman.llm.offline.keyword_matching import FITS, Described, Matcher, stems
from pointsman.llm.offline.words import OFFLINE_NOTE, short, spoken, spoken_key, strings, without_note
from pointsman.llm.prompt import TaskPrompt, read_not_allowed
from pointsman.ports.model import ModelReply, ModelRequest, ToolCall, ToolSpec
from pointsman_schemas.events import Usage
from pointsman_schemas.strict_json import compact_json

__all__ = ["reply", "work"]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What one tool call came to."""

    tool: str
    text: str
    is_error: bool

    @property
    def data(self) -> JsonValue:
        return None if self.is_error else strict_json(self.text)

    @property
    def not_allowed(self) -> str | None:
        return read_not_allowed(self.text) if self.is_error else None

    @property
    def spoken(self) -> str:
        if (no := self.not_allowed) is not None:
            return f"The use of {self.tool} {short(no).rstrip('.')}."
        if self.is_error:
            return f"The tool {self.tool} failed: {short(self.text.removeprefix(f'{self.tool} failed: '))}"
        return spoken(self.data if self.data is not None else self.text)


def work(request: ModelRequest, task: TaskPrompt) -> ModelReply:
    """The next turn of a worker: calls of the tools that the task speaks of, or what came of those that were called."""
    outcomes = tuple(_outcomes(request))
    data = [
        value
        for value in (
            task.input,
            *(outcome.data for outcome in outcomes),
            *(report.get("output") for report in task.results),
        )
        if isinstance(value, dict | list)
    ]
    words = [task.task, *strings(task.input)]
    sources = Sources(words, data)
    calls = _calls(request.tools, task.task, {outcome.tool for outcome in outcomes}, sources)
    if calls:
        return reply(
            calls=tuple(
                ToolCall(f"call_{len(outcomes) + number}", name, compact_json(found).decode())
                for number, (name, found) in enumerate(calls.items(), 1)
            )
        )
    answer, undone = _answer(outcomes, task), _undone(request.tools, task, outcomes, sources)
    if request.output_schema is not None:
        return _typed(request.output_schema, request.tools, task, outcomes, sources, undone)
    found = any(not outcome.is_error for outcome in outcomes)
    if undone and not found and any(outcome.not_allowed is None for outcome in outcomes):
        return reply(text=undone, finish="refusal")
    told = " ".join(filter(None, (_unmet(request.tools, task, outcomes), answer)))
    return reply(text=f"{told if found or not undone else _could_not(task, undone)}\n{OFFLINE_NOTE}")


def _typed(
    schema: Mapping[str, JsonValue],
    tools: Sequence[ToolSpec],
    task: TaskPrompt,
    outcomes: Sequence[_Outcome],
    sources: Sources,
    undone: str,
) -> ModelReply:
    """An object of `schema`, or a refusal where the tools did not do what was asked: an object cannot say so."""
    failures = [outcome.spoken for outcome in outcomes if outcome.is_error]
    if undone and tools and (failures or not _whole(schema, sources)):
        return reply(text=undone, finish="refusal")
    answer, given = _answer(outcomes, task) or _could_not(task, undone), strings(task.input)
    # where nothing was found out, an output is made of what is given
    said = [answer, *sources.texts] if outcomes or task.results or not given else [*given, task.task]
    filled = _filled(schema, Sources(said, sources.data))
    if (key := spoken_key(filled)) and (hidden := [each for each in failures if each not in str(filled[key])]):
        filled[key] = " ".join([str(filled[key]), *hidden])
    return reply(data=filled, text=answer)


def _calls(tools: Sequence[ToolSpec], text: str, used: set[str], sources: Sources) -> dict[str, dict[str, JsonValue]]:
    """The tools to use now, by name, with their arguments.

    Those that `text` asks for, as far as their arguments are known. When none are, a tool that speaks of what is
    missing: `find_charges` may tell the `charge_id` that the wanted tool needs.
    """
    matcher = _menu(tools)
    wanted = _wanted(tools, matcher, text)
    callable_now = {
        tool.name: found
        for tool in tools
        if tool.name not in used and (found := arguments(tool.parameters, sources)) is not None
    }
    ready = {name: found for name, found in callable_now.items() if name in wanted}
    if ready or wanted <= used:
        return ready
    lacking = (name for tool in tools if tool.name in wanted - used for name in required_of(tool.parameters))
    scores = matcher.scores(" ".join(sorted(lacking)).replace("_", " "))
    helper = next((name for name, score in scores.items() if name in callable_now and score > 0), None)
    return {helper: callable_now[helper]} if helper else {}


def _menu(tools: Sequence[ToolSpec]) -> Matcher:
    return Matcher([Described(tool.name, tool.name, f"{tool.description} {' '.join(_hints(tool))}") for tool in tools])


def _wanted(tools: Sequence[ToolSpec], matcher: Matcher, text: str) -> set[str]:
    return {tools[0].name} if len(tools) == 1 else set(matcher.cover(text, FITS))


def _hints(tool: ToolSpec) -> Iterator[str]:
    properties = tool.parameters.get("properties")
    for name in properties if isinstance(properties, dict) else ():
        yield name.replace("_", " ")


def _outcomes(request: ModelRequest) -> Iterator[_Outcome]:
    names = {call.id: call.name for turn in request.turns for call in turn.calls}
    for turn in request.turns:
        if turn.role == "tool":
            yield _Outcome(names.get(turn.call_id, "?"), turn.text, turn.is_error)


def _answer(outcomes: Sequence[_Outcome], task: TaskPrompt) -> str:
    """What was found out, in words; nothing when nothing was."""
    said = [outcome.spoken for outcome in outcomes] or [
        spoken(report.get("output")) for report in task.results if report.get("output") is not None
    ]
    return " ".join(dict.fromkeys(without_note(text) for text in said if text))


def _undone(tools: Sequence[ToolSpec], task: TaskPrompt, outcomes: Sequence[_Outcome], sources: Sources) -> str:
    """Why nothing of what was asked for is done; empty when something is, or other tasks found what there is to say."""
    wanted = _wanted(tools, _menu(tools), task.task)
    if wanted & {outcome.tool for outcome in outcomes if not outcome.is_error}:
        return ""
    if not wanted and _answer(outcomes, task):
        return ""
    unusable = [
        f"cannot use {tool.name} without {' and '.join(missing(tool.parameters, sources))}"
        for tool in tools
        if tool.name in wanted - {outcome.tool for outcome in outcomes}
    ]
    failures = [outcome.spoken for outcome in outcomes if outcome.is_error]
    if failures and not unusable:
        return " ".join(failures)
    lack = ", ".join(unusable) or ("found no tool that fits" if tools else "has no tools")
    return " ".join([*failures, f"The offline model {lack}, and cannot answer from knowledge."])


def _unmet(tools: Sequence[ToolSpec], task: TaskPrompt, outcomes: Sequence[_Outcome]) -> str:
    """What is asked and neither a tool nor a result speaks of, where that is half of it or more; else empty."""
    if not outcomes:
        return ""
    said = [f"{tool.name} {tool.description} {' '.join(_hints(tool))}" for tool in tools]
    said += [outcome.text for outcome in outcomes] + [text for report in task.results for text in strings(dict(report))]
    known, asked = {*stems(" ".join(said).replace("_", " "))}, stems(task.task)
    unmet = [stem for stem in asked if stem not in known]
    if not unmet or 2 * len(unmet) < len(asked):
        return ""
    words = {stem: word for word in re.findall(r"[\w']+", task.task) for stem in stems(word)}
    shown = ", ".join(dict.fromkeys(repr(words.get(stem, stem)) for stem in unmet))
    return f"This may not be what was asked, as nothing here speaks of {shown}."


def _could_not(task: TaskPrompt, why: str) -> str:
    return f"I could not do this: {short(task.task)!r}. {why}"


def _whole(schema: Mapping[str, JsonValue], sources: Sources) -> bool:
    """Whether what is known, and not only what is asked, has every field of `schema`."""
    properties, found = schema.get("properties"), arguments(schema, Sources((), sources.data))
    return isinstance(properties, dict) and found is not None and properties.keys() == found.keys()


def _filled(schema: Mapping[str, JsonValue], sources: Sources) -> dict[str, JsonValue]:
    """An object of `schema` out of what is known. A list nobody filled is empty; any other gap stays one."""
    filled = arguments({**schema, "required": []}, sources) or {}
    properties = schema.get("properties")
    for name, described in properties.items() if isinstance(properties, dict) else ():
        required = schema.get("required")
        if name in filled or not isinstance(required, list) or name not in required or not isinstance(described, dict):
            continue
        if described.get("type") == "string" and "pattern" not in described and "enum" not in described:
            filled[name] = sources.texts[0]
        elif described.get("type") == "array":
            filled[name] = []
    return filled


def reply(
    *, text: str = "", calls: tuple[ToolCall, ...] = (), data: JsonValue = None, finish: str = "stop"
) -> ModelReply:
    """Tokens are not counted: there are none."""
    if data is not None:
        text = compact_json(data).decode()
    return ModelReply(
        text=text,
        calls=calls,
        data=data,
        usage=Usage(calls=1),
        finish="tool_calls" if calls else finish,
        model="offline",
        id="offline",
    )
