"""The page is readable in both themes. Its files refer to no resource outside the package."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

import pointsman.web.dashboard as dashboard
from pointsman_schemas.events import ErrorKind

STATIC = Path(dashboard.__file__).with_name("static")
STYLE = (STATIC / "style.css").read_text()
TEXT = ("text", "muted", "accent", "running", "good", "warn", "bad")
GROUNDS = ("ground", "surface", "raised")
ON_SOFT = [
    ("text", "running-soft"),
    ("text", "bad-soft"),
    ("bad", "bad-soft"),
    ("warn", "warn-soft"),
    ("on-accent", "accent"),
]


def colours(block: str) -> dict[str, tuple[int, int, int]]:
    found = re.findall(r"--([a-z-]+): #([0-9a-f]{6})", block)
    return {name: (int(value[:2], 16), int(value[2:4], 16), int(value[4:], 16)) for name, value in found}


THEMES = {
    "light": colours(STYLE.split("}")[0]),
    "dark": colours(STYLE.split(':root[data-theme="dark"] {')[1].split("}")[0]),
}


def luminance(colour: tuple[int, int, int]) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (each / 255 for each in colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("text", "ground"), [*product(TEXT, GROUNDS), *ON_SOFT])
def test_every_text_has_the_contrast_of_aa_on_every_ground(theme: str, text: str, ground: str) -> None:
    assert contrast(THEMES[theme][text], THEMES[theme][ground]) >= 4.5


def test_the_system_theme_and_the_chosen_one_are_the_same_dark() -> None:
    by_system = colours(STYLE.split(':root:not([data-theme="light"]) {')[1].split("}")[0])

    assert by_system == THEMES["dark"]


@pytest.mark.parametrize("path", sorted(STATIC.iterdir()), ids=lambda path: path.name)
def test_no_file_names_another_host_parses_markup_or_needs_an_unsafe_policy(path: Path) -> None:
    text = path.read_text()

    assert not re.search(r"(?:https?:)?//(?!www\.w3\.org/)[a-z0-9-]+\.[a-z]", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", text)
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=\"|javascript:", text)


def test_every_script_is_loaded_by_a_page_or_by_another_script() -> None:
    named = "\n".join(path.read_text() for path in STATIC.iterdir())

    for script in STATIC.glob("*.js"):
        assert f"/{script.name}" in named, script.name


def test_every_cause_of_a_dead_letter_has_its_words_on_the_page() -> None:
    script = (STATIC / "letters.js").read_text()
    told = set(re.findall(r"^  (\w+): \"", script, re.MULTILINE))

    # Error kinds of events, not of attempts.
    ours = {"request_id_taken", "unknown_workflow", "unknown_type", "body_lost"}
    assert ours | {kind.value for kind in ErrorKind} <= told
