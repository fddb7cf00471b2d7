"""Market analysis in one file: pages are gathered, figures computed, a report written. No two agents share a tool."""

from __future__ import annotations

import sqlite3
from typing import Annotated, Final

from pydantic import BaseModel, Field

from pointsman.llm_agent import LLMAgent
from pointsman.tools import tool
from pointsman_schemas.team import Limits, Supervisor, Team

__all__ = ["SAMPLE_REQUEST", "analyst", "researcher", "team", "writer"]

SAMPLE_REQUEST: Final = (
    "Compare the market capitalization of the top 3 cloud providers, growth rates, competitive positioning"
)

_HOW: Final = "Use your tools before you answer, and copy what they say exactly. It is sample data: say so."

# Sample data: invented companies; their capitalization this year and last year in billions of dollars.
_COMPANIES: Final = (("Northwind", 900, 750), ("Contoso", 800, 500), ("Fabrikam", 400, 320), ("Tailspin", 90, 100))
_PAGES: Final = {
    "https://northwind.example/cloud": "Northwind sells the widest range of services.",
    "https://contoso.example/cloud": "Contoso sells to companies that have its office software.",
    "https://fabrikam.example/cloud": "Fabrikam is the cheapest for data analysis.",
}


class Links(BaseModel):
    urls: list[str]


class Positions(BaseModel):
    summary: str
    positions: list[str] = []


class Rows(BaseModel):
    """`rows` are name, capitalization this year and last year, largest first."""

    rows: list[tuple[str, int, int]]


class Findings(BaseModel):
    summary: str
    findings: list[str] = []


class Document(BaseModel):
    summary: str


@tool(idempotent=True)
def web_search() -> Links:
    """Search for pages: gives their urls."""
    return Links(urls=list(_PAGES))


@tool(idempotent=True)
def scrape_page(urls: list[str]) -> Positions:
    """Read the market pages of cloud providers: capitalization, growth rates, competitive positioning."""
    positions = [_PAGES[url] for url in urls if url in _PAGES]
    return Positions(summary=" ".join(positions) or "The pages say nothing.", positions=positions)


@tool(idempotent=True)
def query_database(top: Annotated[int, Field(ge=1, description="How many, largest first")] = 3) -> Rows:
    """Query the database for rows."""
    database = sqlite3.connect(":memory:")
    try:
        database.execute("CREATE TABLE company (name TEXT, now INTEGER, before INTEGER)")
        database.executemany("INSERT INTO company VALUES (?, ?, ?)", _COMPANIES)
        rows = database.execute("SELECT name, now, before FROM company ORDER BY now DESC LIMIT ?", (top,)).fetchall()
    finally:
        database.close()
    return Rows(rows=rows)


@tool(idempotent=True)
def calculate(rows: list[tuple[str, int, int]]) -> Findings:
    """Calculate from rows: market capitalization, growth rates and comparison of the top cloud providers."""
    findings = [f"{name}: ${now} billion, {now / before - 1:+.1%} in a year" for name, now, before in rows]
    return Findings(summary=f"By market capitalization (sample data): {'; '.join(findings)}.", findings=findings)


@tool(idempotent=True)
def format_document(findings: list[str], positions: list[str]) -> Document:
    """Format a report from findings and positions."""
    if not findings and not positions:
        return Document(summary="Nothing was written: there are no findings and no positions to write from.")
    parts = ["# Market report (sample data)", "## Figures", *findings, "## Positions", *positions]
    return Document(summary="\n".join(parts))


researcher = LLMAgent(
    name="researcher",
    description="Searches the web and reads pages",
    skills=["web research"],
    instructions=_HOW,
    tools=[web_search, scrape_page],
    output=Positions,
)
analyst = LLMAgent(
    name="analyst",
    description="Computes and compares market capitalization and growth rates of cloud providers",
    skills=["analysis", "growth", "capitalization"],
    examples=["Compare the top 3 cloud providers", "growth rates"],
    instructions=_HOW,
    tools=[query_database, calculate],
    output=Findings,
)
writer = LLMAgent(
    name="writer",
    description="Writes the report: competitive positioning and figures",
    skills=["report", "competitive positioning"],
    instructions=_HOW,
    tools=[format_document],
    output=Document,
)

team = Team(
    name="market-analysis",
    description="Compares companies: figures, growth and positioning",
    agents=("researcher", "analyst", "writer"),
    strategy=Supervisor(instructions="Writer needs researcher and analyst."),
    limits=Limits(deadline=120.0, task_timeout=60.0, tokens=100_000),
)
