"""Do the tasks of the roles without a language model. Answers quote the results; reviews compare words and figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from pydantic import BaseModel, JsonValue

from pointsman.llm.offline.planning import TELL_CALLER_PREFIX, plan, selection
from pointsman.llm.offline.words import OFFLINE_NOTE, as_text, request_as_text, shorten, strings, without_note
from pointsman.llm.prompt import TaskPrompt
from pointsman_schemas.events import Conflict, ErrorKind, Gap
from pointsman_schemas.role_io import (
    MAX_SUMMARY_CHARS,
    ConflictRuling,
    JudgeInput,
    Refinement,
    RefinerInput,
    Review,
    ReviewInput,
    SummarizerInput,
    Synthesis,
    SynthesizerInput,
    ThreadSummary,
)

__all__ = ["ROLE_HANDLERS"]

_PUBLIC_ERROR_KINDS: Final = frozenset(
    {
        ErrorKind.CANCELLED,
        ErrorKind.CIRCUIT,
        ErrorKind.LIMIT,
        ErrorKind.NEEDS_ANSWER,
        ErrorKind.NO_WORKER,
        ErrorKind.OVERSIZE,
        ErrorKind.REFUSED,
        ErrorKind.REJECTED,
        ErrorKind.TIMEOUT,
    }
)
"""Kinds of failures whose reason a caller may read, because the runtime wrote the reason, or an agent wrote the reason
for the caller. For any other kind, the reason could be the text of an exception, which is only for operators."""
_FIGURE_PATTERN = re.compile(r"[\w-]*\d(?:[\w.,:-]*\w)?")  # a word with a digit, such as an id, an amount or a date
_FIGURES_CRITERION = re.compile(r"\b(?:id|figure|amount|date)s? .*\bstands? in a result\b", re.IGNORECASE)


def _synthesis(task: TaskPrompt) -> Synthesis:
    asked = SynthesizerInput.model_validate(task.input)
    reports = {str(report.get("task_id")): report for report in task.results}
    paragraphs = [
        without_note(as_text(report.get("output")))
        for report in task.results
        if report.get("status") == "succeeded" and report.get("output") is not None
    ]
    told = (
        asked.final_instruction.removeprefix(TELL_CALLER_PREFIX)
        if asked.final_instruction.startswith(TELL_CALLER_PREFIX)
        else ""
    )
    if not paragraphs:
        paragraphs = [f"I could not help with this request: {shorten(request_as_text(asked.request))!r}."]
    paragraphs += _gap_sentences(asked.gaps, reports)
    if asked.conflicts:
        paragraphs.append(f"They disagree. {'. '.join(asked.conflicts)}.")
    if told:
        paragraphs.append(told[0].upper() + told[1:])
    if asked.limit:
        paragraphs.append(f"The reason it ended here: {asked.limit.rstrip('.')}.")
    return Synthesis(answer="\n\n".join([*paragraphs, OFFLINE_NOTE]))


def _gap_sentences(gaps: Sequence[Gap], reports: Mapping[str, Mapping[str, JsonValue]]) -> Iterator[str]:
    """Yield a sentence for each gap. If several gaps have the same intent, the sentence also names the agent."""
    wanted = [str(reports.get(gap.task_id, {}).get("intent", gap.task_id)) for gap in gaps]
    for gap, intent in zip(gaps, wanted, strict=True):
        error = reports.get(gap.task_id, {}).get("error")
        may_be_told = not isinstance(error, Mapping) or error.get("kind") in _PUBLIC_ERROR_KINDS
        reason = gap.reason.rstrip(".") if may_be_told else "something went wrong on our side"
        by = f" by {gap.agent}" if gap.agent and wanted.count(intent) > 1 else ""
        yield f"This could not be done{by}: {intent.rstrip('.')}. The reason: {reason}."


def _refine(task: TaskPrompt) -> Refinement:
    """Return the intent of the task, with the last error added."""
    asked = RefinerInput.model_validate(task.input)
    return Refinement(
        intent=f"{asked.intent} (It failed {asked.attempts} times, last with: {asked.error}. Avoid that.)"
    )


def _judge(task: TaskPrompt) -> ConflictRuling:
    """Decide each conflict for the most frequent value. Of equally frequent values, choose the first."""
    asked = JudgeInput.model_validate(task.input)
    decided: list[Conflict] = []
    for conflict in asked.conflicts:
        field, _, rest = conflict.partition(": ")
        said = [what for part in rest.split("; ") if (what := part.partition(" says ")[2])] or [rest]
        (most, votes), *_ = Counter(said).most_common(1)
        even = sum(1 for count in Counter(said).values() if count == votes) > 1
        reason = "as many say something else, and it was said first" if even else f"{votes} of {len(said)} say so"
        decided.append(Conflict(description=conflict, decision=f"{field}: {most}", reason=reason))
    return ConflictRuling(decisions=tuple(decided))


def _review(task: TaskPrompt) -> Review:
    """Return a review of an output. An output without text does not pass.

    If the criteria demand proven figures, each figure of the output must be in the request or in another task's result.
    """
    asked = ReviewInput.model_validate(task.input)
    made = [report.get("output") for report in task.results if report.get("task_id") == asked.task_id]
    words = without_note(" ".join(strings(made)))
    wrong = "" if words else "there is nothing in it to read"
    if _FIGURES_CRITERION.search(asked.criteria):
        before = [report.get("output") for report in task.results if report.get("task_id") != asked.task_id]
        there = {
            figure for said in (*_scalars(before), *_scalars(asked.request)) for figure in _FIGURE_PATTERN.findall(said)
        }
        if invented := [each for each in dict.fromkeys(_FIGURE_PATTERN.findall(words)) if each not in there]:
            wrong = f"{', '.join(invented)} stands in no result and not in the request; leave out what does not"
    if wrong:
        return Review(verdict="stop" if asked.is_last_attempt else "again", reason=wrong)
    return Review(verdict="pass", reason="the offline model finds nothing wrong, and can judge no more than figures")


def _summarize(task: TaskPrompt) -> ThreadSummary:
    """Return the summary so far, and the beginning of the request and the answer of each further turn."""
    asked = SummarizerInput.model_validate(task.input)
    told = [
        f"The user asked: {shorten(each.request)} The team answered: {shorten(each.answer)}" for each in asked.turns
    ]
    return ThreadSummary(summary="\n".join(filter(None, [asked.summary, *told]))[-MAX_SUMMARY_CHARS:])


def _scalars(value: JsonValue) -> Iterator[str]:
    match value:
        case dict() | list():
            for part in value.values() if isinstance(value, dict) else value:
                yield from _scalars(part)
        case _:
            yield str(value)


ROLE_HANDLERS: Final[Mapping[str, Callable[[TaskPrompt], BaseModel]]] = {
    "plan": plan,
    "selection": selection,
    "synthesis": _synthesis,
    "refinement": _refine,
    "ruling": _judge,
    "review": _review,
    "thread_summary": _summarize,
}
"""The functions of the roles, by the name of the output. A function raises `ValidationError` if the input is not valid
for its role."""
