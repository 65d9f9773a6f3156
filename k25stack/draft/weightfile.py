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

from k25stack.draft.target import read_object
from k25stack.errors import DamageError, UsageError
from k25stack.model.tensorfile import ITEM_BYTES, Header, Part, TensorInfo, read_header

PIECE_BYTES = 1 << 22
MAP_BYTES = 1 << 26  # of a vocabulary map: eight million ids; what is larger is no map
LONGEST_NAME = 500  # characters
INDEX = "model.safetensors.index.json"


def weight_paths(directory: Path) -> list[Path]:
    """The safetensors files that an engine reads: those beside config.json, of which an index takes its choice.

    Both engines pass over a file that the index does not name, without a word (sglang, vllm ``weight_utils.py``,
    filter_duplicate_safetensors_files).  Raises DamageError when the index is none, or names a file that is not there.
    """
    beside = {path.name: path for path in sorted(directory.glob("*.safetensors")) if not path.name.startswith(".")}
    index = directory / INDEX
    if not index.is_file():
        return list(beside.values())
    try:
        chosen = read_object(index).get("weight_map")
    except UsageError as error:
        raise DamageError(error.what, where=str(index), remedy="export the draft anew") from None
    if not isinstance(chosen, dict) or not chosen or not all(isinstance(name, str) for name in chosen.values()):
        raise DamageError("it has no weight_map of names", where=str(index), remedy="export the draft anew")
    if absent := sorted(set(chosen.values()) - set(beside)):
        raise DamageError(f"it names {absent[0]!r}, which is not beside it: the engines stop", where=str(index),
                          remedy="copy the draft again, or remove the index")  # fmt: skip
    return [path for name, path in beside.items() if name in chosen.values()]


def open_weights(directory: Path) -> list[WeightFile]:
    """Those files, their headers proven; none where there is none.  Raises DamageError."""
    return [WeightFile.open(path) for path in weight_paths(directory)]


@dataclass(frozen=True)
class WeightFile:
    """A file whose header was proven against its size."""

    path: Path
    header: Header

    @classmethod
    def open(cls, path: Path) -> WeightFile:
        """Raises DamageError when the file is not safetensors, torn, described by a header that lies, or has names
        that no trainer writes (line ends, terminal codes)."""
        if not path.is_file():
            raise DamageError("not a file" if path.exists() else "no such file", where=str(path))
        try:
            header = read_header(path)
        except RecursionError:
            raise DamageError("wrong header: nested without end", where=str(path)) from None
        if odd := next((name for name in header.tensors if not name.isprintable() or len(name) > LONGEST_NAME), ""):
            raise DamageError(f"wrong header: {odd[:60]!r} is no name of a tensor", where=str(path))
        return cls(path, header)

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
        if info.end - info.begin > MAP_BYTES:
            what = f"tensor {name} has {info.end - info.begin:,} bytes, more than a vocabulary map"
            raise DamageError(what, where=str(self.path))
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
        if left:
            raise DamageError("cut short while it was read", where=str(self.path), remedy="copy the file again")


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
