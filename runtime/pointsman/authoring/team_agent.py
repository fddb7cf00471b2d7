"""Make an agent belong to one team. Only this team uses the name and the queue of the agent."""

from __future__ import annotations

from typing import Any

from pydantic import JsonValue

from pointsman.authoring.agent import Agent, check_name_length
from pointsman.authoring.context import Context
from pointsman.errors import ConfigurationError
from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import Handoff
from pointsman_schemas.ids import is_token, own_agent

__all__ = ["TeamAgent"]


class TeamAgent(Agent):
    """An agent that belongs to a team.

    Args:
        agent: The agent.
        team: The name of the team.

    Raises:
        ConfigurationError: The name of the team is not valid, or the agent belongs to another team.
    """

    def __init__(self, agent: Agent, team: str) -> None:
        if not is_token(team):
            raise ConfigurationError(f"the team is {team!r}; expected 1 to 64 letters, digits, - and _")
        if (owner := agent.card.owner) is not None and owner != team:
            raise ConfigurationError(
                f"agent {agent.card.name} belongs to the team {owner}; a worker of the team {team} cannot run it"
            )
        self._agent = agent
        self._name = agent.card.name if agent.card.owner else own_agent(team, agent.card.name)
        self._team = team
        check_name_length(self._name)

    @property
    def shared(self) -> Agent:
        """The wrapped agent. All `TeamAgent`s of a worker that wrap this agent share the slots of the agent."""
        return self._agent

    @property
    def card(self) -> AgentCard:
        return self._agent.card.model_copy(update={"name": self._name, "owner": self._team})

    async def run(self, handoff: Handoff, context: Context) -> JsonValue:
        return await self._agent.run(handoff, context)

    async def open(self) -> None:
        await self._agent.open()

    async def close(self) -> None:
        await self._agent.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)
