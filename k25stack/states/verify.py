"""Look for damage in a directory of shards: structure from headers, content from hashes (standard library only)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from k25stack.errors import DamageError
from k25stack.files import sha256_file
from k25stack.model.tensorfile import Header, read_header
from k25stack.states.manifest import AUX_LAYERS, SHARDS, STATE_TYPES, Manifest, ShardRecord, StatesMeta

REMEDY = "run the extraction again: this shard alone is redone"


@dataclass(frozen=True)
class Damage:
    """One thing that is wrong: which file, and what."""

    file: str
    what: str


def verify(directory: Path, *, hashes: bool = True) -> list[Damage]:
    """Everything wrong with a states directory, shard by shard; an empty list means intact.

    Without ``hashes`` only sizes and headers are compared, which reads a few kB per shard and misses a flipped byte.
    Raises UsageError when there is no manifest, DamageError when the manifest itself is not readable.
    """
    manifest = Manifest.read(directory)
    found = [Damage(s.file, what) for s in manifest.shards for what in _shard(directory, manifest.meta, s, hashes)]
    known = {shard.file for shard in manifest.shards}
    for path in sorted((directory / SHARDS).glob("*")):
        name = path.relative_to(directory).as_posix()
        if name not in known:
            found.append(Damage(name, "not in the manifest"))
    return found


def _shard(directory: Path, meta: StatesMeta, record: ShardRecord, hashes: bool) -> Iterator[str]:
    path = directory / record.file
    if path.suffix != ".safetensors" or ".." in Path(record.file).parts or Path(record.file).is_absolute():
        yield "not the name of a safetensors file inside the directory"
        return
    if not path.is_file():
        yield "missing"
        return
    try:
        check_shard(path, meta, record)
    except DamageError as error:
        yield error.what
        return
    if hashes and sha256_file(path) != record.sha256:
        yield "altered: its sha256 is not the manifest's"


def check_shard(path: Path, meta: StatesMeta, record: ShardRecord) -> Header:
    """A shard's header, after comparing it with the manifest.

    Raises DamageError when the file is damaged, of another width, type, split or number of rows.
    """
    header = read_header(path)
    for name in ("doc_ids", "domains"):
        if name not in header.tensors or header.tensors[name].dtype != "U8":
            raise DamageError(f"tensor {name} is missing or no text", where=str(path), remedy=REMEDY)
    expected = expected_tensors(meta, record)
    for name, (dtype, shape) in expected.items():
        info = header.tensors.get(name)
        if info is None:
            raise DamageError(f"tensor {name} is missing", where=str(path), remedy=REMEDY)
        if (info.dtype, info.shape) != (dtype, shape):
            what = f"{name} is {info.dtype} {list(info.shape)}, the manifest says {dtype} {list(shape)}"
            raise DamageError(what, where=str(path), remedy=REMEDY)
    for name, value in {**meta.text(), "split": record.split, "key": record.key}.items():
        if header.metadata.get(name) != value:
            what = f"metadata {name} is {header.metadata.get(name)!r}, the manifest says {value!r}"
            raise DamageError(what, where=str(path), remedy=REMEDY)
    if header.bytes != record.bytes:
        raise DamageError(f"{header.bytes} bytes, the manifest says {record.bytes}", where=str(path), remedy=REMEDY)
    return header


def expected_tensors(meta: StatesMeta, record: ShardRecord) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> (safetensors type, shape) of the tensors a shard of this size must hold."""
    tokens, states = record.tokens, STATE_TYPES[meta.dtype][0]
    expected: dict[str, tuple[str, tuple[int, ...]]] = {
        "offsets": ("I64", (record.docs + 1,)),
        "token_ids": ("I32", (tokens,)),
        "argmax": ("I32", (tokens,)),
        "loss_mask": ("BOOL", (tokens,)),
        "aux": (states, (tokens, AUX_LAYERS * meta.hidden)),
        "last": (states, (tokens, meta.hidden)),
    }
    if meta.dtype == "float8_e4m3fn":
        expected["scales"] = ("F32", (tokens, AUX_LAYERS + 1))
    return expected
