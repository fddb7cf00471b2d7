"""Market analysis in one file.

Researchers gather pages in parallel. An analyst computes the figures of the companies on the pages, and a writer writes
the report. Each agent has its own tools.
"""

from __future__ import annotations

import sqlite3
from typing import Annotated, Final

from pydantic import BaseModel, Field

from pointsman import Limits, LLMAgent, PlanAndExecute, Team, tool
from pointsman.llm.offline.keyword_matching import MATCH_THRESHOLD, MatchEntry, Matcher
from pointsman_agents.samples import USE_TOOLS

__all__ = ["SAMPLE_REQUEST", "analyst", "researcher", "team", "writer"]

SAMPLE_REQUEST: Final = (
    "Compare the market capitalization of the top 3 cloud providers, growth rates, competitive positioning"
)

_INSTRUCTIONS: Final = f"{USE_TOOLS} The tools return sample data: say so in your answer."

# Sample data: invented companies; their capitalization this year and last year in billions of dollars.
_COMPANIES: Final = (("Northwind", 900, 750), ("Contoso", 800, 500), ("Fabrikam", 400, 320), ("Tailspin", 90, 100))
# The companies and the text of each page, by URL. The path of the URL is the subject of the page.
_PAGES: Final = {
    "https://news.example/market-capitalization": (
        ("Northwind", "Contoso", "Fabrikam", "Tailspin"),
        "Four cloud providers are listed; a few of them are most of the market.",
    ),
    "https://news.example/growth-rates": (
        ("Northwind", "Contoso", "Fabrikam", "Tailspin"),
        "What grows is data analysis; storage shrinks.",
    ),
    "https://news.example/competitive-positioning": (
        ("Northwind", "Contoso", "Fabrikam"),
        "Northwind sells the widest range of services; Contoso sells to companies that have its office software; "
        "Fabrikam is the cheapest for data analysis.",
    ),
}
_PAGE_INDEX: Final = Matcher([MatchEntry(url, url.rpartition("/")[2], "") for url in _PAGES])


class Links(BaseModel):
    urls: list[str]


class Gathered(BaseModel):
    """The content of pages: the `companies` that they name, and their texts as `positions`."""

    summary: str
    companies: list[str] = []
    positions: list[str] = []


class Rows(BaseModel):
    """One row for each company, largest first: its name, and its capitalization this year and last year.

    Capitalization is in billions of dollars.
    """

    rows: list[tuple[str, int, int]]


class Findings(BaseModel):
    summary: str
    findings: list[str] = []


class Document(BaseModel):
    summary: str


@tool(idempotent=True)
def web_search(question: str) -> Links:
    """Search for pages: gives their urls."""
    return Links(urls=[url for url, score in _PAGE_INDEX.scores(question).items() if score >= MATCH_THRESHOLD])


@tool(idempotent=True)
def scrape_page(urls: list[str]) -> Gathered:
    """Read the market pages of cloud providers: capitalization, growth rates, competitive positioning."""
    read = [_PAGES[url] for url in urls if url in _PAGES]
    positions = [said for _, said in read]
    return Gathered(
        summary=" ".join(positions) or "The pages say nothing.",
        companies=list(dict.fromkeys(name for names, _ in read for name in names)),
        positions=positions,
    )


@tool(idempotent=True)
def query_database(
    companies: Annotated[list[str], Field(description="Their names")],
    top: Annotated[int, Field(ge=1, description="Number of rows, largest first")] = 3,
) -> Rows:
    """Query the database for rows."""
    database = sqlite3.connect(":memory:")
    try:
        database.execute("CREATE TABLE company (name TEXT, now INTEGER, before INTEGER)")
        database.executemany("INSERT INTO company VALUES (?, ?, ?)", _COMPANIES)
        rows = database.execute("SELECT name, now, before FROM company ORDER BY now DESC").fetchall()
    finally:
        database.close()
    return Rows(rows=[row for row in rows if row[0] in companies][:top])


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
    instructions=_INSTRUCTIONS,
    tools=[web_search, scrape_page],
    output=Gathered,
)
analyst = LLMAgent(
    name="analyst",
    description="Computes and compares market capitalization and growth rates of cloud providers",
    skills=["analysis", "growth", "capitalization"],
    examples=["Compare the top 3 cloud providers", "growth rates"],
    instructions=_INSTRUCTIONS,
    tools=[query_database, calculate],
    output=Findings,
)
writer = LLMAgent(
    name="writer",
    description="Writes the report: competitive positioning and figures",
    skills=["report", "competitive positioning"],
    instructions=_INSTRUCTIONS,
    tools=[format_document],
    output=Document,
)

team = Team(
    name="market-analysis",
    description="Compares companies: figures, growth and positioning",
    agents=("researcher", "analyst", "writer"),
    strategy=PlanAndExecute(
        instructions="Each part of the request is one task for researcher; these tasks run in parallel. Analyst "
        "needs researcher. Writer needs researcher and analyst."
    ),
    limits=Limits(deadline=120.0, task_timeout=60.0, tokens=100_000),
)
