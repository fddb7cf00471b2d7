"""Read requests from a file, and record the rows that have ended."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from pointsman.client.batch import BatchRow
from pointsman.client.batch_files import BatchRecord, Mapper, RequestFile
from pointsman.errors import ConfigurationError, ContractError
from pointsman_schemas.events import Outcome, Usage

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def requests(path: Path, *options: str) -> list[Any]:
    found = RequestFile.open(path, Mapper.from_options(options)).requests()
    return [str(each) if isinstance(each, ContractError) else each for each in found]


def outcome(status: Literal["completed", "failed"] = "completed", cost: float = 0.5) -> Outcome:
    return Outcome(
        workflow_id="wf_1", team="desk", status=status, answer="fine", correlation_id="c", trace_id="a" * 32,
        started_at=NOW, ended_at=NOW, elapsed=1, sequential=1, usage=Usage(calls=1, input_tokens=5, cost=cost),
    )  # fmt: skip


def test_the_only_column_of_a_csv_is_the_request_and_several_are_an_object(tmp_path: Path) -> None:
    one = write(tmp_path / "one.csv", '\ufeffquestion\nwhere?\n\n"a, b\nc"\n')
    two = write(tmp_path / "two.csv", "id,question\n1,where?\n")

    assert requests(one) == ["where?", "a, b\nc"]
    assert requests(two) == [{"id": "1", "question": "where?"}]
    assert requests(two, "question") == ["where?"]
    assert requests(two, "customer=id", "text = question") == [{"customer": "1", "text": "where?"}]


def test_lines_of_json_are_texts_or_objects_and_columns_may_be_paths(tmp_path: Path) -> None:
    file = write(tmp_path / "r.jsonl", '"where?"\n\n{"a": {"b": ["x", "y"]}}\n')

    assert requests(file) == ["where?", {"a": {"b": ["x", "y"]}}]
    assert requests(file, "text=a.b.1")[1] == {"text": "y"}
    assert requests(file, "text=a.b.1")[0] == "the row has no column 'a.b.1'; it has no columns"


def test_a_row_that_is_no_request_is_an_error_of_its_row(tmp_path: Path) -> None:
    csv = write(tmp_path / "r.csv", 'a,b\n1,2\n1\n"x" y,2\n3,4\n')
    lines = write(tmp_path / "r.jsonl", b'{"a": 1\n7\n""\n[1]\n"' + b"x" * (8 * 1024 * 1024) + b'"\n"last"\n')

    assert requests(csv) == [
        {"a": "1", "b": "2"},
        "the row has 1 values; the header has 2 columns",
        "the row is not CSV: ',' expected after '\"'",
        {"a": "3", "b": "4"},
    ]
    found = requests(lines)
    assert found[1:4] == [f"the request is {each}; a text or an object is expected" for each in ("7", '""', "[1]")]
    assert found[4:] == ["the line is longer than 8388608 bytes", "last"]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("r.xlsx", "", (), "is not .csv, .jsonl or .ndjson"),
        ("r.csv", "", (), "has no header; give each column a name in the first line"),
        ("r.csv", "\n\n", (), "has no header; give each column a name in the first line"),
        ("r.csv", "a,a\n1,2\n", (), "has two columns with the name 'a'; give each column a name of its own"),
        ("r.csv", "a,\n1,2\n", (), "r.csv has no name; give each column a name"),
        ("r.csv", "a,b\n1,2\n", ("c",), "has no column 'c'; its columns are a, b"),
        ("r.csv", b"a\n\xff\n", (), "is not UTF-8"),
        ("r.csv", "a,b\n1,2\n", ("a", "b"), "--map is either one COLUMN, or FIELD=COLUMN"),
        ("r.csv", "a,b\n1,2\n", ("x=a", "x=b"), "--map names the field 'x' twice"),
        ("r.csv", "a,b\n1,2\n", ("=a",), "--map '=a' has no field or no column"),
    ],
)
def test_a_wrong_file_is_refused_before_any_row(
    tmp_path: Path, name: str, content: str | bytes, options: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        requests(write(tmp_path / name, content), *options)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        RequestFile.open(tmp_path / "none.csv", Mapper())


def test_the_batch_is_that_of_the_content_the_team_and_the_mapping(tmp_path: Path) -> None:
    first, same = write(tmp_path / "a.csv", "a\n1\n"), write(tmp_path / "b.csv", "a\n1\n")
    other = write(tmp_path / "c.csv", "a\n2\n")

    ids = [
        RequestFile.open(path, Mapper.from_options(options)).batch_id(team)
        for path, options, team in [
            (first, (), "t"), (same, (), "t"), (other, (), "t"), (first, (), "u"), (first, ("a",), "t"),
        ]
    ]  # fmt: skip

    assert ids[0] == ids[1]
    assert len(set(ids)) == 4


def test_a_run_that_continues_knows_its_rows_and_their_cost(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    record = BatchRecord(path, "b")
    record.add(BatchRow(1, "b-1", "wf_1", outcome()))
    record.add(BatchRow(3, "b-3", error="no request"))
    record.close()
    with path.open("ab") as file:
        file.write(b'{"row": 2, "requ')  # the process was killed

    again = BatchRecord(path, "b")
    again.add(BatchRow(2, "b-2", "wf_2", outcome("failed")))
    again.close()

    assert (again.ended, again.completed, again.cost, again.tokens) == ({1, 2, 3}, 1, 1.0, 10)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(each["row"], each["status"]) for each in lines] == [(1, "completed"), (3, "not_sent"), (2, "failed")]
    assert lines[0]["answer"] == "fine"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_record_of_another_batch_or_of_a_running_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    record = BatchRecord(path, "b")
    record.add(BatchRow(1, "b-1", "wf_1", outcome()))
    with pytest.raises(ConfigurationError, match="another process writes"):
        BatchRecord(path, "b")
    record.close()

    with pytest.raises(ConfigurationError, match="has results of another batch: b-1; expected c-1"):
        BatchRecord(path, "c")
    write(path, "something else\n")
    with pytest.raises(ConfigurationError, match="has a line that is not a result of a batch"):
        BatchRecord(path, "b")
    assert path.read_text() == "something else\n"
