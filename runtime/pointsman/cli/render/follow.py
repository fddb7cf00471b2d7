"""A workflow told to a person or a program: its events while they happen, then its outcome."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.cli.render import outcome as render
from pointsman.cli.render.output import console, emit, hint, prose, say
from pointsman.client.client import Client, Workflow, WorkflowEvent
from pointsman.engine.operations.dead_letters import DeadLetters
from pointsman_schemas.events import Delta, Outcome, Progress
from pointsman_schemas.log import WorkflowEnded

__all__ = ["follow", "print_outcome"]


async def follow(workflow: Workflow, *, json: bool) -> Outcome:
    """Print the workflow's events as they happen, and return how it ended."""
    story, terminal = render.Story(), console()

    async def heard(delta: Delta) -> None:
        if json:
            emit({"delta": delta})
        else:
            for line in story.heard(delta):
                say(terminal, line)

    async with await workflow.listen(heard):
        async for event in workflow.events():
            if json:
                emit(_tagged(event))
            else:
                for line in story.lines(event):
                    say(terminal, line)
            if isinstance(event, WorkflowEnded):
                return event.outcome
    return await workflow.outcome()


async def print_outcome(client: Client, outcome: Outcome, workflow: str) -> None:
    """The answer on standard output; what is missing in it, and how it went, on standard error."""
    prose(console(), render.answer(outcome))
    terminal = console(stderr=True)
    terminal.print()
    terminal.print(render.outcome(outcome))
    hint(terminal, f"`pointsman trace {workflow}` shows who did what.")
    if outcome.status == "failed" and await DeadLetters(client.bus, client.subjects).list(workflow=workflow, limit=1):
        hint(terminal, f"`pointsman dead list --workflow {workflow}` shows what was given up on.")


def _tagged(event: WorkflowEvent) -> Mapping[str, WorkflowEvent]:
    return {"progress": event} if isinstance(event, Progress) else {"log": event}
