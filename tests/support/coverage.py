"""Print the coverage of each package: `python -m support.coverage FILE`, where FILE is a JSON report of coverage.py."""

# ruff: noqa: T201

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

__all__ = ["by_package"]

_ROOTS = ("schemas", "runtime", "agents")


def by_package(report: dict[str, Any]) -> dict[str, float]:
    """Return the percentage of lines and branches that were run, by package and in total.

    The modules of `a/b/c` count for `a/b`, because a deeper folder is part of its package.
    """
    run, every = Counter[str](), Counter[str]()
    for name, file in report["files"].items():
        folders = PurePosixPath(name).parent.parts
        root = next(number for number, folder in enumerate(folders) if folder in _ROOTS)
        summary = file["summary"]
        for package in (".".join(folders[root + 1 : root + 3]), "total"):
            run[package] += summary["covered_lines"] + summary["covered_branches"]
            every[package] += summary["num_statements"] + summary["num_branches"]
    return {
        package: 100 * run[package] / every[package]
        for package in sorted(every, key=lambda each: (each == "total", each))
    }


def main() -> None:
    for package, percentage in by_package(json.loads(Path(sys.argv[1]).read_text())).items():
        print(f"{package:30} {percentage:5.1f} %")


if __name__ == "__main__":
    main()
