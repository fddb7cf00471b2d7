"""Generate TypeScript from the schemas by three generators, and compile recorded values against the types."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support.conformance.npm import HERE

__all__ = ["MANIFESTS", "PACKAGES", "run"]

MANIFESTS = HERE / "typescript"
PACKAGES = Path(".venv/typescript")
_ROOT = Path(__file__).parents[3]
_TIMEOUT_S = 300.0
_UNNAMED = re.compile(r"\b(?:Anonymous|NoName)\w*")
_OPTIONS = {"strict": True, "noEmit": True, "target": "es2022", "module": "nodenext", "skipLibCheck": True}


def run(environment: Mapping[str, str]) -> bool:
    """Generate and compile the types.

    Args:
        environment: The environment with the packages of `MANIFESTS`.

    Returns:
        True if a type has no name, or the types do not compile.
    """
    script = shutil.copy(MANIFESTS / "generate.mjs", PACKAGES)  # Node looks for packages beside the script
    with tempfile.TemporaryDirectory() as folder:
        types = Path(folder)
        subprocess.run(["node", script, str(_ROOT), folder], env=environment, check=True, timeout=_TIMEOUT_S)
        unnamed = sorted({name for each in types.glob("*.ts") for name in _UNNAMED.findall(each.read_text())})
        (types / "recorded.ts").write_text("\n".join(_recorded_values()))
        (types / "tsconfig.json").write_text(json.dumps({"compilerOptions": _OPTIONS}))
        compiled = subprocess.run(["tsc", "-p", folder], env=environment, check=False, timeout=_TIMEOUT_S).returncode
        number = len(list(types.glob("*.ts"))) - 1
    sys.stdout.write(f"TypeScript: {number} generated files, types without a name: {', '.join(unnamed) or 'none'}\n")
    return bool(unnamed or compiled)


def _recorded_values() -> Iterator[str]:
    """Yield a program whose constants are recorded values. The compiler must refuse its wrong value."""
    logs = sorted((_ROOT / "tests/replay").glob("*.jsonl"))
    commits: list[dict[str, Any]] = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    outcomes = [each["outcome"] for commit in commits for each in commit["entries"] if each["kind"] == "workflow_ended"]
    assert outcomes, f"no outcome in {len(logs)} recorded logs"
    yield 'import type { Commit } from "./log.js";'
    yield 'import type { Outcome } from "./outcome.js";'
    yield f"export const commits: Commit[] = {json.dumps(commits, indent=1)};"
    yield f"export const outcomes: Outcome[] = {json.dumps(outcomes, indent=1)};"
    yield "// @ts-expect-error"
    yield 'export const wrong: Outcome["status"] = "done";'
