"""In a real browser, the form of a question follows the JSON Schema of the answer."""

from __future__ import annotations

from datetime import date
from typing import Any, Literal

from playwright.async_api import Browser, expect
from pydantic import BaseModel, Field
from support import factory
from support.browser import IN_BROWSER, page_of, served
from support.factory import planner_of

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman_schemas.team import Limits, PlanAndExecute, Team

pytestmark = IN_BROWSER

TEAM = Team(name="bank", strategy=PlanAndExecute(synthesizer=None), limits=Limits(deadline=600))


class Owner(BaseModel):
    name: str = Field(min_length=1)
    email: str | None = None


class Account(BaseModel):
    number: str = Field(description="From the statement")
    currency: Literal["EUR", "USD"]
    amount: float = Field(ge=1)
    urgent: bool = False
    day: date | None = None
    notes: list[str] = []
    owner: Owner
    more: dict[str, int] = {}


async def test_form_of_a_question_follows_its_schema(browser: Browser) -> None:
    given: list[Any] = []

    @agent(name="payer", description="Pays")
    async def pay(request: str, context: Context) -> str:
        given.append(await context.ask("To which account?", output=Account))
        given.append(await context.ask("How many parts?", output=int))
        return "paid"

    members = [planner_of({"id": "pay", "agent": "payer", "intent": "pay the bill"}), pay]
    view = {"width": 360, "height": 800}
    async with (
        factory.team(TEAM, members) as client,
        served(client) as address,
        page_of(browser, address, complains="422", viewport=view) as page,
    ):
        workflow = await client.submit("bank", "pay")
        await page.goto("/questions")
        await page.get_by_label("Number").fill("17")
        await page.get_by_label("Currency").select_option(label="USD")
        answer = page.get_by_role("button", name="Answer")
        await answer.click()
        amount = page.get_by_label("Amount")
        await expect(amount).to_be_focused()  # the browser marks the missing field
        await amount.fill("12.5")
        await page.get_by_label("Urgent").check()
        await page.get_by_label("Day").fill("2026-12-24")
        await page.get_by_label("Notes").fill("one\n two \n")
        await page.get_by_label("Name").fill("Ada")
        await page.get_by_label("More").fill('{"parts": "few"}')
        await answer.click()
        await expect(page.get_by_role("alert")).to_contain_text("is not of type 'integer'")  # the server checks, too
        await page.get_by_label("More").fill('{"parts": 2}')
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await answer.click()

        await page.locator("input[type=number][step='1']").fill("3")
        await page.get_by_role("button", name="Answer").click()
        await expect(page.locator(".letter")).to_have_count(0)
        outcome = await workflow.outcome(timeout=20)

    assert outcome.status == "completed"
    account, parts = given[0], given[-1]
    assert account == Account(
        number="17", currency="USD", amount=12.5, urgent=True, day=date(2026, 12, 24), notes=["one", "two"],
        owner=Owner(name="Ada"), more={"parts": 2},
    )  # fmt: skip
    assert parts == 3
