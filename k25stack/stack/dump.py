"""Writing a stack out again with everything that was inherited or defaulted: ``stack.resolved.yaml``."""

from __future__ import annotations

from typing import Any

import yaml

from k25stack.stack.model import Stack
from k25stack.stack.tree import read_scalar


class _Dumper(yaml.SafeDumper):
    """Quotes text that this project's reader would take for a number, a boolean or null."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if isinstance(read_scalar(text), str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump_stack(stack: Stack) -> str:
    """The resolved stack as YAML text; ``load_stack`` of it gives an equal stack."""
    body = to_yaml(stack.model_dump(mode="json"))
    return f"# {stack.name}: every value that decides this stack, inherited and defaulted ones included.\n{body}"


def to_yaml(value: Any) -> str:
    """YAML of plain values, keys in the given order."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))
