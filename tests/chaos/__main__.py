"""`python -m chaos` runs all forms for a long time. The exit code is 1 if an invariant was broken."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from chaos.forms import FORMS, Amount
from chaos.load import Report

_AMOUNTS = {
    "broker": (Amount(blows=20, running=500, pause=3.0, patience=300.0),),
    "handoffs": (Amount(blows=20, running=500, pause=3.0, patience=300.0),),
    "recovery": (Amount(blows=5, running=250, patience=300.0),),
    "processes": (
        Amount(blows=30, running=200, pause=2.0, supervisors=2),
        Amount(blows=30, running=200, pause=2.0, supervisors=5),
    ),
    "trimming": (Amount(blows=60, running=150, pause=2.0),),
    "cluster": (Amount(blows=18, running=300, pause=2.0, patience=300.0),),
    "network": (Amount(blows=20, running=100, pause=2.0),),
    "slow": (Amount(blows=0, running=2_000),),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description="Kill and break; lose nothing.")
    parser.add_argument("forms", nargs="*", default=list(FORMS), metavar="FORM", help=f"of {', '.join(FORMS)}")
    parser.add_argument("--seed", type=int, default=1, help="seed of random choices; processes have their own")
    parser.add_argument("--blows", type=int, help="kills or faults in each form")
    parser.add_argument("--keep", type=Path, help="folder for logs and stores; an existing one is removed")
    given = parser.parse_args()
    reports = asyncio.run(_run(given.forms, given.seed, given.blows, given.keep))
    return 1 if any(report.problems for report in reports) else 0


async def _run(forms: list[str], seed: int, blows: int | None, keep: Path | None) -> list[Report]:
    reports: list[Report] = []
    for form in forms:
        for number, amount in enumerate(_AMOUNTS[form], 1):
            with tempfile.TemporaryDirectory(prefix="pointsman-chaos-", ignore_cleanup_errors=True) as place:
                folder = (keep or Path(place)) / f"{form}-{number}"
                report = await FORMS[form](folder, replace(amount, seed=seed, blows=blows or amount.blows))
            reports.append(report)
            sys.stdout.write("\n".join(report.lines()) + "\n")
            sys.stdout.flush()
    return reports


if __name__ == "__main__":
    sys.exit(main())
