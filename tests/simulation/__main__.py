"""`python -m simulation --seeds 1000 --first 1 --jobs 2` plays worlds and shows each world that breaks an invariant."""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

from simulation.world import World, WorldReport

_HISTORY_LINES = 60  # printed lines of a failed world's history
_PROGRESS_INTERVAL_S = 5.0  # seconds between two progress reports


def main() -> int:
    options = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    options.add_argument("--seeds", type=int, default=1000, help="number of worlds")
    options.add_argument("--first", type=int, default=1, help="the first seed")
    options.add_argument("--jobs", type=int, default=1, help="processes to use")
    options.add_argument(
        "--tail", type=int, default=_HISTORY_LINES, help="lines of history to show of a world that failed"
    )
    options.add_argument("--verbose", action="store_true", help="show the history of worlds that did not fail, too")
    chosen = options.parse_args()
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    faults: Counter[str] = Counter()
    failed: list[int] = []
    workflows = steps = done = 0
    began = shown = time.monotonic()
    for seen in _played(seeds, chosen.jobs):
        done += 1
        faults += seen.faults
        workflows += seen.workflows
        steps += seen.steps
        if seen.problems:
            failed.append(seen.seed)
        if seen.problems or chosen.verbose:
            _show(seen, chosen.tail)
        if time.monotonic() - shown > _PROGRESS_INTERVAL_S or done == chosen.seeds:
            shown = time.monotonic()
            rate = done / (shown - began)
            print(f"{done} seeds, {rate:.1f}/s, {workflows} workflows, {len(failed)} failed", flush=True)
    print("faults: " + ", ".join(f"{count} {fault}" for fault, count in faults.most_common()))
    print(f"steps: {steps}; digest of the last: {seen.digest if done else ''}")
    if failed:
        print(f"failed seeds: {', '.join(map(str, sorted(failed)))}")
    return 1 if failed else 0


def _played(seeds: Iterable[int], jobs: int) -> Iterator[WorldReport]:
    if jobs <= 1:
        yield from map(_play, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_play, seeds, chunksize=8)


def _play(seed: int) -> WorldReport:
    try:
        seen = World(seed).run()
    except Exception as error:
        raise RuntimeError(
            f"the world {seed} stopped with an error; repeat it with: make simulate SEEDS=1 FIRST={seed}"
        ) from error
    if not seen.problems:
        seen.history = seen.history[-200:]
    return seen


def _show(seen: WorldReport, tail: int) -> None:
    print(
        f"\nseed {seen.seed}, {seen.seconds:.1f} s, {seen.steps} steps; again: make simulate SEEDS=1 FIRST={seen.seed}"
    )
    for line in seen.history[-tail:] if tail else ():
        print(line[:300])
    for problem in seen.problems:
        print(f"  ! {problem[:500]}")


if __name__ == "__main__":
    sys.exit(main())
