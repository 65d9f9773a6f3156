"""The stack file: one typed, validated YAML file that decides a whole run.

``load_stack(path)`` reads it; ``Stack`` is what comes back.  Importing this package costs nothing: pydantic and
PyYAML are loaded at the first use of a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from k25stack.stack.dump import dump_stack
    from k25stack.stack.load import load_stack
    from k25stack.stack.model import Stack
    from k25stack.stack.serving import Profile

__all__ = ["Profile", "Stack", "dump_stack", "load_stack"]

_HOMES = {"Profile": "serving", "Stack": "model", "dump_stack": "dump", "load_stack": "load"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
