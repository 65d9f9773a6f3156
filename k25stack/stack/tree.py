"""YAML as a tree that remembers where every key and value stands.

A small, safe part of YAML: mappings with text keys, lists, and plain values.  Booleans are only ``true`` and
``false``, numbers may be written ``1e-3``, everything else is text.  Anchors, aliases, tags and several documents are
refused: inheritance is ``extends`` and nothing else.
"""

from __future__ import annotations

import math
import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml
from yaml.composer import Composer, ComposerError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from k25stack.errors import StackError

MAX_BYTES = 1 << 20
MAX_DEPTH = 24

INT = re.compile(r"[-+]?(0|[1-9][0-9_]{0,20})")
FLOAT = re.compile(r"[-+]?((0|[1-9][0-9_]*)(\.[0-9]+)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True)
class Place:
    """A position in a file; lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Leaf:
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


class _Loader(Reader, Scanner, Parser, Composer, BaseResolver):
    """PyYAML's composer without its resolver: every plain value arrives as text and is read here."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:  # an alias names its anchor too
            raise ComposerError(None, None, "anchors and aliases are not used here, use extends", event.start_mark)
        return super().compose_node(parent, index)


def parse(path: pathlib.Path) -> Mapping:
    """Read a YAML file whose top is a mapping.  Raises StackError with file, line and column."""
    text = _read(path)
    try:
        node = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = str(Place(str(path), mark.line + 1, mark.column + 1)) if mark else str(path)
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise StackError(f"not valid YAML: {problem}", where=where) from None
    except yaml.YAMLError as error:
        raise StackError(f"not a text file: {str(error).splitlines()[0]}", where=str(path)) from None
    except RecursionError:
        raise StackError("nested too deeply to be a stack file", where=str(path)) from None
    if node is None:
        raise StackError("the file is empty", where=str(path), remedy="start from a copy: k25stack stack new")
    tree = _convert(node, str(path), 0)
    if not isinstance(tree, Mapping):
        raise StackError("a stack file is a mapping of sections", where=str(tree.place))
    return tree


def _read(path: pathlib.Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise StackError("no such stack file", where=str(path), remedy="k25stack stack new makes one") from None
    except IsADirectoryError:
        raise StackError("a directory, not a stack file", where=str(path)) from None
    except OSError as error:
        raise StackError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if len(raw) > MAX_BYTES:
        raise StackError(f"larger than {MAX_BYTES} bytes, so not a stack file", where=str(path))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise StackError(f"not a text file (byte {error.start} is not UTF-8)", where=str(path)) from None


def _convert(node: Node, file: str, depth: int) -> Tree:
    place = Place(file, node.start_mark.line + 1, node.start_mark.column + 1)
    if depth > MAX_DEPTH:
        raise StackError("nested too deeply to be a stack file", where=str(place))
    if isinstance(node, ScalarNode):
        _refuse_tag(node, place, "tag:yaml.org,2002:str")
        return Leaf(_scalar(node), place)
    if isinstance(node, SequenceNode):
        _refuse_tag(node, place, "tag:yaml.org,2002:seq")
        return Items([_convert(child, file, depth + 1) for child in node.value], place)
    assert isinstance(node, MappingNode)
    _refuse_tag(node, place, "tag:yaml.org,2002:map")
    items: dict[str, Tree] = {}
    keys: dict[str, Place] = {}
    for key_node, value_node in node.value:
        at = Place(file, key_node.start_mark.line + 1, key_node.start_mark.column + 1)
        if not isinstance(key_node, ScalarNode):
            raise StackError("a key must be plain text", where=str(at))
        key = str(key_node.value)
        if key == "<<":
            raise StackError("YAML merge keys are not used here", where=str(at), remedy="use extends")
        if key in items:
            raise StackError(f"key {key!r} stands twice", where=str(at), remedy=f"first at line {keys[key].line}")
        keys[key] = at
        items[key] = _convert(value_node, file, depth + 1)
    return Mapping(items, place, keys)


def _refuse_tag(node: Node, place: Place, plain: str) -> None:
    if node.tag != plain:
        raise StackError(f"YAML tag {node.tag!r} is not used here", where=str(place), remedy="write the value plainly")


def _scalar(node: ScalarNode) -> bool | int | float | str | None:
    text = str(node.value)
    return text if node.style is not None else read_scalar(text)  # quoted and block text stay text


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
