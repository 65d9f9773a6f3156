"""Questions about the models themselves: which one describes a place in the file, and where a key belongs."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from k25stack.stack.tree import Leaf, Mapping, Path, Tree, at


def model_at(path: Path, tree: Tree, root: type[BaseModel]) -> type[BaseModel] | None:
    """The model of the mapping at ``path``; a union is decided by the ``kind`` in the file."""
    annotation: Any = root
    for depth, part in enumerate(path, 1):
        model = _choose(annotation, at(tree, path[: depth - 1]))
        if model is not None and part in model.model_fields:
            annotation = model.model_fields[str(part)].annotation
        else:
            annotation = _element(annotation)
    return _choose(annotation, at(tree, path))


def homes(word: str, root: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted names of the sections that have a key of this name."""
    for name, field in root.model_fields.items():
        for model in models_of(field.annotation):
            if word in model.model_fields:
                yield f"{prefix}{name}"
            yield from homes(word, model, f"{prefix}{name}.")


def _choose(annotation: Any, node: Tree) -> type[BaseModel] | None:
    """The model of a value of this type, if it is one and not a container of some."""
    if typing.get_origin(annotation) in (tuple, dict):
        return None
    found = list(models_of(annotation))
    if len(found) < 2:
        return found[0] if found else None
    kind = node.items.get("kind") if isinstance(node, Mapping) else None
    for model in found:
        tags = typing.get_args(model.model_fields["kind"].annotation) if "kind" in model.model_fields else ()
        if isinstance(kind, Leaf) and kind.value in tags:
            return model
    return None


def _element(annotation: Any) -> Any:
    """The type of a container's values; an optional container counts as one."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        return parts[0]
    if origin is dict:
        return parts[1]
    return next((_element(part) for part in parts if typing.get_origin(part) in (tuple, dict)), None)


def models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Models that an annotation mentions, in order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    if typing.get_origin(annotation) in (typing.Annotated, tuple, dict, typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            yield from models_of(part)
