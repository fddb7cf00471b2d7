"""The commands for threads: chat, threads list, threads show, threads delete."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from contextlib import suppress
from typing import Annotated

import typer

from pointsman.cli.arguments import Json
from pointsman.cli.render.follow import print_streamed_text
from pointsman.cli.render.outcome import render_answer
from pointsman.cli.render.output import console, print_error, print_hint, print_json, print_list, print_prose
from pointsman.cli.render.threads import thread_table, thread_view
from pointsman.cli.support.session import Session, broker_command
from pointsman.client.thread import Thread
from pointsman.client.workflow import Workflow
from pointsman.errors import NotFoundError
from pointsman_schemas.events import Outcome

__all__ = ["chat", "delete", "list_", "show"]

_CANCEL_TIMEOUT_S = 10.0  # longest wait for the end of a turn after Ctrl-C

ThreadId = Annotated[str, typer.Argument(metavar="THREAD", help="The id that `pointsman threads list` shows.")]
TeamName = Annotated[str, typer.Argument(metavar="TEAM", help="The name of the team.")]
Caller = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Threads of this caller. Default: your own threads.", show_default=False),
]


@broker_command
async def chat(
    session: Session,
    team: TeamName,
    thread: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Continue this thread, or begin a thread with this id. Default: a new id.",
            show_default=False,
        ),
    ] = None,
) -> None:  # fmt: skip
    """Talk with a team in the terminal, turn by turn.

    The team's agents receive the earlier turns. Ctrl-C cancels the running turn. Ctrl-D, or Ctrl-C at the prompt, ends
    the chat. `--thread ID` continues the chat later.
    """
    async with session() as client:
        talk = client.thread(team, thread)
        await _Chat(talk).run()
        print_hint(console(stderr=True), f"`pointsman chat {team} --thread {talk.id}` continues this thread.")


@broker_command
async def list_(
    session: Session,
    team: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only threads with this team.", show_default=False)
    ] = None,
    caller: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only threads of this caller.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """List the threads, most recently changed first."""
    async with session() as client:
        found = await client.operations.threads(team, caller=caller)
    print_list(found, lambda _: thread_table(found), "There are no threads.", json=json)


@broker_command
async def show(
    session: Session,
    team: TeamName,
    thread: ThreadId,
    caller: Caller = None,
    json: Json = False,
) -> None:
    """Show the turns of a thread, and the summary of older turns.

    Raises:
        NotFoundError: There is no such thread.
    """
    async with session() as client:
        found = await client.operations.thread(team, thread, caller=caller)
        owner = caller or client.user
    if found is None:
        raise NotFoundError(f"{owner} has no thread {thread!r} with {team}; `pointsman threads list` shows the threads")
    print_json(found) if json else console().print(thread_view(found))


@broker_command
async def delete(
    session: Session,
    team: TeamName,
    thread: ThreadId,
    caller: Caller = None,
    json: Json = False,
) -> None:
    """Delete a thread with all messages of its turns.

    A running turn is cancelled.
    """
    async with session() as client:
        turns = await client.operations.delete_thread(team, thread, caller=caller)
    print_json({"thread": thread, "turns": turns}) if json else print(
        f"The thread {thread} and its {turns} turns are deleted."
    )


class _Chat:
    """A chat in the terminal. Ctrl-C cancels the running turn. If no turn runs, Ctrl-C ends the chat."""

    def __init__(self, talk: Thread) -> None:
        self._talk = talk
        self._turn: asyncio.Task[None] | None = None
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()

    async def run(self) -> None:
        """Run turn after turn until the input ends or the user ends the chat."""
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError):  # on a system without signal handlers, Ctrl-C ends the chat at once
            loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
        await self._print_history()
        # Lines are read in a daemon thread. A thread that reads a terminal cannot be stopped, and a thread that is not
        # a daemon would prevent the exit of the process.
        reading = threading.Event()
        threading.Thread(target=_read_lines, args=(loop, self._lines, reading), daemon=True).start()
        while True:
            reading.set()
            text = await self._lines.get()
            if text is None:
                return
            if text.strip():
                self._turn = asyncio.create_task(self._take_turn(text.strip()))
                await self._turn
                self._turn = None

    def _on_interrupt(self) -> None:
        if self._turn is None or self._turn.done():
            self._lines.put_nowait(None)
        else:
            self._turn.cancel()

    async def _print_history(self) -> None:
        state = await self._talk.state()
        if state is not None and (state.turns or state.summary):
            console(stderr=True).print(thread_view(state))

    async def _take_turn(self, text: str) -> None:
        workflow = await self._talk.submit(text)
        outcome: Outcome | None
        try:
            terminal = console(stderr=True)
            outcome = await (print_streamed_text(workflow, terminal) if terminal.is_terminal else workflow.outcome())
        except asyncio.CancelledError:  # Ctrl-C cancels the turn, and the chat continues
            outcome = await _cancelled_outcome(workflow)
        if outcome is None:
            print_error(
                f"the cancellation was sent, but {workflow.id} has not ended yet; follow it with "
                f"`pointsman watch {workflow.id}`"
            )
            return
        print_prose(console(), render_answer(outcome))
        if outcome.status != "completed":
            hint = f"{outcome.status}: {outcome.reason}; `pointsman show {workflow.id}` shows more."
            print_hint(console(stderr=True), hint)


def _read_lines(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str | None], reading: threading.Event) -> None:
    """Put the next line of the input into `lines` each time that `reading` is set. At the end, put None."""
    while True:
        reading.wait()
        reading.clear()
        if sys.stdin.isatty():
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        with suppress(RuntimeError):  # the chat has ended and its event loop is closed, so the line is dropped
            loop.call_soon_threadsafe(lines.put_nowait, line or None)
        if not line:
            return


async def _cancelled_outcome(workflow: Workflow) -> Outcome | None:
    await workflow.cancel("the user pressed Ctrl-C in the chat")
    try:
        return await workflow.outcome(_CANCEL_TIMEOUT_S)
    except TimeoutError:
        return None
