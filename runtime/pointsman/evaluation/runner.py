"""Send labelled requests to a team or an agent, and compare the answers with the labels."""

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

NO_AGENT = "(none)"
"""Name in the confusion table for a missing agent. It stands for the used agent if an expected agent did not work and
no other agent worked instead. It stands for the expected agent if one more agent worked than the case expects."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Result of a case. The case has passed if there are no `problems`.

    Attributes:
        name: The name of the case; by default its number and the start of its input.
        problems: One sentence for each difference between the result and the labels.
        expected: The agents that the case expects; None if the case does not expect particular agents.
        agents_used: The agents that worked on the case.
        answer: The answer, or the output of the agent; None without an answer.
        status: The final status; `running` if the case did not end within the suite's `timeout`.
        workflow_id: The id of the workflow.
        elapsed: Duration of the case in seconds.
        usage: Tokens, calls and cost of the case.
    """

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
    """Results of all cases of a suite.

    Attributes:
        name: The name of the team or the agent.
        threshold: The share of cases that must pass, from 0 to 1.
        results: The results, in the order of the suite's cases.
        elapsed: Duration of the evaluation in seconds.
        confusion: The number of cases for each pair of expected agent and used agent.
    """

    name: str
    threshold: float
    results: Sequence[CaseResult]
    elapsed: float
    confusion: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """The share of cases that passed, from 0 to 1."""
        return sum(not each.problems for each in self.results) / len(self.results)

    @property
    def routing_accuracy(self) -> float | None:
        """Share of cases in which exactly the expected agents worked; None if no case expects particular agents."""
        labelled = [each for each in self.results if each.expected is not None]
        if not labelled:
            return None
        return sum(set(each.expected or ()) == set(each.agents_used) for each in labelled) / len(labelled)

    @property
    def passed(self) -> bool:
        """True if the share of passed cases reaches the suite's threshold."""
        return self.accuracy >= self.threshold

    @property
    def usage(self) -> Usage:
        """The usage of all cases together."""
        return sum((each.usage for each in self.results), Usage())

    def as_json(self) -> dict[str, JsonValue]:
        """Return the whole report for programs.

        Returns:
            An object with the totals, the confusion table and all cases.
        """
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
        """Return the report in the XML format of JUnit, which CI systems read.

        Returns:
            The document, in UTF-8.
        """
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
    """Send every case of a suite and compare the results with the labels.

    A case fails if it does not end within the suite's `timeout`. Its `problems` then name the timeout.

    Args:
        suite: The cases, and the team or agent that receives them.
        client: A connected client in the namespace of the team or agent.
        parallel: Number of cases that run at the same time. Default: 8.

    Returns:
        The report.

    Raises:
        PointsmanError: A case could not be sent, because it is too large or the broker is unavailable. The other cases
            are cancelled.
    """
    began, room = asyncio.get_running_loop().time(), asyncio.Semaphore(parallel)

    async def one(place: int, case: Case) -> CaseResult:
        async with room:
            return await _run_case(suite, place, case, client)

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(place, case)) for place, case in enumerate(suite.cases, 1)]
    except ExceptionGroup as failed:  # raise only the first error: it made the group cancel the other cases
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
            request = cast(str | dict[str, JsonValue], case.input)  # checked by the suite
            submitted = await client.submit(suite.team, request, deadline=suite.timeout)
            workflow = submitted.id
            came = await submitted.outcome(suite.timeout)
        elif suite.agent is not None:
            workflow = f"eval_{uuid4().hex[:20]}"
            came = await _ask_agent(client, suite.agent, workflow, case.input, suite.timeout)
    except TimeoutError:
        problems.append(f"the case had not ended after {suite.timeout:g} s")
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
        error = came.error.for_operators if isinstance(came, Result) and came.error is not None else ""
        why = error or (came.reason if isinstance(came, Outcome) else "")
        problems.append(f"the status is {status}, expected {case.status}" + (f": {why}" if why else ""))
    if case.agents is not None and set(used) != set(case.agents):
        problems.append(f"the agents used are {_names(used)}, expected {_names(case.agents)}")
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


def _names(agents: Sequence[str]) -> str:
    return ", ".join(agents) or NO_AGENT


async def _run_check(case: Case, came: Outcome | Result) -> list[str]:
    if (check := case.load_check()) is None:
        return []
    bad = f"{_check_name(case.check)} rejected the result"
    try:
        found = check(came)
        if inspect.isawaitable(found):
            found = await found
    except AssertionError as error:
        return [str(error) or bad]
    except (Exception, SystemExit) as error:  # a check that fails must not end the evaluation of the other cases
        return [f"{_check_name(case.check)} failed: {describe_error(error)}"]
    return [found or bad] if found is False or isinstance(found, str) else []


def _confusion_cells(each: CaseResult) -> list[tuple[str, str]]:
    """Return the cells of the confusion table in which the case is counted."""
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
    """Send `input` to `agent` without a supervisor, and return the result."""
    subjects, now = client.subjects, datetime.now(UTC)
    back = subjects.result("eval", agent, workflow, "T1", 1, uuid4().hex)
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
        to = subjects.handoff(agent, "eval", workflow, "T1", 1)
        await publish_with_retry(client.bus, to, dump(handoff), encode(envelope))
        stored = await wait_for_message(client.bus, "results", back)
    return parse(Result, decode(stored.headers, stored.body)[1])


def _check_name(check: str | Check | None) -> str:
    return check if isinstance(check, str) else getattr(check, "__name__", "the check")


def _plain_value(value: JsonValue) -> str:
    text = value if isinstance(value, str) else compact_json(value).decode()
    return " ".join(text.split()).casefold()


def _shorten(value: JsonValue) -> str:
    return compact_json(value).decode()[:200]


def _xml_text(text: str) -> str:
    """Return `text` without the control characters that XML does not allow."""
    return "".join(letter for letter in text if letter in "\t\n" or letter >= " ")
