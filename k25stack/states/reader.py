"""Read documents from shards by random access; the files stay mapped and rows are views where the type allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from k25stack.errors import DamageError
from k25stack.states.document import Document, from_fp8
from k25stack.states.manifest import AUX_LAYERS, NAME, Manifest, ShardRecord
from k25stack.states.verify import REMEDY, check_shard, verify


@dataclass(frozen=True)
class DocumentRef:
    """Where a document lies: its shard's position in the manifest and its rows there."""

    shard: int
    begin: int
    end: int
    doc_id: str
    turn: int
    domain: str
    split: str
    response_tokens: int

    def __len__(self) -> int:
        return self.end - self.begin

    def beginning(self, rows: int) -> DocumentRef:
        """Its first ``rows`` rows, or all of fewer."""
        return replace(self, end=min(self.end, self.begin + rows))


class Shard:
    """One mapped shard file.  Raises DamageError when it is not what the manifest says."""

    def __init__(self, directory: Path, manifest: Manifest, number: int) -> None:
        self.number = number
        self.record: ShardRecord = manifest.shards[number]
        self.path = directory / self.record.file
        if not self.path.is_file():
            raise DamageError("missing", where=str(self.path), remedy=REMEDY)
        check_shard(self.path, manifest.meta, self.record)
        # safetensors maps the file and its slices are views: nothing is read before a row is used.
        opener: Any = safe_open
        self._file = opener(self.path, framework="pt", device="cpu")
        self._rows = {name: self._file.get_slice(name) for name in ("token_ids", "loss_mask", "aux", "last", "argmax")}
        self._scales = self._file.get_slice("scales") if manifest.meta.dtype == "float8_e4m3fn" else None
        self.refs = self._refs()

    def _lines(self, name: str) -> list[str]:
        raw: bytes = self._file.get_tensor(name).numpy().tobytes()
        return raw.decode(errors="replace").split("\n")

    def _refs(self) -> list[DocumentRef]:
        """Where each document lies, from the small tensors.  Raises DamageError when they do not fit the rows."""
        offsets: Tensor = self._file.get_tensor("offsets")
        names, domains, bounds = self._lines("doc_ids"), self._lines("domains"), offsets.tolist()
        whole = bounds[0] == 0 and bounds[-1] == self.record.tokens and bool((offsets[1:] > offsets[:-1]).all())
        if not (whole and len(names) == len(domains) == len(bounds) - 1 and all(map(NAME.fullmatch, names))):
            raise DamageError("offsets and doc_ids do not fit its rows", where=str(self.path), remedy=REMEDY)
        supervised = torch.cat([torch.zeros(1, dtype=torch.int64), self._file.get_tensor("loss_mask").cumsum(0)])
        counts = (supervised[offsets[1:]] - supervised[offsets[:-1]]).tolist()
        spans = zip(bounds, bounds[1:], names, domains, counts, strict=False)
        return [
            DocumentRef(self.number, begin, end, *_split_name(name), domain, self.record.split, count)
            for begin, end, name, domain, count in spans
        ]

    def load(self, ref: DocumentRef) -> Document:
        """The document's rows: views of the mapped file for bf16, new tensors for fp8 and the ids."""
        rows = slice(ref.begin, ref.end)
        aux, last = self._rows["aux"][rows], self._rows["last"][rows]
        if self._scales is not None:
            scales = self._scales[rows]  # [T, 4]
            aux, last = from_fp8(aux, scales[:, :AUX_LAYERS]), from_fp8(last, scales[:, AUX_LAYERS:])
        return Document(
            doc_id=ref.doc_id,
            turn=ref.turn,
            domain=ref.domain,
            token_ids=self._rows["token_ids"][rows].to(torch.int64),
            loss_mask=self._rows["loss_mask"][rows],
            aux=aux,
            last=last,
            argmax=self._rows["argmax"][rows],
        )


class States:
    """A directory of shards.  Shards are opened when first used and stay mapped."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.manifest = Manifest.read(directory)
        self.meta = self.manifest.meta
        self._shards: dict[int, Shard] = {}

    def shard(self, number: int) -> Shard:
        """The shard at this position of the manifest, opened and checked on first use."""
        if number not in self._shards:
            self._shards[number] = Shard(self.directory, self.manifest, number)
        return self._shards[number]

    def refs(self, split: str | None = None) -> list[DocumentRef]:
        """Where every document (of one split) lies, in manifest order; reads only the small tensors."""
        numbers = (i for i, record in enumerate(self.manifest.shards) if split in (None, record.split))
        return [ref for number in numbers for ref in self.shard(number).refs]

    def load(self, ref: DocumentRef) -> Document:
        return self.shard(ref.shard).load(ref)

    def documents(self, split: str | None = None) -> Iterator[Document]:
        """Every document (of one split), in manifest order."""
        return (self.load(ref) for ref in self.refs(split))


def open_states(directory: Path, *, check_hashes: bool = False) -> States:
    """Open a states directory.

    With ``check_hashes`` all bytes are read once first, and DamageError names every damaged shard.
    Raises UsageError when there is no manifest, DamageError when a shard is not what the manifest says.
    """
    if check_hashes and (found := verify(directory)):
        damage = "; ".join(f"{item.file} {item.what}" for item in found)
        raise DamageError(damage, where=str(directory), remedy=REMEDY)
    return States(directory)


def _split_name(name: str) -> tuple[str, int]:
    doc_id, _, turn = name.rpartition("/")
    return doc_id, int(turn)
