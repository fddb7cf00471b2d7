"""Define a check of an answer that the evaluation file cannot express as words of the answer."""

from __future__ import annotations

import re

from pointsman import Outcome

__all__ = ["only_of_customer_1002"]


def only_of_customer_1002(outcome: Outcome) -> None:
    """Assert that an answer shows only charges of C-1002, whose ids start with ch-501."""
    charges = re.findall(r"ch-\d+", str(outcome.answer))
    assert charges, "the answer names no charge"
    foreign = [charge for charge in charges if not charge.startswith("ch-501")]
    assert not foreign, f"the answer shows charges of other customers: {', '.join(foreign)}"
