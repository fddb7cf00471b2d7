"""A command that says where a text goes which begins with a dash, and so was taken for an option."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

__all__ = ["Command"]


class Command(TyperCommand):
    """One whose word on an option that there is not, nor any like it, tells of `--`, where it takes more than those."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # click's NoSuchOption, of which some Typers have a copy, or what has no possibilities
            no_option: Any = error
            last: Any = next((each for each in reversed(self.params) if each.param_type_name == "argument"), None)
            if last is not None and not getattr(no_option, "possibilities", True):
                name = str(last.metavar or last.name).strip("[].").upper()
                shown = f"{ctx.command_path} ... -- {name}"
                no_option.message += f"; what begins with a dash and is no option goes last, behind --: {shown}"
            raise
