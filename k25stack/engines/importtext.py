"""An imported profile as a stack file: a short one that extends another and holds the profile and what to know."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack.engines.imported import Imported, import_command
from k25stack.engines.sources import read_launch

if TYPE_CHECKING:
    from k25stack.stack.model import Stack

TITLES = (
    ("elsewhere", "belongs under another key of the stack file"),
    ("changed", "taken over in another form"),
    ("unmapped", "not mapped"),
)


def import_launch(
    words: list[str], engine: str, base: str, profile_name: str, out: Path | None
) -> tuple[str, list[tuple[str, str]]]:
    """Text of a stack file for the launch that ``words`` are or name, and what to know about it.

    ``engine`` as sglang@0.5.20, ``base`` a stack file or the name of a shipped one; ``out`` is where the text will
    stand.  Raises UsageError when there is no launch, or when the text would not load.
    """
    from k25stack.stack import load_stack
    from k25stack.stack.create import find_base

    command, unclear, origin = read_launch(words)
    name, _, version = engine.partition("@")
    file = find_base(base)
    stack = load_stack(file)
    meant = stack.engines.get(name or command.engine)  # type: ignore[call-overload]
    found = import_command(command, name, version or command.version or (meant.version if meant else ""))
    if meant and not (version or command.version):
        found.changed.append(f"version {meant.version}: the line names none, that of {stack.name} is taken")
    found.unmapped += unclear
    stack_name = re.sub(r"[^a-z0-9._-]+", "-", out.stem.lower()).strip("-.") if out else "imported"
    text = stack_text(found, stack, base_link(file, out), stack_name or "imported", profile_name, origin)
    return text, notes(found)


def stack_text(found: Imported, base: Stack, link: str, stack_name: str, profile_name: str, origin: str) -> str:
    """Text of a stack file that extends ``link``; what the base cannot hold is left out and listed."""
    from k25stack.stack.dump import to_yaml

    profile = dict(found.profile)
    context = profile.get("context")
    if isinstance(context, int) and context > base.target.context:
        del profile["context"]
        found.elsewhere.append(f"target.context: {context}, above the {base.target.context} of {base.name}")
    body: dict[str, Any] = {"extends": link, "name": stack_name}
    if profile["engine"] not in base.engines:
        body["engines"] = {profile["engine"]: {"version": profile["version"]}}
    body["serving"] = {"profiles": {profile_name: profile}}
    head = [f"# One profile, imported from {origin}; everything else is that of {base.name}."]
    for title, line in notes(found):
        head.append(f"# {title}: {' '.join(line.split())}")
    return "\n".join(head) + "\n" + to_yaml(body)


def notes(found: Imported) -> list[tuple[str, str]]:
    """(title, line) of everything that is not simply in the profile."""
    return [(title, line) for name, title in TITLES for line in getattr(found, name)]


def base_link(base: Path, out: Path | None) -> str:
    """How the new file names its base: relative to where it is written, else as an absolute path."""
    return os.path.relpath(base.resolve(), out.resolve().parent) if out else str(base.resolve())
