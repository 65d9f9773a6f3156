"""However a stack file is damaged, it loads or there is one StackError line; nothing else ever comes out."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k25stack.errors import StackError
from k25stack.stack import load_stack
from tests.stack.conftest import STACKS

TEXT = (STACKS / "smollm2-cpu.yaml").read_text(encoding="utf-8")
LINES = TEXT.splitlines()
PIECES = st.sampled_from(
    ["[", "]", "{", "}", ":", " ", "\n", "- ", "#", "'", '"', "null", "true", "5", "-1", "x: 1", "{}", "[]", "1e9", "~"]
)


def loads_or_says_one_line(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        load_stack(path)
    except StackError as error:
        assert str(error).startswith(str(path))
        assert "\n" not in str(error)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(line=st.integers(0, len(LINES) - 1), count=st.integers(1, 4))
def test_lost_lines(tmp_path_factory: pytest.TempPathFactory, line: int, count: int) -> None:
    loads_or_says_one_line("\n".join(LINES[:line] + LINES[line + count :]), tmp_path_factory)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(at=st.integers(0, len(TEXT)), piece=PIECES, lost=st.integers(0, 12))
def test_a_piece_replaced(tmp_path_factory: pytest.TempPathFactory, at: int, piece: str, lost: int) -> None:
    loads_or_says_one_line(TEXT[:at] + piece + TEXT[at + lost :], tmp_path_factory)
