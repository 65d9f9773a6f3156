"""What plain YAML values mean, and that writing out keeps every one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k25stack.stack.dump import to_yaml
from k25stack.stack.tree import Leaf, plain, read_scalar, walk
from k25stack.stack.yamltree import parse

MEANINGS = [
    ("1", 1),
    ("-7", -7),
    ("1_000", 1000),
    ("1e-3", 0.001),
    (".5", 0.5),
    ("1.5", 1.5),
    ("true", True),
    ("false", False),
    ("null", None),
    ("~", None),
    ("", None),
    ("yes", "yes"),
    ("No", "No"),
    ("True", "True"),
    ("0.5.20", "0.5.20"),
    ("007", "007"),
    ("0x10", "0x10"),
    ("2026-11-29", "2026-11-29"),
    ("12:30", "12:30"),
    ("1e999", "1e999"),
    (".", "."),
    ("e5", "e5"),
    ("9" * 5000, "9" * 5000),
]


@pytest.mark.parametrize(("text", "value"), MEANINGS)
def test_what_an_unquoted_value_means(text: str, value: Any) -> None:
    read = read_scalar(text)
    assert (type(read), read) == (type(value), value)


TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufeff\ufffe\uffff"), max_size=20)
PLAIN = st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    PLAIN | TEXT | st.sampled_from([text for text, _ in MEANINGS if len(text) < 100]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXT.filter(lambda key: key != "<<"), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(value=VALUES)
def test_written_out_and_read_again_every_value_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "value.yaml"
    path.write_text(to_yaml({"value": value}), encoding="utf-8")
    back = plain(parse(path))["value"]
    assert back == value
    assert repr(back) == repr(value)


def test_every_node_knows_its_place(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("a:\n  b: [1, two]\nlong:  x\n", encoding="utf-8")
    places = {
        route: (node.place.line, node.place.column) for route, node in walk(parse(path)) if isinstance(node, Leaf)
    }
    assert places == {("a", "b", 0): (2, 7), ("a", "b", 1): (2, 10), ("long",): (3, 8)}


@pytest.mark.parametrize("room", ["k25stack.stack", "k25stack.engines", "k25stack.cli.stack"])
def test_importing_the_room_loads_no_pydantic_yaml_or_torch(room: str) -> None:
    code = (
        f"import sys, {room}; print([m for m in ('pydantic', 'yaml', 'torch', 'numpy', 'aiohttp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
