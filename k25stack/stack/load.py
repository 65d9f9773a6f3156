"""Reading a stack file."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from k25stack.stack import inherit
from k25stack.stack.explain import explain
from k25stack.stack.images import with_pins
from k25stack.stack.model import Stack
from k25stack.stack.tree import plain


def load_stack(path: Path | str) -> Stack:
    """Read, merge what is extended, and validate.

    Raises StackError whose one line says file, line and column, what is wrong, and the nearest valid name.
    """
    tree = with_pins(inherit.read(Path(path)))
    try:
        # JSON mode keeps strict types (no "8" for 8) and still takes YAML's lists for tuples.
        return Stack.model_validate_json(json.dumps(plain(tree)))
    except ValidationError as error:
        raise explain(error, tree, Stack) from None
