"""A new stack file from an existing one."""

from __future__ import annotations

import os
import re
from pathlib import Path

from k25stack.errors import StackError, UsageError
from k25stack.stack.inherit import read

SHIPPED = Path(__file__).resolve().parents[2] / "stacks"  # in a clone
NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,63}$")


def find_base(base: str) -> Path:
    """The file of this path, or the shipped stack of this name.  Raises StackError when there is neither."""
    shipped = {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}
    path = shipped.get(base, Path(base))
    if not path.is_file():
        raise StackError("no such stack file", where=base, remedy=f"shipped are {', '.join(shipped) or 'none here'}")
    return path


def new_stack(file: Path, base: str, name: str, whole: bool) -> str:
    """Text of a new stack called ``name`` at ``file``: an extension of ``base``, or a whole copy with its comments.

    Raises UsageError when the file exists or the name cannot be one, StackError when the base is not a stack.
    """
    if file.exists():
        raise UsageError("the file exists", where=str(file), remedy="choose another name; nothing is overwritten")
    if not NAME.match(name):
        raise UsageError(f"{name!r} cannot name a stack", where=str(file), remedy="use a-z, 0-9, dot, dash; --name")
    source = find_base(base)
    read(source)
    if not whole:
        link = os.path.relpath(source.resolve(), file.resolve().parent)
        return (
            f"# Holds only what differs from {source.name}; `k25stack stack show` prints the whole.\n"
            f"extends: {link}\n"
            f"name: {name}\n"
        )
    return re.sub(r"(?m)^name: \S+", f"name: {name}", source.read_text(encoding="utf-8"), count=1)
