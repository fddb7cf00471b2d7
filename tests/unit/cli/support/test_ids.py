"""A unique prefix of an id selects its object."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.history import WORKFLOW, started, store
from support.letters import store_dead_letter

from pointsman.cli.commands import archive, dead_letters, questions, workflows
from pointsman.cli.support.ids import resolve_workflow_id
from pointsman.client.client import Client
from pointsman.client.operations import AnswerResult
from pointsman.errors import ConfigurationError, NotFoundError

NOWHERE = {"url": None, "namespace": None, "json": False}


def dead(capsys: pytest.CaptureFixture[str], **which: str) -> str:
    dead_letters.list_(**which, **NOWHERE)
    return capsys.readouterr().out.strip()


def test_id_prefix_selects_a_workflow(client: Client) -> None:
    workflow = asyncio.run(client.submit("shop", "hello"))

    assert asyncio.run(resolve_workflow_id(client, workflow.id[:10])) == workflow.id
    assert asyncio.run(resolve_workflow_id(client, workflow.id)) == workflow.id
    assert asyncio.run(resolve_workflow_id(client, "wf_none")) == "wf_none"
    assert asyncio.run(resolve_workflow_id(client, "wf_")) == "wf_"


def test_beginning_of_several_ids_is_refused_with_the_ids(client: Client) -> None:
    some = [asyncio.run(client.submit("shop", "hello", request_id=f"r-{number}")).id for number in range(17)]
    digit = next(each[3] for each in some if sum(other[3] == each[3] for other in some) > 1)  # 17 ids and 16 digits

    with pytest.raises(ConfigurationError, match=f"workflows begin with wf_{digit}: .*give more of the id"):
        asyncio.run(resolve_workflow_id(client, f"wf_{digit}"))


def test_workflow_is_shown_by_the_beginning_of_its_id(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    workflow = asyncio.run(client.submit("shop", "hello"))

    workflows.show(workflow.id[:12], **NOWHERE)

    assert f"{workflow.id} is waiting for admission" in capsys.readouterr().out


def test_id_prefix_works_for_export_and_cancel(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(store(client.bus, started()))

    archive.export(WORKFLOW[:9], Path("-"), url=None, namespace=None, json=False)
    exported = capsys.readouterr().out
    code = workflows.cancel(WORKFLOW[:9], reason="", **NOWHERE)

    assert json.loads(exported)["workflow_id"] == WORKFLOW
    assert (code, capsys.readouterr().out) == (0, f"Cancellation of {WORKFLOW} sent.\n")


def test_beginning_of_several_ids_cancels_no_workflow(client: Client) -> None:
    for number in range(17):
        asyncio.run(client.submit("shop", "hello", request_id=f"r-{number}"))
    ids = [each.id for each in asyncio.run(client.list())]
    digit = next(each[3] for each in ids if sum(other[3] == each[3] for other in ids) > 1)  # 17 ids and 16 digits

    with pytest.raises(ConfigurationError, match="give more of the id"):
        workflows.cancel(f"wf_{digit}", reason="", **NOWHERE)

    assert {each.status for each in asyncio.run(client.list())} == {"waiting for admission"}


def test_approval_is_found_by_the_beginning_of_its_workflow(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(store(client.bus, started()))
    answered: list[str] = []

    async def reject(approval: str, **_: object) -> AnswerResult:
        answered.append(approval)
        return AnswerResult(True, f"{approval} is rejected")

    monkeypatch.setattr(client.operations, "reject", reject)

    for given in (f"{WORKFLOW[:9]}-q1", f"{WORKFLOW}-q1"):
        questions.reject(given, **NOWHERE)

    assert answered == [f"{WORKFLOW}-q1"] * 2


def test_dead_letter_is_shown_with_the_names_of_its_fields(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(store_dead_letter(client, "c0ffee", "undecodable", body=b'{"inputt": "hello"}'))

    dead_letters.show("c0ffee", **NOWHERE)

    assert '"inputt": "hello"' in capsys.readouterr().out


def test_dead_letters_are_selected_by_prefixes_of_their_ids_or_workflows(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(store(client.bus, started()))
    for name, workflow in (("c0ffee", WORKFLOW), ("c0fa11", "wf_2")):
        asyncio.run(store_dead_letter(client, name, "undecodable", workflow))

    dead_letters.show("c0ff", **NOWHERE)
    assert "c0ffee" in capsys.readouterr().out
    assert "c0fa11" not in dead(capsys, workflow=WORKFLOW[:9])
    with pytest.raises(ConfigurationError, match="2 dead letters begin with c0f: c0ffee, c0fa11; give more of the id"):
        dead_letters.discard(["c0f"], yes=True, **NOWHERE)
    dead_letters.discard(["c0fa"], yes=True, **NOWHERE)

    assert capsys.readouterr().out == "c0fa11: discarded\n"
    with pytest.raises(NotFoundError, match="no dead letter 'c0fa'"):
        dead_letters.show("c0fa", **NOWHERE)
