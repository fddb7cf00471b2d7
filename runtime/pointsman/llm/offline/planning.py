"""Plan and classify without a language model: match each part of a request with the words of the agents' cards."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final

from pydantic import JsonValue

from pointsman.llm.offline.arguments import Sources, extract_arguments
from pointsman.llm.offline.keyword_matching import MATCH_THRESHOLD, MatchEntry, Matcher, clauses, stems
from pointsman.llm.offline.words import request_as_text, shorten
from pointsman.llm.prompt import TaskPrompt
from pointsman_schemas.events import TaskReport
from pointsman_schemas.plan import Plan, PlannedTask, SelectedAgent, Selection
from pointsman_schemas.role_io import AvailableAgent, ClassifierInput, PlannerInput, RequestInput

__all__ = ["TELL_CALLER_PREFIX", "plan", "selection"]

TELL_CALLER_PREFIX: Final = "Tell the caller that "
"""The beginning of a plan's final instruction, if the instruction names parts of the request that have no task."""

_MIN_CONFIDENCE = 0.5
"""A clause with this score or more gets full confidence, because people also write words that no card contains."""
_MAX_CONFIDENCE = 0.95
"""Largest confidence, below 1 because a match of words is never certain."""
# A clause that matches no agent is reported only if it has at least this number of stems, because a shorter clause is
# most often a courtesy.
_MIN_MEANINGFUL_STEMS = 2
# A clause that matches no agent and has fewer words is added to the clause before. An example is "timeouts" in "errors
# and timeouts".
_MIN_CLAUSE_WORDS = 4
# Largest number of quoted characters of the request. It is bounded, because each task repeats the quotation, and the
# log stores each task.
_MAX_QUOTED_CHARS = 1_000
_ELLIPSIS = "; ..."

_THEN_PATTERN = re.compile(r"\b(?:then|after that|afterwards|finally|based on (?:that|this|it))\W*$", re.IGNORECASE)


# Planning


def plan(task: TaskPrompt) -> Plan:
    """Return the answer of a planner: a plan with all tasks or, for an adaptive team, with the next task.

    Args:
        task: The prompt.

    Raises:
        ValidationError: The input is not valid for a planner.
    """
    asked = PlannerInput.model_validate(task.input)
    whole = _whole_plan(asked)
    return _next_task(whole, asked) if asked.adaptive else whole


def _whole_plan(asked: PlannerInput) -> Plan:
    matcher = _build_matcher(asked.agents)
    text = _request_text(asked.request, matcher)
    if asked.problems:
        return Plan(
            goal=shorten(text),
            cannot="the offline planner has no other plan than the one that was refused: "
            + "; ".join(asked.problems[:3]),
        )
    shares: dict[str, list[str]] = {}
    unserved: list[str] = []
    last = ""
    for clause in _parts(text, matcher):
        earlier = [report for report in asked.results if _covers(report, clause, matcher)]
        if any(report.status == "succeeded" for report in earlier):
            continue
        tried = {report.agent for report in earlier}
        if best := _best_match(matcher, clause, without=tried):
            shares.setdefault(best, []).append(clause)
            last = best
        elif last and stems(clause) and len(clause.split()) < _MIN_CLAUSE_WORDS:
            shares[last].append(clause)
        elif len(stems(clause)) >= _MIN_MEANINGFUL_STEMS:
            unserved.append(clause)
    if (asked.adaptive or not shares) and (best := _best_replan_match(matcher, asked)):
        shares, unserved = {best: [asked.replan_reason], **{name: shares[name] for name in shares if name != best}}, []
    tasks, left = _tasks(shares, text, asked)
    notes = [f"no agent here can help with: {_quote(unserved)}"] if unserved else []
    if left:
        notes.append(f"this needs a request of its own, as one has at most {asked.max_tasks} tasks: {_quote(left)}")
    instruction = f"{TELL_CALLER_PREFIX}{'; '.join(notes)}." if notes else "Answer every part of the request."
    cannot = "" if tasks else _no_match_reason(text, asked.agents, done=bool(asked.results))
    return Plan(goal=shorten(text), tasks=tuple(tasks), cannot=cannot, final_instruction=instruction)


def _tasks(shares: Mapping[str, list[str]], text: str, asked: PlannerInput) -> tuple[list[PlannedTask], list[str]]:
    """Return the tasks for the parts that each agent gets, and the parts for which the plan has no room."""
    menu = {item.name: item for item in asked.agents}
    needs, apart = _dependencies(asked.instructions, tuple(menu)), _split_agents(asked.instructions, tuple(menu))
    ids: dict[str, list[str]] = {}
    for report in asked.results:
        if report.status == "succeeded":
            ids.setdefault(report.agent, []).append(report.task_id)
    shares = _order_by_dependencies(shares, needs, ids)
    split = [
        (agent, share)
        for agent, parts in shares.items()
        for share in ([[part] for part in parts] if agent in apart else [parts])
    ]
    tasks: list[PlannedTask] = []
    for number, (agent, parts) in enumerate(split[: asked.max_tasks], _next_number(asked.results)):
        after = {task_id for need in needs.get(agent, ()) for task_id in ids.get(need, ())}
        if tasks and _THEN_PATTERN.search(text[: text.find(parts[0])]):
            after.add(tasks[-1].id)
        name, skill = _agent_or_skill(menu[agent], asked.agents)
        tasks.append(
            PlannedTask(
                id=f"t{number}",
                agent=name,
                skill=skill,
                intent=_truncate("; ".join(parts)),
                input=_input(menu[agent], parts, text, asked),
                depends_on=tuple(sorted(after)),
            )
        )
        ids.setdefault(agent, []).append(tasks[-1].id)
    return tasks, [part for _, parts in split[asked.max_tasks :] for part in parts]


def _truncate(text: str) -> str:
    """Return a part of a request, cut to `_MAX_QUOTED_CHARS`. Nothing is lost: agents also get the whole request."""
    return text if len(text) <= _MAX_QUOTED_CHARS else text[:_MAX_QUOTED_CHARS] + _ELLIPSIS


def _covers(report: TaskReport, clause: str, matcher: Matcher) -> bool:
    """Return True if the task of a report covers a clause.

    The intent of the task contains the clauses that it covers. If the intent was cut, the clause can be missing in it.
    Then the task covers the clause if the clause matches the agent of the task best.
    """
    cut = report.intent.endswith(_ELLIPSIS)
    return clause in report.intent or (cut and _best_match(matcher, clause, without=set()) == report.agent)


def _parts(text: str, matcher: Matcher) -> Iterator[str]:
    """Yield the clauses of a text. A clause for two agents, such as "a page with pictures", is split at `with`."""
    for clause in clauses(text):
        halves = clause.split(" with ")
        best = {_best_match(matcher, half, without=set()) for half in halves}
        yield from halves if len(best) == len(halves) and None not in best else (clause,)


def _dependencies(instructions: str, agents: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return, for each agent, the agents whose results it needs, as in the instruction "writing needs research"."""
    found: dict[str, tuple[str, ...]] = {}
    for sentence in _sentences(instructions):
        left, _, right = sentence.partition(" needs ")
        who, whom = _words(left), _words(right)
        for agent in agents:
            if agent.lower() in who:
                found[agent] = (*found.get(agent, ()), *(each for each in agents if each.lower() in whom))
    return found


def _split_agents(instructions: str, agents: Sequence[str]) -> frozenset[str]:
    """Return the agents that get a task for each part, as in the instruction "each part is one for research"."""
    said = {word for sentence in _sentences(instructions) if "each part" in sentence for word in _words(sentence)}
    return frozenset(agent for agent in agents if agent.lower() in said)


def _sentences(instructions: str) -> list[str]:
    return re.split(r"[.;\n]", instructions.lower())


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9_-]+", text)


def _order_by_dependencies(
    shares: Mapping[str, list[str]], needs: Mapping[str, tuple[str, ...]], done: Container[str]
) -> dict[str, list[str]]:
    """Return the parts of each agent, with an agent before the agents that need its results.

    A needed agent without parts of its own gets the parts of the agent that needs its results.
    """
    ordered: dict[str, list[str]] = {}

    def add(agent: str, parts: list[str], waiting: tuple[str, ...]) -> None:
        for need in needs.get(agent, ()):
            if need not in done and need not in waiting:
                add(need, shares.get(need, parts), (*waiting, agent))
        ordered.setdefault(agent, []).extend(part for part in parts if part not in ordered[agent])

    for agent, parts in shares.items():
        add(agent, parts, (agent,))
    return ordered


def _next_task(plan: Plan, asked: PlannerInput) -> Plan:
    """Return the next plan of an adaptive team, with only the first task, which depends on all results.

    If there are results and no task is left, the plan is done.
    """
    done = tuple(report.task_id for report in asked.results if report.status == "succeeded")
    if plan.tasks:
        return plan.model_copy(update={"tasks": (plan.tasks[0].model_copy(update={"depends_on": done}),)})
    return plan.model_copy(update={"done": True, "cannot": ""}) if done else plan


def _best_replan_match(matcher: Matcher, asked: PlannerInput) -> str | None:
    """Return the unused agent that matches the reason to plan again best; None without such an agent."""
    used = {*asked.agents_used, *(report.agent for report in asked.results)}
    return _best_match(matcher, asked.replan_reason, without=used) if asked.results and asked.replan_reason else None


def _input(item: AvailableAgent, parts: Sequence[str], text: str, asked: PlannerInput) -> JsonValue:
    """Return the input of a task by the agent's input schema; None for a task without an input of its own.

    A task without an input of its own gets the whole request and its metadata when it starts. So the plan in the log
    does not repeat them.
    """
    request: JsonValue = asked.request if isinstance(asked.request, dict) else None
    if item.input_schema.get("properties"):
        sources = Sources(["; ".join(parts), text], [data for data in (request, asked.metadata) if data])
        if (found := extract_arguments(item.input_schema, sources)) is not None:
            return found
    if item.input_schema.get("type") == "string":
        return "; ".join(parts)
    return None if isinstance(asked.request, str) else {**asked.metadata, "request": asked.request}


def _no_match_reason(text: str, agents: Sequence[AvailableAgent], *, done: bool) -> str:
    if not agents:
        return "no agent is running that could take a task; start one and send the request again"
    topics = "; ".join(f"{item.name}: {item.description.rstrip('.')}" for item in agents[:10])
    subject = "no other agent here" if done else "no agent here"
    known = "as far as the offline model can tell from their descriptions"
    return f"{subject} can help with {shorten(text)!r}, {known} ({topics})"


def _quote(parts: Sequence[str]) -> str:
    return _truncate("; ".join(f'"{part}"' for part in parts))


def _next_number(results: Sequence[TaskReport]) -> int:
    numbered = (report.task_id for report in results if re.fullmatch(r"t\d{1,6}", report.task_id))
    return 1 + max((int(task_id[1:]) for task_id in numbered), default=0)


# Classifying


def selection(task: TaskPrompt) -> Selection:
    """Return the answer of a classifier: the agents, with the best match first.

    If no match reaches the threshold, the answer has a question for the caller.

    Args:
        task: The prompt.

    Raises:
        ValidationError: The input is not valid for a classifier.
    """
    asked = ClassifierInput.model_validate(task.input)
    matcher = _build_matcher(asked.agents)
    found: dict[tuple[str, str], tuple[float, list[str]]] = {}
    unserved: list[str] = []
    whom = {item.name: _agent_or_skill(item, asked.agents) for item in asked.agents}
    for clause in clauses(_request_text(asked.request, matcher)):
        scores: dict[tuple[str, str], float] = {}
        for name, score in matcher.scores(clause).items():
            scores[whom[name]] = max(score, scores.get(whom[name], 0.0))
        whole = sum(scores.values())
        if max(scores.values(), default=0.0) < MATCH_THRESHOLD and len(stems(clause)) >= _MIN_MEANINGFUL_STEMS:
            unserved.append(clause)
        for one, score in scores.items():
            if score < MATCH_THRESHOLD:
                continue
            confidence = round(min(_MAX_CONFIDENCE, score / _MIN_CONFIDENCE) * score / whole, 2)
            best, parts = found.get(one, (0.0, []))
            found[one] = (max(best, confidence), [*parts, clause] if confidence >= asked.threshold else parts)
    surest = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
    question = "" if surest and surest[0][1][0] >= asked.threshold else _clarifying_question(asked.agents)
    return Selection(
        question=question,
        unserved="; ".join(unserved),
        agents=tuple(
            SelectedAgent(agent=name, skill=skill, confidence=confidence, intent="; ".join(parts))
            for (name, skill), (confidence, parts) in surest
        ),
    )


def _clarifying_question(agents: Sequence[AvailableAgent]) -> str:
    topics = "; ".join(item.description.rstrip(".") for item in agents[:10])
    return f"Could you say more about what you need? This can be asked here: {topics}."


# Both


def _request_text(request: RequestInput, matcher: Matcher) -> str:
    """Return the text of a request.

    For an object, the text is its `intent` or its `request`, if this text matches an agent; otherwise, all its texts. A
    nested team gets its part of the request as the `intent`. An `intent` that was cut is not used.
    """
    if isinstance(request, dict):
        for said in (request.get("intent"), request.get("request")):
            whole = said if isinstance(said, str) and not said.endswith(_ELLIPSIS) else ""
            if any(_best_match(matcher, clause, without=set()) for clause in clauses(whole)):
                return whole
        request = {name: value for name, value in request.items() if name != "intent"} or request
    return request_as_text(request)


def _build_matcher(agents: Sequence[AvailableAgent]) -> Matcher:
    return Matcher(
        [
            MatchEntry(
                item.name,
                " ".join((item.name, *item.skills, *item.intents)),
                item.description,
                " ".join(item.examples),
            )
            for item in agents
        ]
    )


def _best_match(matcher: Matcher, text: str, *, without: set[str]) -> str | None:
    return next(
        (name for name, score in matcher.scores(text).items() if score >= MATCH_THRESHOLD and name not in without), None
    )


def _agent_or_skill(chosen: AvailableAgent, menu: Sequence[AvailableAgent]) -> tuple[str, str]:
    """Return an agent's name and an empty skill; or, if several agents are equal, an empty name and their skill."""
    skill = _shared_skill(chosen, menu)
    return ("", skill) if skill else (chosen.name, "")


def _shared_skill(chosen: AvailableAgent, menu: Sequence[AvailableAgent]) -> str:
    """Return a skill of several equal agents; empty without such a skill.

    Equal agents have the same skills and the same input schema. Only a skill that no other agent has is returned.
    """
    alike = [item for item in menu if set(item.skills) == set(chosen.skills)]
    if len(alike) == 1 or any(item.input_schema != chosen.input_schema for item in alike):
        return ""
    names = {item.name for item in alike}
    having = {skill: {item.name for item in menu if skill in item.skills} for skill in chosen.skills}
    return next((skill for skill, those in having.items() if those == names), "")
