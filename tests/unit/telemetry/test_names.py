"""Spans are named and filled as the OpenTelemetry conventions require."""

from __future__ import annotations

import pytest

from pointsman.telemetry import names


def test_no_span_name_holds_an_id() -> None:
    made = [
        names.publish_request("ns", "support", message_id="MESSAGE", correlation_id="CORRELATION"),
        names.invoke_workflow("support", workflow_id="WORKFLOW", correlation_id="CORRELATION"),
        names.task("plan", "planner", workflow_id="WORKFLOW", task_id="TASK"),
        names.task("work", "researcher", workflow_id="WORKFLOW", task_id="TASK", attempts=2),
        names.task("synthesize", "writer", workflow_id="WORKFLOW", task_id="TASK"),
        names.task("refine", "refiner", workflow_id="WORKFLOW", task_id="TASK"),
        names.process_handoff(
            "ns",
            "researcher",
            subject="ns.handoff.researcher.WORKFLOW.TASK.1",
            attempt=1,
            message_id="MESSAGE",
            workflow_id="WORKFLOW",
            task_id="TASK",
        ),
        names.chat("openai", "a-model", correlation_id="CORRELATION"),
        names.execute_tool("search", call_id="CALL"),
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
        (names.publish_request("ns", "t"), {"messaging.system": "nats", "messaging.operation.name": "publish"}),
        (
            names.process_handoff("ns", "a", subject="ns.handoff.a.w.t.1", workflow_id="w", task_id="t", attempt=1),
            {
                "messaging.operation.type": "process",
                "messaging.destination.template": "ns.handoff.a.{workflow}.{task}.{attempt}",
            },
        ),
        (names.chat("openai", "m"), {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai"}),
        (names.execute_tool("x", call_id="c"), {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "x"}),
        (
            names.task("plan", "p", workflow_id="w", task_id="t"),
            {"gen_ai.operation.name": "plan", "gen_ai.agent.name": "p"},
        ),
        (names.invoke_workflow("t", workflow_id="w"), {"gen_ai.workflow.name": "t"}),
    ],
)
def test_a_span_says_what_the_conventions_require(
    made: tuple[str, names.Attributes], needed: dict[str, object]
) -> None:
    assert dict(made[1]) | needed == dict(made[1])


def test_what_is_not_of_a_convention_has_our_prefix() -> None:
    made = (
        *names.task("work", "a", workflow_id="w", task_id="t", attempts=1, correlation_id="c", status="s")[1],
        *names.chat("p", "m", attempt=1)[1],
        *names.chat_answer(cost=1.0),
        *names.process_handoff("ns", "a", subject="s", workflow_id="w", task_id="t", attempt=1)[1],
    )

    assert {key.split(".")[0] for key in made} == {"gen_ai", "messaging", "pointsman"}


@pytest.mark.parametrize(
    ("subject", "consumer", "template"),
    [
        ("ns.request.crew", "request-crew", "ns.request.crew"),
        ("ns.inbox.crew.wf.result.a.t1.1", "inbox-crew", "ns.inbox.crew.{workflow}.{kind}.{name}"),
        ("ns.handoff.crew.wf.t1.1", "agent-crew", "ns.handoff.crew.{workflow}.{task}.{attempt}"),
    ],
)
def test_inputs_name_the_queue_they_came_from(subject: str, consumer: str, template: str) -> None:
    _, said = names.process_inputs("ns", "crew", subject=subject, workflow_id="wf", count=1)

    assert said["messaging.consumer.group.name"] == consumer
    assert said["messaging.destination.template"] == template
