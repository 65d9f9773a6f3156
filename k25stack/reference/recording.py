"""States kept while generating, and the part files they travel in to the extraction step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from k25stack.files import sha256_file
from k25stack.model.tensorfile import Part, write_tensors
from k25stack.reference.parts import RecordedPart, read_index
from k25stack.worker import log


@dataclass(frozen=True)
class Recording:
    """bf16 states of one sequence of T tokens: row t is the state of token t.

    ``argmax`` is the target's greedy choice for token t+1 where that is a response token, else -1.
    """

    aux: Tensor  # [T, C*H]
    last: Tensor  # [T, H], after the final norm
    argmax: Tensor  # int32 [T]


class Recorder:
    """Room for the states of the sequences in ``slots`` slots; rows move with their slot."""

    def __init__(self, slots: int, max_len: int, hidden: int, captured: int) -> None:
        """``captured``: layers whose input is kept beside the last state."""
        # Not zeroed: every row is written before it is taken, and untouched memory costs nothing.
        self.aux = torch.empty(slots, max_len, captured * hidden, dtype=torch.bfloat16)
        self.last = torch.empty(slots, max_len, hidden, dtype=torch.bfloat16)
        self.argmax = torch.full((slots, max_len), -1, dtype=torch.int32)

    def begin(self, slot: int) -> None:
        """Forget the choices of the slot's last sequence; its states are all overwritten before they are taken."""
        self.argmax[slot] = -1

    def put_span(self, slot: int, start: int, aux: Tensor, last: Tensor) -> None:
        """Rows ``start`` on of one slot: aux [n, C*H], last [n, H]."""
        self.aux[slot, start : start + len(aux)] = aux
        self.last[slot, start : start + len(last)] = last

    def put(self, slots: Tensor, positions: Tensor, aux: Tensor, last: Tensor) -> None:
        """One row for each of ``slots`` [B]: aux [B, C*H], last [B, H]."""
        self.aux[slots, positions] = aux.to(torch.bfloat16)
        self.last[slots, positions] = last.to(torch.bfloat16)

    def move(self, source: int, target: int, length: int) -> None:
        for rows in (self.aux, self.last, self.argmax):
            rows[target, :length] = rows[source, :length]
        self.argmax[target, length:] = -1

    def take(self, slot: int, length: int) -> Recording:
        """A copy of a finished sequence's rows."""
        return Recording(*(rows[slot, :length].clone() for rows in (self.aux, self.last, self.argmax)))


def write_part(directory: Path, file: str, names: Sequence[str], recordings: Sequence[Recording]) -> RecordedPart:
    """Write the recordings of one chunk, whole or not at all; equal states give equal bytes."""
    columns = [("argmax", "I32"), ("aux", "BF16"), ("last", "BF16")]
    offsets = [0]
    for recording in recordings:
        offsets.append(offsets[-1] + len(recording.argmax))
    parts = []
    for name, kind in columns:
        tensors = [getattr(recording, name) for recording in recordings]
        shape = (offsets[-1], *tensors[0].shape[1:])
        parts.append(Part(name, kind, shape, map(_bytes, tensors)))
    written = write_tensors(directory / file, parts, {})
    return RecordedPart(file, written.sha256, tuple(names), tuple(offsets))


class Recorded:
    """The recordings of a regeneration, by document name.  Parts are mapped when first used."""

    def __init__(self, directory: Path, layers: tuple[int, ...], parts: Sequence[RecordedPart]) -> None:
        self.directory = directory
        self.layers = layers
        self.parts = list(parts)
        self._where = {name: (part, row) for part in parts for row, name in enumerate(part.documents)}
        self._files: dict[str, Any] = {}

    @classmethod
    def open(cls, directory: Path) -> Recorded:
        """The recordings of a regeneration's output, perhaps none.  Raises DamageError when their index is torn."""
        return cls(directory, *read_index(directory))

    def intact(self) -> Recorded:
        """Only the parts whose bytes still have their hash; each other one is named on stderr."""
        whole = []
        for part in self.parts:
            path = self.directory / part.file
            if path.is_file() and sha256_file(path) == part.sha256:
                whole.append(part)
            else:
                log(f"{path}: torn, altered or gone since it was recorded; its documents are prefilled instead")
        return Recorded(self.directory, self.layers, whole)

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def get(self, name: str) -> Recording:
        """The recording of a document: views of the mapped file.  KeyError when it has none."""
        part, row = self._where[name]
        if part.file not in self._files:
            opener: Any = safe_open
            self._files[part.file] = opener(self.directory / part.file, framework="pt", device="cpu")
        file, rows = self._files[part.file], slice(part.offsets[row], part.offsets[row + 1])
        return Recording(*(file.get_slice(column)[rows] for column in ("aux", "last", "argmax")))


def _bytes(tensor: Tensor) -> memoryview:
    """A tensor's bytes, without a copy when it is contiguous (numpy has no bfloat16)."""
    array: Any = tensor.contiguous().flatten().view(torch.uint8).numpy()
    return memoryview(array)
