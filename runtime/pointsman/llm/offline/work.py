"""Do a task without a language model: call the tools that match its words, and make an answer from the results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from pointsman.llm.json_extraction import parse_strict_json
from pointsman.llm.offline.arguments import Sources, extract_arguments, missing_arguments, required_properties
from pointsman.llm.offline.keyword_matching import MATCH_THRESHOLD, MatchEntry, Matcher, stems
from pointsman.llm.offline.words import OFFLINE_NOTE, as_text, shorten, strings, text_key, without_note
from pointsman.llm.prompt import TaskPrompt, parse_not_allowed
from pointsman.ports.model import ModelReply, ModelRequest, ToolCall, ToolSpec
from pointsman_schemas.events import Usage
from pointsman_schemas.strict_json import compact_json

__all__ = ["reply", "work"]


@dataclass(frozen=True, slots=True)
class _CallResult:
    """The result of one tool call."""

    tool: str
    text: str
    is_error: bool

    @property
    def data(self) -> JsonValue:
        return None if self.is_error else parse_strict_json(self.text)

    @property
    def is_not_allowed(self) -> str | None:
        return parse_not_allowed(self.text) if self.is_error else None

    @property
    def as_text(self) -> str:
        if (no := self.is_not_allowed) is not None:
            return f"The use of {self.tool} {shorten(no).rstrip('.')}."
        if self.is_error:
            return f"The tool {self.tool} failed: {shorten(self.text.removeprefix(f'{self.tool} failed: '))}"
        return as_text(self.data if self.data is not None else self.text)


def work(request: ModelRequest, task: TaskPrompt) -> ModelReply:
    """Return the next turn of a worker: calls of the tools that the task requests, or an answer with their results."""
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
    calls = _next_calls(request.tools, task.task, {outcome.tool for outcome in outcomes}, sources)
    if calls:
        return reply(
            calls=tuple(
                ToolCall(f"call_{len(outcomes) + number}", name, compact_json(found).decode())
                for number, (name, found) in enumerate(calls.items(), 1)
            )
        )
    answer, undone = _answer(outcomes, task), _incomplete_reason(request.tools, task, outcomes, sources)
    if request.output_schema is not None:
        return _structured_answer(request.output_schema, request.tools, task, outcomes, sources, undone)
    found = any(not outcome.is_error for outcome in outcomes)
    if undone and not found and any(outcome.is_not_allowed is None for outcome in outcomes):
        return reply(text=undone, finish="refusal")
    told = " ".join(filter(None, (_unmatched_text(request.tools, task, outcomes), answer)))
    return reply(text=f"{told if found or not undone else _refusal(task, undone)}\n{OFFLINE_NOTE}")


def _structured_answer(
    schema: Mapping[str, JsonValue],
    tools: Sequence[ToolSpec],
    task: TaskPrompt,
    outcomes: Sequence[_CallResult],
    sources: Sources,
    undone: str,
) -> ModelReply:
    """Return an object that follows the schema.

    If the tools failed, and the object would not show this, return a refusal instead.
    """
    failures = [outcome.as_text for outcome in outcomes if outcome.is_error]
    if undone and tools and (failures or not _has_all_fields(schema, sources)):
        return reply(text=undone, finish="refusal")
    answer, given = _answer(outcomes, task) or _refusal(task, undone), strings(task.input)
    # Without results, the given data comes before the task's text as the source of the fields.
    said = [answer, *sources.texts] if outcomes or task.results or not given else [*given, task.task]
    filled = _fill_schema(schema, Sources(said, sources.data))
    if (key := text_key(filled)) and (hidden := [each for each in failures if each not in str(filled[key])]):
        filled[key] = " ".join([str(filled[key]), *hidden])
    return reply(data=filled, text=answer)


def _next_calls(
    tools: Sequence[ToolSpec], text: str, used: set[str], sources: Sources
) -> dict[str, dict[str, JsonValue]]:
    """Return the tools to call now, by name, with their arguments.

    Returns:
        The tools that the text requests and whose arguments are known. If there is no such tool, one tool whose
        description contains the names of the missing arguments. For example, `find_charges` could return the
        `charge_id` that the requested tool needs.
    """
    matcher = _tool_matcher(tools)
    wanted = _requested_tools(tools, matcher, text)
    callable_now = {
        tool.name: found
        for tool in tools
        if tool.name not in used and (found := extract_arguments(tool.parameters, sources)) is not None
    }
    ready = {name: found for name, found in callable_now.items() if name in wanted}
    if ready or wanted <= used:
        return ready
    lacking = (name for tool in tools if tool.name in wanted - used for name in required_properties(tool.parameters))
    scores = matcher.scores(" ".join(sorted(lacking)).replace("_", " "))
    helper = next((name for name, score in scores.items() if name in callable_now and score > 0), None)
    return {helper: callable_now[helper]} if helper else {}


def _tool_matcher(tools: Sequence[ToolSpec]) -> Matcher:
    return Matcher(
        [MatchEntry(tool.name, tool.name, f"{tool.description} {' '.join(_tool_hints(tool))}") for tool in tools]
    )


def _requested_tools(tools: Sequence[ToolSpec], matcher: Matcher, text: str) -> set[str]:
    return {tools[0].name} if len(tools) == 1 else set(matcher.cover(text, MATCH_THRESHOLD))


def _tool_hints(tool: ToolSpec) -> Iterator[str]:
    properties = tool.parameters.get("properties")
    for name in properties if isinstance(properties, dict) else ():
        yield name.replace("_", " ")


def _outcomes(request: ModelRequest) -> Iterator[_CallResult]:
    names = {call.id: call.name for turn in request.turns for call in turn.calls}
    for turn in request.turns:
        if turn.role == "tool":
            yield _CallResult(names.get(turn.call_id, "?"), turn.text, turn.is_error)


def _answer(outcomes: Sequence[_CallResult], task: TaskPrompt) -> str:
    """Return the results of the tools as text; without such results, the results of other tasks."""
    said = [outcome.as_text for outcome in outcomes] or [
        as_text(report.get("output")) for report in task.results if report.get("output") is not None
    ]
    return " ".join(dict.fromkeys(without_note(text) for text in said if text))


def _incomplete_reason(
    tools: Sequence[ToolSpec], task: TaskPrompt, outcomes: Sequence[_CallResult], sources: Sources
) -> str:
    """Return the reason why no part of the task is done; empty if a part is done.

    A part is done if a requested tool has returned a result, or if no tool is requested and other results have text.
    """
    wanted = _requested_tools(tools, _tool_matcher(tools), task.task)
    if wanted & {outcome.tool for outcome in outcomes if not outcome.is_error}:
        return ""
    if not wanted and _answer(outcomes, task):
        return ""
    unusable = [
        f"cannot use {tool.name} without {' and '.join(missing_arguments(tool.parameters, sources))}"
        for tool in tools
        if tool.name in wanted - {outcome.tool for outcome in outcomes}
    ]
    failures = [outcome.as_text for outcome in outcomes if outcome.is_error]
    if failures and not unusable:
        return " ".join(failures)
    lack = ", ".join(unusable) or ("found no tool that fits" if tools else "has no tools")
    return " ".join([*failures, f"The offline model {lack}, and cannot answer from knowledge."])


def _unmatched_text(tools: Sequence[ToolSpec], task: TaskPrompt, outcomes: Sequence[_CallResult]) -> str:
    """Return a note if at least half of the task's words are neither in a tool nor in a result; else an empty text."""
    if not outcomes:
        return ""
    said = [f"{tool.name} {tool.description} {' '.join(_tool_hints(tool))}" for tool in tools]
    said += [outcome.text for outcome in outcomes] + [text for report in task.results for text in strings(dict(report))]
    known, asked = {*stems(" ".join(said).replace("_", " "))}, stems(task.task)
    unmet = [stem for stem in asked if stem not in known]
    if not unmet or 2 * len(unmet) < len(asked):
        return ""
    words = {stem: word for word in re.findall(r"[\w']+", task.task) for stem in stems(word)}
    shown = ", ".join(dict.fromkeys(repr(words.get(stem, stem)) for stem in unmet))
    return f"This may not be what was asked, as nothing here speaks of {shown}."


def _refusal(task: TaskPrompt, why: str) -> str:
    return f"I could not do this: {shorten(task.task)!r}. {why}"


def _has_all_fields(schema: Mapping[str, JsonValue], sources: Sources) -> bool:
    """Return True if the data alone, without the text of the task, has every field of the schema."""
    properties, found = schema.get("properties"), extract_arguments(schema, Sources((), sources.data))
    return isinstance(properties, dict) and found is not None and properties.keys() == found.keys()


def _fill_schema(schema: Mapping[str, JsonValue], sources: Sources) -> dict[str, JsonValue]:
    """Return an object by the schema, with the values from the sources.

    A missing required text becomes the first text of the sources, unless its schema has a pattern or an enum. A missing
    required list becomes an empty list. Other missing fields stay missing.
    """
    filled = extract_arguments({**schema, "required": []}, sources) or {}
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
    """Return a reply. The offline model uses no tokens."""
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
