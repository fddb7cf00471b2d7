"""How good a team or an agent is: labelled requests go through it side by side, and what came is held against them."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import cast
from uuid import uuid4
from xml.etree import ElementTree

from pydantic import JsonValue

from pointsman.client.client import Client
from pointsman.engine.log.reader import wait_for_message
from pointsman.engine.process.retrying import publish_with_retry
from pointsman.errors import describe_error
from pointsman.evaluation.suite import Case, Check, Suite, load_suite
from pointsman_schemas.card import Role
from pointsman_schemas.envelope import Envelope, decode, encode
from pointsman_schemas.events import Handoff, Outcome, Result, Usage
from pointsman_schemas.strict_json import as_json_value, compact_json, dump, parse

__all__ = ["NO_AGENT", "Case", "CaseResult", "EvaluationReport", "Suite", "evaluate", "load_suite"]

NO_AGENT = "(nobody)"
"""What stands in the confusion table for an agent that was expected and not used, or used and not expected."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What came of a case. It is right when there are no `problems`. `elapsed` is in seconds."""

    name: str
    problems: tuple[str, ...]
    expected: tuple[str, ...] | None
    agents_used: tuple[str, ...]
    answer: JsonValue
    status: str
    workflow_id: str
    elapsed: float
    usage: Usage


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """All cases of a suite. Times are in seconds."""

    name: str
    threshold: float
    results: Sequence[CaseResult]
    elapsed: float
    confusion: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """How often, by the agent that was expected and the one that was used."""

    @property
    def accuracy(self) -> float:
        """The share of cases that are right."""
        return sum(not each.problems for each in self.results) / len(self.results)

    @property
    def routing_accuracy(self) -> float | None:
        """The share of the cases with expected agents in which just those worked; None when there are none."""
        labelled = [each for each in self.results if each.expected is not None]
        if not labelled:
            return None
        return sum(set(each.expected or ()) == set(each.agents_used) for each in labelled) / len(labelled)

    @property
    def passed(self) -> bool:
        """Whether as many are right as the suite wants."""
        return self.accuracy >= self.threshold

    @property
    def usage(self) -> Usage:
        """What all of them have used."""
        return sum((each.usage for each in self.results), Usage())

    def as_json(self) -> dict[str, JsonValue]:
        """It whole, for programs."""
        return {
            "name": self.name,
            "passed": self.passed,
            "accuracy": self.accuracy,
            "threshold": self.threshold,
            "routing": self.routing_accuracy,
            "elapsed": self.elapsed,
            "usage": self.usage.model_dump(mode="json"),
            "confusion": [
                {"expected": expected, "used": used, "count": count}
                for (expected, used), count in sorted(self.confusion.items())
            ],
            "cases": [
                {
                    "name": each.name,
                    "passed": not each.problems,
                    "problems": list(each.problems),
                    "expected": list(each.expected) if each.expected is not None else None,
                    "used": list(each.agents_used),
                    "status": each.status,
                    "answer": each.answer,
                    "workflow_id": each.workflow_id,
                    "elapsed": each.elapsed,
                    "usage": each.usage.model_dump(mode="json"),
                }
                for each in self.results
            ],
        }

    def as_junit(self) -> bytes:
        """It as JUnit's XML, which CI systems read."""
        failures = sum(bool(each.problems) for each in self.results)
        suite = ElementTree.Element(
            "testsuite", name=self.name, tests=str(len(self.results)), failures=str(failures), errors="0",
            skipped="0", time=f"{self.elapsed:.3f}",
        )  # fmt: skip
        for each in self.results:
            case = ElementTree.SubElement(
                suite, "testcase", classname=self.name, name=_xml_text(each.name), time=f"{each.elapsed:.3f}"
            )
            if each.problems:
                failure = ElementTree.SubElement(case, "failure", message=_xml_text(each.problems[0]))
                failure.text = _xml_text("\n".join((*each.problems, f"answer: {compact_json(each.answer).decode()}")))
        text: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
        return text


async def evaluate(suite: Suite, client: Client, *, parallel: int = 8) -> EvaluationReport:
    """Send every case of `suite`, `parallel` at a time, and judge what comes. A case that does not end in time is wrong
    and says so.

    Raises:
        PointsmanError: a case could not be sent: it is too large, or the broker is away.
    """
    began, room = asyncio.get_running_loop().time(), asyncio.Semaphore(parallel)

    async def one(place: int, case: Case) -> CaseResult:
        async with room:
            return await _run_case(suite, place, case, client)

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(place, case)) for place, case in enumerate(suite.cases, 1)]
    except ExceptionGroup as failed:  # the others are given up, too
        raise failed.exceptions[0] from None
    scored = [task.result() for task in running]
    confusion: Counter[tuple[str, str]] = Counter()
    for each in scored:
        confusion.update(_confusion_cells(each))
    elapsed = asyncio.get_running_loop().time() - began
    return EvaluationReport(suite.team or suite.agent or "", suite.threshold, scored, elapsed, confusion)


async def _run_case(suite: Suite, place: int, case: Case, client: Client) -> CaseResult:
    began = asyncio.get_running_loop().time()
    name = (
        case.name or f"{place}: {case.input if isinstance(case.input, str) else compact_json(case.input).decode()}"[:80]
    )
    came: Outcome | Result | None = None
    problems: list[str] = []
    workflow = ""
    try:
        if suite.team is not None:
            request = cast(str | dict[str, JsonValue], case.input)  # as the suite has looked
            submitted = await client.submit(suite.team, request, deadline=suite.timeout)
            workflow = submitted.id
            came = await submitted.outcome(suite.timeout)
        elif suite.agent is not None:
            workflow = f"eval_{uuid4().hex[:20]}"
            came = await _ask_agent(client, suite.agent, workflow, case.input, suite.timeout)
    except TimeoutError:
        problems.append(f"it had not ended after {suite.timeout:g} s")
    answer = came.answer if isinstance(came, Outcome) else came.output if came is not None else None
    status = came.status if came is not None else "running"
    if isinstance(came, Result) and came.status == "succeeded":
        status = "completed"
    used = _agents_used(came)
    if came is not None:
        problems += _find_problems(case, came, status, answer, used)
        problems += await _run_check(case, came)
    return CaseResult(
        name=name,
        problems=tuple(problems),
        expected=case.agents,
        agents_used=used,
        answer=answer,
        status=status,
        workflow_id=workflow,
        elapsed=asyncio.get_running_loop().time() - began,
        usage=came.usage if came is not None else Usage(),
    )


def _agents_used(came: Outcome | Result | None) -> tuple[str, ...]:
    if isinstance(came, Result):
        return (came.agent,)
    return tuple(sorted({task.agent for task in came.tasks if task.role == Role.WORK})) if came is not None else ()


def _find_problems(
    case: Case, came: Outcome | Result, status: str, answer: JsonValue, used: tuple[str, ...]
) -> list[str]:
    problems: list[str] = []
    if status != case.status:
        error = came.error.message if isinstance(came, Result) and came.error is not None else ""
        why = error or (came.reason if isinstance(came, Outcome) else "")
        problems.append(f"it ended {status}, expected {case.status}" + (f": {why}" if why else ""))
    if case.agents is not None and set(used) != set(case.agents):
        problems.append(f"{', '.join(used) or NO_AGENT} worked on it, expected {', '.join(case.agents) or NO_AGENT}")
    if isinstance(case.answer, dict):
        there = answer if isinstance(answer, dict) else {}
        problems += [
            f"the answer's {name} is {_shorten(there.get(name))}, expected {_shorten(value)}"
            for name, value in case.answer.items()
            if there.get(name) != value
        ]
    elif case.answer is not None and _plain_value(answer) != _plain_value(case.answer):
        problems.append(f"the answer is {_plain_value(answer)[:200]!r}, expected {_plain_value(case.answer)[:200]!r}")
    problems += [
        f"the answer does not contain {text!r}"
        for text in case.contains
        if _plain_value(text) not in _plain_value(answer)
    ]
    return problems


async def _run_check(case: Case, came: Outcome | Result) -> list[str]:
    if (check := case.load_check()) is None:
        return []
    bad = f"{_check_name(case.check)} says it is not good"
    try:
        found = check(came)
        if inspect.isawaitable(found):
            found = await found
    except AssertionError as error:
        return [str(error) or bad]
    except (Exception, SystemExit) as error:  # no check ends the evaluation of the others
        return [f"{_check_name(case.check)} failed: {describe_error(error)}"]
    return [found or bad] if found is False or isinstance(found, str) else []


def _confusion_cells(each: CaseResult) -> list[tuple[str, str]]:
    """The cells of the confusion table that a case counts in."""
    if each.expected is None:
        return []
    expected, used = set(each.expected), set(each.agents_used)
    missing, beside = expected - used, used - expected
    cells = [(name, name) for name in expected & used]
    cells += [(name, other) for name in missing for other in (beside or {NO_AGENT})]
    if not missing:
        cells += [(NO_AGENT, other) for other in beside]
    return cells


async def _ask_agent(client: Client, agent: str, workflow: str, input: JsonValue, timeout: float) -> Result:
    """What `agent` makes of `input`, handed over without a supervisor."""
    subjects, now = client.subjects, datetime.now(UTC)
    back = subjects.result("eval", workflow, agent, "T1", 1)
    handoff = Handoff(
        workflow_id=workflow,
        task_id="T1",
        attempt=1,
        from_agent="eval",
        to_agent=agent,
        intent=input if isinstance(input, str) else "Work on the input",
        input=as_json_value(input),
        return_to=back,
        deadline=now + timedelta(seconds=timeout),
        idempotency_key=workflow,
    )
    envelope = Envelope(
        id=workflow, type=Handoff.event_type, source=client.source, time=now, subject=workflow, correlation_id=workflow
    )
    async with asyncio.timeout(timeout):
        to = subjects.handoff(agent, workflow, "T1", 1)
        await publish_with_retry(client.bus, to, dump(handoff), encode(envelope), message_id=workflow)
        stored = await wait_for_message(client.bus, "work", back)
    return parse(Result, decode(stored.headers, stored.body)[1])


def _check_name(check: str | Check | None) -> str:
    return check if isinstance(check, str) else getattr(check, "__name__", "the check")


def _plain_value(value: JsonValue) -> str:
    text = value if isinstance(value, str) else compact_json(value).decode()
    return " ".join(text.split()).casefold()


def _shorten(value: JsonValue) -> str:
    return compact_json(value).decode()[:200]


def _xml_text(text: str) -> str:
    """Without what XML has no way to say."""
    return "".join(letter for letter in text if letter in "\t\n" or letter >= " ")
