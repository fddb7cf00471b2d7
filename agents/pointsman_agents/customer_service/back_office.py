"""Simulate the systems behind the customer-service tools: charges and accounts in SQLite, a status page in a JSON file.

The data is in the directory that the variable `POINTSMAN_CUSTOMER_SERVICE_DATA` names. Several processes may share this
directory. If the variable is not set, each process uses a temporary directory. Missing data is created from the
constants below.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Final

from pydantic import Field

from pointsman import TaskError

__all__ = ["DEFAULT_CUSTOMER", "CustomerId", "back_office", "customer", "status_page"]

DEFAULT_CUSTOMER: Final = "C-1001"
"""The customer of a request that names no customer, neither in its text nor in its metadata. A demo needs such a
default, because a demo has no login."""

CustomerId = Annotated[
    str, Field(pattern=r"^C-\d{4}$", description="The customer's id, such as C-1001", examples=["C-1001"])
]

_DIRECTORY_VARIABLE: Final = "POINTSMAN_CUSTOMER_SERVICE_DATA"
_BUSY_TIMEOUT_S: Final = 10.0  # longest wait for a lock of the database; processes hold the lock for milliseconds

# The twin of a charge is the first earlier charge with the same customer, day, amount and `what`. A charge with a twin
# is a duplicate.
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS customers (
    id TEXT PRIMARY KEY, email TEXT NOT NULL, plan TEXT NOT NULL, price INTEGER NOT NULL, renews TEXT NOT NULL,
    requests_per_minute INTEGER NOT NULL, peak_per_minute INTEGER NOT NULL,
    state TEXT NOT NULL, state_reason TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS charges (
    id TEXT PRIMARY KEY, customer TEXT NOT NULL REFERENCES customers, day TEXT NOT NULL, amount INTEGER NOT NULL,
    what TEXT NOT NULL
);
CREATE VIEW IF NOT EXISTS charges_and_twins AS SELECT this.*, (
    SELECT MIN(other.id) FROM charges AS other WHERE other.customer = this.customer AND other.day = this.day
    AND other.amount = this.amount AND other.what = this.what AND other.id < this.id
) AS twin FROM charges AS this;
CREATE TABLE IF NOT EXISTS refunds (
    charge TEXT PRIMARY KEY REFERENCES charges, id TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL,
    idempotency_key TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS reset_links (
    idempotency_key TEXT PRIMARY KEY, customer TEXT NOT NULL REFERENCES customers
);
"""

_CUSTOMERS: Final = (
    ("C-1001", "c-1001@customers.example", "Pro", 4900, "2026-12-01", 100, 184, "locked", "5 failed log-in attempts"),
    ("C-1002", "c-1002@customers.example", "Business", 19900, "2026-12-15", 1000, 212, "active", ""),
    ("C-1003", "c-1003@customers.example", "Free", 0, "never", 20, 3, "suspended", "an unpaid invoice"),
)
_CHARGES: Final = (
    ("ch-5001", "C-1001", "2026-10-01", 4900, "Pro plan, October 2026"),
    ("ch-5002", "C-1001", "2026-11-01", 4900, "Pro plan, November 2026"),
    ("ch-5003", "C-1001", "2026-11-01", 4900, "Pro plan, November 2026"),
    ("ch-5011", "C-1002", "2026-10-15", 19900, "Business plan, October 2026"),
    ("ch-5012", "C-1002", "2026-10-15", 19900, "Business plan, October 2026"),
    ("ch-5013", "C-1002", "2026-11-15", 19900, "Business plan, November 2026"),
)
_REFUNDS: Final = (("ch-5012", "rf-5012", "paid", "charged twice", "seed"),)
_STATUS: Final = {
    "updated": "2026-11-27T09:00:00Z",
    "components": {"api": "degraded", "dashboard": "operational", "webhooks": "operational", "log-in": "operational"},
    "incidents": [
        {
            "id": "inc-301",
            "component": "api",
            "status": "monitoring",
            "started": "2026-11-27T08:10:00Z",
            "title": "The API gateway answers some calls with 429",
            "detail": "Since 08:10 UTC the gateway counts some requests twice, so that limits are reached early. A "
            "fix is rolled out; until it is everywhere, wait for the seconds in Retry-After and try again.",
        }
    ],
}


@contextmanager
def back_office() -> Iterator[sqlite3.Connection]:
    """Open the database in a transaction. If the block raises an error, roll back; otherwise commit."""
    connection = sqlite3.connect(_directory() / "customer_service.db", timeout=_BUSY_TIMEOUT_S)
    connection.row_factory = sqlite3.Row
    try:
        with connection:
            yield connection
    finally:
        connection.close()


def customer(office: sqlite3.Connection, customer_id: str) -> sqlite3.Row:
    """Return the row of a customer.

    Args:
        office: An open database.
        customer_id: The id, such as C-1001.

    Returns:
        The row.

    Raises:
        TaskError: The database has no such customer.
    """
    row: sqlite3.Row | None = office.execute("SELECT * FROM customers WHERE id = ?", (customer_id,)).fetchone()
    if row is None:
        raise TaskError(f"there is no customer {customer_id}; ask the customer for the id, which looks like C-1001")
    return row


def status_page() -> dict[str, Any]:
    """Return the content of the public status page."""
    page: dict[str, Any] = json.loads((_directory() / "status.json").read_text(encoding="utf-8"))
    return page


def _directory() -> Path:
    with _seed_lock:
        return _seed(os.environ.get(_DIRECTORY_VARIABLE, "").strip() or _process_directory())


_seed_lock = Lock()  # needed because tools run in threads; between processes, SQLite's own lock is enough


@cache
def _process_directory() -> str:
    _temporary.append(tempfile.TemporaryDirectory(prefix="pointsman-customer-service-"))
    return _temporary[0].name


_temporary: list[tempfile.TemporaryDirectory[str]] = []  # the directory is deleted when the process exits


@cache
def _seed(directory: str) -> Path:
    """Create the data in `directory` and return the path. Several processes may call this at the same time."""
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path / "customer_service.db", timeout=_BUSY_TIMEOUT_S, isolation_level=None)
    try:
        # Take the write lock at the start, because two transactions that first read and then write would deadlock.
        connection.execute("BEGIN IMMEDIATE")
        for table in _SCHEMA.strip().removesuffix(";").split(";"):
            connection.execute(table)
        connection.executemany("INSERT OR IGNORE INTO customers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", _CUSTOMERS)
        connection.executemany("INSERT OR IGNORE INTO charges VALUES (?, ?, ?, ?, ?)", _CHARGES)
        connection.executemany("INSERT OR IGNORE INTO refunds VALUES (?, ?, ?, ?, ?)", _REFUNDS)
        connection.execute("COMMIT")
    finally:
        connection.close()
    status = path / "status.json"
    if not status.exists():
        fresh = path / f"status.{os.getpid()}.json"
        fresh.write_text(json.dumps(_STATUS, indent=2), encoding="utf-8")
        fresh.replace(status)  # the replacement is atomic, because another process may be reading the file
    return path
