"""Run `python -m benchmarks` to measure, to print a table, and to write the numbers to bench-results/."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from benchmarks.machine import ROOT
from benchmarks.measure import measure
from benchmarks.report import failures, table
from benchmarks.results import Amount
from pointsman.app import run

_BEGAN = perf_counter()


def main() -> int:
    given = _arguments()
    rounds, single, many, raw = (2, 20, 100, 100) if given.smoke else (5, 100, 500, 300)
    amount = Amount(
        rounds=given.rounds or rounds,
        single=given.single or single,
        many=given.many or many,
        concurrency=given.concurrency,
        raw=raw,
        shapes=() if given.no_shapes else ("W2", "W3"),
        tracing=not given.no_tracing,
        logged=not given.smoke,
        sync=given.sync,
    )
    measured = run(measure(amount, _report))
    path = given.json or ROOT / "bench-results" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(measured), indent=1))
    _report(f"the numbers are in {path}")
    print(table(measured))
    wrong = list(failures(measured)) if given.smoke else []
    for line in wrong:
        print(f"regression: {line}", file=sys.stderr)
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the cost of a workflow.")
    parser.add_argument(
        "--smoke", action="store_true", help="short run; fails on a gross regression of a ratio or a count"
    )
    parser.add_argument("--rounds", type=int, help="interleaved rounds (5)")
    parser.add_argument("--single", type=int, help="workflows one at a time, in each round (100)")
    parser.add_argument("--many", type=int, help="workflows at a concurrency, in each round (500)")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--no-tracing", action="store_true", help="leave out the system with tracing")
    parser.add_argument("--no-shapes", action="store_true", help="leave out W2 and W3")
    parser.add_argument("--sync", default="1s", help="the broker's sync_interval (1s); or `always`")
    parser.add_argument("--json", type=Path, help="output file (bench-results/TIME.json)")
    return parser.parse_args()


def _report(what: str) -> None:
    print(f"[{perf_counter() - _BEGAN:6.1f} s] {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
