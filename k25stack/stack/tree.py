"""YAML as a tree that remembers where every key and value stands.

A small, safe part of YAML: mappings with text keys, lists, and plain values.  Booleans are only ``true`` and
``false``, numbers may be written ``1e-3``, everything else is text.  Anchors, aliases, tags and several documents are
refused: inheritance is ``extends`` and nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

INT = re.compile(r"[-+]?(0|[1-9](_?[0-9]){0,20})")  # as Python: an underscore stands between two digits
FLOAT = re.compile(r"[-+]?((0|[1-9](_?[0-9])*)(\.[0-9]+)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


class Place(NamedTuple):
    """A position in a file; lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Leaf(NamedTuple):
    value: bool | int | float | str | None
    place: Place


@dataclass(frozen=True)
class Items:
    items: list[Tree]
    place: Place


@dataclass(frozen=True)
class Mapping:
    items: dict[str, Tree]
    place: Place
    keys: dict[str, Place] = field(default_factory=dict)


Tree: TypeAlias = Leaf | Items | Mapping
Path: TypeAlias = tuple[str | int, ...]  # keys and list positions from the root


def read_scalar(text: str) -> bool | int | float | str | None:
    """What an unquoted value means."""
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if INT.fullmatch(text):
        return int(text)
    if FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def plain(tree: Tree) -> Any:
    """The tree as dicts, lists and plain values."""
    if isinstance(tree, Mapping):
        return {key: plain(value) for key, value in tree.items.items()}
    if isinstance(tree, Items):
        return [plain(item) for item in tree.items]
    return tree.value


def walk(tree: Tree, path: Path = ()) -> Iterator[tuple[Path, Tree]]:
    """Every node below ``tree`` with its path, the root first."""
    yield path, tree
    if isinstance(tree, Mapping):
        for key, value in tree.items.items():
            yield from walk(value, (*path, key))
    elif isinstance(tree, Items):
        for index, item in enumerate(tree.items):
            yield from walk(item, (*path, index))


def at(tree: Tree, path: Path) -> Tree:
    """The node that ``path`` leads to."""
    node = tree
    for part in path:
        node = node.items[part] if not isinstance(node, Leaf) else node  # type: ignore[index]
    return node
