"""Define the engineers. If the code engineer finds no bug, it requests a new plan that searches the configuration."""

from __future__ import annotations

from pydantic import BaseModel

from pointsman import Context, LLMAgent, tool
from pointsman_agents.engineering.services import ServiceName, service
from pointsman_agents.samples import USE_TOOLS

__all__ = ["code", "comms", "data", "ops"]


class Finding(BaseModel):
    """The result of an inspection. `found` is true if the inspection found the cause."""

    found: bool
    summary: str


@tool(idempotent=True)
def inspect_code(name: ServiceName, context: Context) -> Finding:
    """Inspect the code of a service for a bug: its failing tests and its last changes."""
    known = service(name)
    last = "; ".join(known.changed)
    if known.failing:
        return Finding(
            found=True,
            summary=f"The bug is in the code of {name}: {', '.join(known.failing)} fails, of {known.tests} tests. The "
            f"last change was {known.changed[-1]}: the fix is to take it back or to mend that case.",
        )
    context.replan(f"there is no bug in the code of {name}, it looks like its configuration")
    return Finding(found=False, summary=f"No bug in the code of {name}: all {known.tests} tests pass. Changed: {last}.")


@tool(idempotent=True)
def compare_configuration(name: ServiceName) -> Finding:
    """Compare the configuration of a service, its timeouts and limits, with the handbook."""
    known = service(name)
    off = [
        f"{key} is {known.configured.get(key):g} and should be {value:g}"
        for key, value in known.documented.items()
        if known.configured.get(key) != value
    ]
    if not off:
        return Finding(found=False, summary=f"The configuration of {name} is what the handbook says.")
    return Finding(
        found=True,
        summary=f"The configuration of {name} is the cause: {'; '.join(off)}. To fix it, set what the handbook says.",
    )


@tool(idempotent=True)
def read_metrics(name: ServiceName) -> Finding:
    """Read the metrics of a service: the share of its requests that fail and the slowest answers."""
    known = service(name)
    return Finding(
        found=known.errors > 0.01,
        summary=f"{known.errors:.0%} of the requests to {name} fail, and the slowest answers take {known.slowest:g} s.",
    )


code = LLMAgent(
    name="code",
    description="Code: finds a bug in a service and proposes a fix",
    skills=["bugs", "fixes", "tests"],
    examples=["Find the bug in search", "Propose a fix"],
    instructions=f"You look at code. {USE_TOOLS}",
    tools=[inspect_code],
)

data = LLMAgent(
    name="data",
    description="Data: metrics, error rates and latency of a service",
    skills=["metrics", "queries"],
    examples=["How many requests fail?"],
    instructions=f"You look at numbers. {USE_TOOLS}",
    tools=[read_metrics],
)

ops = LLMAgent(
    name="ops",
    description="Operations: configuration of a service, timeouts, limits, deployments",
    skills=["configuration", "deployments"],
    examples=["Is the configuration of checkout right?"],
    instructions=f"You look at how services are run. {USE_TOOLS}",
    tools=[compare_configuration],
)

comms = LLMAgent(
    name="comms",
    description="Communication: drafts notes, for Slack or by mail, of what the others found",
    skills=["notes", "messages"],
    examples=["Draft a Slack note"],
    instructions="You draft messages from the results of others: what was wrong, what is done about it, what the "
    "reader has to do. Say nothing that no result says. Three sentences at most.",
)
