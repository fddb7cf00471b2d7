"""A further run of a batch names the rows that did not complete in an earlier run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pointsman.cli.commands import batch
from pointsman.client.batch_files import BatchRecord


def record_of(path: Path, *results: dict[str, object]) -> BatchRecord:
    rows = [{"row": row, "request_id": f"b-{row}", **each} for row, each in enumerate(results, start=1)]
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return BatchRecord(path, "b")


def test_rows_that_did_not_complete_in_an_earlier_run_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = record_of(
        tmp_path / "results.jsonl",
        {"status": "completed", "workflow_id": "wf_1", "answer": "yes"},
        {"status": "failed", "workflow_id": "wf_2", "reason": "it is bad"},
        {"status": "partial", "workflow_id": "wf_3", "gaps": [{"task_id": "t", "reason": "no agent"}]},
        {"status": "not_sent", "reason": "the line is not JSON"},
    )

    batch._print_earlier_failures(record)

    record.close()
    assert capsys.readouterr().err.splitlines() == [
        "pointsman: row 2 ended as failed in an earlier run: it is bad (wf_2)",
        "pointsman: row 3 ended as partial in an earlier run: no agent (wf_3)",
        "pointsman: row 4 was not sent in an earlier run: the line is not JSON",
    ]


def test_many_such_rows_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed: dict[str, object] = {"status": "failed", "workflow_id": "wf_1", "reason": "it is bad"}
    record = record_of(tmp_path / "results.jsonl", *[failed] * 25)

    batch._print_earlier_failures(record)

    record.close()
    *rows, last = capsys.readouterr().err.splitlines()
    assert len(rows) == 20
    assert last == f"pointsman: 5 more rows did not complete in an earlier run; {record.path} has the reasons"
