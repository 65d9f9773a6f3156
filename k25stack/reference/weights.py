"""Named tensors of a model directory, read one at a time and checked against the shapes they must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from k25stack.errors import DamageError
from k25stack.model.verify import weight_files


class Weights:
    """The safetensors files of a directory, its index's choice of them, as one mapping from name to tensor."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        """Raises UsageError when there are no weights, DamageError when a file is torn or the index names none."""
        self.directory = directory
        self.dtype = dtype
        self._files: dict[str, Any] = {}
        opener: Any = safe_open
        for path in weight_files(directory):
            try:
                file = opener(path, framework="pt", device="cpu")
            except SafetensorError as error:
                raise DamageError(f"not readable: {error}", where=str(path), remedy="fetch the model again") from None
            self._files |= dict.fromkeys(file.keys(), file)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of this shape in the wanted type.  Raises DamageError when it is missing or has another shape."""
        if name not in self._files:
            raise DamageError(f"tensor {name} is missing", where=str(self.directory), remedy="fetch the model again")
        tensor: Tensor = self._files[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            what = f"tensor {name} is {list(tensor.shape)}, the config says {list(shape)}"
            raise DamageError(what, where=str(self.directory), remedy="fetch the model again")
        return tensor.to(self.dtype, copy=True)  # a view would keep the whole file mapped
