"""Every code block of the guide runs in order, in one folder, with one broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.docs import ROOT, background, blocks_of, end, run, run_python
from support.ready import Ready

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.settings import Settings

GUIDE = (ROOT / "docs" / "guide.md").read_text()
BLOCKS = blocks_of(GUIDE)


@pytest.mark.timeout(240)
async def test_every_block_of_the_guide_runs(tmp_path: Path) -> None:
    started: list[Ready] = []
    languages = [language for language, _ in BLOCKS]
    async with EmbeddedBroker(tmp_path / "broker") as broker:
        settings = Settings(url=broker.url)
        try:
            for language, body in BLOCKS:
                if language == "sh":
                    for line in body.splitlines():
                        if line.startswith("pip"):
                            assert line == "pip install '.[embedded,dashboard,eval]' pytest"
                        elif line.endswith("&"):
                            started.append(await background(line[:-1], tmp_path, settings))
                        elif line.startswith("pytest"):
                            await run(f"{line} -p no:cacheprovider", tmp_path, settings)
                        else:
                            await run(line, tmp_path, settings)
                    continue
                name = body.splitlines()[0].removeprefix("# ")
                (tmp_path / name).write_text(body)
                if language == "python":
                    await run_python(name, BLOCKS, tmp_path, settings)
        finally:
            await end(started)

    assert set(languages) == {"sh", "python", "yaml"}
    assert '<testsuite name="shop" tests="3" failures="0"' in (tmp_path / "results.xml").read_text()
