"""On a real broker, all supervisors of a team share the usage counts of a day, also after a restart."""

from __future__ import annotations

from support import factory

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.settings import Settings
from pointsman_schemas.events import Outcome, Usage
from pointsman_schemas.team import DailyLimits, Limits, Pipeline, Stage, Team

CREW = Team(
    name="crew",
    strategy=Pipeline(stages=(Stage(agent="a"),)),
    limits=Limits(deadline=30),
    daily=DailyLimits(tokens=300),
    daily_per_caller=DailyLimits(tokens=200),
)


@agent(name="a", description="Uses a model once")
async def spending(request: str, context: Context) -> str:
    context.record_usage(Usage(calls=1, input_tokens=60, output_tokens=40))
    return request


async def test_supervisors_refuse_what_all_of_them_have_spent(bus: JetStreamBus, settings: Settings) -> None:
    outcomes: list[Outcome] = []
    for callers in (("ada", "ada", "ada"), ("ada", "bob", "bob")):
        async with factory.team(CREW, [spending], on=settings, supervisors=2, settled=True) as client:
            for caller in callers:
                client.user = caller
                outcomes.append(await (await client.submit("crew", "hello")).outcome(20))

    assert [each.status == "completed" for each in outcomes] == [True, True, False, False, True, False]
    assert "ada with the team crew has used 200 of the 200 tokens" in outcomes[3].reason
    assert "the team crew has used 300 of the 300 tokens" in outcomes[5].reason
