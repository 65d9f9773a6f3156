"""A stack file read by PyYAML over libyaml: several times as fast as its Python scanner, with the same positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from yaml._yaml import CParser
from yaml.composer import ComposerError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.resolver import BaseResolver

from k25stack.errors import StackError
from k25stack.stack.tree import Items, Leaf, Mapping, Place, Tree, read_scalar

MAX_BYTES = 1 << 20
MAX_DEPTH = 24


def parse(path: Path) -> Mapping:
    """Read a YAML file whose top is a mapping.  Raises StackError with file, line and column."""
    return compose(read(path), str(path))


def read(path: Path) -> str:
    """The text of a file.  Raises StackError for one that is not there, too large or not UTF-8."""
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


class _Loader(CParser, BaseResolver):
    """libyaml's composer without a resolver: every plain value arrives as text and is read here."""

    def __init__(self, text: str) -> None:
        CParser.__init__(self, text)
        BaseResolver.__init__(self)


def compose(text: str, file: str) -> Mapping:
    """The tree of a text whose top is a mapping.  Raises StackError with file, line and column."""
    try:
        _refuse_anchors(text)
        node = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = str(Place(file, mark.line + 1, mark.column + 1)) if mark else file
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise StackError(f"not valid YAML: {problem}", where=where) from None
    except yaml.YAMLError as error:
        raise StackError(f"not a text file: {str(error).splitlines()[0]}", where=file) from None
    if node is None:
        raise StackError("the file is empty", where=file, remedy="start from a copy: k25stack stack new")
    tree = _convert(node, file, 0)
    if not isinstance(tree, Mapping):
        raise StackError("a stack file is a mapping of sections", where=str(tree.place))
    return tree


def _refuse_anchors(text: str) -> None:
    """Raises ComposerError for the first one; libyaml's composer has no word of them."""
    if "&" not in text and "*" not in text:
        return
    parser = CParser(text)
    while (event := parser.get_event()) is not None:
        if getattr(event, "anchor", None) is not None:  # an alias names its anchor too
            mark: Any = event.start_mark
            raise ComposerError(None, None, "anchors and aliases are not used here, use extends", mark)


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
    return text if node.style else read_scalar(text)  # quoted and block text stay text
