"""The refund pipeline, the checks of its stages, and a sample request."""

from __future__ import annotations

from typing import Final

from pointsman import Check, Limits, Pipeline, Stage, Team

__all__ = ["SAMPLE_REQUEST", "team"]

SAMPLE_REQUEST: Final = "I am customer C-1001 and I was charged twice for November. I want the second charge back."

team = Team(
    name="refunds",
    description="Decides on refunds: what was charged, what the policy says, and the answer to the customer",
    skills=("refunds", "duplicate charges"),
    strategy=Pipeline(
        stages=(
            Stage(
                agent="extract_details",
                intent="Find out who asks for a refund, of what, and why",
                check=Check(fields=("customer_id", "summary")),
            ),
            Stage(
                agent="verify_charges",
                intent="List what the customer was charged, and which charges are duplicates",
                check=Check(fields=("summary", "charges")),
            ),
            Stage(
                agent="check_policy",
                intent="Check the charge against the refund policy",
                check=Check(fields=("charge_id",), mentions=("approved", "denied")),
            ),
            Stage(
                agent="compose_response",
                intent="Write to the customer what was found, what was decided, and why",
                check=Check(
                    min_length=80,
                    judge="reviewer",
                    criteria="Every id, amount and date in it stands in a result before it, and it promises nothing "
                    "that none of them says.",
                ),
            ),
        )
    ),
    limits=Limits(deadline=120.0, task_timeout=60.0, tokens=100_000),
)
