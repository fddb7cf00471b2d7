"""The commands about what waits for a person: approvals, approve, reject."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from pointsman.cli.render import outcome
from pointsman.cli.render.output import Code, console, print_error, print_json, print_table
from pointsman.cli.support.ids import resolve_approval_id, resolve_workflow_id
from pointsman.cli.support.session import default_by, session
from pointsman.cli.support.stdin import read_stdin
from pointsman_schemas.strict_json import parse_json

__all__ = ["answer", "approvals"]


def approvals(of: str | None, *, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            found = await client.operations.approvals(await resolve_workflow_id(client, of) if of else None)
        if json:
            for approval in found:
                print_json(approval)
        elif found:
            print_table(console(), outcome.approval_table(found, datetime.now(UTC)))
        else:
            print("Nothing waits for approval.")
        return Code.OK

    return asyncio.run(run())


def answer(
    given: str, *, approve: bool, input_json: str | None, reason: str, by: str | None, url: str | None,
    namespace: str | None, json: bool,
) -> Code:  # fmt: skip
    instead = None if input_json is None else parse_json((read_stdin() if input_json == "-" else input_json).encode())

    async def run() -> Code:
        async with session(url, namespace) as client:
            approval = await resolve_approval_id(client, given)
            if approve:
                said = await client.operations.approve(approval, input=instead, by=default_by(by))
            else:
                said = await client.operations.reject(approval, reason=reason, by=default_by(by))
        if json:
            print_json({"approval": approval, "counted": said.counted, "said": said.ignored_reason})
        elif said.counted is not False:
            print(f"{said.ignored_reason}.")  # it begins with an id, which is to be copied
        if said.counted is False:
            print_error(said.ignored_reason)
        return Code.FAILED if said.counted is False else Code.OK

    return asyncio.run(run())
