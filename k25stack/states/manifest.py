"""What a directory of hidden-state shards says about itself, and how the shards are planned (standard library only).

A *document* is one prompt with its response.  A *shard* is one safetensors file of whole documents of one split,
packed without padding.  The plan is made from token counts before anything is computed, so every shard is a unit of
work of its own: killed, torn or altered, it is redone alone and the others keep their hashes.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from k25stack.errors import DamageError, UsageError, in_words
from k25stack.files import canonical_json, read_json, write_json

SCHEMA = 1
MANIFEST = "manifest.json"
SHARDS = "shards"  # the folder of the shard files
SPLITS = ("train", "validation", "held_out")
# State types by their torch name: (safetensors name, bytes per value).
STATE_TYPES = {"bfloat16": ("BF16", 2), "float8_e4m3fn": ("F8_E4M3", 1)}
AUX_LAYERS = 3
NAME = re.compile(r".+/\d+")  # of a document


class SampleLike(Protocol):
    """What planning and writing need to know of a prompt with its response."""

    @property
    def doc_id(self) -> str: ...
    @property
    def turn(self) -> int: ...
    @property
    def domain(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def prompt_ids(self) -> Sequence[int]: ...
    @property
    def response_ids(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class StatesMeta:
    """How the states were made; equal for every shard of a directory and kept in each shard's metadata."""

    engine: str
    engine_version: str
    layers: tuple[int, ...]  # canonical ids: the residual stream at the *input* of that layer
    hidden: int
    template_hash: str
    target_revision: str
    dtype: str = "bfloat16"  # bfloat16 | float8_e4m3fn
    last_norm: str = "post"  # `last` is taken before ("pre") or after ("post") the final norm
    tp: int = 1
    decode: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dtype not in STATE_TYPES:
            raise UsageError(f"unknown state type {self.dtype!r}", remedy=f"one of {', '.join(STATE_TYPES)}")
        if self.last_norm not in ("pre", "post"):
            raise UsageError(f"last_norm is {self.last_norm!r}", remedy="pre or post")
        if len(self.layers) != AUX_LAYERS or self.hidden < 1:
            raise UsageError(
                f"{len(self.layers)} aux layers of width {self.hidden}", remedy="three canonical layer ids"
            )
        object.__setattr__(self, "layers", tuple(self.layers))

    def text(self) -> dict[str, str]:
        """As safetensors metadata, which holds strings only."""
        values = asdict(self)
        return {"schema": str(SCHEMA)} | {k: v if isinstance(v, str) else canonical_json(v) for k, v in values.items()}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> StatesMeta:
        """Raises TypeError, ValueError or KeyError for a field that is missing, unknown or of another type."""
        made = cls(**{**raw, "layers": tuple(raw["layers"])})
        require(made, str, "engine", "engine_version", "template_hash", "target_revision")
        require(made, int, "hidden", "tp")
        require(made, dict, "decode")
        if not all(type(layer) is int for layer in made.layers):
            raise TypeError(f"layers are {list(made.layers)!r}")
        return made


@dataclass(frozen=True)
class ShardRecord:
    """One finished shard: its place, its hash and what it holds."""

    file: str  # relative to the directory
    sha256: str
    bytes: int
    tokens: int
    response_tokens: int
    docs: int
    split: str
    key: str  # hash of everything that decides its content

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> ShardRecord:
        """Raises TypeError or ValueError for a field that is missing, unknown, of another type, or a path outside."""
        made = cls(**raw)
        require(made, str, "file", "sha256", "split", "key")
        require(made, int, "bytes", "tokens", "response_tokens", "docs")
        path = Path(made.file)
        if path.is_absolute() or ".." in path.parts or "\0" in made.file or not path.name:
            raise ValueError(f"file {made.file!r} is no place inside")
        return made


def require(record: Any, kind: type, *names: str) -> None:
    """Raises TypeError for a field of another type (a bool is no number), ValueError for a count under zero."""
    for name in names:
        value = getattr(record, name)
        if type(value) is not kind:
            raise TypeError(f"{name} is {value!r}")
        if isinstance(value, int) and value < 0:
            raise ValueError(f"{name} is {value}")


@dataclass(frozen=True)
class Manifest:
    """A whole directory of shards, in plan order."""

    meta: StatesMeta
    shards: tuple[ShardRecord, ...]

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Raises UsageError when there is none, DamageError when it is not readable as one."""
        path = directory / MANIFEST
        try:
            raw = read_json(path)
            if raw["schema"] != SCHEMA:
                raise UsageError(f"schema {raw['schema']}", where=str(path), remedy=f"this version reads {SCHEMA}")
            json.dumps(raw, allow_nan=False)  # NaN is no JSON, and no fact either
            shards = tuple(ShardRecord.from_dict(entry) for entry in raw["shards"])
            return cls(meta=cls._meta(raw["meta"], path), shards=shards)
        except FileNotFoundError:
            remedy = "give a states directory; run the extraction again if it was stopped"
            raise UsageError(f"no {MANIFEST}", where=str(directory), remedy=remedy) from None
        except (KeyError, TypeError, ValueError) as error:
            raise DamageError(
                f"not a shard manifest: {in_words(error)}", where=str(path), remedy="extract again"
            ) from None

    @staticmethod
    def _meta(raw: dict[str, Any], path: Path) -> StatesMeta:
        """What cannot be asked for is damage where it is read, as two layers instead of three."""
        try:
            return StatesMeta.from_dict(raw)
        except UsageError as error:
            raise DamageError(error.what, where=str(path), remedy=error.remedy) from None

    def write(self, directory: Path) -> None:
        shards = [asdict(shard) for shard in self.shards]
        write_json(directory / MANIFEST, {"schema": SCHEMA, "meta": asdict(self.meta), "shards": shards})

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)


@dataclass(frozen=True)
class ShardPlan:
    """One shard to make: ``members`` are positions in the list of samples it was planned from."""

    file: str
    split: str
    members: tuple[int, ...]
    documents: tuple[str, ...]  # their names, in order
    tokens: int
    response_tokens: int
    key: str


def bytes_per_token(hidden: int, dtype: str = "bfloat16") -> int:
    """Bytes one token takes in a shard: three aux states and the last, ids, mask, argmax, scales when fp8."""
    width = STATE_TYPES[dtype][1]
    scales = 4 * (AUX_LAYERS + 1) if dtype == "float8_e4m3fn" else 0
    return (AUX_LAYERS + 1) * hidden * width + 4 + 1 + 4 + scales


def document_name(doc_id: str, turn: int) -> str:
    """The name of a document in a shard: the stable prompt hash and the turn."""
    return f"{doc_id}/{turn}"


def plan_shards(samples: Sequence[SampleLike], meta: StatesMeta, shard_bytes: int) -> list[ShardPlan]:
    """Divide samples into shards of at most ``shard_bytes`` bytes of rows (one document at least), split by split.

    The order of samples within a split is kept.  Raises UsageError for an unknown split, an empty document, the same
    document twice, or no samples at all.
    """
    if not samples:
        raise UsageError("no samples to extract states from", remedy="run the regeneration step first")
    _check_samples(samples)
    room = max(1, shard_bytes // bytes_per_token(meta.hidden, meta.dtype))
    groups: list[tuple[str, list[int]]] = []
    for split in SPLITS:
        filled = room
        for position in (i for i, sample in enumerate(samples) if sample.split == split):
            size = len(samples[position].prompt_ids) + len(samples[position].response_ids)
            if filled + size > room:
                groups.append((split, []))
                filled = 0
            groups[-1][1].append(position)
            filled += size
    files = (f"{SHARDS}/{number:05d}.safetensors" for number in range(len(groups)))
    return [_plan(file, split, members, samples, meta) for file, (split, members) in zip(files, groups, strict=True)]


def _check_samples(samples: Sequence[SampleLike]) -> None:
    seen: set[str] = set()
    for sample in samples:
        name = document_name(sample.doc_id, sample.turn)
        if sample.split not in SPLITS:
            raise UsageError(f"unknown split {sample.split!r}", where=name, remedy=f"one of {', '.join(SPLITS)}")
        if not sample.prompt_ids:
            raise UsageError("a sample without prompt tokens", where=name, remedy="regenerate it")
        if name in seen:
            raise UsageError("the same document twice", where=name, remedy="regenerate the samples")
        seen.add(name)


def _plan(file: str, split: str, members: list[int], samples: Sequence[SampleLike], meta: StatesMeta) -> ShardPlan:
    digest = hashlib.sha256(canonical_json([SCHEMA, asdict(meta), split]).encode())
    prompt = response = 0
    names = tuple(document_name(samples[i].doc_id, samples[i].turn) for i in members)
    for position in members:
        sample = samples[position]
        head = [sample.doc_id, sample.turn, sample.domain, len(sample.prompt_ids), len(sample.response_ids)]
        digest.update(canonical_json(head).encode())
        digest.update(array("q", sample.prompt_ids).tobytes())
        digest.update(array("q", sample.response_ids).tobytes())
        prompt += len(sample.prompt_ids)
        response += len(sample.response_ids)
    return ShardPlan(file, split, tuple(members), names, prompt + response, response, digest.hexdigest())
