"""All pages of the repository are linked and listed, and have the same form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RECORDS = sorted((DOCS / "decisions").glob("0*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "tests" / "README.md"])
STATUSES = {"proposed", "accepted", "superseded", "rejected"}


def links_of(page: Path) -> Iterator[tuple[str, str]]:
    """Yield path and heading of each link in `page` to a file of this repository."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            path, _, heading = target.partition("#")
            yield path, heading


def headings_of(page: Path) -> set[str]:
    """Return the anchors that the headings of `page` have."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for path, heading in links_of(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if heading:
            assert heading in headings_of(target), f"{path}#{heading}"


def test_the_index_lists_every_page() -> None:
    listed = {path for path, _ in links_of(DOCS / "README.md")}

    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} <= listed


def test_readme_links_index_glossary_and_repository_rules() -> None:
    linked = {path for path, _ in links_of(ROOT / "README.md")}

    assert {"docs/README.md", "docs/glossary.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"} <= linked


def test_the_index_of_decisions_has_each_record_with_its_title_and_status() -> None:
    rows = re.findall(
        r"^\| \[(\d{4})\]\((\S+)\) \| (.+) \| (\w+) \|$", (RECORDS[0].parent / "README.md").read_text(), re.M
    )
    expected = []
    for record in RECORDS:
        title, status = re.match(r"# \d{4} (.+)\n\nStatus: (\w+)\n", record.read_text()).groups()  # type: ignore[union-attr]
        expected.append((record.name[:4], record.name, title, status))

    assert rows == expected
    assert [int(number) for number, *_ in rows] == list(range(1, len(rows) + 1))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_decision_record_has_a_status_and_its_parts_in_order(record: Path) -> None:
    text = record.read_text()
    status = re.search(r"^Status: (.+)$", text, re.MULTILINE)
    parts = re.findall(r"^## (.+)$", text, re.MULTILINE)
    _, _, revisions = text.partition("\n## Revisions\n")

    assert text.startswith(f"# {record.name[:4]} ")
    assert status
    assert status[1] in STATUSES
    assert parts[:3] == ["Context", "Decision", "Consequences"]
    assert parts[3:] in ([], ["Revisions"])
    assert all(re.match(r"- \d{4}-\d\d-\d\d: ", line) for line in revisions.splitlines() if line.startswith("- "))


def test_the_changelog_begins_with_unreleased_and_has_the_version_of_the_project() -> None:
    versions = re.findall(r"^## \[?([\w.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    current = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

    assert current
    assert versions[:2] == ["Unreleased", current[1]]


def test_the_compose_file_builds_the_version_of_the_project() -> None:
    current = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

    assert current
    assert f"image: pointsman:{current[1]}\n" in (ROOT / "docker-compose.yml").read_text()


def test_every_module_that_a_page_names_exists() -> None:
    roots = [ROOT, ROOT / "runtime" / "pointsman"]
    named = {
        (page.relative_to(ROOT).as_posix(), name)
        for page in PAGES
        for name in re.findall(r"`((?:\w+/)+\w+\.(?:py|md|yml|yaml|json|conf))(?:::\w+)?`", page.read_text())
    }

    assert [
        (page, name) for page, name in named if not any((root / name).exists() for root in [*roots, ROOT / "tests"])
    ] == []


def test_the_pre_commit_hooks_are_local_and_run_files_that_exist() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    tests = {word for hook in hooks for word in hook["entry"].split() if word.startswith("tests/")}

    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    assert {hook["language"] for hook in hooks} == {"system"}
    assert [test for test in tests if not (ROOT / test).exists()] == []
