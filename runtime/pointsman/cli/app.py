"""The table of commands. The module of a command is imported when the command is called."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from inspect import getdoc
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from pointsman.cli.render.output import Code, exit_code_of, use_ascii_signs

__all__ = ["COMMANDS", "Entry", "Group", "app", "load_function", "main"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A command. `target` is `module:function` in `pointsman.cli.commands`. The list of commands shows `summary`."""

    target: str
    summary: str


@dataclass(frozen=True, slots=True)
class Group:
    """A command with subcommands. `default` is the subcommand if the arguments name none; empty for no default."""

    summary: str
    commands: Mapping[str, Entry | Group]
    default: str = ""


COMMANDS: Mapping[str, Entry | Group] = {
    "demo": Entry("demo:demo", "Start a broker and a demo team, and answer one request."),
    "up": Entry("up:up", "Run a broker and a team for development until Ctrl-C."),
    "dashboard": Entry("serve:dashboard", "Serve the dashboard until SIGTERM or Ctrl-C."),
    "dashboard-user": Entry("dashboard_user:dashboard_user", "Add or remove a user of the dashboard."),
    "provision": Entry("provision:provision", "Create the streams and consumers of a namespace."),
    "gateway": Group(
        "Serve teams over HTTP, and manage API keys.",
        {
            "run": Entry("gateway:gateway", "Serve teams over HTTP until Ctrl-C. This is the default command."),
            "keys": Group(
                "Create, list and revoke API keys.",
                {
                    "create": Entry("gateway:create", "Create an API key and print it once."),
                    "list": Entry("gateway:list_", "List the API keys, oldest first."),
                    "revoke": Entry("gateway:revoke", "Revoke an API key."),
                },
            ),
        },
        default="run",
    ),
    "webhooks": Group(
        "Send events to HTTP endpoints, and manage the endpoints.",
        {
            "run": Entry("webhooks:run", "Deliver events to the endpoints until SIGTERM or Ctrl-C."),
            "create": Entry("webhooks:create", "Create an endpoint and print its secret once."),
            "list": Entry("webhooks:list_", "List the endpoints, oldest first."),
            "show": Entry("webhooks:show", "Show an endpoint with its newest deliveries."),
            "rotate": Entry("webhooks:rotate", "Give an endpoint a new secret and print the secret once."),
            "disable": Entry("webhooks:disable", "Stop sending events to an endpoint. New events are not stored."),
            "enable": Entry("webhooks:enable", "Send events to an endpoint again."),
            "delete": Entry("webhooks:delete", "Delete an endpoint and its secrets."),
            "deliveries": Entry("webhooks:deliveries", "List deliveries that were tried, most recently changed first."),
            "resend": Entry("webhooks:resend", "Send deliveries again, selected by event or by status."),
        },
    ),
    "supervisor": Entry("serve:supervisor", "Run the supervisor of a team until SIGTERM or Ctrl-C."),
    "worker": Entry("serve:worker", "Run agents in this process until SIGTERM or Ctrl-C."),
    "mcp": Entry("mcp_server:mcp", "Offer a team as an MCP tool on standard input and output."),
    "submit": Entry("submit:submit", "Send a request to a team and print the answer."),
    "batch": Entry("batch:batch", "Send the rows of a file to a team, and write the results."),
    "chat": Entry("threads:chat", "Talk with a team in the terminal, turn by turn."),
    "watch": Entry("workflows:watch", "Print the events of a workflow, from its start to its end."),
    "list": Entry("workflows:list_", "List the most recently active workflows, newest first."),
    "show": Entry("workflows:show", "Show a workflow: request, plans, tasks, results, outcome."),
    "files": Entry("files:files", "List the files of a workflow, or save them in a folder."),
    "trace": Entry("trace:trace", "Draw the tasks and calls of a workflow on a time axis."),
    "cancel": Entry("workflows:cancel", "Cancel a workflow."),
    "tell": Entry("workflows:tell", "Send a message to a running workflow."),
    "resume": Entry("workflows:resume", "Do the failed tasks of an ended workflow again."),
    "forget": Entry("forget:forget", "Delete an ended workflow with all its messages."),
    "audit": Entry("forget:audit", "List forgotten workflows, and handled dead letters."),
    "export": Entry("archive:export", "Write a workflow and its child workflows to a file."),
    "import": Entry("archive:import_", "Load an exported workflow into a namespace, for reading."),
    "replay": Entry("archive:replay", "Replay an exported workflow, and compare the decisions."),
    "questions": Entry("questions:questions", "List the questions that wait for a person, oldest first."),
    "answer": Entry("questions:answer", "Answer a question of an agent or a planner."),
    "approve": Entry("questions:approve", "Approve a task, a tool call or a plan."),
    "reject": Entry("questions:reject", "Reject a task, tool call or plan, or decline to answer."),
    "agents": Entry("agents:agents", "List the live agents and teams with their queues."),
    "doctor": Entry("doctor:doctor", "Check the broker, the agents and the configuration."),
    "grants": Group(
        "Make users of the broker with the rights of a role.",
        {
            "init": Entry("grants:init", "Make a folder for the grants of a tenant."),
            "add": Entry("grants:add", "Add a user with the rights of a role."),
            "show": Entry("grants:show", "Print the rights of a role as the permissions of a user."),
            "list": Entry("grants:list_", "List the users."),
            "rotate": Entry("grants:rotate", "Give a user a new secret."),
            "revoke": Entry("grants:revoke", "Remove a user."),
            "push": Entry("grants:push", "Send the accounts of a folder with JWTs to the running servers."),
            "key": Entry("grants:key", "Make an API key for `pointsman callout`."),
        },
    ),
    "callout": Entry("callout:callout", "Admit users with API keys and OIDC tokens."),
    "eval": Entry("evaluate:evaluate_suite", "Run a suite of labelled requests and report the accuracy."),
    "threads": Group(
        "List, show and delete conversations.",
        {
            "list": Entry("threads:list_", "List the threads, most recently changed first."),
            "show": Entry("threads:show", "Show the turns of a thread, and the summary of older turns."),
            "delete": Entry("threads:delete", "Delete a thread with all messages of its turns."),
        },
    ),
    "schedules": Group(
        "Create, list, show and change schedules.",
        {
            "create": Entry("schedules:create", "Create a schedule, which sends a request repeatedly or once."),
            "list": Entry("schedules:list_", "List the schedules with their next times."),
            "show": Entry("schedules:show", "Show a schedule with its next times and its last runs."),
            "pause": Entry("schedules:pause", "Pause a schedule. It starts no run until it is resumed."),
            "resume": Entry("schedules:resume", "Resume a paused schedule."),
            "run": Entry("schedules:run", "Start a run now."),
            "delete": Entry("schedules:delete", "Delete a schedule."),
        },
    ),
    "dead": Group(
        "List, show, replay and discard unprocessable messages.",
        {
            "list": Entry("dead_letters:list_", "List dead letters, oldest first."),
            "show": Entry("dead_letters:show", "Show the cause and the message of a dead letter."),
            "replay": Entry("dead_letters:replay", "Process the messages of dead letters again."),
            "discard": Entry("dead_letters:discard", "Delete dead letters permanently."),
        },
    ),
}

_SECTIONS = re.compile(r"\n\n(?:Args|Returns|Raises):\n.*", re.DOTALL)
_SURROGATE = re.compile("[\udc80-\udcff]")  # surrogates, which stand for bytes that are not UTF-8


class LazyGroup(TyperGroup):
    """A group that imports a command's module when the command is called. The group's help needs only the table."""

    def __init__(self, *, table: Mapping[str, Entry | Group] = COMMANDS, default: str = "", **attributes: Any) -> None:
        """Create the group.

        Args:
            table: The commands by name. Default: the commands of `pointsman`.
            default: The command for arguments without a command. Default: none.
            **attributes: The attributes of a `TyperGroup`.
        """
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=entry.summary) for name, entry in table.items()}
        self._table = table
        self._default = default

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self._default and (not args or args[0] not in (*self._table, *ctx.help_option_names)):
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None:
            command = _load_command(name, self._table[name])
        return name, command, rest


class _Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # If an unknown option resembles no known option, it could be text that begins with a dash. So add a hint to
            # the error. The error is from click or from Typer's copy of click, so its type is not tested.
            unknown: Any = error
            last: Any = next((each for each in reversed(self.params) if each.param_type_name == "argument"), None)
            if last is not None and not getattr(unknown, "possibilities", True):
                name = str(last.metavar or last.name).strip("[].").upper()
                example = f"{ctx.command_path} ... -- {name}"
                unknown.message += f"; if this is text that begins with a dash, put it last, after --: {example}"
            raise


def _load_command(name: str, entry: Entry | Group) -> Any:
    if isinstance(entry, Group):
        return LazyGroup(
            table=entry.commands,
            default=entry.default,
            name=name,
            help=entry.summary,
            no_args_is_help=not entry.default,
            rich_markup_mode=None,
        )
    function = load_function(entry)
    single = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    single.command(name, cls=_Command, help=_SECTIONS.sub("", getdoc(function) or ""))(_as_command(function))
    return typer.main.get_command(single)


def load_function(entry: Entry) -> Callable[..., Code]:
    """Import the function of a command.

    Args:
        entry: The command.

    Returns:
        The function. The function returns the exit code.
    """
    module, _, function = entry.target.partition(":")
    found: Callable[..., Code] = getattr(import_module(f"pointsman.cli.commands.{module}"), function)
    return found


def _as_command(function: Callable[..., Code]) -> Callable[..., None]:
    """Return `function` so that it exits with its exit code and prints errors as one line on standard error."""

    @wraps(function)
    def run(**values: Any) -> None:
        def checked() -> Code:
            _check_utf8(values)
            return function(**values)

        raise typer.Exit(exit_code_of(checked))

    return run


def _check_utf8(values: Mapping[str, Any]) -> None:
    """Refuse arguments with bytes that are not UTF-8. If such bytes were replaced, an id could name another object.

    Paths are not checked, because the names of files can be any bytes.

    Raises:
        ConfigurationError: An argument is not UTF-8.
    """
    for value in values.values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and (found := _SURROGATE.search(text)):
                from pointsman.errors import ConfigurationError

                shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
                raise ConfigurationError(
                    f"an argument is not UTF-8: the byte 0x{ord(found[0]) - 0xDC00:02x} in '{shown[:80]}'; "
                    "give the argument as UTF-8 text"
                )


# rich is turned off: its help takes 0.7 s of CPU, and plain help nearly none. `exit_code_of` prints the errors.
app = typer.Typer(
    name="pointsman",
    cls=LazyGroup,
    help="Run teams of LLM agents over NATS JetStream.",
    epilog="Exit codes: 0 success; 1 not completed, or a problem was found; 2 wrong usage or configuration; "
    "3 not found; 4 broker unreachable; 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("pointsman"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command line and exit with its code."""
    use_ascii_signs()
    sys.exit(exit_code_of(partial(app, sys.argv[1:])))
