"""Check the invariants of a simulated world after its end, from its streams alone."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pointsman.core.evolve import apply_commit
from pointsman.core.model.inputs import RequestRefused
from pointsman.core.threads.turns import fold_thread
from pointsman.core.user_messages import next_turn_request_id, next_turn_workflow, unread_turn
from pointsman.engine.log.reader import read_commit
from pointsman.engine.log.requests import input_address, read_input, read_request
from pointsman.engine.log.workflow_log import LogHead
from pointsman.engine.process.dead_lettering import dead_letter_id_of
from pointsman.engine.process.handoff_codec import is_cancellation
from pointsman.errors import ContractError
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import DeadLetter, Outcome, Result
from pointsman_schemas.ids import attempt_token, child_id_for, dead_letter_id
from pointsman_schemas.log import (
    Commit,
    ControlIgnored,
    Entry,
    LimitReached,
    MessageReceived,
    PlanAccepted,
    RetryScheduled,
    TaskAbandoned,
    TaskDispatched,
    TaskFailed,
    TaskReopened,
    TaskSucceeded,
    WorkflowEnded,
    WorkflowResumed,
    WorkflowStarted,
)
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import HandoffAddress
from pointsman_schemas.threads import ThreadRecord
from simulation.one_log import problems_of

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["audit", "check_head", "describe"]


@dataclass(frozen=True, slots=True)
class FinalState:
    """The final streams of a world, read once."""

    world: World
    logs: Sequence[tuple[str, Sequence[tuple[StoredMessage, Commit]]]]
    """All logs. A workflow has several logs if it was requested again after its log was removed."""
    dead: Sequence[StoredMessage]
    letters: Sequence[DeadLetter]

    @property
    def names(self) -> set[str]:
        return {stored.subject.split(".")[-1] for stored in self.dead}


def audit(world: World) -> list[str]:
    """Return a sentence for every broken invariant of the world."""
    dead = [
        stored for stored in (*world.broker.removed, *world.broker.all_messages("dead", "sim.dead.>")) if stored.body
    ]
    letters = [parse(DeadLetter, decode(stored.headers, stored.body)[1]) for stored in dead]
    rest = FinalState(world, _logs(world), dead, letters)
    checks = (
        _requests,
        _restarted_workflows,
        _workflows,
        _trees,
        _handoffs_and_results,
        _inputs,
        _cancellations,
        _letters,
        _threads,
        _messages,
    )
    return [problem for check in checks for problem in check(rest)]


def _threads(rest: FinalState) -> Iterator[str]:
    """Check the records of threads, and the order and the history of their turns."""
    world, team = rest.world, rest.world.team
    logs = {workflow: [entry for _, commit in commits for entry in commit.entries] for workflow, commits in rest.logs}
    ends = {
        workflow: [
            stored.sequence
            for stored, commit in commits
            if any(isinstance(entry, WorkflowEnded) for entry in commit.entries)
        ]
        for workflow, commits in rest.logs
    }
    begins = {workflow: commits[0][0].sequence for workflow, commits in rest.logs}
    records: dict[str, ThreadRecord] = {}
    for stored in world.broker.all_messages("log", world.subjects.threads()):
        record = parse(ThreadRecord, decode(stored.headers, stored.body)[1])
        before = records.get(stored.subject)
        if before is not None and record.number not in (1, before.number + 1):
            yield f"change {record.number} of {stored.subject} follows change {before.number}"
        state = before.state if before is not None and record.number > 1 else None
        if fold_thread(state, record.entries) != record.state:
            yield f"change {record.number} of {stored.subject} does not lead to its state"
        records[stored.subject] = record
        running = [turn for turn in record.state.turns if turn.status == "running"]
        if len(running) > 1 and team.threads.busy != "parallel":
            yield f"{stored.subject} has {len(running)} running turns after change {record.number}"
    for subject, record in records.items():
        for turn in record.state.turns:
            ended = any(isinstance(entry, WorkflowEnded) for entry in logs.get(turn.workflow_id, ()))
            if turn.status != "ended" and ended:
                yield f"{subject} lacks the end of {turn.workflow_id}"
    for workflow, entries in logs.items():
        first = entries[0]
        if not isinstance(first, WorkflowStarted) or first.thread is None or first.history is None:
            continue
        numbers = [past.number for past in first.history.turns]
        if numbers != sorted(set(numbers)) or any(number >= first.thread.number for number in numbers):
            yield f"turn {first.thread.number} ({workflow}) received the turns {numbers}"
        if team.threads.busy == "parallel":
            continue
        for other, theirs in logs.items():
            begun = theirs[0]
            if other == workflow or not isinstance(begun, WorkflowStarted) or begun.thread is None:
                continue
            same = (begun.thread.thread, begun.caller) == (first.thread.thread, first.caller)
            if same and begins[other] < begins[workflow] and not any(end < begins[workflow] for end in ends[other]):
                yield f"{workflow} started before {other} of its thread had ended"


def _messages(rest: FinalState) -> Iterator[str]:
    """Check that each message occurs exactly once: in a log, as the next turn of a thread, or as a dead letter."""
    world, team = rest.world, rest.world.team.name
    requests = {workflow: stored for stored, workflow in world.requests()}
    letters = {letter.subject.rpartition(".")[2]: letter.cause.kind for letter in rest.letters}
    kept = {workflow for workflow, commits in rest.logs if world.broker.removed_at(commits[-1][0]) is None}
    counts: Counter[tuple[int, str]] = Counter()
    ignored: set[str] = set()
    for place, (workflow, commits) in enumerate(rest.logs):
        entries = [entry for _, commit in commits for entry in commit.entries]
        received = [entry for entry in entries if isinstance(entry, MessageReceived)]
        known = len(entries[0].messages) if isinstance(entries[0], WorkflowStarted) else 0
        if [entry.number for entry in received] != list(range(known + 1, known + len(received) + 1)):
            yield f"{workflow} has the messages {[entry.number for entry in received]} after {known} of its parent"
        for entry in received:
            counts[place, entry.event_id] += 1
            told = world.told.get(entry.event_id)
            if told is not None and told != (workflow, entry.by, entry.text):
                yield f"{workflow} has recorded {entry.text!r} by {entry.by}; {told} was sent"
        ignored |= {entry.event_id for entry in entries if isinstance(entry, ControlIgnored)}
        if (turn := _unread_turn(world, commits)) is not None and turn not in requests:
            yield f"{workflow} ended with messages that no task has read, and no turn of its thread has them"
    yield from (f"{name} was recorded {count} times" for (_, name), count in counts.items() if count > 1)
    recorded = {name for _, name in counts}
    for name, (workflow, actor, _) in world.told.items():
        turn = next_turn_workflow(world.subjects, team, actor, next_turn_request_id(workflow, name))
        if letters.get(name) == "unknown_workflow" and workflow in kept:
            yield f"{name} to {workflow}, which waited for admission or ran, is a dead letter"
        if name not in recorded | ignored | letters.keys() and turn not in requests:
            yield f"{name} to {workflow} is in no log, in no request and in no dead letter"


def _unread_turn(world: World, commits: Sequence[tuple[StoredMessage, Commit]]) -> str | None:
    """Return the workflow of the turn that the unread messages of a log started."""
    state = None
    for _, commit in commits:
        state = apply_commit(None if commit.number == 1 else state, commit)
    if state is None or (turn := unread_turn(state)) is None:
        return None
    return next_turn_workflow(world.subjects, state.team, turn.place.caller, turn.request_id)


def check_head(world: World, workflow: str, head: LogHead) -> str | None:
    """Compare the state of a supervisor with the fold of the log. Return a problem if they differ."""
    folded = None
    for stored in world.broker.all_messages("log", world.subjects.log(world.team_of(workflow), workflow)):
        if stored.sequence <= head.sequence:
            commit = read_commit(stored)
            folded = apply_commit(None if commit.number == 1 else folded, commit)
    return None if folded == head.state else f"{workflow}: a supervisor's state is not the fold of its log"


def describe(world: World) -> list[str]:
    """Describe the open work and the states of the workflows of a world that does not become idle."""
    lines = world.unfinished()
    for workflow, commits in _logs(world):
        entries = [entry for _, commit in commits for entry in commit.entries]
        if not any(isinstance(entry, WorkflowEnded) for entry in entries):
            lines.append(f"{workflow} has not ended; its last entries: {', '.join(e.kind for e in entries[-6:])}")
    return lines


def _requests(rest: FinalState) -> Iterator[str]:
    """Check that every acknowledged request reached exactly one outcome."""
    world, team = rest.world, rest.world.team.name
    logs = Counter(workflow for workflow, _ in rest.logs)
    rounds = Counter(
        workflow
        for workflow, commits in rest.logs
        for _, commit in commits
        for entry in commit.entries
        if isinstance(entry, WorkflowEnded)
    )
    for stored, workflow in world.requests():
        outcomes = _outcomes(world, world.subjects.outcome(team, workflow))
        if not max(1, logs[workflow]) <= len(outcomes) <= max(1, rounds[workflow]):
            yield f"request {stored.sequence} ({workflow}) has {len(outcomes)} outcomes"
    asked = {workflow for _, workflow in world.requests()}
    for stored in world.broker.all_messages("log", world.subjects.team_outcomes(team)):
        if stored.subject.split(".")[-1] not in asked:
            yield f"{stored.subject} is an outcome without a request"


def _is_subsequence(some: Sequence[Outcome], of: Sequence[Outcome]) -> bool:
    left = iter(of)
    return all(each in left for each in some)


def _outcomes(world: World, subject: str) -> list[StoredMessage]:
    """Return the outcomes on `subject`, without a copy that the broker stored while it still had the first one."""
    found: list[StoredMessage] = []
    for stored in world.broker.all_messages("log", subject):
        if world.is_foreign(stored):
            continue
        gone = world.broker.removed_at(found[-1]) if found and found[-1].body == stored.body else None
        if gone is None or stored.at < gone:
            found.append(stored)
    return found


def _restarted_workflows(rest: FinalState) -> Iterator[str]:
    """Check that ended work is repeated only for a request that arrived after the log expired."""
    world, kept = rest.world, timedelta(days=rest.world.settings.retention_days)
    asked = {workflow: stored.at for stored, workflow in world.requests()}
    for stored in world.broker.all_messages("handoffs", world.subjects.agent_handoffs("below")):
        parent = world.subjects.parse(stored.subject, HandoffAddress)
        asked[child_id_for("below", parent.workflow, parent.task, parent.attempt)] = stored.at
    ended: dict[str, datetime] = {}
    for workflow, commits in rest.logs:
        if workflow in ended and asked[workflow] < ended[workflow] + kept:
            yield f"{workflow} began again without a request since its log had expired"
        ended[workflow] = commits[-1][0].at


def _workflows(rest: FinalState) -> Iterator[str]:
    world, letters = rest.world, rest.names
    due: dict[str, list[Outcome]] = defaultdict(list)
    for place, (workflow, commits) in enumerate(rest.logs):
        entries = [entry for _, commit in commits for entry in commit.entries]
        yield from (f"{workflow}: {problem}" for problem in problems_of(commits, world.answers))
        rounds = 1 + sum(isinstance(entry, WorkflowResumed) for entry in entries)
        ends = [entry for entry in entries if isinstance(entry, WorkflowEnded)]
        if [end.outcome.round for end in ends] != list(range(1, rounds + 1)) or entries[-1] is not ends[-1]:
            yield f"{workflow}: has {len(ends)} ends of {rounds} rounds, the last entry is {entries[-1].kind}"
            continue
        held = _outcomes(world, world.subjects.outcome(world.team_of(workflow), workflow))
        published = [parse(Outcome, stored.body) for stored in held if not world.is_foreign(stored)]
        due[workflow] += [end.outcome for end in ends]
        if published and ends[-1].outcome not in published:
            yield f"{workflow}: its outcome is not the one in its log"
        # A round may be resumed through another supervisor before its outcome is published.
        newest_log = all(name != workflow for name, _ in rest.logs[place + 1 :])
        if newest_log and not _is_subsequence(published, due[workflow]):
            yield f"{workflow}: has {len(published)} outcomes that are not those of the rounds in its logs"
        # A reopened task has not failed, and may have been reopened before its dead letter was published.
        # A resume repeats the failed tasks of earlier rounds, and removes their dead letters.
        resumes = [number for number, entry in enumerate(entries) if isinstance(entry, WorkflowResumed)]
        newest = entries[resumes[-1] if resumes else 0 :]
        last = {entry.task_id: entry for entry in newest if isinstance(entry, TaskFailed | TaskReopened)}
        plans = [entry.plan for entry in entries if isinstance(entry, PlanAccepted)]
        lists = {task.id for plan in plans for task in plan.tasks if task.for_each}  # only their items have letters
        for task_id, entry in last.items():
            if (
                isinstance(entry, TaskFailed)
                and task_id not in lists
                and dead_letter_id(workflow, task_id, entry.attempts) not in letters
            ):
                yield f"{workflow}: {task_id} failed after {entry.attempts} attempts and has no dead letter"
        yield from _given_up_at_a_limit(workflow, newest, letters)


def _given_up_at_a_limit(workflow: str, entries: Sequence[Entry], letters: Set[str]) -> Iterator[str]:
    """Check that handoffs abandoned at a limit have dead letters. Cancelled work has none."""
    limit = next((place for place, entry in enumerate(entries) if isinstance(entry, LimitReached)), len(entries))
    handed = {entry.task_id: entry.attempt for entry in entries if isinstance(entry, TaskDispatched | RetryScheduled)}
    ends = [entry.outcome for entry in entries if isinstance(entry, WorkflowEnded)]
    cancelled = {outcome.reason for outcome in ends if outcome.status == "cancelled"}
    for entry in entries[limit:]:
        if isinstance(entry, TaskAbandoned) and entry.task_id in handed:
            has_one = dead_letter_id(workflow, entry.task_id, handed[entry.task_id]) in letters
            if has_one and entry.reason in cancelled:
                yield f"{workflow}: {entry.task_id} was cancelled and has a dead letter"
            elif not has_one and entry.reason not in cancelled:
                yield f"{workflow}: {entry.task_id} was abandoned at a limit and has no dead letter"


def _trees(rest: FinalState) -> Iterator[str]:
    """Check that a workflow and its teams start no more tasks than the limits allow."""
    started: Counter[str] = Counter()
    roots: dict[str, str] = {}
    bounds: dict[str, int] = {}
    for workflow, commits in rest.logs:
        entries = [entry for _, commit in commits for entry in commit.entries]
        planned = {task.id for entry in entries if isinstance(entry, PlanAccepted) for task in entry.plan.tasks}
        sent = {entry.task_id for entry in entries if isinstance(entry, TaskDispatched | RetryScheduled)}
        started[workflow] = max(started[workflow], len(planned & sent))
        if isinstance(begun := entries[0], WorkflowStarted):
            roots[workflow] = begun.parent.workflow_id if begun.parent else ""
            asked = begun.budget.tasks if begun.budget else None
            bounds[workflow] = begun.limits.tasks if asked is None else min(begun.limits.tasks, asked)
            bounds[workflow] *= 1 + sum(isinstance(entry, WorkflowResumed) for entry in entries)
    for workflow, above in roots.items():
        whole = started[workflow] + sum(started[child] for child, parent in roots.items() if parent == workflow)
        if whole > bounds.get(workflow, whole):
            yield f"{workflow}: {whole} tasks were started in its tree; {bounds[workflow]} are allowed"
        if above and above not in roots:
            yield f"{workflow} is a child of {above}, which has no log"


def _handoffs_and_results(rest: FinalState) -> Iterator[str]:
    """Check that each attempt has at most one handoff and one result, and each settled handoff an answer."""
    world = rest.world
    dispatched = {
        (workflow, entry.task_id, entry.attempt, entry.agent)
        for workflow, commits in rest.logs
        for _, commit in commits
        for entry in commit.entries
        if isinstance(entry, TaskDispatched | RetryScheduled)
    }
    letters = rest.names
    counts: Counter[str] = Counter()
    every = world.broker.all_messages("handoffs", "sim.handoff.>")
    handoffs = [stored for stored in every if not is_cancellation(stored)]
    ended: dict[str, datetime] = {}
    for stored in world.broker.all_messages("log", "sim.outcome.*.*"):
        ended.setdefault(stored.subject.split(".")[-1], stored.at)
    for stored in (*handoffs, *world.broker.all_messages("results", "sim.result.>")):
        # The broker refuses a second copy while it stores the first. A world may remove the first soon after the end.
        end = ended.get(stored.subject.split(".")[4])
        too_late = end is not None and stored.at > end and world.broker.was_trimmed(stored.subject)
        if not world.is_foreign(stored) and not too_late:
            counts[stored.subject] += 1
    yield from (f"{subject} was sent {count} times" for subject, count in counts.items() if count > 1)
    for stored in handoffs:
        address = world.subjects.parse(stored.subject, HandoffAddress)
        attempt = (address.workflow, address.task, address.attempt, address.agent)
        if not world.is_foreign(stored) and attempt not in dispatched:
            yield f"{stored.subject} was sent, but never decided"
        if address.agent == "leaver" or (world.over_at and stored.at > world.over_at):
            continue  # no answer: a retry that was scheduled before the workflow ended
        if world.broker.was_cancelled(stored):
            continue  # no answer: the handoff was restored by a power cut, or its workflow had ended
        if world.is_foreign(stored) and world.broker.was_trimmed_unread(stored):
            continue  # no answer: an outsider sent the handoff to a missing agent
        answer = world.subjects.attempt_results(
            address.team, address.agent, address.workflow, address.task, address.attempt
        )
        buried = dead_letter_id_of(world.outside, world.subjects, stored, address.workflow) in letters
        if not world.broker.all_messages("results", answer) and not buried:
            yield f"{stored.subject} was acknowledged and never answered"
    answers: dict[str, list[Result]] = defaultdict(list)
    for stored in world.broker.all_messages("results", "sim.result.>"):
        with suppress(ContractError):
            answers[stored.subject].append(parse(Result, decode(stored.headers, stored.body)[1]))
    for workflow, commits in rest.logs:
        begun = commits[0][1].entries[0]
        for _, commit in commits:
            for entry in commit.entries:
                if isinstance(entry, TaskSucceeded) and isinstance(begun, WorkflowStarted):
                    last = attempt_token(begun.secret, entry.task_id, entry.attempt)
                    said = (begun.team, entry.result.agent, workflow, entry.task_id, entry.attempt, last)
                    if entry.result not in answers[world.subjects.result(*said)]:
                        yield f"{workflow}: the accepted result of {entry.task_id} was never sent"


def _inputs(rest: FinalState) -> Iterator[str]:
    """Check that unreadable messages, and different requests with a used id, are dead letters."""
    world = rest.world
    letters = {(letter.stream, letter.sequence) for letter in rest.letters}
    known = {workflow for workflow, _ in rest.logs}
    inputs: tuple[tuple[StreamKind, str], ...] = (
        ("controls", "sim.control.>"),
        ("results", "sim.result.>"),
        ("work", "sim.timer.>"),
    )
    received = [(kind, stored) for kind, subject in inputs for stored in world.broker.all_messages(kind, subject)]
    for stream, stored in received:
        try:
            read_input(stored, world.subjects)
            # A task may be abandoned before its handoff was sent. Then neither a start nor a cancellation exists.
            workflow = input_address(stored.subject, world.subjects).workflow
            own = stored.subject.endswith(".parent") or ".tell.team.message-" in stored.subject
            lost = workflow not in known and not own
        except ContractError:
            lost = True
        if lost and (world.outside.stream_name(stream), stored.sequence) not in letters:
            yield f"{stored.subject} ({stored.sequence}) belongs to no workflow, but is not a dead letter"
    buried = {(letter.workflow_id, letter.body) for letter in rest.letters}
    for stored, workflow in world.requests():
        asked = read_request(stored, world.team)
        began = [commits[0][1].entries[0] for of, commits in rest.logs if of == workflow]
        another = bool(began) and all(
            isinstance(entry, WorkflowStarted) and entry.request_digest != asked.admission.digest for entry in began
        )
        lost = (workflow, b64encode(stored.body).decode()) not in buried
        if lost and (another or isinstance(asked, RequestRefused)):
            what = "is another than its workflow began with" if another else "cannot be read"
            yield f"request {stored.sequence} ({workflow}) {what}, but is not a dead letter"


def _cancellations(rest: FinalState) -> Iterator[str]:
    """Check that every cancel has an effect: before and after the workflow's start, until the log is deleted."""
    broker = rest.world.broker
    asked: dict[str, datetime] = {}
    for stored, workflow in rest.world.requests():
        asked.setdefault(workflow, stored.at)  # a time: sequences of requests and cancels cannot be compared
    said = {stored.sequence: stored for stored in broker.all_messages("controls", "sim.control.>")}
    for buried, letter in zip(rest.dead, rest.letters, strict=True):
        workflow, sequence = letter.workflow_id or "", letter.sequence or 0
        if letter.cause.kind != "unknown_workflow" or not letter.subject.rpartition(".")[2].startswith("cancel-"):
            continue
        log = [stored for stored in broker.all_messages("log", f"sim.log.*.{workflow}") if stored.at < buried.at]
        gone = broker.removed_at(log[-1]) if log else None
        entries = [entry for stored in log for entry in read_commit(stored).entries]
        # The cancel was handled while the log existed and was redelivered after a lost ack, or it arrived after the
        # end.
        id = letter.subject.rpartition(".")[2]
        heard = any(getattr(entry, "event_id", None) == id for entry in entries)
        too_late = len(log) == 1 or (log and said[sequence].at > log[-1].at)
        over = gone and gone <= buried.at and (heard or too_late) and isinstance(entries[-1], WorkflowEnded)
        if not over and workflow in asked and asked[workflow] < said[sequence].at:
            yield f"{letter.subject} ({sequence}) cancels what was requested before it, but is a dead letter"


def _letters(rest: FinalState) -> Iterator[str]:
    """Check that every dead letter has a cause, is unique, and is not the result of a bug."""
    counts = Counter(stored.subject for stored in rest.world.broker.all_messages("dead", "sim.dead.>") if stored.body)
    yield from (f"{subject} was stored {count} times" for subject, count in counts.items() if count > 1)
    for letter in rest.letters:
        if not letter.cause.kind or not letter.cause.message or letter.cause.kind in ("bug", "corrupt_log"):
            yield f"dead letter {letter.id} of {letter.subject}: {letter.cause.kind}: {letter.cause.message}"


def _logs(world: World) -> list[tuple[str, list[tuple[StoredMessage, Commit]]]]:
    logs: list[tuple[str, list[tuple[StoredMessage, Commit]]]] = []
    newest: dict[str, list[tuple[StoredMessage, Commit]]] = {}
    for stored in world.broker.all_messages("log", world.subjects.team_logs()):
        workflow, commit = stored.subject.split(".")[-1], read_commit(stored)
        before = newest.get(workflow)
        removed = world.broker.removed_at(before[-1][0]) if before else None
        if before is None or (removed and removed <= stored.at and commit.number == 1):
            newest[workflow] = []
            logs.append((workflow, newest[workflow]))
        newest[workflow].append((stored, commit))
    return logs
