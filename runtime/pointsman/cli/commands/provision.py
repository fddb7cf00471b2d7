"""The command provision, which creates streams and consumers for processes that are not allowed to create them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated

import typer

from pointsman.bus.jetstream.bus import connect
from pointsman.cli.arguments import Json, Namespace, Url
from pointsman.cli.render.output import Code, print_json
from pointsman.cli.support.session import settings_for
from pointsman.engine.operations.provisioning import provision as create
from pointsman.engine.process.consumers import DurableConsumer
from pointsman.engine.process.discovery import load_agents, load_objects
from pointsman.errors import ConfigurationError
from pointsman.settings import Settings
from pointsman_schemas.ids import token
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Team

__all__ = ["provision"]


def provision(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="Teams and agents: module:name, file.py[:name], or an installed agent.", show_default=False
        ),
    ] = None,
    team: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A team. May be repeated.", show_default=False)
    ] = None,
    agent: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An agent. May be repeated.", show_default=False)
    ] = None,
    webhooks: Annotated[
        bool, typer.Option("--webhooks", help="Also create the buckets and consumers of webhooks.")
    ] = False,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Create the streams and consumers of a namespace.

    Other processes then need no right to create streams and consumers. The command may be repeated, because existing
    streams and consumers stay. For a team in TARGETS, the consumers of its required agents are also created. Without
    teams and agents, only the streams and buckets are created.

    Returns:
        The exit code.
    """
    teams, agents = _load(targets or ())
    teams |= {token(name, "team"): None for name in team or ()}
    agents = {**{token(name, "agent"): None for name in agent or ()}, **agents}
    chosen = settings_for(url, namespace, log_level="error")
    settings = Settings.load(**{**chosen.model_dump(exclude_unset=True), "provision": True})
    created = asyncio.run(_provision(settings, teams, agents, webhooks=webhooks))
    if json:
        print_json(
            {
                "namespace": settings.namespace,
                "consumers": [
                    {"name": each.name, "stream": stream, "subject": each.subject} for each, stream in created
                ],
            }
        )
        return Code.OK
    print(f"The streams of the namespace {settings.namespace} exist.")
    for each, stream in created:
        print(f"The consumer {each.name} of {stream} exists.")
    return Code.OK


def _load(targets: Iterable[str]) -> tuple[dict[str, None], dict[str, int | None]]:
    """Return the names of the teams and agents of `targets`, and the limit of concurrent attempts of each agent."""
    teams: dict[str, None] = {}
    required: dict[str, int | None] = {}
    agents: dict[str, int | None] = {}
    for target in targets:
        try:
            found = load_objects(target, Team)
        except ConfigurationError:
            found = ()
        try:
            own = load_agents([target])
        except ConfigurationError:
            if not found:
                raise
            own = ()
        teams |= {each.name: None for each in found}
        required |= {name: None for each in found for name in (*each.required_agents(), each.refiner) if name}
        agents |= {each.card.name: each.card.max_in_flight for each in own}
    return teams, {name: limit for name, limit in {**required, **agents}.items() if name not in teams}


async def _provision(
    settings: Settings, teams: Iterable[str], agents: dict[str, int | None], *, webhooks: bool
) -> list[tuple[DurableConsumer, str]]:
    bus = await connect(settings, name="pointsman-provision", wait=settings.request_timeout)
    try:
        subjects, ack_wait = Subjects(settings.namespace), settings.ack_wait
        made = await create(bus, subjects, teams=teams, agents=agents, ack_wait=ack_wait, webhooks=webhooks)
        return [(each, bus.stream_name(each.stream)) for each in made]
    finally:
        await bus.close()
