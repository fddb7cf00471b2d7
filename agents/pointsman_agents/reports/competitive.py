"""Competitive intelligence. One agent compares features with a rival, and another agent compares prices in parallel."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, Field

from pointsman import Limits, LLMAgent, PlanAndExecute, Team, tool
from pointsman_agents.samples import USE_TOOLS

__all__ = ["SAMPLE_REQUEST", "features", "prices", "team"]

SAMPLE_REQUEST: Final = "Compare our features with Fabrikam and compare the prices for 25 seats"

# Sample data for each product: its features, its base price, and the additional price of each seat. Prices are dollars
# a month. The companies are fictional.
_OWN_PRODUCT: Final = "Northwind"
_PRODUCTS: Final[dict[str, tuple[frozenset[str], int, int]]] = {
    "Northwind": (frozenset({"search", "export", "audit log"}), 100, 8),
    "Fabrikam": (frozenset({"search", "export", "single sign-on"}), 0, 15),
    "Tailspin": (frozenset({"search"}), 50, 5),
}

Rival = Annotated[str, Field(json_schema_extra={"enum": [name for name in _PRODUCTS if name != _OWN_PRODUCT]})]


class Features(BaseModel):
    summary: str
    only_ours: list[str] = []
    only_theirs: list[str] = []


class Prices(BaseModel):
    """The price of each product in dollars a month, cheapest first."""

    summary: str
    monthly: dict[str, int] = {}


@tool(idempotent=True)
def compare_features(rival: Rival) -> Features:
    """Compare our features with those of a rival."""
    ours, theirs = _PRODUCTS[_OWN_PRODUCT][0], _PRODUCTS[rival][0]
    mine, other = sorted(ours - theirs), sorted(theirs - ours)
    told = f"{_OWN_PRODUCT} alone has {', '.join(mine) or 'nothing'}; {rival} alone has {', '.join(other) or 'nothing'}"
    return Features(summary=f"{told} (sample data).", only_ours=mine, only_theirs=other)


@tool(idempotent=True)
def compare_prices(seats: Annotated[int, Field(ge=1, description="Number of seats")]) -> Prices:
    """Compare what all products cost a month for a number of seats."""
    costs = {name: base + seats * seat for name, (_, base, seat) in _PRODUCTS.items()}
    monthly = dict(sorted(costs.items(), key=lambda item: item[1]))
    told = ", ".join(f"{name} ${cost:,}" for name, cost in monthly.items())
    return Prices(summary=f"A month for {seats} seats, cheapest first: {told}.", monthly=monthly)


features = LLMAgent(
    name="features",
    description="Compares our features with those of a rival",
    skills=["features", "rival"],
    examples=["What does Fabrikam have that we lack?"],
    instructions=USE_TOOLS,
    tools=[compare_features],
    output=Features,
)
prices = LLMAgent(
    name="prices",
    description="Compares the prices of all products for a number of seats",
    skills=["prices", "seats"],
    examples=["Who is cheapest for 25 seats?"],
    instructions=USE_TOOLS,
    tools=[compare_prices],
    output=Prices,
)

team = Team(
    name="competitive",
    description="Compares our product with its rivals: features and prices",
    agents=("features", "prices"),
    strategy=PlanAndExecute(),
    limits=Limits(deadline=60.0, task_timeout=30.0, tokens=50_000),
)
