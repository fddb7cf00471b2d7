"""The commands about what waits for a person: approvals, approve, reject."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from pointsman.cli.render import outcome
from pointsman.cli.render.output import Code, complain, console, emit, lay_out
from pointsman.cli.support.ids import the_approval, the_workflow
from pointsman.cli.support.session import session, who
from pointsman.cli.support.stdin import piped
from pointsman_schemas.strict_json import parse_json

__all__ = ["answer", "approvals"]


def approvals(of: str | None, *, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            found = await client.approvals(await the_workflow(client, of) if of else None)
        if json:
            for approval in found:
                emit(approval)
        elif found:
            lay_out(console(), outcome.approvals(found, datetime.now(UTC)))
        else:
            print("Nothing waits for approval.")
        return Code.OK

    return asyncio.run(run())


def answer(
    given: str, *, approve: bool, input_json: str | None, reason: str, by: str | None, url: str | None,
    namespace: str | None, json: bool,
) -> Code:  # fmt: skip
    instead = None if input_json is None else parse_json((piped() if input_json == "-" else input_json).encode())

    async def run() -> Code:
        async with session(url, namespace) as client:
            approval = await the_approval(client, given)
            if approve:
                said = await client.approve(approval, input=instead, by=who(by))
            else:
                said = await client.reject(approval, reason=reason, by=who(by))
        if json:
            emit({"approval": approval, "counted": said.counted, "said": said.said})
        elif said.counted is not False:
            print(f"{said.said}.")  # it begins with an id, which is to be copied
        if said.counted is False:
            complain(said.said)
        return Code.FAILED if said.counted is False else Code.OK

    return asyncio.run(run())
