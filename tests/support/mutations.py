"""Damage valid bodies in the ways of broken senders, people and attackers."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import strategies as st

__all__ = ["at_most", "mutated"]

_PIECES = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"NaN", b"-Infinity", b"1e400", b"2e-400", b"-0",
    b"9" * 5000, b'"\\ud800"', b"\\u0000", b"\xff", b"\xc0\xaf", b"\xef\xbb\xbf", b"[" * 300, b'{"a":' * 300,
    b'"input":1,"input":2', b" " * 10_000, b"\r\n", b'"__class__":"os.system"', b"true", b"''", b"/*x*/",
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, bodies: tuple[bytes, ...]) -> bytes:
    """Return one of `bodies` with one to six insertions, deletions, repetitions, overwrites or cuts."""
    body = draw(st.sampled_from(bodies))
    for _ in range(draw(st.integers(1, 6))):
        first = draw(st.integers(0, len(body)))
        last = min(len(body), first + draw(st.integers(0, 60)))
        match draw(st.sampled_from(("insert", "cut", "repeat", "overwrite", "end"))):
            case "insert":
                body = body[:first] + draw(st.sampled_from(_PIECES) | st.binary(max_size=8)) + body[first:]
            case "cut":
                body = body[:first] + body[last:]
            case "repeat":
                body = body[:last] + body[first:last] * draw(st.integers(1, 3)) + body[last:]
            case "overwrite":
                body = body[:first] + draw(st.sampled_from(_PIECES)) + body[last:]
            case _:
                body = body[:first]
    return body


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Limit the CPU time of this thread in the block. Other processes and earlier garbage do not count."""
    gc.freeze()
    try:
        began = time.thread_time()
        yield
        spent = time.thread_time() - began
    finally:
        gc.unfreeze()
    assert spent < seconds
