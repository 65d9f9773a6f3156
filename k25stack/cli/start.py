"""What lets a short command be short.  Each part takes away work that no command of ours has a use for."""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

ALLOCATIONS = 50_000  # between two looks for garbage; importing makes thousands of classes and no garbage
LOADER = "pydantic.plugin._loader"


def prepare() -> None:
    """Seldom garbage collections, and no search for pydantic's plugins."""
    gc.set_threshold(ALLOCATIONS, 10, 10)
    _without_plugins()


def _without_plugins() -> None:
    """Keep pydantic from reading the metadata of every installed package in search of plugins.

    No plugin may change what a stack file means, so there are none (PYDANTIC_DISABLE_PLUGINS says the same, but the
    engines that we start would inherit it, and the search would be prepared all the same).  A pydantic that wants more
    of its loader than this gets the real one.
    """
    if LOADER in sys.modules:
        return
    none = ModuleType(LOADER)

    def other(name: str) -> Any:
        if name.startswith("__"):  # the import system asks for some
            raise AttributeError(name)
        sys.modules.pop(LOADER, None)
        return getattr(import_module(LOADER), name)

    vars(none).update(get_plugins=tuple, __getattr__=other)
    sys.modules[LOADER] = none


def narrowed(app: typer.Typer, words: Sequence[str]) -> typer.Typer | None:
    """A group of the one command that ``words`` call: the options of its sisters are not built.  None: all are."""
    from typer.main import get_command_name

    commands = app.registered_commands
    named = [it for it in commands if it.callback and (it.name or get_command_name(it.callback.__name__)) in words[:1]]
    if len(commands) < 2 or len(named) != 1:
        return None
    narrow = copy.copy(app)
    narrow.registered_commands = named
    return narrow
