"""Check and store the rows of a batch, and read stored rows in blocks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

from pydantic import ValidationError

from pointsman.bus.file_store import FileStore
from pointsman.client.batch import BatchInput
from pointsman.errors import ContractError
from pointsman_schemas.events import Request
from pointsman_schemas.files import File
from pointsman_schemas.strict_json import describe, parse_json

__all__ = ["MEDIA_TYPE", "RowBounds", "Rows", "RowsRefusedError", "TooLargeRowsError", "read_rows", "store_rows"]

MEDIA_TYPE = "application/jsonl"
_MAX_ERRORS = 5  # largest number of invalid rows in an error
_BLOCK_BYTES = 1_048_576  # size of the rows that are read ahead, in bytes


class RowsRefusedError(ContractError):
    """The rows are not a valid batch. Nothing was sent.

    Args:
        kind: The cause as one word.
        message: The cause, and the remedy.
        errors: The invalid rows: `row` is the number, from 1, and `message` the error.
    """

    def __init__(self, kind: str, message: str, errors: Sequence[Mapping[str, object]] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.errors = errors


class TooLargeRowsError(RowsRefusedError):
    """There are too many rows, or the rows are too large."""


class RowBounds(NamedTuple):
    """The bounds of a batch.

    Attributes:
        rows: Largest number of rows.
        bytes: Largest size of all rows, in bytes.
        row_bytes: Largest size of a row, in bytes.
    """

    rows: int
    bytes: int
    row_bytes: int


class Rows(NamedTuple):
    """The file with the stored rows of a batch, and the number of rows."""

    file: File
    total: int


async def store_rows(store: FileStore, owner: str, pieces: AsyncIterable[bytes], bounds: RowBounds) -> Rows:
    """Check each row, and store the rows while they arrive.

    Args:
        store: The files of the namespace.
        owner: The batch.
        pieces: The body, with one JSON text or object per line. Empty lines are ignored.
        bounds: The bounds.

    Returns:
        The rows.

    Raises:
        RowsRefusedError: A row is not a request, or there is no row.
        TooLargeRowsError: There are too many rows, or the rows are too large.
    """
    writer = store.create("rows.jsonl", MEDIA_TYPE, owner)
    errors: list[dict[str, object]] = []
    total = 0
    async with aclosing(_lines(pieces, bounds.bytes, bounds.row_bytes)) as lines:
        async for line in lines:
            total += 1
            if total > bounds.rows:
                raise TooLargeRowsError(
                    "too_many_rows",
                    f"the batch has more than {bounds.rows} rows; send several batches, or raise POINTSMAN_BATCH_ROWS",
                )
            try:
                _input_of(line)
            except ContractError as error:
                errors.append({"row": total, "message": str(error)})
                if len(errors) == _MAX_ERRORS:
                    break
            if not errors:
                await writer.write(line + b"\n")
    if errors:
        detail = f"row {errors[0]['row']} is not a request: {errors[0]['message']}; nothing was sent"
        raise RowsRefusedError("invalid_rows", detail, errors)
    if not total:
        raise RowsRefusedError("no_rows", "the batch has no row; send one JSON text or object per line")
    return Rows(await writer.finish(), total)


async def read_rows(store: FileStore, file: File, first: int = 1) -> AsyncIterator[BatchInput]:
    """Yield the rows. Read the rows in blocks, so no read at the broker stays open while the caller uses the rows.

    Args:
        store: The files of the namespace.
        file: The rows.
        first: The number of the first row, from 1.

    Yields:
        The requests.

    Raises:
        BodyLostError: The file was removed.
    """
    while True:
        block = await _read_block(store, file, first)
        if not block:
            return
        for line in block:
            yield _input_of(line)
        first += len(block)


async def _read_block(store: FileStore, file: File, first: int) -> list[bytes]:
    block: list[bytes] = []
    number = size = 0
    async with aclosing(store.read(file)) as pieces, aclosing(_lines(pieces, file.size, file.size)) as lines:
        async for line in lines:
            number += 1
            if number < first:
                continue
            block.append(line)
            size += len(line)
            if size >= _BLOCK_BYTES:
                break
    return block


async def _lines(pieces: AsyncIterable[bytes], max_bytes: int, max_line_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the lines that are not empty, without line ends."""
    rest = bytearray()
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > max_bytes:
            raise TooLargeRowsError(
                "too_large", f"the batch has more than {max_bytes} bytes; send less, or raise POINTSMAN_BATCH_BYTES"
            )
        rest += piece
        *whole, last = rest.split(b"\n")
        rest = bytearray(last)
        if len(rest) > max_line_bytes or any([len(line) > max_line_bytes for line in whole]):
            raise TooLargeRowsError("too_large", f"a row has more than {max_line_bytes} bytes; shorten the row")
        for line in whole:
            if stripped := bytes(line).strip():
                yield stripped
    if stripped := bytes(rest).strip():
        yield stripped


def _input_of(line: bytes) -> BatchInput:
    """Return the request of a row.

    Raises:
        ContractError: The row is not a request.
    """
    try:
        value = Request.model_validate({"input": parse_json(line)}).input
    except ValidationError as error:
        raise ContractError(describe(error)) from None
    return value
