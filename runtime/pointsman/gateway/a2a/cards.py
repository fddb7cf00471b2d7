"""Describe a team as an A2A agent, with the skills of the team and of the live agents of the team."""

from __future__ import annotations

from collections.abc import Sequence

from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    APIKeySecurityScheme,
    HTTPAuthSecurityScheme,
    OpenIdConnectSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from google.protobuf.json_format import ParseDict

from pointsman.errors import NotFoundError
from pointsman.gateway.a2a.messages import INPUT_MODES
from pointsman.gateway.a2a.signatures import KEY_SET_NAME, CardSigner
from pointsman.gateway.callers import Caller
from pointsman.gateway.context import Context
from pointsman_schemas import card as schemas
from pointsman_schemas.card import Role

__all__ = ["SCHEMAS_EXTENSION", "CardMaker"]

SCHEMAS_EXTENSION = "https://pointsman.invalid/a2a/schemas"
"""The URI of the extension in the extended card. The extension has the JSON Schemas of the team. The URI is only a
name, so nothing is served under this URI."""

_BINDINGS = (("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3"))
_OUTPUT_MODES = ("text/plain", "application/json", "application/octet-stream")
_MAX_SKILLS = 100


class CardMaker:
    """Makes the cards of teams.

    Args:
        context: The parts of the gateway.
        signer: Signs the cards; None for cards without a signature.
        open: True if the gateway admits requests without a key.
    """

    def __init__(self, context: Context, signer: CardSigner | None, *, open: bool) -> None:
        self._context = context
        self._signer = signer
        self._open = open

    async def card(self, caller: Caller, team: str, url: str) -> AgentCard:
        """Return the card of a team.

        Args:
            caller: The caller.
            team: The team.
            url: The URL of the team's A2A interface.

        Returns:
            The card, signed if the gateway has a key for signatures.

        Raises:
            NotFoundError: No supervisor of the team is live, or the caller may not use the team.
        """
        return self._signed(await self._card(caller, team, url), url)

    async def extended(self, caller: Caller, team: str, url: str) -> AgentCard:
        """Return the card of a team with the JSON Schemas of its request and its answer.

        Args:
            caller: The caller.
            team: The team.
            url: The URL of the team's A2A interface.

        Returns:
            The card, signed if the gateway has a key for signatures.

        Raises:
            NotFoundError: No supervisor of the team is live, or the caller may not use the team.
        """
        card = await self._card(caller, team, url)
        found = await self._team(caller, team)
        extension = AgentExtension(uri=SCHEMAS_EXTENSION, description="JSON Schemas of the request and of the answer")
        params = {"input": dict(found.input_schema), "output": dict(found.output_schema)}
        ParseDict(params, extension.params)
        card.capabilities.extensions.append(extension)
        return self._signed(card, url)

    async def _card(self, caller: Caller, name: str, url: str) -> AgentCard:
        team = await self._team(caller, name)
        card = AgentCard(
            name=team.name,
            description=team.description,
            version=team.version,
            supported_interfaces=[
                AgentInterface(url=url, protocol_binding=binding, protocol_version=version)
                for binding, version in _BINDINGS
            ],
            capabilities=AgentCapabilities(streaming=True, push_notifications=True, extended_agent_card=True),
            default_input_modes=INPUT_MODES,
            default_output_modes=_OUTPUT_MODES,
            skills=_skills(team, await self._agents(team)),
        )
        if not self._open:
            self._secure(card)
        return card

    async def _team(self, caller: Caller, name: str) -> schemas.AgentCard:
        for card in await self._context.client.operations.teams():
            if card.name == name and caller.may_use(name):
                return card
        raise NotFoundError(
            f"there is no team {name!r} with a live supervisor that you may use; GET /v1/teams lists these teams"
        )

    async def _agents(self, team: schemas.AgentCard) -> Sequence[schemas.AgentCard]:
        """Return one card for each live agent of a team."""
        by_name: dict[str, schemas.AgentCard] = {}
        for card in await self._context.client.operations.agents():
            named = team.agents == "*" or card.name in team.agents
            if card.role is Role.WORK and card.owner in (None, team.name) and (named or card.owner == team.name):
                by_name.setdefault(card.name, card)
        return [by_name[name] for name in sorted(by_name)]

    def _secure(self, card: AgentCard) -> None:
        schemes = {
            "bearer": SecurityScheme(
                http_auth_security_scheme=HTTPAuthSecurityScheme(
                    scheme="bearer", description="An API key of the gateway, or a token of the issuer."
                )
            ),
            "key": SecurityScheme(
                api_key_security_scheme=APIKeySecurityScheme(
                    location="header", name="X-API-Key", description="An API key of the gateway."
                )
            ),
        }
        if issuer := self._context.settings.gateway_oidc_issuer:
            schemes["issuer"] = SecurityScheme(
                open_id_connect_security_scheme=OpenIdConnectSecurityScheme(
                    open_id_connect_url=f"{issuer.rstrip('/')}/.well-known/openid-configuration"
                )
            )
        for name, scheme in schemes.items():
            card.security_schemes[name].CopyFrom(scheme)
            card.security_requirements.append(SecurityRequirement(schemes={name: StringList()}))

    def _signed(self, card: AgentCard, url: str) -> AgentCard:
        return card if self._signer is None else self._signer.sign(card, key_set_url(url))


def key_set_url(url: str) -> str:
    """Return the URL of the keys that verify cards.

    Args:
        url: The URL of the A2A interface of any team.
    """
    return f"{url.rpartition('/')[0]}/{KEY_SET_NAME}"


def _skills(team: schemas.AgentCard, agents: Sequence[schemas.AgentCard]) -> list[AgentSkill]:
    examples = list(team.examples) or [example for agent in agents for example in agent.examples[:2]][:10]
    own = AgentSkill(
        id=team.name, name=team.name, description=team.description, tags=[*team.skills] or ["team"], examples=examples
    )
    skills = [
        AgentSkill(
            id=agent.name,
            name=agent.name,
            description=agent.description,
            tags=[*agent.skills] or [agent.name],
            examples=list(agent.examples),
        )
        for agent in agents
        if agent.name != team.name
    ]
    return [own, *skills][:_MAX_SKILLS]
