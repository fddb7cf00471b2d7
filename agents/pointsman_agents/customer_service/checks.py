"""Define checks of the evaluation that look at more than the words of an answer."""

from __future__ import annotations

import re

from pointsman import Outcome

__all__ = ["only_of_customer_1002"]


def only_of_customer_1002(outcome: Outcome) -> None:
    """Assert that an answer shows only charges of C-1002, whose numbers start at ch-5010."""
    charges = re.findall(r"ch-\d+", str(outcome.answer))
    assert charges, "the answer names no charge"
    foreign = [charge for charge in charges if not charge.startswith("ch-501")]
    assert not foreign, f"the answer shows charges of other customers: {', '.join(foreign)}"
