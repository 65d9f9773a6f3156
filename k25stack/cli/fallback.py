"""A command group whose first word may also be a thing: ``bench URL`` beside ``bench compare A B``."""

from __future__ import annotations

from typing import Any

import typer
import typer.core


class _Unnamed(typer.Context):
    """Of a command that is called by its group's name."""

    @property
    def command_path(self) -> str:
        return self.parent.command_path if self.parent else super().command_path


class FallbackGroup(typer.core.TyperGroup):
    """Words that name no command of the group go to its first command, whose options stand in the group's help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is not None and found.hidden:
            found.context_class = _Unnamed
        return found

    def format_help(self, ctx: Any, formatter: Any) -> None:
        first = self.get_command(ctx, next(iter(self.commands)))
        if first is None or not first.hidden:
            super().format_help(ctx, formatter)
            return
        inner = first.context_class(first, parent=ctx)
        first.format_usage(inner, formatter)
        self.format_help_text(ctx, formatter)
        first.format_options(inner, formatter)
        self.format_commands(ctx, formatter)
