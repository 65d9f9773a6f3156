"""Which target layers an engine captures for a draft's layer-id lists, and the lists to write (no torch).

*Canonical id* i names the residual stream at the **input** of layer i.  Engines read different keys of the draft's
config.json and shift the numbers differently, so the same list means other tensors elsewhere:

============  ==========================================  =========================================
engine        key that is read                            captured canonical ids
============  ==========================================  =========================================
SGLang        ``eagle_config.eagle_aux_hidden_...``       Llama-like target: every id + 1;
                                                          DeepSeek and Kimi: + 1 only if ids[0] == 1
vLLM          top-level ``eagle_aux_hidden_...`` first    as written
============  ==========================================  =========================================

Both fall back to (2, n//2, n-3) without a word when they find no list.
Source: sglang 0.5.20 ``models/llama.py`` and ``models/deepseek_v2.py`` (set_eagle3_layers_to_capture),
``model_runner_components/spec_aux_hidden_state.py``; vllm 0.31.0 ``v1/worker/gpu_model_runner.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from k25stack.errors import UsageError

IDS_KEY = "eagle_aux_hidden_state_layer_ids"
FAMILIES = ("llama", "deepseek")  # as SGLang's target classes differ: Llama-like, and DeepSeek or Kimi

Shift = Callable[[Sequence[int]], list[int]]


def as_written(ids: Sequence[int]) -> list[int]:
    return list(ids)


def plus_one(ids: Sequence[int]) -> list[int]:
    return [layer + 1 for layer in ids]


def plus_one_if_first_is_one(ids: Sequence[int]) -> list[int]:
    return plus_one(ids) if ids and ids[0] == 1 else list(ids)


# The names under which the engine rules (contract room) refer to these.
SHIFTS: dict[str, Shift] = {
    "as-written": as_written,
    "plus-one": plus_one,
    "plus-one-if-first-is-one": plus_one_if_first_is_one,
}


def default_layers(target_layers: int) -> list[int]:
    """The canonical ids that both engines fall back to: (2, n//2, n-3)."""
    return [2, target_layers // 2, target_layers - 3]


def validate_canonical(layers: Sequence[int], target_layers: int, family: str) -> None:
    """Raise UsageError unless both engines can capture these canonical ids of a target of ``target_layers`` layers."""
    where = f"canonical layers {list(layers)}"
    if family not in FAMILIES:
        raise UsageError(f"unknown target family {family!r}", where=where, remedy=f"one of: {', '.join(FAMILIES)}")
    if not layers or any(b <= a for a, b in pairwise(layers)):
        raise UsageError("not a rising list", where=where, remedy="engines concatenate states in rising layer order")
    if layers[0] < 1 or layers[-1] > target_layers - 1:
        raise UsageError(
            f"outside 1..{target_layers - 1}",
            where=where,
            remedy="no engine serves the embedding (0), and SGLang cannot capture the last layer's output",
        )
    if family == "deepseek" and layers[0] == 1:
        raise UsageError(
            "a list that begins with 1 cannot be served on a DeepSeek or Kimi target",
            where=where,
            remedy="SGLang adds 1 to every id of such a list, so no list captures layer 1 first; begin with 2 or later",
        )


def portable_ids(layers: Sequence[int], family: str) -> tuple[list[int], list[int]]:
    """(top-level list, nested list) that make both engines capture ``layers``; validate them first."""
    nested = [layer - 1 for layer in layers] if family == "llama" else list(layers)
    return list(layers), nested
