"""Progress notifications describe the work of a workflow and contain the text that an agent writes."""

from __future__ import annotations

from pointsman.gateway.mcp.tools import Narrator
from pointsman_schemas.events import Delta


def piece(text: str, offset: int, call: str = "one", agent: str = "a") -> Delta:
    return Delta(workflow_id="wf", task_id=f"t-{agent}", attempt=1, agent=agent, call=call, offset=offset, text=text)


def test_each_line_has_the_text_so_far_of_one_agent() -> None:
    narrator = Narrator()

    lines = [
        narrator.line(each)
        for each in (piece("Good ", 0), piece("Hello", 0, agent="b"), piece("day", 5), piece("New", 0, call="two"))
    ]

    assert lines == ["a: Good ", "b: Hello", "a: Good day", "a: New"]


def test_a_long_text_is_cut_at_its_beginning() -> None:
    narrator = Narrator()
    narrator.line(piece("x" * 3_999, 0))

    whole, cut = narrator.line(piece("y", 3_999)), narrator.line(piece("z", 4_000))

    assert (len(whole), whole[-2:]) == (len("a: ") + 4_000, "xy")
    assert (len(cut), cut[:5], cut[-3:]) == (len("a: ") + 4_000, "a: …x", "xyz")
