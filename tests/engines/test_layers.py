"""What is written into a draft's config makes each engine capture the canonical layers, whatever the target family."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k25stack import engines
from k25stack.errors import UsageError

Family = Literal["llama", "deepseek_v3", "kimi_k25"]
FAMILIES: tuple[Family, ...] = ("llama", "deepseek_v3", "kimi_k25")
LAYERS = st.lists(st.integers(2, 60), min_size=1, max_size=4, unique=True).map(sorted)


@pytest.mark.parametrize("engine", engines.NAMES)
@pytest.mark.parametrize("family", FAMILIES)
@given(layers=LAYERS)
def test_writing_and_capturing_are_inverse(engine: str, family: Family, layers: list[int]) -> None:
    adapter = engines.get(engine)
    assert adapter.captured_layers(adapter.written_layers(layers, family), family) == layers


def test_the_examples_of_the_portable_draft() -> None:
    sglang, vllm = engines.get("sglang"), engines.get("vllm")
    assert (sglang.written_layers([2, 30, 58], "kimi_k25"), vllm.written_layers([2, 30, 58], "kimi_k25")) == (
        [2, 30, 58],
        [2, 30, 58],
    )
    assert (sglang.written_layers([2, 15, 27], "llama"), vllm.written_layers([2, 15, 27], "llama")) == (
        [1, 14, 26],
        [2, 15, 27],
    )


def test_the_same_list_means_other_layers_elsewhere() -> None:
    sglang, vllm = engines.get("sglang"), engines.get("vllm")
    assert sglang.captured_layers([1, 29, 57], "kimi_k25") == [2, 30, 58]
    assert vllm.captured_layers([1, 29, 57], "kimi_k25") == [1, 29, 57]
    assert sglang.captured_layers([3, 31, 59], "kimi_k25") == [3, 31, 59]
    assert sglang.captured_layers([3, 31, 59], "llama") == [4, 32, 60]


def test_a_list_that_sglang_cannot_be_told_to_capture_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot"):
        engines.get("sglang").written_layers([1, 30, 58], "kimi_k25")
