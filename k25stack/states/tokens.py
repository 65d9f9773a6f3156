"""The tokens of documents in shards, without their states and without torch: enough to judge the text."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from k25stack.errors import DamageError
from k25stack.model.tensorfile import Header, read_header
from k25stack.states.manifest import NAME, Manifest, ShardRecord
from k25stack.states.verify import REMEDY, check_shard


@dataclass(frozen=True)
class Text:
    """One document: row t of each column belongs to token t."""

    name: str  # doc_id/turn
    split: str
    shard: int  # position in the manifest
    begin: int  # its first row there
    token_ids: array[int]
    supervised: bytes  # 1 where the token is of the response
    argmax: array[int]  # the target's greedy choice for the token after t

    @property
    def response(self) -> array[int]:
        return array("i", (token for token, held in zip(self.token_ids, self.supervised, strict=True) if held))

    def agreement(self) -> tuple[int, int]:
        """(response tokens that are the target's greedy choice, response tokens that have a row before them)."""
        places = [t for t in range(1, len(self.token_ids)) if self.supervised[t]]
        return sum(self.token_ids[t] == self.argmax[t - 1] for t in places), len(places)


def texts(directory: Path, manifest: Manifest, most: int | None = None) -> Iterator[Text]:
    """Documents in manifest order; with ``most`` about that many, spread evenly over the directory.

    Raises DamageError for a shard that is not what the manifest says.
    """
    total = sum(record.docs for record in manifest.shards)
    every = 1 if most is None else max(1, -(-total // most))
    seen = 0
    for number, record in enumerate(manifest.shards):
        shard = _Shard(directory / record.file, manifest, record)
        for place in range(record.docs):
            if (seen + place) % every == 0:
                yield shard.text(number, place)
        seen += record.docs


class _Shard:
    def __init__(self, path: Path, manifest: Manifest, record: ShardRecord) -> None:
        self.path, self.record = path, record
        check_shard(path, manifest.meta, record)
        self.header: Header = read_header(path)
        self.offsets = self._whole("q", self._bytes("offsets"))
        self.names, domains = (
            self._bytes(name).decode(errors="replace").split("\n") for name in ("doc_ids", "domains")
        )
        steps = zip(self.offsets, self.offsets[1:], strict=False)
        ends = (self.offsets[:1], self.offsets[-1:]) == (array("q", (0,)), array("q", (record.tokens,)))
        named = len(self.names) == len(domains) == record.docs and all(map(NAME.fullmatch, self.names))
        if not named or not ends or any(b <= a for a, b in steps):
            raise DamageError("offsets and doc_ids do not fit its rows", where=str(path), remedy=REMEDY)

    def text(self, number: int, place: int) -> Text:
        begin, end = self.offsets[place], self.offsets[place + 1]
        ids, argmax = (self._whole("i", self._bytes(name, 4, begin, end)) for name in ("token_ids", "argmax"))
        mask = self._bytes("loss_mask", 1, begin, end)
        return Text(self.names[place], self.record.split, number, begin, ids, mask, argmax)

    def _bytes(self, name: str, width: int = 0, begin: int = 0, end: int = 0) -> bytes:
        info = self.header.tensors[name]
        first, last = (info.begin + begin * width, info.begin + end * width) if width else (info.begin, info.end)
        with self.path.open("rb") as file:
            file.seek(first)
            data = file.read(last - first)
        if len(data) != last - first:
            raise DamageError("cut short while it was read", where=str(self.path), remedy=REMEDY)
        return data

    @staticmethod
    def _whole(code: str, data: bytes) -> array[int]:
        values = array(code, data)
        if sys.byteorder == "big":
            values.byteswap()
        return values
