"""Every span of a recorded run has the name, the kind, the parent and the attributes that the conventions require."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, get_value
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from support import factory
from support.core import SUBJECTS, T0, WorkflowDriver
from support.factory import planner_of, shaky, synthesizer
from support.spans import exporting

from pointsman import Context, LLMAgent, agent, tool
from pointsman.authoring.agent import Agent
from pointsman.bus.memory.bus import MemoryBus
from pointsman.clock import SystemClock
from pointsman.engine.supervisor.spans import SupervisorSpans
from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.model import ModelRequest
from pointsman.telemetry import content_capture, traces
from pointsman.testing import ScriptedModel, text_reply, tool_reply
from pointsman_schemas.card import Role
from pointsman_schemas.events import Outcome, Usage
from pointsman_schemas.ids import span_id_for
from pointsman_schemas.plan import Plan
from pointsman_schemas.role_io import PlannerInput
from pointsman_schemas.team import Limits, RetryPolicy, Team

TEAM = Team(name="crew", limits=Limits(deadline=30), retry=RetryPolicy(backoff=0.01, attempts=2))


@dataclass(frozen=True)
class Rule:
    """The requirements of a span."""

    name: str
    kind: str
    parent: str | None
    required: tuple[str, ...]


MESSAGING = (
    "messaging.system", "messaging.operation.name", "messaging.operation.type", "messaging.destination.name",
    "messaging.destination.template",
)  # fmt: skip
EVENT = ("cloudevents.event_id", "cloudevents.event_source", "cloudevents.event_spec_version", "cloudevents.event_type")
INVOKE = ("gen_ai.operation.name", "gen_ai.agent.name", "gen_ai.conversation.id")
RULES = (
    Rule(r"publish pointsman\.request\.crew", "PRODUCER", None, (*MESSAGING, *EVENT, "messaging.message.id")),
    Rule(r"invoke_workflow crew", "INTERNAL", r"publish .*", ("gen_ai.operation.name", "gen_ai.workflow.name")),
    Rule(r"plan planner", "INTERNAL", r"invoke_workflow crew", INVOKE),
    Rule(r"invoke_agent thinker", "CLIENT", r"invoke_workflow crew", (*INVOKE, "gen_ai.provider.name")),
    Rule(r"invoke_agent shaky", "CLIENT", r"invoke_workflow crew", INVOKE),
    Rule(r"synthesize synthesizer", "CLIENT", r"invoke_workflow crew", INVOKE),
    Rule(
        r"process pointsman\.handoff\.\w+", "CONSUMER", r"(plan|invoke_agent|synthesize) \w+",
        (*MESSAGING, *EVENT, "messaging.message.id", "messaging.message.conversation_id",
         "messaging.consumer.group.name"),
    ),
    Rule(
        r"process pointsman\.(inbox|request)\.crew", "CONSUMER", r"invoke_workflow crew",
        (*MESSAGING, "messaging.consumer.group.name"),
    ),
    Rule(
        r"chat scripted", "CLIENT", r"process .*thinker",
        ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model",
         "gen_ai.response.finish_reasons", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"),
    ),
    Rule(
        r"execute_tool look_up", "INTERNAL", r"process .*thinker",
        ("gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.tool.type"),
    ),
)  # fmt: skip
PLACEHOLDER = re.compile(r"\{(\w+)\}")


@tool
def look_up(word: str, password: str = "") -> str:
    """Looks a word up."""
    return f"{word}: see sk-abcdefghijklmnop"


def thinker(seen: list[object]) -> LLMAgent:
    def first(request: ModelRequest):  # type: ignore[no-untyped-def]
        seen.append(get_value(_SUPPRESS_INSTRUMENTATION_KEY))
        return tool_reply(("look_up", {"word": "bolt", "password": "swordfish"}))

    model = ScriptedModel(first, text_reply("done"))
    return LLMAgent(name="thinker", description="Thinks", instructions="Think.", model=model, tools=[look_up])


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    with exporting() as exporter:
        yield exporter
    content_capture.configure("none")


async def run(*agents: Agent, planner: Agent | None = None, team: Team = TEAM) -> Outcome:
    """Return the spans of one request with a task for each agent."""
    plan = [{"id": f"t{n}", "agent": each.card.name, "intent": "help"} for n, each in enumerate(agents, 1)]
    async with factory.team(team, [planner or planner_of(*plan), synthesizer, *agents], settled=True) as client:
        return await (await client.submit("crew", "help me", correlation_id="order-7")).outcome(20)


def _id(number: int | None) -> str:
    return f"{number or 0:016x}"


def _ids(span: ReadableSpan) -> tuple[str, str | None]:
    context = span.get_span_context()
    assert context is not None
    return _id(context.span_id), _id(span.parent.span_id) if span.parent else None


async def test_every_span_of_a_run_meets_the_conventions(exported: InMemorySpanExporter) -> None:
    seen: list[object] = []

    outcome = await run(thinker(seen), shaky)

    spans = exported.get_finished_spans()
    names = {_ids(span)[0]: span.name for span in spans}
    assert outcome.status == "completed"
    assert {span.get_span_context().trace_id for span in spans} == {int(outcome.trace_id, 16)}  # type: ignore[union-attr]
    assert len(names) == len(spans), "a span id was used twice"
    met: set[str] = set()
    for span in spans:
        (rule,) = [rule for rule in RULES if re.fullmatch(rule.name, span.name)]
        met.add(rule.name)
        parent = _ids(span)[1]
        assert span.kind.name == rule.kind, span.name
        assert re.fullmatch(rule.parent, names[parent or ""]) if rule.parent else parent is None, span.name
        attributes = dict(span.attributes or {})
        assert set(rule.required) <= set(attributes), (span.name, set(rule.required) - set(attributes))
        assert not PLACEHOLDER.search(span.name)
        assert span.status.is_ok == ("error.type" not in attributes), span.name
        assert span.instrumentation_scope is not None
        assert span.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/gen-ai/1.42.0"
        assert not {key for key in attributes if key.startswith(("gen_ai.input", "gen_ai.output.m", "gen_ai.system_i"))}
        assert {key.split(".")[0] for key in attributes} <= {"gen_ai", "messaging", "cloudevents", "pointsman", "error"}
    assert met >= {rule.name for rule in RULES if "inbox" not in rule.name}
    assert seen == [True]  # an instrumented SDK must not make a second span of the model call


async def test_span_without_cards_fails_nothing(
    exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(self: SupervisorSpans) -> None:
        raise BusUnavailableError("no answer")

    class _Registry:
        cards = away

    class _Blind:
        def __init__(self, bus: Bus) -> None:
            self._bus = bus

        registry = _Registry()

        def __getattr__(self, name: str) -> object:
            return getattr(self._bus, name)

    before = SupervisorSpans.__init__
    monkeypatch.setattr(SupervisorSpans, "__init__", lambda self, bus, *more: before(self, _Blind(bus), *more))  # type: ignore[arg-type]

    outcome = await run(thinker([]))

    (task,) = [span for span in exported.get_finished_spans() if span.name == "invoke_agent thinker"]
    assert outcome.status == "completed"
    assert "gen_ai.provider.name" not in (task.attributes or {})


async def test_each_attempt_has_a_span_and_each_retry_an_event(exported: InMemorySpanExporter) -> None:
    outcome = await run(shaky)

    spans = exported.get_finished_spans()
    (task,) = [span for span in spans if span.name == "invoke_agent shaky"]
    attempts = [span for span in spans if span.name == "process pointsman.handoff.shaky"]
    assert [_ids(span)[0] for span in attempts] == [span_id_for(outcome.workflow_id, "t1", n) for n in (1, 2)]
    assert [dict(span.attributes or {}).get("error.type") for span in attempts] == ["handler_error", None]
    assert [event.name for event in task.events] == ["pointsman.attempt_failed", "pointsman.retry_scheduled"]
    assert dict(task.events[1].attributes or {})["pointsman.attempt"] == 2
    assert task.status.is_ok


async def test_a_refused_plan_and_the_next_one_are_events_of_the_workflow(exported: InMemorySpanExporter) -> None:
    @agent(name="planner", description="Names a ghost at first", role=Role.PLAN)
    async def wrong_at_first(asked: PlannerInput) -> Plan:
        name = "shaky" if asked.problems else "ghost"
        return Plan.model_validate({"goal": "help", "tasks": [{"id": "t1", "agent": name, "intent": "help"}]})

    await run(shaky, planner=wrong_at_first)

    (workflow,) = [span for span in exported.get_finished_spans() if span.name == "invoke_workflow crew"]
    assert [event.name for event in workflow.events] == ["pointsman.plan_rejected", "pointsman.replanned"]


async def test_a_limit_is_an_event_of_the_workflow_it_ended(exported: InMemorySpanExporter) -> None:
    @agent(name="costly", description="Uses a lot")
    async def costly(request: str, context: Context) -> str:
        context.record_usage(Usage(calls=1, input_tokens=1_000))
        return request

    await run(costly, team=Team(name="crew", limits=Limits(deadline=30, tokens=10)))

    (workflow,) = [span for span in exported.get_finished_spans() if span.name == "invoke_workflow crew"]
    (limit,) = workflow.events
    assert (limit.name, dict(limit.attributes or {})["pointsman.limit"]) == ("pointsman.limit_reached", "tokens")


@pytest.mark.parametrize("point", ["supervisor.committed", "supervisor.emitted"])
async def test_supervisor_crash_after_a_commit_loses_and_doubles_no_span(
    exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    died: list[str] = []

    def die_every_other_time(passed: str) -> None:
        if passed == point:
            died.append(passed)
            if len(died) % 2:
                raise RuntimeError("as good as dead")

    monkeypatch.setattr("pointsman.engine.supervisor.committer.fault_point", die_every_other_time)
    monkeypatch.setattr("pointsman.engine.supervisor.engine.fault_point", die_every_other_time)
    monkeypatch.setattr("pointsman.engine.supervisor.engine._log", _Deaf())

    outcome = await run(shaky)

    owned = Counter(
        span.name for span in exported.get_finished_spans() if not span.name.startswith(("publish", "process"))
    )
    assert outcome.status == "completed"
    assert len(died) > 2
    assert sorted(owned.elements()) == [
        "invoke_agent shaky",
        "invoke_workflow crew",
        "plan planner",
        "synthesize synthesizer",
    ]
    inputs = re.compile(r"process pointsman\.(inbox|request)\.crew")
    again = [span for span in exported.get_finished_spans() if inputs.fullmatch(span.name)]
    assert again
    assert all(
        span.links and [event.name for event in span.events] == ["pointsman.handoff_redelivered"] for span in again
    )


def test_batched_inputs_are_one_span_with_links(
    exported: InMemorySpanExporter,
) -> None:
    story = WorkflowDriver().start()
    trace = story.state.trace.model_copy(update={"flags": 1})
    state = replace(story.state, trace=trace)
    sent = [f"00-{trace.trace_id}-{n:016x}-01" for n in (7, 8)]
    subject = "pointsman.result.crew.worker.wf_1.t1.1.token"
    together = [
        SimpleNamespace(
            message=StoredMessage(subject, b"", {"ce-traceparent": of, "traceparent": sent[0]}, n, T0), delivered=1
        )
        for n, of in enumerate(sent)
    ]

    spans = SupervisorSpans(MemoryBus(), SUBJECTS, SystemClock(), "crew")
    spans.export_processing(state, together, T0)
    spans.export_processing(state, together[:1], T0)

    (span,) = exported.get_finished_spans()  # no span for a batch of one message
    assert (span.name, span.kind.name) == ("process pointsman.result.crew", "CONSUMER")
    assert _ids(span)[1] == trace.span_id
    assert dict(span.attributes or {})["messaging.batch.message_count"] == 2
    assert [_id(link.context.span_id) for link in span.links] == [_id(7), _id(8)]


class _Deaf:
    """A logger that drops the expected errors of this module."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        return lambda *_, **__: None


async def test_unsampled_trace_is_not_exported_but_propagated() -> None:
    seen: list[traces.TraceContext | None] = []

    @agent(name="looker", description="Looks where it is")
    async def looker(request: str) -> str:
        seen.append(traces.current_context())
        return request

    with exporting(ParentBased(ALWAYS_OFF)) as exporter:
        outcome = await run(looker)

    assert exporter.get_finished_spans() == ()
    assert seen[0] is not None
    assert (seen[0].trace_id, seen[0].sampled) == (outcome.trace_id, False)


@pytest.mark.parametrize("mode", ["redacted", "full"])
async def test_content_is_on_the_spans_only_as_it_was_asked_for(
    exported: InMemorySpanExporter, mode: content_capture.Mode
) -> None:
    content_capture.configure(mode)

    await run(thinker([]))

    spans = exported.get_finished_spans()
    chats = [dict(span.attributes or {}) for span in spans if span.name == "chat scripted"]
    (used,) = [dict(span.attributes or {}) for span in spans if span.name == "execute_tool look_up"]
    last: Sequence[dict[str, object]] = json.loads(str(chats[1]["gen_ai.input.messages"]))
    assert [message["role"] for message in last] == ["user", "assistant", "tool"]
    assert json.loads(str(chats[1]["gen_ai.output.messages"]))[0]["parts"] == [{"type": "text", "content": "done"}]
    assert json.loads(str(chats[0]["gen_ai.tool.definitions"]))[0]["name"] == "look_up"
    assert "Think." in str(chats[0]["gen_ai.system_instructions"])
    arguments = json.loads(str(used["gen_ai.tool.call.arguments"]))
    everything = "".join(span.to_json() for span in spans)
    hidden = mode == "redacted"
    assert arguments == {"word": "bolt", "password": "[hidden]" if hidden else "swordfish"}
    assert ("swordfish" in everything) is not hidden
    assert ("sk-abcdefghijklmnop" in everything) is not hidden
