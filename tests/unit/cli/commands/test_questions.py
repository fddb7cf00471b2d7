"""`pointsman submit` reports a question that waits for a person, and `pointsman answer` answers it."""

from __future__ import annotations

import asyncio

import pytest
from support import factory
from support.commands import command, use_client
from support.waiting import until

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.cli.commands import questions, submit
from pointsman.cli.render import wait_notices
from pointsman.cli.render.output import Code
from pointsman.errors import NotFoundError
from pointsman_schemas.team import Pipeline, Stage, Team

TEAM = Team(name="crew", strategy=Pipeline(stages=(Stage(agent="scale"),)))


@agent(name="scale", description="Weighs a parcel")
async def scale(request: str, context: Context) -> int:
    return await context.ask("How heavy is it, in grams?", output=int)


async def test_open_question_is_reported_once_with_the_command_that_answers_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wait_notices, "NOTICE_AFTER_S", 0.01)
    seen = ""

    def reported() -> bool:
        nonlocal seen
        seen += capsys.readouterr().err
        return "asks:" in seen

    async with factory.team(TEAM, [scale]) as client:
        use_client(monkeypatch, client)
        waiting = asyncio.create_task(command(submit.submit, "crew", ["a parcel"]))
        await until(reported)
        (asked,) = await client.operations.questions()
        with pytest.raises(NotFoundError, match=r"'nope'.*pointsman questions"):
            await command(questions.answer, "nope", "12")
        await command(questions.answer, asked.id, "12")
        code = await asyncio.wait_for(waiting, 10)

    out, err = capsys.readouterr()
    wanted = f"scale asks: How heavy is it, in grams? Answer with `pointsman answer {asked.id} ANSWER`"
    assert (seen + err).count(wanted) == 1
    assert (code, out.splitlines()) == (Code.OK, [f"{asked.id} is answered.", "12"])
