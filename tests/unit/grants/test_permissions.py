"""Each role has the rights of the table, and no role of the edge account may change a stream."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from pointsman.errors import ConfigurationError, InvalidTokenError
from pointsman.grants.accounts import exchange, is_covered
from pointsman.grants.permissions import (
    ACTIONS,
    TRUSTED_ROLES,
    Grant,
    GrantRole,
    inbox_prefix,
    permissions,
    role_permissions,
)
from pointsman_schemas.events import Control

EDGE_ROLES = [role for role in GrantRole if role not in TRUSTED_ROLES]
CHANGES = re.compile(
    r"API\.(STREAM\.(CREATE|UPDATE|DELETE|PURGE|RESTORE|SNAPSHOT)|CONSUMER\.(PAUSE|UNPIN|RESET|LEADER))"
)


@pytest.mark.parametrize("role", EDGE_ROLES)
def test_no_role_of_the_edge_may_change_streams_or_foreign_consumers(role: GrantRole) -> None:
    rights = role_permissions(role, "ns", user="ada", team="crew", agent="echo")

    api = [each for each in rights.publish if ".API." in each]
    creations = [each.split(".") for each in api if ".CONSUMER.CREATE." in each or ".CONSUMER.DELETE." in each]
    assert [each for each in api if CHANGES.search(each) or not each.startswith("$JS.edge.API.")] == []
    assert {tokens[6].rpartition("-")[0] for tokens in creations} <= {"reader-_INBOX-ada"}
    assert not {"$JS.edge.API.>", "$JS.>", ">", "ns.>", "$JS.ACK.>", "$KV.>", "$O.>"} & {*rights.publish}
    deletions = [each for each in api if "MSG.DELETE" in each]
    assert deletions == (
        [] if role not in (GrantRole.DASHBOARD, GrantRole.GATEWAY) else ["$JS.edge.API.STREAM.MSG.DELETE.NS_DEAD"]
    )


@pytest.mark.parametrize("role", list(GrantRole))
def test_acknowledgements_name_the_consumers_of_the_user(role: GrantRole) -> None:
    """An acknowledgement can also take the next message, so a wildcard would take the messages of other consumers."""
    rights = role_permissions(role, "ns", user="ada", team="crew", agent="echo")

    tokens = [each.split(".")[2:] for each in rights.publish if each.startswith("$JS.ACK.")]
    assert {tuple(each[:2]) for each in tokens if "*" in each[:2]} <= {("_", "*")}
    named = [each[2:4] if each[0] == "_" else each[:2] for each in tokens]
    assert all(stream.startswith("NS_") and "*" not in name for stream, name in named)


@pytest.mark.parametrize("role", list(GrantRole))
def test_user_has_an_inbox_of_its_own_and_no_other(role: GrantRole) -> None:
    rights = role_permissions(role, "ns", user="ada", team="crew", agent="echo")

    inboxes = [each for each in rights.subscribe if each.startswith("_")]
    assert inboxes == ["_TRUSTED.ada.>" if role in TRUSTED_ROLES else "_INBOX.ada.>"]
    assert not {">", "_INBOX.>", "ns.>"} & {*rights.subscribe}


@pytest.mark.parametrize("role", EDGE_ROLES)
def test_every_right_of_the_edge_is_an_imported_service(role: GrantRole) -> None:
    services = {local for _, local in exchange(["ns"]).services}

    rights = permissions(grant(role), "ns")

    assert [each for each in rights.publish if not is_covered(each, services)] == []


def test_exchange_has_nothing_that_no_role_of_the_edge_needs() -> None:
    rights = {each for role in EDGE_ROLES for each in role_permissions(role, "ns").publish}

    services = {local for _, local in exchange(["ns"]).services}

    assert services <= rights
    assert not [here for here, _ in exchange(["ns"]).services if CHANGES.search(here)]


def test_two_namespaces_share_the_accounts_of_a_tenant() -> None:
    one, two = exchange(["ns"]), exchange(["ns", "other"])

    assert len(two.services) == 2 * len(one.services) - 1  # $JS.API.INFO has no namespace
    assert is_covered("other.request.crew.ada", {local for _, local in two.services})


def grant(role: GrantRole, **changes: object) -> Grant:
    without = (GrantRole.WORKER, GrantRole.WEBHOOKS, GrantRole.OBSERVER, GrantRole.PROVISIONER)
    teams = () if role in without else ("crew", "crew-2")
    agents = ("echo",) if role is GrantRole.WORKER else ()
    values = {"name": "ada", "teams": teams, "agents": agents, "actions": ACTIONS.get(role, ()), **changes}
    return Grant(role, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("role", list(GrantRole))
def test_names_are_bound_and_no_placeholder_is_left(role: GrantRole) -> None:
    rights = permissions(grant(role), "ns")

    assert [each for each in (*rights.publish, *rights.subscribe) if "<" in each or "__" in each] == []
    assert rights.publish == tuple(sorted(set(rights.publish)))


def test_caller_of_two_teams_has_the_rights_on_both_and_cancels_only_if_it_may() -> None:
    caller = permissions(grant(GrantRole.CALLER, actions=()), "ns")
    cancelling = permissions(grant(GrantRole.CALLER), "ns")

    assert {"ns.request.crew.ada", "ns.request.crew-2.ada"} <= {*caller.publish}
    assert [each for each in caller.publish if ".control." in each] == []
    assert {*cancelling.publish} - {*caller.publish} == {
        "ns.control.crew.*.cancel.ada.*",
        "ns.control.crew-2.*.cancel.ada.*",
        "ns.control.crew.*.schedule.ada.*",
        "ns.control.crew-2.*.schedule.ada.*",
        "ns.control.crew.*.tell.ada.*",
        "ns.control.crew-2.*.tell.ada.*",
    }


def test_operator_may_take_every_action_of_a_control() -> None:
    actions = get_args(Control.model_fields["action"].annotation)

    rights = permissions(grant(GrantRole.OPERATOR), "ns").publish

    assert {f"ns.control.crew.*.{action}.ada.*" for action in actions} <= {*rights}


def test_supervisor_of_all_teams_has_wildcards_for_whole_tokens() -> None:
    rights = permissions(grant(GrantRole.SUPERVISOR, teams=("*",)), "ns")

    assert "$JS.API.CONSUMER.MSG.NEXT.NS_REQUESTS.*" in rights.publish
    assert "ns.log.*.*" in rights.publish


@pytest.mark.parametrize(
    ("role", "changes", "reason"),
    [
        (GrantRole.CALLER, {"teams": ()}, "needs --team"),
        (GrantRole.WORKER, {"agents": ()}, "needs --agent"),
        (GrantRole.OBSERVER, {"teams": ("crew",)}, "has no --team"),
        (GrantRole.CALLER, {"actions": ("approve",)}, "choose from: cancel"),
        (GrantRole.OBSERVER, {"actions": ("cancel",)}, "choose from: none"),
    ],
)
def test_grant_that_does_not_fit_its_role_is_refused(role: GrantRole, changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        grant(role, **changes)


@pytest.mark.parametrize(
    "changes", [{"name": "a.>"}, {"name": "*"}, {"name": ""}, {"teams": (">",)}, {"teams": ("a.b",)}]
)
def test_name_that_is_no_token_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidTokenError):
        grant(GrantRole.CALLER, **changes)


def test_inboxes_of_the_two_accounts_have_different_prefixes() -> None:
    assert inbox_prefix(grant(GrantRole.CALLER)) == "_INBOX.ada"
    assert inbox_prefix(grant(GrantRole.SUPERVISOR)) == "_TRUSTED.ada"


@pytest.mark.parametrize(
    ("subject", "pattern", "covered"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.*", True),
        ("a.*", "a.b", False),
        ("a.b.c", "a.>", True),
        ("a", "a.>", False),
        ("a.>", "a.*", False),
        ("a.>", "a.>", True),
        ("a.*.>", "a.>", True),
        ("a.>", "a.*.>", False),
        ("a.b", "a.b.c", False),
    ],
)
def test_pattern_covers_a_subject(subject: str, pattern: str, covered: bool) -> None:
    assert is_covered(subject, [pattern]) is covered
