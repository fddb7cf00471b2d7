"""A workflow told to a person or a program: its events while they happen, then its outcome."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.cli.render import outcome as render
from pointsman.cli.render.output import console, print_event, print_hint, print_json, print_prose
from pointsman.client.client import Client, Workflow, WorkflowEvent
from pointsman_schemas.events import Delta, Outcome, Progress
from pointsman_schemas.log import WorkflowEnded

__all__ = ["follow", "print_outcome"]


async def follow(workflow: Workflow, *, json: bool) -> Outcome:
    """Print the workflow's events as they happen, and return how it ended."""
    story, terminal = render.EventPrinter(), console()

    async def heard(delta: Delta) -> None:
        if json:
            print_json({"delta": delta})
        else:
            for line in story.delta_lines(delta):
                print_event(terminal, line)

    async with await workflow.stream_text(heard):
        async for event in workflow.events():
            if json:
                print_json(_with_type(event))
            else:
                for line in story.lines(event):
                    print_event(terminal, line)
            if isinstance(event, WorkflowEnded):
                return event.outcome
    return await workflow.outcome()


async def print_outcome(client: Client, outcome: Outcome, workflow: str) -> None:
    """The answer on standard output; what is missing in it, and how it went, on standard error."""
    print_prose(console(), render.render_answer(outcome))
    terminal = console(stderr=True)
    terminal.print()
    terminal.print(render.render_outcome(outcome))
    print_hint(terminal, f"`pointsman trace {workflow}` shows who did what.")
    if outcome.status == "failed" and await client.operations.dead_letters(workflow=workflow, limit=1):
        print_hint(terminal, f"`pointsman dead list --workflow {workflow}` shows what was given up on.")


def _with_type(event: WorkflowEvent) -> Mapping[str, WorkflowEvent]:
    return {"progress": event} if isinstance(event, Progress) else {"log": event}
