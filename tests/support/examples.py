"""One full example of every event, with a value for each optional field."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.events import (
    AttemptError,
    Audit,
    Budget,
    Cancellation,
    Control,
    DeadLetter,
    Delta,
    Event,
    Gap,
    Handoff,
    Outcome,
    Progress,
    Question,
    Request,
    Result,
    Step,
    StepToolCall,
    TaskReport,
    TaskSummary,
    Timer,
    Usage,
    UserMessage,
    UserMessages,
)
from pointsman_schemas.log import (
    Commit,
    PlanAccepted,
    TaskAdded,
    TaskDispatched,
    TaskSucceeded,
    TraceOrigin,
    WorkflowEnded,
    WorkflowStarted,
)
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.schedules import (
    Schedule,
    ScheduleChange,
    ScheduleCreated,
    ScheduleRecord,
    ScheduleSpec,
    ScheduleTimer,
    TimerSet,
)
from pointsman_schemas.team import Limits, PlanAndExecute, RetryPolicy
from pointsman_schemas.threads import Thread, ThreadRecord, ThreadStarted, Turn, TurnRequested

__all__ = ["CARD", "EVENTS"]

_AT = datetime(2026, 3, 29, 1, 30, 0, 123456, UTC)
_LATER = _AT + timedelta(seconds=2)
_USAGE = Usage(calls=1, input_tokens=900, output_tokens=120, cost=0.0045)
_ERROR = AttemptError(kind="provider_error", message="429 from the provider", retryable=True, retry_after=2.5)
_INPUT = {"question": "Why was I charged twice?", "invoice": 2**63, "amounts": [12.5, None, True]}

_SPEC = ScheduleSpec(cron="0 9 * * 1-5", timezone="Europe/Oslo", request=Request(input="the report of yesterday"))
_REQUEST = Request(
    input=_INPUT,
    deadline=60,
    budget=Budget(calls=20, tokens=50_000, cost=0.5),
    metadata={"customer": "c-1"},
    correlation_id="order 7",
    reply_to="_INBOX.shop.7",
)
_HANDOFF = Handoff(
    workflow_id="wf_1",
    task_id="charges",
    attempt=2,
    from_agent="customer-service",
    to_agent="billing",
    role=Role.WORK,
    intent="Find the charges of invoice 7",
    input=_INPUT,
    context=(
        TaskReport(task_id="who", agent="account", intent="Who asks?", status="succeeded", output={"name": "Ada"}),
        TaskReport(task_id="why", agent="technical", intent="What broke?", status="failed", error=_ERROR),
    ),
    return_to="pointsman.result.customer-service.billing.wf_1.charges.2.b3f1c02d9e8a47560f1d2c3b4a596871",
    deadline=_LATER,
    idempotency_key="wf_1-charges",
    budget=Budget(tokens=40_000),
)
_RESULT = Result(
    workflow_id="wf_1",
    task_id="charges",
    attempt=2,
    agent="billing",
    status="succeeded",
    output={"charges": [{"amount": 12.5}, {"amount": 12.5}], "note": None},
    usage=_USAGE,
    confidence=0.9,
    replan_hint="the second charge is of another account",
    started_at=_AT,
    ended_at=_LATER,
)
_STEP = Step(
    workflow_id="wf_1",
    task_id="charges",
    attempt=2,
    agent="billing",
    name="answer-1",
    calls=(StepToolCall(id="call_1", name="find_charges", arguments='{"invoice": 7}'),),
    finish="tool_calls",
    model="gpt-4.1-mini",
    usage=_USAGE,
    at=_AT,
)
_OUTCOME = Outcome(
    workflow_id="wf_1",
    team="customer-service",
    status="partial",
    answer="You were charged twice; the second charge is refunded.",
    reason="one task failed",
    gaps=(Gap(task_id="why", agent="technical", reason="429 from the provider"),),
    tasks=(
        TaskSummary(
            task_id="charges",
            agent="billing",
            role=Role.WORK,
            intent="Find the charges",
            status="succeeded",
            attempts=2,
            elapsed=2.0,
            usage=_USAGE,
        ),
    ),
    usage=_USAGE,
    correlation_id="order 7",
    trace_id="0af7651916cd43dd8448eb211c80319c",
    started_at=_AT,
    ended_at=_LATER,
    elapsed=2.0,
    sequential=3.5,
)

EVENTS: dict[str, Event] = {
    "request": _REQUEST,
    "handoff": _HANDOFF,
    "step": _STEP,
    "delta": Delta(workflow_id="wf_1", task_id="charges", attempt=2, agent="billing", text="You were "),
    "result": _RESULT,
    "failed result": _RESULT.model_copy(update={"status": "failed", "output": None, "error": _ERROR}),
    "control": Control(action="cancel", task_id="charges", reason="no longer needed"),
    "question": Question(
        id="wf_1-q1",
        workflow_id="wf_1",
        team="support",
        about="tool",
        task_id="charges",
        agent="billing",
        intent="Refund the second charge",
        tool="request_refund",
        input={"charge_id": "ch_2"},
        asked_at=_LATER,
        expires_at=_LATER,
        reply_to="pointsman.control.support.wf_1",
    ),
    "messages": UserMessages(
        workflow_id="wf_1", messages=(UserMessage(number=1, text="Only the charge of May.", by="ann", at=_AT),)
    ),
    "thread": ThreadRecord(
        number=1,
        entries=(
            ThreadStarted(at=_AT, team="support", caller="ann", thread="talk"),
            TurnRequested(at=_AT, workflow_id="wf_1", status="running", request="I was charged twice"),
        ),
        state=Thread(
            team="support",
            caller="ann",
            thread="talk",
            started_at=_AT,
            changed_at=_AT,
            turns=(Turn(workflow_id="wf_1", number=1, status="running", asked_at=_AT, request="I was charged twice"),),
        ),
    ),
    "schedule-change": ScheduleChange(action="create", caller="ann", schedule="report", spec=_SPEC),
    "schedule-timer": ScheduleTimer(caller="ann", schedule="report", number=1, due=_LATER),
    "schedule": ScheduleRecord(
        number=1,
        entries=(
            ScheduleCreated(at=_AT, team="support", caller="ann", name="report", spec=_SPEC, change="c1"),
            TimerSet(at=_AT, due=_LATER),
        ),
        state=Schedule(
            team="support",
            caller="ann",
            name="report",
            status="active",
            spec=_SPEC,
            created_at=_AT,
            changed_at=_AT,
            through=_AT,
            wake=_LATER,
            timer=1,
        ),
    ),
    "cancellation": Cancellation(tasks=("charges", "why")),
    "timer": Timer(name="deadline", due=_LATER),
    "progress": Progress(
        workflow_id="wf_1",
        task_id="charges",
        attempt=2,
        agent="billing",
        kind="tool",
        name="find_charges",
        message="two charges",
        started_at=_AT,
        ended_at=_LATER,
        error="timed out once",
        usage=_USAGE,
        span_id="00f067aa0ba902b7",
        parent_span_id="b7ad6b7169203331",
    ),
    "log": Commit(
        number=1,
        entries=(
            WorkflowStarted(
                at=_AT,
                workflow_id="wf_1",
                team="customer-service",
                request_id="r-1",
                correlation_id="order 7",
                caller="ada",
                secret="7f3c9a41d2b8e6057f3c9a41d2b8e605",
                input=_INPUT,
                agents=("billing", "technical"),
                strategy=PlanAndExecute(),
                limits=Limits(tokens=50_000),
                retry=RetryPolicy(),
                deadline=_LATER,
                budget=Budget(),
                trace=TraceOrigin(trace_id="0af7651916cd43dd8448eb211c80319c", span_id="00f067aa0ba902b7"),
            ),
            TaskAdded(at=_AT, task_id="plan", role=Role.PLAN, agent="planner", intent="Plan it", input=_INPUT),
            PlanAccepted(
                at=_AT,
                revision=1,
                plan=Plan(
                    goal="Explain the charges",
                    tasks=(
                        PlannedTask(id="charges", agent="billing", intent="Find the charges", input=_INPUT),
                        PlannedTask(
                            id="why",
                            agent="technical",
                            intent="Find the fault",
                            depends_on=("charges",),
                            optional_dependencies=("who",),
                        ),
                    ),
                    final_instruction="Be brief",
                ),
            ),
            TaskDispatched(
                at=_AT, task_id="charges", attempt=2, agent="billing", deadline=_LATER, span_id="00f067aa0ba902b7"
            ),
            TaskSucceeded(at=_LATER, task_id="charges", attempt=2, event_id="e-9", result=_RESULT),
            WorkflowEnded(at=_LATER, outcome=_OUTCOME),
        ),
        snapshot={"phase": "partial"},
        snapshot_sequence=12,
    ),
    "outcome": _OUTCOME,
    "dead letter": DeadLetter(
        id="d-1",
        origin="billing",
        workflow_id="wf_1",
        team="customer-service",
        task_id="charges",
        cause=_ERROR,
        attempts=3,
        subject="pointsman.handoff.billing.crew.wf_1.charges.3",
        headers={"ce-id": "e-9"},
        body="e30=",
        stream="POINTSMAN_WORK",
        sequence=4711,
        at=_LATER,
    ),
    "audit": Audit(action="forget", workflow_id="wf_1", reason="The customer asked for it", messages=12),
}
"""Examples by name, at least one of every event class."""

CARD = AgentCard(
    name="billing",
    version="1.2.0",
    description="Invoices, refunds, subscription changes",
    skills=("refunds",),
    intents=("explain a charge",),
    examples=("Why was I charged twice?",),
    input_schema={"type": "object"},
    output_schema={"type": "object"},
    model="offline",
    fallback="account",
    instance="i-1",
    started_at=_AT,
)
