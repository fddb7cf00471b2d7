"""`supervisor` and `worker` as they are mostly started, read without Typer, which is a fifth of such a start.

What is not as plain as that is left to Typer, which also says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pointsman.cli.render.output import Code

__all__ = ["fast_command"]


def fast_command(arguments: Sequence[str]) -> Callable[[], Code] | None:
    """What Typer would call for `arguments`; None where it is to be asked itself."""
    command, *words = arguments or [""]
    targets: list[str] = []
    texts: dict[str, str | None] = {"--url": None, "--namespace": None}
    with_parent = False
    rest = iter(words)
    for word in rest:
        name, given, value = word.partition("=")
        if name in texts:
            texts[name] = value if given else next(rest, "-")
            if str(texts[name]).startswith("-"):
                return None
        elif word == "--with-parent":
            with_parent = True
        elif word.startswith("-"):
            return None
        else:
            targets.append(word)

    def run() -> Code:
        from pointsman.cli.commands import serve

        url, namespace = texts.values()
        if command == "worker":
            return serve.worker(targets, url=url, namespace=namespace, with_parent=with_parent)
        return serve.supervisor(targets[0], url=url, namespace=namespace, with_parent=with_parent)

    plain = (command == "worker" and targets) or (command == "supervisor" and len(targets) == 1)
    return run if plain else None
