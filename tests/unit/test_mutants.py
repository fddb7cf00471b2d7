"""The table of planted faults is correct. These tests plant some faults, and `make mutants` plants all."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants.__main__ import ROOT, copied, planted
from mutants.table import MUTANTS, Mutant

MECHANISMS = {f"M{number}" for number in range(1, 26)}
QUICK = ("M3", "a late result has no effect")


def test_every_fault_can_be_planted_and_breaks_something() -> None:
    lost = [
        f"{mutant.what}: {mutant.file} has its text {count} times"
        for mutant in MUTANTS
        if (count := (ROOT / mutant.file).read_text().count(mutant.text)) != 1
    ]

    assert lost == []
    assert [mutant.what for mutant in MUTANTS if mutant.text == mutant.instead or not mutant.tests] == []


def test_every_named_test_of_a_fault_exists() -> None:
    named = {test for mutant in MUTANTS for test in mutant.tests}

    missing = [
        test
        for test in named
        for file, _, name in [test.partition("::")]
        if f"def {name}(" not in (ROOT / "tests" / file).read_text()
    ]

    assert missing == []


def test_every_mechanism_has_a_fault_and_the_protocol_has_some() -> None:
    broken = {mutant.what for mutant in MUTANTS}

    assert broken >= MECHANISMS | set(QUICK)
    assert len(broken - MECHANISMS) > 10


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("tree"))


@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.what in QUICK])
def test_a_planted_fault_is_noticed(mutant: Mutant, tree: Path) -> None:
    assert planted(mutant, tree, 1) == ""


def test_a_harmless_change_and_a_syntax_error_are_not_noticed_faults(tree: Path) -> None:
    file, text = "runtime/pointsman/core/model/agent_health.py", "seconds: float | None = None"
    test = "unit/core/tasks/test_skills.py::test_the_idle_agent_gets_the_work"

    survived = planted(Mutant("nothing", file, text, f"{text}  # the same", (test,)), tree, 2)
    broke = planted(Mutant("all", file, text, "seconds: float | None = None None", (test,)), tree, 3)
    unknown = planted(Mutant("elsewhere", file, "text that is not there", "", (test,)), tree, 4)

    assert survived == f"survives {test}"
    assert broke.startswith("pytest ended with ")
    assert "0 times" in unknown
    assert (tree / file).read_text() == (ROOT / file).read_text()
