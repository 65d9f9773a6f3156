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
    """The states of the running sequences, each in rows of its own."""

    def __init__(self, hidden: int, captured: int) -> None:
        """``captured``: layers whose input is kept beside the last state."""
        self.hidden, self.captured = hidden, captured
        self._open: dict[int, Recording] = {}
        self._next = 0

    def begin(self, length: int) -> int:
        """Room for a sequence of up to ``length`` tokens; returns its number."""
        # States are not zeroed: every row is written before it is taken.
        self._open[self._next] = Recording(
            torch.empty(length, self.captured * self.hidden, dtype=torch.bfloat16),
            torch.empty(length, self.hidden, dtype=torch.bfloat16),
            torch.full((length,), -1, dtype=torch.int32),
        )
        self._next += 1
        return self._next - 1

    def put_span(self, number: int, start: int, aux: Tensor, last: Tensor) -> None:
        """Rows ``start`` on of one sequence: aux [n, C*H], last [n, H]."""
        rows = self._open[number]
        rows.aux[start : start + len(aux)] = aux
        rows.last[start : start + len(last)] = last

    def put(self, numbers: Sequence[int], positions: Sequence[int], aux: Tensor, last: Tensor) -> None:
        """One row for each of several sequences [B]: aux [B, C*H], last [B, H]."""
        for number, at, one, other in zip(numbers, positions, aux.unbind(), last.unbind(), strict=True):
            rows = self._open[number]
            rows.aux[at] = one
            rows.last[at] = other

    def choose(self, numbers: Sequence[int], positions: Sequence[int], ids: Sequence[int]) -> None:
        """The target's greedy choice for the token after a position, of several sequences."""
        for number, at, token in zip(numbers, positions, ids, strict=True):
            self._open[number].argmax[at] = token

    def take(self, number: int, length: int) -> Recording:
        """The rows of a finished sequence, which is forgotten."""
        rows = self._open.pop(number)
        return Recording(rows.aux[:length].clone(), rows.last[:length].clone(), rows.argmax[:length].clone())


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
