"""A model without a network: it matches words, fills in arguments, quotes results, and says that it is no language
model.

It reads what it is asked from the request alone: the name of the wanted output (`plan`, `selection`, `synthesis`), the
data in the first turn, the tools on offer and what they returned. The same request always gets the same reply.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue, ValidationError

from pointsman.llm.extraction import Sources, arguments, required_of
from pointsman.llm.matching import Described, Matcher, clauses, stems
from pointsman.llm.prompt import TaskPrompt, read_task
from pointsman.llm.reading import strict_json
from pointsman.ports import ModelReply, ModelRequest, ToolCall, ToolSpec
from pointsman_schemas.events import Conflict, TaskReport, Usage
from pointsman_schemas.plan import Plan, PlannedTask, SelectedAgent, Selection
from pointsman_schemas.roles import (
    ClassifierInput,
    JudgeInput,
    MenuItem,
    PlannerInput,
    Refinement,
    RefinerInput,
    RequestInput,
    Ruling,
    Synthesis,
    SynthesizerInput,
)
from pointsman_schemas.strict_json import as_json_value, compact

__all__ = ["OFFLINE_NOTE", "OfflineModel"]

OFFLINE_NOTE = "(Written by the offline model: put together from the results, no language model was called.)"

_FITS = 0.2
"""Share of a clause's meaning that an agent or a tool must have in its description: one word of five."""
_SURE = 0.5
"""Share from which a classifier is sure: people say more than the point, so half of it is as good as all."""
_SUREST = 0.95
"""A matcher of words is never certain."""
_MEANS_SOMETHING = 2  # stems from which a clause that nobody serves is reported rather than taken for a courtesy
_FRAGMENT = 4  # words below which a clause that nobody serves belongs to the one before it: "errors and timeouts"

_TELL = "Tell the caller that "
_SPOKEN_KEYS = ("summary", "answer", "message", "text", "result", "output")
_THEN = re.compile(r"\b(?:then|after that|afterwards|finally|based on (?:that|this|it))\W*$", re.IGNORECASE)


class OfflineModel:
    """Plans and classifies by the agents' cards, works by the tools' descriptions, answers with what they returned."""

    provider = "offline"
    name = "offline"
    account = ""

    async def complete(self, request: ModelRequest) -> ModelReply:
        task = read_task(next((turn.text for turn in request.turns if turn.role == "user"), ""))
        if request.output_schema is not None and (role := _ROLES.get(request.output_name)) is not None:
            try:
                return _reply(data=as_json_value(role(task)))
            except ValidationError:
                pass  # a schema of somebody else's that bears the name of one of ours: plain work
        return _work(request, task)

    async def close(self) -> None:
        return None


# Planning


def _plan(task: TaskPrompt) -> Plan:
    asked = PlannerInput.model_validate(task.input)
    plan = _whole_plan(asked)
    return _next_step(plan, asked) if asked.adaptive else plan


def _whole_plan(asked: PlannerInput) -> Plan:
    matcher = _menu(asked.agents)
    text = _wanted(asked.request, matcher)
    if asked.problems:
        return Plan(
            goal=text,
            cannot="the offline planner has no other plan than the one that was refused: "
            + "; ".join(asked.problems[:3]),
        )
    menu = {item.name: item for item in asked.agents}
    shares: dict[str, list[str]] = {}
    unserved: list[str] = []
    last = ""
    for clause in _parts(text, matcher):
        earlier = [report for report in asked.results if clause in report.intent]
        if any(report.status == "succeeded" for report in earlier):
            continue
        tried = {report.agent for report in earlier}
        if best := _best(matcher, clause, without=tried):
            shares.setdefault(best, []).append(clause)
            last = best
        elif last and stems(clause) and len(clause.split()) < _FRAGMENT:
            shares[last].append(clause)
        elif len(stems(clause)) >= _MEANS_SOMETHING:
            unserved.append(clause)
    if (asked.adaptive or not shares) and (best := _suggested(matcher, asked)):
        shares, unserved = {best: [asked.replan_reason], **{name: shares[name] for name in shares if name != best}}, []
    needs = _needs(asked.instructions, tuple(menu))
    done = {report.agent: report.task_id for report in asked.results if report.status == "succeeded"}
    shares = _with_needs(shares, needs, done)
    unserved += [clause for agent in list(shares)[asked.max_tasks :] for clause in shares.pop(agent)]
    instruction = "Answer every part of the request."
    if unserved:
        instruction = f"{_TELL}nobody here can help with: " + "; ".join(f'"{clause}"' for clause in unserved) + "."
    if not shares:
        cannot = _nobody(text, asked.agents, done=bool(asked.results))
        return Plan(goal=text, cannot=cannot, final_instruction=instruction)
    first = _next_number(asked.results)
    ids = done | {agent: f"t{number}" for number, agent in enumerate(shares, first)}
    tasks: list[PlannedTask] = []
    for agent, parts in shares.items():
        after = {ids[need] for need in needs.get(agent, ()) if need in ids}
        if tasks and _THEN.search(text[: text.find(parts[0])]):
            after.add(tasks[-1].id)
        tasks.append(
            PlannedTask(
                id=ids[agent],
                agent=agent,
                intent="; ".join(parts),
                input=_input(menu[agent], parts, text, asked),
                depends_on=tuple(sorted(after)),
            )
        )
    return Plan(goal=text, tasks=tuple(tasks), final_instruction=instruction)


def _parts(text: str, matcher: Matcher) -> Iterator[str]:
    """The clauses of `text`. One that asks two agents, "a page with pictures", is parted at its `with`."""
    for clause in clauses(text):
        halves = clause.split(" with ")
        best = {_best(matcher, half, without=set()) for half in halves}
        yield from halves if len(best) == len(halves) and None not in best else (clause,)


def _needs(instructions: str, agents: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Whose results an agent needs, where the team's owner says so in as many words: "writing needs research"."""
    found: dict[str, tuple[str, ...]] = {}
    for sentence in re.split(r"[.;\n]", instructions.lower()):
        left, _, right = sentence.partition(" needs ")
        who, whom = (re.findall(r"[a-z0-9_-]+", part) for part in (left, right))
        for agent in agents:
            if agent.lower() in who:
                found[agent] = (*found.get(agent, ()), *(each for each in agents if each.lower() in whom))
    return found


def _with_needs(
    shares: Mapping[str, list[str]], needs: Mapping[str, tuple[str, ...]], done: Mapping[str, str]
) -> dict[str, list[str]]:
    """`shares` in an order in which each comes after whom it needs; who was not asked for gets the same part."""
    ordered: dict[str, list[str]] = {}

    def add(agent: str, parts: list[str], waiting: tuple[str, ...]) -> None:
        for need in needs.get(agent, ()):
            if need not in done and need not in waiting:
                add(need, shares.get(need, parts), (*waiting, agent))
        ordered.setdefault(agent, parts)

    for agent, parts in shares.items():
        add(agent, parts, (agent,))
    return ordered


def _next_step(plan: Plan, asked: PlannerInput) -> Plan:
    """The first of the plan's tasks, knowing all that was done; without any, the work is done."""
    done = tuple(report.task_id for report in asked.results if report.status == "succeeded")
    if plan.tasks:
        return plan.model_copy(update={"tasks": (plan.tasks[0].model_copy(update={"depends_on": done}),)})
    return plan.model_copy(update={"done": True, "cannot": ""}) if done else plan


def _suggested(matcher: Matcher, asked: PlannerInput) -> str | None:
    """Who fits best what a result suggests, of those who were not asked yet."""
    used = {*asked.agents_used, *(report.agent for report in asked.results)}
    return _best(matcher, asked.replan_reason, without=used) if asked.results and asked.replan_reason else None


def _refine(task: TaskPrompt) -> Refinement:
    """The same task, with what went wrong beside it."""
    asked = RefinerInput.model_validate(task.input)
    return Refinement(
        intent=f"{asked.intent} (It failed {asked.attempts} times, last with: {asked.error}. Avoid that.)"
    )


def _judge(task: TaskPrompt) -> Ruling:
    """What most results say; of as many for each, what was said first."""
    asked = JudgeInput.model_validate(task.input)
    decided: list[Conflict] = []
    for conflict in asked.disagreements:
        field, _, rest = conflict.partition(": ")
        said = [what for part in rest.split("; ") if (what := part.partition(" says ")[2])] or [rest]
        (most, votes), *_ = Counter(said).most_common(1)
        even = sum(1 for count in Counter(said).values() if count == votes) > 1
        reason = "as many say something else, and it was said first" if even else f"{votes} of {len(said)} say so"
        decided.append(Conflict(what=conflict, decision=f"{field}: {most}", reason=reason))
    return Ruling(decisions=tuple(decided))


def _menu(agents: Sequence[MenuItem]) -> Matcher:
    return Matcher(
        [
            Described(
                item.name,
                " ".join((item.name, *item.skills, *item.intents)),
                " ".join((item.description, *item.examples)),
            )
            for item in agents
        ]
    )


def _best(matcher: Matcher, text: str, *, without: set[str]) -> str | None:
    return next((name for name, score in matcher.scores(text).items() if score >= _FITS and name not in without), None)


def _input(item: MenuItem, parts: Sequence[str], text: str, asked: PlannerInput) -> JsonValue:
    """What the agent's input schema asks for, as far as it can be found; else the whole request and its metadata."""
    request: JsonValue = asked.request if isinstance(asked.request, dict) else None
    if item.input_schema.get("properties"):
        sources = Sources(["; ".join(parts), text], [data for data in (request, asked.metadata) if data])
        if (found := arguments(item.input_schema, sources)) is not None:
            return found
    if item.input_schema.get("type") == "string":
        return "; ".join(parts)
    return {**asked.metadata, "request": asked.request}


def _nobody(text: str, agents: Sequence[MenuItem], *, done: bool) -> str:
    if not agents:
        return "no agent is running that could take a task; start one and send the request again"
    topics = "; ".join(f"{item.name}: {item.description.rstrip('.')}" for item in agents[:10])
    nobody = "no other agent here" if done else "no agent here"
    known = "as far as the offline model can tell from their descriptions"
    return f"{nobody} can help with {_short(text)!r}, {known} ({topics})"


def _next_number(results: Sequence[TaskReport]) -> int:
    numbered = (report.task_id for report in results if re.fullmatch(r"t\d{1,6}", report.task_id))
    return 1 + max((int(task_id[1:]) for task_id in numbered), default=0)


# Classifying


def _selection(task: TaskPrompt) -> Selection:
    asked = ClassifierInput.model_validate(task.input)
    matcher = _menu(asked.agents)
    found: dict[str, tuple[float, list[str]]] = {}
    for clause in clauses(_wanted(asked.request, matcher)):
        scores = matcher.scores(clause)
        whole = sum(scores.values())
        for name, score in scores.items():
            if score < _FITS:
                continue
            confidence = round(min(_SUREST, score / _SURE) * score / whole, 2)
            best, parts = found.get(name, (0.0, []))
            found[name] = (max(best, confidence), [*parts, clause] if confidence >= asked.threshold else parts)
    surest = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
    question = "" if surest and surest[0][1][0] >= asked.threshold else _question(asked.agents)
    return Selection(
        question=question,
        agents=tuple(
            SelectedAgent(agent=name, confidence=confidence, intent="; ".join(parts))
            for name, (confidence, parts) in surest
        ),
    )


def _question(agents: Sequence[MenuItem]) -> str:
    topics = "; ".join(item.description.rstrip(".") for item in agents[:10])
    return f"Could you say more about what you need? This can be asked here: {topics}."


# Working


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
    def spoken(self) -> str:
        if self.is_error:
            return f"The tool {self.tool} failed: {_short(self.text)}"
        return _spoken(self.data if self.data is not None else self.text)


def _work(request: ModelRequest, task: TaskPrompt) -> ModelReply:
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
    words = [task.task, *_strings(task.input)]
    calls = _calls(request.tools, task.task, {outcome.tool for outcome in outcomes}, Sources(words, data))
    if calls:
        return _reply(
            calls=tuple(
                ToolCall(f"call_{len(outcomes) + number}", name, compact(found).decode())
                for number, (name, found) in enumerate(calls.items(), 1)
            )
        )
    answer = _answer(outcomes, task, bool(request.tools))
    if request.output_schema is not None:
        asked = _strings(task.input)  # where nothing was found out, an output is made of what is given
        said = [answer, *words] if outcomes or task.results or not asked else [*asked, task.task]
        return _reply(data=_filled(request.output_schema, Sources(said, data)), text=answer)
    return _reply(text=f"{answer}\n{OFFLINE_NOTE}")


def _calls(tools: Sequence[ToolSpec], text: str, used: set[str], sources: Sources) -> dict[str, dict[str, JsonValue]]:
    """The tools to use now, by name, with their arguments.

    Those that `text` asks for, as far as their arguments are known. When none are, a tool that speaks of what is
    missing: `find_charges` may tell the `charge_id` that the wanted tool needs.
    """
    matcher = Matcher(
        [Described(tool.name, tool.name, f"{tool.description} {' '.join(_hints(tool))}") for tool in tools]
    )
    wanted = {tools[0].name} if len(tools) == 1 else set(matcher.cover(text, _FITS))
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


def _hints(tool: ToolSpec) -> Iterator[str]:
    properties = tool.parameters.get("properties")
    for name in properties if isinstance(properties, dict) else ():
        yield name.replace("_", " ")


def _outcomes(request: ModelRequest) -> Iterator[_Outcome]:
    names = {call.id: call.name for turn in request.turns for call in turn.calls}
    for turn in request.turns:
        if turn.role == "tool":
            yield _Outcome(names.get(turn.call_id, "?"), turn.text, turn.is_error)


def _answer(outcomes: Sequence[_Outcome], task: TaskPrompt, had_tools: bool) -> str:
    said = [outcome.spoken for outcome in outcomes] or [
        _spoken(report.get("output")) for report in task.results if report.get("output") is not None
    ]
    if said:
        return " ".join(dict.fromkeys(_without_note(text) for text in said if text))
    lack = "found no tool that fits, or not all it needs to use one" if had_tools else "has no tools"
    return f"I could not do this: {_short(task.task)!r}. The offline model {lack}, and cannot answer from knowledge."


def _filled(schema: Mapping[str, JsonValue], sources: Sources) -> JsonValue:
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


# Answering


def _synthesis(task: TaskPrompt) -> Synthesis:
    asked = SynthesizerInput.model_validate(task.input)
    intents = {str(report.get("task_id")): str(report.get("intent")) for report in task.results}
    paragraphs = [
        _without_note(_spoken(report.get("output")))
        for report in task.results
        if report.get("status") == "succeeded" and report.get("output") is not None
    ]
    told = asked.final_instruction.removeprefix(_TELL) if asked.final_instruction.startswith(_TELL) else ""
    if not paragraphs:
        paragraphs = [f"I could not help with this request: {_short(_text(asked.request))!r}."]
    paragraphs += [
        f"This could not be done: {intents.get(gap.task_id, gap.task_id)}. The reason: {gap.reason.rstrip('.')}."
        for gap in asked.gaps
    ]
    if asked.disagreements:
        paragraphs.append(f"They disagree. {'. '.join(asked.disagreements)}.")
    if told:
        paragraphs.append(told[0].upper() + told[1:])
    if asked.limit:
        paragraphs.append(f"The reason it ended here: {asked.limit.rstrip('.')}.")
    return Synthesis(answer="\n\n".join([*paragraphs, OFFLINE_NOTE]))


_ROLES = {"plan": _plan, "selection": _selection, "synthesis": _synthesis, "refinement": _refine, "ruling": _judge}


# Words


def _reply(*, text: str = "", calls: tuple[ToolCall, ...] = (), data: JsonValue = None) -> ModelReply:
    """Tokens are not counted: there are none."""
    if data is not None:
        text = compact(data).decode()
    return ModelReply(
        text=text,
        calls=calls,
        data=data,
        usage=Usage(calls=1),
        finish="tool_calls" if calls else "stop",
        model="offline",
        id="offline",
    )


def _wanted(request: RequestInput, matcher: Matcher) -> str:
    """What is asked. A team that is handed a task has its part in the intent, beside the whole of the request."""
    if isinstance(request, dict) and isinstance(intent := request.get("intent"), str):
        if any(_best(matcher, clause, without=set()) for clause in clauses(intent)):
            return intent
        request = {name: value for name, value in request.items() if name != "intent"} or request
    return _text(request)


def _text(request: RequestInput) -> str:
    return request if isinstance(request, str) else ". ".join(_strings(request))


def _strings(value: JsonValue) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for part in value.values() for text in _strings(part)]
        case list():
            return [text for part in value for text in _strings(part)]
    return []


def _spoken(value: JsonValue) -> str:
    """`value` in words: the sentence a tool or an agent gave along, or else its keys and values."""
    match value:
        case None:
            return ""
        case str():
            return value.strip()
        case dict():
            for key in _SPOKEN_KEYS:
                if isinstance(text := value.get(key), str) and text.strip():
                    return text.strip()
            return "; ".join(f"{key.replace('_', ' ')}: {_spoken(part)}" for key, part in value.items())
        case list():
            return ", ".join(_spoken(part) for part in value) or "none"
        case bool():
            return "yes" if value else "no"
    return str(value)


def _without_note(text: str) -> str:
    return text.replace(OFFLINE_NOTE, "").strip()


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 200 else text[:200] + "..."
