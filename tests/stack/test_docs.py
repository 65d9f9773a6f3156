"""The page about the stack file names every key with its default."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from k25stack.stack.model import Stack
from k25stack.stack.schema import models_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "stack.md").read_text(encoding="utf-8")


def models(root: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield root
    for field in root.model_fields.values():
        for model in models_of(field.annotation):
            yield from models(model)


def shown(value: Any) -> str:
    if isinstance(value, BaseModel):
        return "see below"
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value)}`"


def test_every_key_stands_on_the_page_with_its_default() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", PAGE, re.MULTILINE))
    for model in models(Stack):
        for name, field in model.model_fields.items():
            default = "required" if field.is_required() else shown(field.get_default(call_default_factory=True))
            assert (name, default) in rows, f"{model.__name__}.{name}: {default}"
