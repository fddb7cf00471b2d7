"""Spans have the names and attributes of the OpenTelemetry conventions."""

from __future__ import annotations

import re

import pytest

from pointsman.ports.bus import Server
from pointsman.telemetry import semconv
from pointsman_schemas import subjects as subjects_module
from pointsman_schemas.subjects import Subjects


def test_no_span_name_holds_an_id() -> None:
    made = [
        semconv.publish_request("ns", "support", "ada", message_id="MESSAGE", correlation_id="CORRELATION"),
        semconv.invoke_workflow("support", workflow_id="WORKFLOW", correlation_id="CORRELATION"),
        semconv.task("plan", "planner", workflow_id="WORKFLOW", task_id="TASK"),
        semconv.task("work", "researcher", workflow_id="WORKFLOW", task_id="TASK", attempts=2),
        semconv.task("synthesize", "writer", workflow_id="WORKFLOW", task_id="TASK"),
        semconv.task("refine", "refiner", workflow_id="WORKFLOW", task_id="TASK"),
        semconv.process_handoff(
            "ns",
            "researcher",
            subject="ns.handoff.researcher.WORKFLOW.TASK.1",
            attempt=1,
            message_id="MESSAGE",
            workflow_id="WORKFLOW",
            task_id="TASK",
        ),
        semconv.chat("openai", "a-model", correlation_id="CORRELATION"),
        semconv.execute_tool("search", call_id="CALL"),
    ]

    assert [name for name, _ in made] == [
        "publish ns.request.support",
        "invoke_workflow support",
        "plan planner",
        "invoke_agent researcher",
        "synthesize writer",
        "refine refiner",
        "process ns.handoff.researcher",
        "chat a-model",
        "execute_tool search",
    ]


@pytest.mark.parametrize(
    ("made", "needed"),
    [
        (
            semconv.publish_request("ns", "t", "ada"),
            {"messaging.system": "nats", "messaging.operation.name": "publish"},
        ),
        (
            semconv.process_handoff("ns", "a", subject="ns.handoff.a.c.w.t.1", workflow_id="w", task_id="t", attempt=1),
            {
                "messaging.operation.type": "process",
                "messaging.destination.template": "ns.handoff.a.{team}.{workflow}.{task}.{attempt}",
            },
        ),
        (semconv.chat("openai", "m"), {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai"}),
        (semconv.execute_tool("x", call_id="c"), {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "x"}),
        (
            semconv.task("plan", "p", workflow_id="w", task_id="t"),
            {"gen_ai.operation.name": "plan", "gen_ai.agent.name": "p"},
        ),
        (semconv.invoke_workflow("t", workflow_id="w"), {"gen_ai.workflow.name": "t"}),
    ],
)
def test_span_has_the_required_attributes(made: tuple[str, semconv.Attributes], needed: dict[str, object]) -> None:
    assert dict(made[1]) | needed == dict(made[1])


def test_custom_attributes_have_our_prefix() -> None:
    made = (
        *semconv.task("work", "a", workflow_id="w", task_id="t", attempts=1, correlation_id="c", status="s")[1],
        *semconv.chat("p", "m", attempt=1)[1],
        *semconv.chat_reply(cost=1.0),
        *semconv.process_handoff("ns", "a", subject="s", workflow_id="w", task_id="t", attempt=1)[1],
    )

    assert {key.split(".")[0] for key in made} == {"gen_ai", "messaging", "pointsman"}


@pytest.mark.parametrize(
    ("subject", "consumer", "template"),
    [
        ("ns.request.crew.ada", "request-crew", "ns.request.crew.{caller}"),
        ("ns.result.crew.a.wf.t1.1.x", "result-crew", "ns.result.crew.{agent}.{workflow}.{task}.{attempt}.{token}"),
        ("ns.control.crew.wf.cancel.a.c", "control-crew", "ns.control.crew.{workflow}.{action}.{actor}.{id}"),
        ("ns.timer.crew.wf.wake-1", "timer-crew", "ns.timer.crew.{workflow}.{name}"),
        ("ns.handoff.crew.desk.wf.t1.1", "agent-crew", "ns.handoff.crew.{team}.{workflow}.{task}.{attempt}"),
    ],
)
def test_inputs_name_the_queue_they_came_from(subject: str, consumer: str, template: str) -> None:
    _, said = semconv.process_inputs("ns", "crew", subject=subject, workflow_id="wf", count=1)

    assert said["messaging.consumer.group.name"] == consumer
    assert said["messaging.destination.template"] == template
    assert said["messaging.batch.message_count"] is None, "a single message must not be recorded as a batch"


def test_a_span_of_a_message_says_which_server_it_went_over() -> None:
    server = Server("broker.example", 4222)
    made = (
        semconv.publish_request("ns", "crew", "ada", server=server),
        semconv.process_handoff("ns", "a", subject="ns.handoff.a.c.w.t.1", workflow_id="w", task_id="t", attempt=1,
                              server=server),
        semconv.process_inputs("ns", "crew", subject="ns.request.crew.ada", workflow_id="w", count=1, server=server),
    )  # fmt: skip

    assert {(said["server.address"], said["server.port"]) for _, said in made} == {("broker.example", 4222)}


def test_no_destination_holds_an_id() -> None:
    subjects = Subjects("ns")
    made = (
        subjects.request("crew", "CALLER"),
        subjects.control("crew", "WORKFLOW", "ACTION", "ACTOR", "ID"),
        subjects.audit("discard", "ACTOR", "ID"),
        subjects.result("crew", "AGENT", "WORKFLOW", "TASK", 1, "TOKEN"),
        subjects.step("writer", "TEAM", "WORKFLOW", "TASK", 1, "NAME"),
        subjects.event("crew", "WORKFLOW", "AGENT", "NAME"),
        subjects.handoff("writer", "TEAM", "WORKFLOW", "TASK", 1),
        subjects.timer("crew", "WORKFLOW", "NAME"),
        subjects.schedule("crew", "WORKFLOW", "NAME"),
        subjects.retry("crew", "WORKFLOW", "NAME"),
        subjects.log("crew", "WORKFLOW"),
        subjects.outcome("crew", "WORKFLOW"),
        subjects.question("crew", "WORKFLOW", "ID"),
        subjects.dead_letter("writer", "WORKFLOW", "NAME"),
        subjects.limit("NAME"),
        subjects.circuits,
        subjects.cancelled("crew", "WORKFLOW"),
        subjects.delta("crew", "WORKFLOW", "AGENT"),
        subjects.agent_handoffs("writer"),
        subjects.team_results("crew"),
    )

    assert [semconv.destination_template(subject) for subject in made] == [
        "ns.request.crew.{caller}",
        "ns.control.crew.{workflow}.{action}.{actor}.{id}",
        "ns.audit.discard.{actor}.{id}",
        "ns.result.crew.{agent}.{workflow}.{task}.{attempt}.{token}",
        "ns.step.writer.{team}.{workflow}.{task}.{attempt}.{name}",
        "ns.event.crew.{workflow}.{agent}.{name}",
        "ns.handoff.writer.{team}.{workflow}.{task}.{attempt}",
        "ns.timer.crew.{workflow}.{name}",
        "ns.schedule.crew.{workflow}.{kind}.{name}",
        "ns.schedule.crew.{workflow}.{kind}.{name}",
        "ns.log.crew.{workflow}",
        "ns.outcome.crew.{workflow}",
        "ns.question.crew.{workflow}.{id}",
        "ns.dead.writer.{workflow}.{id}",
        "ns.limit.{id}",
        "ns.circuits",
        "ns.cancelled.crew.{workflow}",
        "ns.delta.crew.{workflow}.{agent}",
        "ns.handoff.writer.{team}.{workflow}.{task}.{attempt}",
        "ns.result.crew.{agent}.{workflow}.{task}.{attempt}.{token}",
    ]


@pytest.mark.parametrize(
    ("subject", "template"),
    [
        ("$KV.NS_AGENTS.writer.INSTANCE", "$KV.NS_AGENTS.writer.{instance}"),
        ("$O.NS_ARTIFACTS.C.OBJECT", "$O.NS_ARTIFACTS.C.{object}"),
        ("$O.NS_ARTIFACTS.M.OBJECT", "$O.NS_ARTIFACTS.M.{object}"),
    ],
)
def test_no_destination_of_the_brokers_own_holds_an_id(subject: str, template: str) -> None:
    assert semconv.destination_template(subject) == template


def test_every_subject_there_is_has_a_destination() -> None:
    table = re.findall(r"^\| `\{ns\}\.(\w+)[.`]", subjects_module.__doc__ or "", re.MULTILINE)

    assert set(table) == set(semconv._DESTINATIONS)
