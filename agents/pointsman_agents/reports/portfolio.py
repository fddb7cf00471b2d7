"""Portfolio rebalancing. One agent values the positions, and another computes the trades that reach the targets."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, Field

from pointsman import Limits, LLMAgent, PlanAndExecute, Team, tool
from pointsman_agents.samples import USE_TOOLS, format_dollars, look_up_entry

__all__ = ["SAMPLE_REQUEST", "team", "trades", "valuation"]

SAMPLE_REQUEST: Final = "Value portfolio PF-1 and propose the trades that rebalance it"

_INSTRUCTIONS: Final = f"{USE_TOOLS} This is a computation, no advice."

PortfolioId = Annotated[str, Field(pattern=r"^PF-\d+$", description="The portfolio's id, such as PF-1")]

# Sample data: units held, price in cents, and target share in percent.
_PORTFOLIOS: Final = {
    "PF-1": {"bonds": (100, 10_000, 40), "stocks": (300, 5_000, 50), "gold": (10, 50_000, 10)},
    "PF-2": {"bonds": (200, 10_000, 50), "stocks": (400, 5_000, 50)},
}


class Valuation(BaseModel):
    """The value of the portfolio and of each position, in cents."""

    summary: str
    total: int = 0
    values: dict[str, int] = {}


class Trades(BaseModel):
    """The number of units to buy of each position. A negative number means units to sell."""

    summary: str
    units: dict[str, int] = {}


@tool(idempotent=True)
def value_portfolio(portfolio_id: PortfolioId) -> Valuation:
    """Compute what the positions of a portfolio are worth, and their shares."""
    values = {
        name: units * price for name, (units, price, _) in look_up_entry(_PORTFOLIOS, portfolio_id, "portfolio").items()
    }
    total = sum(values.values())
    shares = "; ".join(f"{name} {format_dollars(value)} ({value / total:.1%})" for name, value in values.items())
    return Valuation(
        summary=f"{portfolio_id} is worth {format_dollars(total)} (sample data): {shares}.", total=total, values=values
    )


@tool(idempotent=True)
def compute_trades(portfolio_id: PortfolioId) -> Trades:
    """Compute the trades that rebalance a portfolio to its targets, in whole units."""
    held = look_up_entry(_PORTFOLIOS, portfolio_id, "portfolio")
    total = sum(units * price for units, price, _ in held.values())
    units = {name: total * share // (100 * price) - have for name, (have, price, share) in held.items()}
    told = [f"{'buy' if count > 0 else 'sell'} {abs(count)} {name}" for name, count in units.items() if count]
    return Trades(summary=f"To rebalance {portfolio_id}: {', '.join(told) or 'no trade is needed'}.", units=units)


valuation = LLMAgent(
    name="valuation",
    description="Values a portfolio: what its positions are worth, and their shares",
    skills=["portfolio", "value"],
    examples=["Value portfolio PF-1", "What is PF-2 worth?"],
    instructions=_INSTRUCTIONS,
    tools=[value_portfolio],
    output=Valuation,
)
trades = LLMAgent(
    name="trades",
    description="Proposes the trades that rebalance a portfolio to its targets",
    skills=["rebalancing", "trades"],
    examples=["Rebalance portfolio PF-1", "Which trades reach the targets?"],
    instructions=_INSTRUCTIONS,
    tools=[compute_trades],
    output=Trades,
)

team = Team(
    name="portfolio",
    description="Values portfolios and computes how to rebalance them",
    agents=("valuation", "trades"),
    strategy=PlanAndExecute(instructions="Trades needs valuation."),
    limits=Limits(deadline=60.0, task_timeout=30.0, tokens=50_000),
)
