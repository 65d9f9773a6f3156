"""A command group whose first word may also be a thing: ``bench URL`` beside ``bench compare A B``."""

from __future__ import annotations

from typing import Any

import typer.core


class FallbackGroup(typer.core.TyperGroup):
    """Words that name no command of the group go to its first command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)
