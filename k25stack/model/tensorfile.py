"""The safetensors container: checked headers, and a writer that hashes while it writes (standard library only).

Why not the library's writer: its metadata order differs from run to run, so equal content would not give equal
bytes, and the file would have to be read again for its hash.  Here the bytes depend on the content alone and every
byte is touched once.  Format: 8 bytes little-endian header length, a JSON header padded with spaces, then the data
without gaps (https://github.com/huggingface/safetensors, README "Format").
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack.errors import DamageError, in_words
from k25stack.files import replacing

if TYPE_CHECKING:
    from typing_extensions import Buffer

ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
# The data area starts at a multiple of this, so that mapped rows are aligned for vector loads.
ALIGNMENT = 64
MAX_HEADER_BYTES = 100_000_000  # the library's own limit
LFS_POINTER = b"version "  # the first word of what a clone without Git LFS has in place of a large file
OTHER_KINDS = {
    b"PK\x03\x04": "a zip archive (torch.save writes these)",
    b"\x80": "a pickle, which can run code when it is read",
    b"GGUF": "a GGUF file",
    b"\x89HDF": "an HDF5 file",
    b"PAR1": "a parquet file",
    b"\x1f\x8b": "a gzip file",
}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file: ``begin`` and ``end`` are byte positions in the whole file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """What a file says it holds, after the sizes were checked against the file itself."""

    metadata: dict[str, str]
    tensors: dict[str, TensorInfo]
    bytes: int


@dataclass(frozen=True)
class Part:
    """A tensor to write: ``pieces`` are its bytes in row-major order, in one or many buffers."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[Buffer]

    @property
    def bytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class Written:
    """Size and hash of a finished file."""

    bytes: int
    sha256: str


def write_tensors(path: Path, parts: Sequence[Part], metadata: Mapping[str, str]) -> Written:
    """Write a safetensors file whole or not at all; equal content gives equal bytes.

    The data lies in the order of ``parts``: give wide types first, so that every tensor is aligned.
    Raises ValueError when a part's pieces do not add up to its shape, OSError when the disk does not take it.
    """
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    position = 0
    for part in parts:
        offsets = [position, position + part.bytes]
        header[part.name] = {"dtype": part.dtype, "shape": list(part.shape), "data_offsets": offsets}
        position = offsets[1]
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    digest = hashlib.sha256()
    with replacing(path) as temporary, temporary.open("wb", buffering=0) as file:
        for piece in (len(text).to_bytes(8, "little"), text):
            _write_all(file.fileno(), piece, digest)
        for part in parts:
            count = sum(_write_all(file.fileno(), piece, digest) for piece in part.pieces)
            if count != part.bytes:
                raise ValueError(f"{part.name}: {count} bytes given, shape {part.shape} needs {part.bytes}")
    return Written(bytes=8 + len(text) + position, sha256=digest.hexdigest())


def _write_all(handle: int, piece: Buffer, digest: Any) -> int:
    """Write and hash one buffer without copying it; returns its size in bytes."""
    raw = memoryview(piece)
    if raw.nbytes == 0:  # an empty view cannot be cast
        return 0
    view = raw.cast("B")
    digest.update(view)
    rest = view
    while rest:
        rest = rest[os.write(handle, rest) :]
    return len(view)


def read_header(path: Path) -> Header:
    """The header of a safetensors file, checked against the file's real size.

    Raises DamageError for a file of another kind, a truncated one, or a header whose sizes do not hold;
    OSError when it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if start == LFS_POINTER and not _plausible(start, size):
            raise DamageError("a Git LFS pointer, not the weights", where=str(path), remedy="git lfs pull")
        for magic, kind in OTHER_KINDS.items():
            if start.startswith(magic) and not _plausible(start, size):
                raise DamageError(
                    f"not a safetensors file but {kind}", where=str(path), remedy="only safetensors is read"
                )
        if len(start) < 8:
            raise DamageError(f"truncated: {size} bytes is too short for a header", where=str(path))
        length = int.from_bytes(start, "little")
        if not _plausible(start, size):
            what = f"not a safetensors file, or truncated: its header would be {length} bytes of a file of {size}"
            raise DamageError(what, where=str(path))
        text = file.read(length)
    return _parse(path, text, size)


def _plausible(start: bytes, size: int) -> bool:
    return len(start) == 8 and 2 <= int.from_bytes(start, "little") <= min(size - 8, MAX_HEADER_BYTES)


def _parse(path: Path, text: bytes, size: int) -> Header:
    where = str(path)
    try:
        raw = json.loads(text, object_pairs_hook=_unique)
        metadata = raw.pop("__metadata__", {})
        if not all(isinstance(item, str) for pair in metadata.items() for item in pair):
            raise ValueError("metadata that is not text")
        base = 8 + len(text)
        tensors = {name: _tensor(name, entry, base) for name, entry in raw.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamageError(f"wrong header: {in_words(error)}", where=where) from None
    end = base
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.begin != end:
            raise DamageError(f"wrong header: {name} starts at byte {info.begin}, not {end}", where=where)
        end = info.end
    if end != size:
        kind = "truncated" if size < end else "longer than its header says"
        raise DamageError(f"{kind}: {size} bytes, the header needs {end}", where=where)
    return Header(metadata=metadata, tensors=tensors, bytes=size)


def _tensor(name: str, entry: dict[str, Any], base: int) -> TensorInfo:
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if dtype not in ITEM_BYTES:
        raise ValueError(f"{name} has the unknown type {dtype!r}")
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise ValueError(f"{name} has sizes that are no counts")
    if end - begin != ITEM_BYTES[dtype] * math.prod(shape):
        raise ValueError(f"{name} says {dtype} {list(shape)} but spans {end - begin} bytes")
    return TensorInfo(dtype=dtype, shape=shape, begin=base + begin, end=base + end)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key given twice: two readers could then see two different files."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is given twice")
    return result
