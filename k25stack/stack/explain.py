"""Turns a validation error into one line with the place in the file, what is wrong and the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from k25stack.errors import StackError
from k25stack.stack.schema import homes, model_at
from k25stack.stack.tree import Items, Leaf, Mapping, Path, Place, Tree, at

SHOWN = 12  # names listed when nothing is near
KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of bearable size",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def explain(error: ValidationError, tree: Mapping, root: type[BaseModel]) -> StackError:
    """The first problem in file order (missing keys last) as a StackError; the number of further ones is said."""
    problems: dict[Path, list[Any]] = {}
    for detail in error.errors(include_url=False):
        problems.setdefault(_path(tree, detail), []).append(detail)

    # A list that fits no branch of a union is reported whole and item by item: keep the whole.
    problems = {
        path: found for path, found in problems.items() if not any(path[:n] in problems for n in range(len(path)))
    }
    places = {path: _place(tree, path, details[0]) for path, details in problems.items()}

    def order(path: Path) -> tuple[bool, int, int]:
        return problems[path][0]["type"] == "missing", places[path].line, places[path].column

    path = min(problems, key=order)
    what, remedy = _describe(path, problems[path], tree, root)
    more = len(set(places.values())) - 1  # an inherited value is wrong once, not once for every heir
    if more:
        what += f"; {more} more problem{'s' if more > 1 else ''}"
    name = ".".join(str(part) for part in path)
    return StackError(f"{name}: {what}" if name else what, where=str(places[path]), remedy=remedy)


def _path(tree: Tree, detail: Any) -> Path:
    """Where the problem is in the file: union branches left out, a missing key added, a validator's hint followed."""
    ctx = detail.get("ctx", {})
    path: list[str | int] = []
    node = tree
    for part in (*detail["loc"], *ctx.get("path", ())):
        if isinstance(node, Mapping) and part in node.items:
            node = node.items[str(part)]
        elif isinstance(node, Items) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
        else:
            continue
        path.append(part)
    if detail["type"] == "missing":
        path.append(detail["loc"][-1])
    elif detail["type"] == "union_tag_invalid":
        path.append("kind")
    return tuple(path)


def _place(tree: Mapping, path: Path, detail: Any) -> Place:
    """Of the value; of the key for an unknown key and for a whole section."""
    if detail["type"] == "missing":
        path = path[:-1]
    node = at(tree, path)
    at_key = isinstance(node, Mapping) or detail["type"] == "extra_forbidden" or _about_key(detail)
    if not path or not at_key:
        return node.place
    parent = at(tree, path[:-1])
    return parent.keys[str(path[-1])] if isinstance(parent, Mapping) else node.place


def _describe(path: Path, details: list[Any], tree: Mapping, root: type[BaseModel]) -> tuple[str, str]:
    """What is wrong, and the remedy."""
    detail = details[0]
    kind, ctx = detail["type"], detail.get("ctx", {})
    if kind == "missing":
        return ("too few values" if isinstance(at(tree, path[:-1]), Items) else "missing"), ""
    if kind == "disagree":
        return str(detail["msg"]), ""
    if kind == "extra_forbidden":
        return "unknown key", _nearest_key(path, tree, root)
    if kind == "union_tag_not_found":
        return "needs a kind", ""
    given = repr(path[-1]) if _about_key(detail) else _given(at(tree, path))
    if kind in ("literal_error", "union_tag_invalid"):
        expected = str(ctx.get("expected") or ctx["expected_tags"]).replace(" or ", ", ")
        choices = [choice.strip("'") for choice in expected.split(", ")]
        return f"{given} is not one of {', '.join(choices)}", _near(given.strip("'"), choices)
    if kind in ("too_short", "too_long"):
        limit = f"at least {ctx['min_length']}" if kind == "too_short" else f"at most {ctx['max_length']}"
        return f"needs {limit} value(s)", ""
    if kind == "string_pattern_mismatch":
        return f"{given} does not match {ctx['pattern']}", ""
    if len(details) > 1:  # every branch of a union refused it
        return f"{given} is not a plain value, a list of plain values or a mapping", ""
    if kind in KINDS:
        quotes = kind == "string_type" and isinstance(at(tree, path), Leaf) and given != "nothing"
        return f"should be {KINDS[kind]}, not {given}", "put it in quotes" if quotes else ""
    return f"{str(detail['msg']).replace('Input should', 'should')}, not {given}", ""


def _about_key(detail: Any) -> bool:
    """The key of a table is wrong, not its value."""
    return bool(detail["loc"]) and detail["loc"][-1] == "[key]"


def _given(node: Tree) -> str:
    if isinstance(node, Leaf):
        words = {"True": "true", "False": "false", "None": "nothing"}
        text = words.get(str(node.value), repr(node.value)) if not isinstance(node.value, str) else repr(node.value)
        return text if len(text) <= 60 else text[:57] + "..."
    return "a list" if isinstance(node, Items) else "a mapping"


def _near(word: str, names: Sequence[str], cutoff: float = 0.6) -> str:
    close = difflib.get_close_matches(word, names, n=1, cutoff=cutoff)
    return f"did you mean {close[0]}?" if close else ""


def _nearest_key(path: Path, tree: Tree, root: type[BaseModel]) -> str:
    """Near in this mapping, else where that very key belongs, else what there is."""
    word = str(path[-1])
    model = model_at(path[:-1], tree, root)
    names = list(model.model_fields) if model else []
    if model and model.__name__ in ("Stack", "Profile"):
        names.append("extends")
    sections = sorted(homes(word, root))
    close = _near(word, names, cutoff=0.85 if sections else 0.6)
    if close:
        return close
    if sections:
        return f"{word} belongs under {' or '.join(sections[:2])}"
    return f"there are {', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"
