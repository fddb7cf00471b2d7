"""Files of a batch. One file has a request in each row, and the other file records the rows that have ended.

Both files are read line by line, so the memory does not grow with the size of a file.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple, TextIO

from pydantic import JsonValue
from pydantic_core import to_json

from pointsman.client.batch import BatchInput, BatchRow
from pointsman.errors import ConfigurationError, ContractError
from pointsman_schemas.expressions import parse_path, read_path
from pointsman_schemas.strict_json import parse_json

__all__ = ["FILE_SUFFIXES", "BatchRecord", "Mapper", "RequestFile", "result_data"]

FILE_SUFFIXES = (".csv", ".jsonl", ".ndjson")
"""The endings of the names of request files."""
_MAX_LINE_BYTES = 8 * 1024 * 1024
"""Longest line of a request file, in bytes. A longer line is not read into memory, and its row gets an error."""
_CHUNK_BYTES = 1024 * 1024
_MAX_FAILURES = 20  # largest number of rows in `BatchRecord.earlier_failures`
_DIGEST_CHARS = 24  # number of characters of the digest in the id of a batch; enough to distinguish all batches


@dataclass(frozen=True, slots=True)
class Mapper:
    """The mapping of columns to a request, from `--map`.

    Attributes:
        text: The column with the whole request; empty if `--map` does not name a single column.
        fields: The column of each field of the request; empty if `--map` does not name fields.

    Without `--map`, the request has all columns as fields. If the only column is a text, this text is the request.
    """

    text: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_options(cls, options: Sequence[str]) -> Mapper:
        """Read the values of `--map`.

        Args:
            options: `COLUMN`, once; or `FIELD=COLUMN`, any number of times.

        Returns:
            The mapping.

        Raises:
            ConfigurationError: A value has neither form, both forms are mixed, or a field is named twice.
        """
        named = [option for option in options if "=" in option]
        if (named and len(named) < len(options)) or (not named and len(options) > 1):
            raise ConfigurationError("--map is either one COLUMN, or FIELD=COLUMN for each field of the request")
        fields: dict[str, str] = {}
        for option in named:
            name, _, column = option.partition("=")
            if not name.strip() or not column.strip():
                raise ConfigurationError(f"--map {option!r} has no field or no column; give FIELD=COLUMN")
            if name.strip() in fields:
                raise ConfigurationError(f"--map names the field {name.strip()!r} twice; give each field one column")
            fields[name.strip()] = column.strip()
        return cls(text="" if named or not options else options[0].strip(), fields=fields)

    def columns(self) -> Sequence[str]:
        """Return the columns that the mapping reads."""
        return [self.text] if self.text else list(self.fields.values())

    def request(self, row: JsonValue) -> BatchInput:
        """Return the request of one row.

        Args:
            row: The row: a text, or an object with a field for each column.

        Returns:
            The request.

        Raises:
            ContractError: The row lacks a column of the mapping, or the request is empty or neither a text nor an
                object.
        """
        if self.text:
            value = _column(row, self.text)
        elif self.fields:
            value = {name: _column(row, column) for name, column in self.fields.items()}
        elif isinstance(row, dict) and len(row) == 1 and isinstance(only := next(iter(row.values())), str):
            value = only
        else:
            value = row
        if not isinstance(value, str | dict) or not value:
            raise ContractError(f"the request is {json.dumps(value)[:80]}; a text or an object is expected")
        return value


def _column(row: JsonValue, name: str) -> JsonValue:
    if isinstance(row, dict) and name in row:
        return row[name]
    with suppress(ValueError):
        path = parse_path(name)
        if isinstance(row, dict) and path[0] in row and (value := read_path(row, path)) is not None:
            return value
    has = ", ".join(row) if isinstance(row, dict) else "no columns"
    raise ContractError(f"the row has no column {name!r}; it has {has}"[:400])


@dataclass(frozen=True, slots=True)
class RequestFile:
    """A file of requests in CSV or JSON Lines.

    Attributes:
        path: The file.
        mapper: The mapping of columns to a request.
        digest: The digest of the content.
        rows: The number of rows.
    """

    path: Path
    mapper: Mapper
    digest: str
    rows: int

    @classmethod
    def open(cls, path: Path, mapper: Mapper) -> RequestFile:
        """Read a file to compute its digest and to count its rows.

        Args:
            path: The file, whose name ends with `.csv`, `.jsonl` or `.ndjson`.
            mapper: The mapping of columns to a request.

        Returns:
            The file.

        Raises:
            ConfigurationError: The file cannot be read, has an unknown format, or does not have a required column.
        """
        if path.suffix.lower() not in FILE_SUFFIXES:
            raise ConfigurationError(f"{path} is not .csv, .jsonl or .ndjson; give the file in one of these formats")
        try:
            digest = hashlib.sha256()
            with path.open("rb") as data:
                while chunk := data.read(_CHUNK_BYTES):
                    digest.update(chunk)
            rows = 0
            for row in _rows(path):
                rows += 1
                if rows == 1 and path.suffix.lower() == ".csv" and isinstance(row, dict):
                    for column in mapper.columns():
                        _check_column(path, row, column)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}; check the path") from None
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path} is not UTF-8: {error.reason}; save the file as UTF-8") from None
        return cls(path, mapper, digest.hexdigest(), rows)

    def batch_id(self, team: str) -> str:
        """Return the id of the batch. The id is the same for the same content of the file, mapping and team.

        Args:
            team: The team.

        Returns:
            The id.
        """
        fields = [f"{name}={column}" for name, column in self.mapper.fields.items()]
        parts = [self.digest, team, self.mapper.text, *fields]
        return f"batch-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:_DIGEST_CHARS]}"

    def requests(self) -> Iterator[BatchInput | ContractError]:
        """Yield the request of each row, or the error of a row that is not a request."""
        for row in _rows(self.path):
            if isinstance(row, ContractError):
                yield row
                continue
            try:
                yield self.mapper.request(row)
            except ContractError as error:
                yield error


def _check_column(path: Path, row: Mapping[str, JsonValue], column: str) -> None:
    if column not in row:
        raise ConfigurationError(f"{path} has no column {column!r}; its columns are {', '.join(row)}"[:400])


def _rows(path: Path) -> Iterator[JsonValue | ContractError]:
    return _csv_rows(path) if path.suffix.lower() == ".csv" else _json_rows(path)


def _csv_rows(path: Path) -> Iterator[JsonValue | ContractError]:
    csv.field_size_limit(_MAX_LINE_BYTES)
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, strict=True)
        header: Sequence[str] | None = None
        while True:
            try:
                values = next(reader)
            except StopIteration:
                if header is None:
                    raise ConfigurationError(
                        f"{path} has no header; give each column a name in the first line"
                    ) from None
                return
            except csv.Error as error:
                yield ContractError(f"the row is not CSV: {error}")
                continue
            if not values:
                continue  # an empty line
            if header is None:
                header = _checked_header(path, [name.strip() for name in values])
            elif len(values) != len(header):
                yield ContractError(f"the row has {len(values)} values; the header has {len(header)} columns")
            else:
                yield dict(zip(header, values, strict=True))


def _checked_header(path: Path, header: Sequence[str]) -> Sequence[str]:
    if "" in header:
        raise ConfigurationError(f"column {header.index('') + 1} of {path} has no name; give each column a name")
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise ConfigurationError(
            f"{path} has two columns with the name {twice[0]!r}; give each column a name of its own"
        )
    return header


def _json_rows(path: Path) -> Iterator[JsonValue | ContractError]:
    with path.open("rb") as lines:
        while line := lines.readline(_MAX_LINE_BYTES):
            if not line.endswith(b"\n") and len(line) == _MAX_LINE_BYTES:
                while (rest := lines.readline(_CHUNK_BYTES)) and not rest.endswith(b"\n"):
                    pass
                yield ContractError(f"the line is longer than {_MAX_LINE_BYTES} bytes")
                continue
            if not line.strip():
                continue
            try:
                yield parse_json(line.removeprefix(b"\xef\xbb\xbf").strip())
            except ContractError as error:
                yield error


class EarlierFailure(NamedTuple):
    """A row that ended in an earlier run, with a status other than `completed`.

    Attributes:
        row: The number of the row.
        status: The status.
        reason: The reason.
        workflow_id: The workflow; None if the row was not sent.
    """

    row: int
    status: str
    reason: str
    workflow_id: str | None


class BatchRecord:
    """The file of results. It has one JSON object for each ended row, in the order in which the rows ended.

    A later run continues the batch from this file. It takes the numbers, the statuses and the usage of the ended rows
    from the file, and does not keep their answers in memory. If a process was killed while it wrote the last line, the
    incomplete line is removed.

    Args:
        path: The file; None for standard output, from which no later run can continue.
        batch_id: The id of the batch.

    Raises:
        ConfigurationError: The file cannot be written, has results of another batch, or another process writes it.
    """

    def __init__(self, path: Path | None, batch_id: str) -> None:
        self.path = path
        self.ended: set[int] = set()
        """The numbers of the rows that have ended."""
        self.completed = 0
        self.earlier_failures: list[EarlierFailure] = []
        """The first rows that ended in earlier runs with a status other than `completed`, at most 20."""
        self.cost = 0.0
        self.tokens = 0
        self._batch_id = batch_id
        self._output: IO[bytes] | TextIO = sys.stdout
        if path is None:
            return
        try:
            output = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}; check the path") from None
        self._output = output
        try:
            _lock(output, path)
            self._read(output)
        except BaseException:
            output.close()
            raise

    def add(self, row: BatchRow) -> None:
        """Write the result of one row.

        Args:
            row: The row.
        """
        line = to_json(data := result_data(row), exclude_none=True)
        self._count(row.row, data)
        if self.path is None:
            sys.stdout.write(line.decode() + "\n")
            sys.stdout.flush()
            return
        self._output.write(line + b"\n")  # type: ignore[arg-type]  # a binary file, because `path` is set
        self._output.flush()

    def close(self) -> None:
        """Close the file."""
        if self.path is not None:
            self._output.close()

    def _read(self, output: IO[bytes]) -> None:
        end = 0
        while line := output.readline():
            if not line.endswith(b"\n"):
                break
            self._count_line(line)
            end += len(line)
        output.truncate(end)
        output.seek(end)

    def _count_line(self, line: bytes) -> None:
        try:
            found = json.loads(line)
            row, request_id = int(found["row"]), str(found["request_id"])
        except (ValueError, KeyError, TypeError):
            raise ConfigurationError(
                f"{self.path} has a line that is not a result of a batch: {line[:80]!r}; give another file"
            ) from None
        if request_id != f"{self._batch_id}-{row}":
            raise ConfigurationError(
                f"{self.path} has results of another batch: {request_id}; expected {self._batch_id}-{row}; the "
                "requests, the team or --map have changed: give another file"
            )
        self._count(row, found)
        if found["status"] != "completed" and len(self.earlier_failures) < _MAX_FAILURES:
            gaps = "; ".join(str(gap["reason"]) for gap in found.get("gaps") or ())
            reason = str(found.get("reason") or gaps or "no reason")
            self.earlier_failures.append(EarlierFailure(row, str(found["status"]), reason, found.get("workflow_id")))

    def _count(self, row: int, result: Mapping[str, object]) -> None:
        self.ended.add(row)
        self.completed += result["status"] == "completed"
        usage = result.get("usage")
        if isinstance(usage, dict):
            self.cost += float(usage.get("cost", 0.0))
            self.tokens += int(usage.get("input_tokens", 0)) + int(usage.get("output_tokens", 0))


def result_data(row: BatchRow) -> dict[str, object]:
    """Return the result of a row as data. Fields without a value are missing or None.

    Args:
        row: The row.
    """
    data: dict[str, object] = {"row": row.row, "request_id": row.request_id}
    if row.outcome is None:
        return {**data, "status": row.status, "reason": row.error}
    outcome = row.outcome
    return {
        **data,
        "workflow_id": row.workflow_id,
        "status": row.status,
        "answer": outcome.answer,
        "reason": outcome.reason or None,
        "gaps": [{"task_id": gap.task_id, "reason": gap.reason} for gap in outcome.gaps] or None,
        "usage": outcome.usage.model_dump(mode="json"),
        "elapsed": outcome.elapsed,
    }


def _lock(output: IO[bytes], path: Path) -> None:
    """Lock the file until it is closed, if the system has file locks."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ConfigurationError(f"another process writes {path}; wait for its end, or give another file") from None
