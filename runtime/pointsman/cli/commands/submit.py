"""The command `submit`: a request, and its answer; whoever hears nothing is told what may be missing."""

from __future__ import annotations

import asyncio
import json as json_module
import shlex
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches

from pydantic import JsonValue

from pointsman.cli.commands.workflows import is_admitted, known_teams
from pointsman.cli.render.follow import follow, print_outcome
from pointsman.cli.render.output import Code, outcome_code, print_error, print_json
from pointsman.cli.render.wait_notices import NOTICE_AFTER_S, notices, report_missing_agents, report_outages
from pointsman.cli.support.session import session
from pointsman.cli.support.stdin import read_stdin
from pointsman.client.client import QUEUED_STATUS, Client, Workflow
from pointsman.errors import BusUnavailableError, ConfigurationError
from pointsman_schemas.events import Outcome
from pointsman_schemas.strict_json import parse_json

__all__ = ["join_request_text", "submit"]


def join_request_text(team: str, words: Sequence[str]) -> str | None:
    """The request that was typed as TEXT. Raises `ConfigurationError` where a shell has made several words of it."""
    if len(words) > 1:
        whole, first, last = shlex.quote(" ".join(words)), "", ""
        if words[0].startswith("-"):
            first, last = ", and options before --", "-- "
        raise ConfigurationError(
            f"TEXT is {len(words)} words; put them in quotes{first}: pointsman submit {team} {last}{whole}"
        )
    return words[0] if words else None


def submit(
    team: str, text: str | None, *, input_json: str | None, request_id: str | None, correlation_id: str | None,
    deadline: float | None, wait: bool, watch: bool, timeout: float | None, url: str | None, namespace: str | None,
    json: bool,
) -> Code:  # fmt: skip
    request = _parse_request(text, input_json)

    async def run() -> Code:
        async with session(url, namespace, create=True) as client:
            workflow = await client.submit(
                team, request, request_id=request_id, correlation_id=correlation_id, deadline=deadline
            )
            if not wait and not watch:
                print_json({"workflow_id": workflow.id, "team": team}) if json else print(workflow.id)
                if unknown := await _unknown_team_hint(client, team):
                    print_error(f"the request waits for a supervisor: {unknown} `pointsman cancel {workflow.id}` asks "
                             "for its end")  # fmt: skip
                return Code.OK
            try:
                async with asyncio.timeout(timeout):
                    outcome = await _wait_for_outcome(client, workflow, watch=watch, json=json)
            except asyncio.CancelledError:  # Ctrl-C ends the wait, and no more than that
                print_error(f"{workflow.id} goes on: `pointsman watch {workflow.id}` follows it, `pointsman cancel "
                         f"{workflow.id}` asks for its end")  # fmt: skip
                raise
            except TimeoutError:
                admitted = await is_admitted(client, workflow)
                if json:
                    print_json({"workflow_id": workflow.id, "status": "running" if admitted else QUEUED_STATUS})
                if admitted:
                    print_error(f"workflow {workflow.id} is still running after {timeout} s; "
                             f"`pointsman watch {workflow.id}` follows it")  # fmt: skip
                else:
                    unknown = await _unknown_team_hint(client, team)
                    print_error(f"no supervisor of {team!r} has taken {workflow.id} within {timeout} s; it"
                    " waits in the "
                             f"stream, and `pointsman watch {workflow.id}` follows it once one has; `pointsman doctor "
                             f"{team}` looks for what is missing{f'; {unknown}' if unknown else ''}")  # fmt: skip
                return Code.FAILED
            if not json:
                await print_outcome(client, outcome, workflow.id)
            elif not watch:
                print_json(outcome)
            return outcome_code(outcome)

    return asyncio.run(run())


async def _wait_for_outcome(client: Client, workflow: Workflow, *, watch: bool, json: bool) -> Outcome:
    silence, agents = _explain_silence(client, workflow), report_missing_agents(client, workflow)
    async with notices(silence, agents, report_outages(client.bus)):
        return await (follow(workflow, json=json) if watch else workflow.outcome())


async def _explain_silence(client: Client, workflow: Workflow) -> None:
    await asyncio.sleep(NOTICE_AFTER_S)
    with suppress(BusUnavailableError):  # whoever waits for the outcome goes on waiting, and says so in the end
        if await is_admitted(client, workflow):
            return
        unknown = await _unknown_team_hint(client, workflow.team)
        why = unknown or f"is a supervisor of {workflow.team!r} running?"
        print_error(f"nobody has taken the request of {workflow.id} yet: {why} It waits in the stream; "
                 f"`pointsman doctor {workflow.team}` looks for what is missing")  # fmt: skip


async def _unknown_team_hint(client: Client, team: str) -> str:
    """What names the teams there are, where `team` is none of them; else nothing."""
    if any(card.name == team for card in await client.operations.teams()) or team in (
        seen := await known_teams(client)
    ):
        return ""
    if any(card.name == team for card in await client.operations.agents()):
        return f"{team} is an agent, and requests go to teams. Teams seen: {', '.join(sorted(seen)) or 'none'}."
    meant = "".join(f", did you mean {name}?" for name in get_close_matches(team, seen, 1)) or "."
    return f"no team {team} was seen here yet{meant} Teams seen: {', '.join(sorted(seen)) or 'none'}."


def _parse_request(text: str | None, input_json: str | None) -> str | dict[str, JsonValue]:
    if (text is None) == (input_json is None):
        raise ConfigurationError("give the request either as TEXT or with --input-json, and not both")
    if input_json is None:
        given = read_stdin().strip() if text == "-" else text or ""
        if not given:
            raise ConfigurationError("the request is empty; give it as TEXT, or pipe it in with -")
        return given
    value = parse_json((read_stdin() if input_json == "-" else input_json).encode())
    if not isinstance(value, dict):
        raise ConfigurationError(f"--input-json is {json_module.dumps(value)[:80]}; expected a JSON object")
    return value
