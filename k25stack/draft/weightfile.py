"""A safetensors file of draft weights, read by header and byte range (no torch).

The container itself is ``k25stack.model.tensorfile``'s; here are the few values that a check needs of it: the two
vocabulary maps, and the hash of the head, which changes with every name, type, shape and place.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from k25stack.errors import DamageError
from k25stack.model.tensorfile import ITEM_BYTES, Header, Part, TensorInfo, read_header

PIECE_BYTES = 1 << 22


@dataclass(frozen=True)
class WeightFile:
    """A file whose header was proven against its size."""

    path: Path
    header: Header

    @classmethod
    def open(cls, path: Path) -> WeightFile:
        """Raises DamageError when the file is not safetensors, torn, or described by a header that lies."""
        if not path.is_file():
            raise DamageError("no such file", where=str(path))
        try:
            return cls(path, read_header(path))
        except RecursionError:
            raise DamageError("wrong header: nested without end", where=str(path)) from None

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return self.header.tensors

    def head_sha256(self) -> str:
        """Hash of everything before the data: names, types, shapes, places, metadata."""
        data = sum(info.end - info.begin for info in self.tensors.values())
        return hashlib.sha256(self._read(0, self.header.bytes - data)).hexdigest()

    def int64(self, name: str) -> array[int]:
        """The values of an I64 tensor.  Raises DamageError for another type."""
        values = array("q", self._typed(name, "I64"))
        if sys.byteorder == "big":
            values.byteswap()
        return values

    def bool(self, name: str) -> bytes:
        """The values of a BOOL tensor, one byte each.  Raises DamageError for another type or a byte over 1."""
        data = self._typed(name, "BOOL")
        if data.translate(None, b"\x00\x01"):
            raise DamageError(f"tensor {name} holds bytes that are neither 0 nor 1", where=str(self.path))
        return data

    def part(self, name: str) -> Part:
        """The tensor as something to be written elsewhere, bit by bit and a piece at a time."""
        info = self.tensors[name]
        return Part(name, info.dtype, info.shape, self._pieces(info))

    def _typed(self, name: str, dtype: str) -> bytes:
        info = self.tensors[name]
        if info.dtype != dtype:
            raise DamageError(f"tensor {name} is {info.dtype}, not {dtype}", where=str(self.path))
        return self._read(info.begin, info.end - info.begin)

    def _read(self, begin: int, count: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(begin)
            data = file.read(count)
        if len(data) != count:
            raise DamageError("cut short while it was read", where=str(self.path), remedy="copy the file again")
        return data

    def _pieces(self, info: TensorInfo) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(info.begin)
            left = info.end - info.begin
            while left and (piece := file.read(min(left, PIECE_BYTES))):
                left -= len(piece)
                yield piece


def int64_part(name: str, values: array[int]) -> Part:
    """A vector of signed 64-bit numbers."""
    if sys.byteorder == "big":
        values = array("q", values)
        values.byteswap()
    return Part(name, "I64", (len(values),), [values.tobytes()])


def bool_part(name: str, values: bytes) -> Part:
    """A vector of truth values, one byte each, 0 or 1."""
    return Part(name, "BOOL", (len(values),), [values])


def in_order(parts: Iterable[Part]) -> list[Part]:
    """Widest items first, which keeps every tensor aligned, then by name: the same bytes for the same content."""
    return sorted(parts, key=lambda part: (-ITEM_BYTES[part.dtype], part.name))
