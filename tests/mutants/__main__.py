"""Plant every fault of the table in a copy of the source, one at a time. Report the faults that the tests miss.

    python -m mutants [--jobs N] [WORD ...]      only faults whose mechanism or file contains a WORD

The exit code is 0 if the tests fail for every fault. It is 1 if a test passed in spite of a fault, if the text of a
fault is not in the source, or if pytest could not run the tests.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
_COPIED = ("schemas", "runtime", "agents", "tests", "pyproject.toml")
_HANGS = 20  # seconds after which a test counts as failed: most tests need less than one, and a fault may hang
_LONGEST = 300.0  # seconds for all tests of a fault
_FAILED = 1  # pytest's exit code if tests ran and some failed; higher codes mean that pytest could not run them


def planted(mutant: Mutant, tree: Path, number: int) -> str:
    """Plant `mutant` in `tree`, run its tests and undo the change. Return why the fault was missed, or an empty text.

    `number` becomes the modification time of the file, because Python matches compiled files by second and size.
    """
    path, original = tree / mutant.file, ROOT / mutant.file
    source = original.read_text()
    if (count := source.count(mutant.text)) != 1:
        return f"its text is {count} times in {mutant.file}, expected once: change the table as the source has changed"
    path.write_text(source.replace(mutant.text, mutant.instead))
    os.utime(path, (number, number))
    try:
        return _unnoticed(mutant.tests, tree)
    finally:
        shutil.copy2(original, path)


def _unnoticed(tests: Sequence[str], tree: Path) -> str:
    code, output = _pytest(tests, tree)
    if code not in (0, _FAILED):
        return f"pytest ended with {code}: {' '.join(output.split()[-30:])}"
    passed = [test for test in tests if f"FAILED {os.path.normpath(f'tests/{test}')}" not in output]
    return f"survives {', '.join(passed)}" if passed else ""


def _pytest(tests: Sequence[str], tree: Path) -> tuple[int, str]:
    sources = os.pathsep.join(str(tree / name) for name in ("schemas", "runtime", "agents"))
    options = ["-q", "--color=no", "--tb=no", "-rf", "-p", "no:cacheprovider", f"--timeout={_HANGS}"]
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *(os.path.normpath(f"tests/{test}") for test in tests)],
            cwd=tree, env={**os.environ, "PYTHONPATH": sources, "COLUMNS": "500", "PYTEST_ADDOPTS": ""},
            capture_output=True, text=True, timeout=_LONGEST,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"it had not ended after {_LONGEST:g} s"
    return ran.returncode, ran.stdout + ran.stderr


def copied(to: Path) -> Path:
    """Copy the files that the tests need. Keep modification times, so compiled files stay valid.

    A file that another process still compiles has a temporary name, which can be gone before it is copied.
    """
    for name in _COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("*.pyc.*"))
        else:
            shutil.copy2(ROOT / name, to / name)
    return to


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("words", nargs="*", help="only those whose mechanism or file holds one of them")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    asked = parser.parse_args()
    chosen = [
        mutant
        for mutant in MUTANTS
        if not asked.words or any(word in (mutant.what, *mutant.file.split("/")) for word in asked.words)
    ]
    if not chosen:
        say(f"no fault of the table is of {', '.join(asked.words)}")
        return 1
    began, unnoticed = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(asked.jobs) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(asked.jobs):
            trees.put(copied(Path(folder, str(number))))

        def one(number: int, mutant: Mutant) -> str:
            tree = trees.get()
            try:
                return planted(mutant, tree, number)
            finally:
                trees.put(tree)

        code, output = _pytest(sorted({test for mutant in chosen for test in mutant.tests}), tree := trees.get())
        trees.put(tree)
        if code != 0:
            say(f"without any fault the tests fail already:\n{output}")
            return 1
        running = {pool.submit(one, number, mutant): mutant for number, mutant in enumerate(chosen, 1)}
        for done, ended in enumerate(as_completed(running), 1):
            mutant, why = running[ended], ended.result()
            unnoticed += bool(why)
            say(f"{done:3}/{len(chosen)}  {mutant.what:<12} {mutant.file}  {why or 'noticed'}")
    say(f"{len(chosen)} faults, {unnoticed} unnoticed, {time.monotonic() - began:.0f} s")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
