"""The rights in docs/security.md are the rights in the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from support.rights_table import rights_table

from pointsman.grants.permissions import ACTIONS, GrantRole
from pointsman.grants.policy import Policy

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text()


def test_table_of_rights_is_that_of_the_code() -> None:
    """To update the table, put the output of `PYTHONPATH=tests python -m support.rights_table` between the comments."""
    _, _, rest = PAGE.partition("held by a test -->\n")
    shown, _, _ = rest.partition("<!-- end of rights -->")

    assert shown.strip() == rights_table()


def test_page_describes_every_role() -> None:
    table = re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|$", PAGE, re.MULTILINE)

    assert {name for name, _ in table} == {role.value for role in GrantRole}
    assert all(("action" in names) is bool(ACTIONS.get(GrantRole(name))) for name, names in table)


def test_policy_of_the_page_is_valid() -> None:
    (block,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)

    policy = Policy.model_validate(tomllib.loads(block))

    assert policy.issuers[0].rules[0].grant("ada").agents == ("billing",)
