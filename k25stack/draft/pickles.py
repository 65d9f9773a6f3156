"""Tensors out of a pickle without running what is in it (torch)."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from k25stack.draft.weightfile import in_order
from k25stack.draft.weights import DTYPE_NAMES, raw_bytes
from k25stack.errors import DamageError
from k25stack.model.tensorfile import Part, write_tensors

HOLDERS = ("draft_state_dict", "state_dict", "model")  # keys under which trainers keep their weights


def rewrite(path: Path, out: Path) -> None:
    """Write the tensors of ``path`` as safetensors, bit by bit.

    Raises DamageError when the file is damaged, holds code, or no tensors under plain names.
    """
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, AttributeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DamageError(f"not a file of plain tensors: {reason[:120]}", where=str(path),
                          remedy="it is never loaded with code allowed: export safetensors") from None  # fmt: skip
    for name in HOLDERS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(name), Mapping):
            loaded = loaded[name]
    if not isinstance(loaded, Mapping) or not loaded or not all(isinstance(one, Tensor) for one in loaded.values()):
        raise DamageError("it holds no dictionary of tensors", where=str(path), remedy="give a saved state_dict")
    parts = []
    for name, tensor in loaded.items():
        if tensor.dtype not in DTYPE_NAMES:
            raise DamageError(f"{name} is of type {tensor.dtype}", where=str(path), remedy="store bfloat16")
        parts.append(Part(str(name), DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), [raw_bytes(tensor)]))
    write_tensors(out, in_order(parts), {"format": "pt"})
