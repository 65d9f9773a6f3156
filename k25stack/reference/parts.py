"""What a regeneration leaves of each chunk, and where its recorded states lie (no torch).

::

    parts/part-0003.jsonl         samples of chunk 3
    parts/part-0003.safetensors   their states, when recording
    parts/part-0003.json          written last: the chunk's key and the hashes of both
    recorded.json                   where the states of each document are
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from k25stack.errors import DamageError, in_words
from k25stack.files import read_json, sha256_file, write_json
from k25stack.worker import log

PARTS = "parts"
INDEX = "recorded.json"


@dataclass(frozen=True)
class RecordedPart:
    """One file of recorded states: whole documents, packed in the order of their names."""

    file: str  # relative to the directory of the index
    sha256: str
    documents: tuple[str, ...]
    offsets: tuple[int, ...]  # document d is rows offsets[d] to offsets[d+1]

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> RecordedPart:
        return cls(raw["file"], raw["sha256"], tuple(raw["documents"]), tuple(raw["offsets"]))


@dataclass(frozen=True)
class ChunkRecord:
    """A finished chunk: the key of its plan, its files with their hashes, its recorded states if any."""

    key: str
    files: dict[str, str]
    recorded: RecordedPart | None

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> ChunkRecord | None:
        """None when the chunk was never finished.  Raises DamageError for a file that is no record."""
        if not path.is_file():
            return None
        try:
            raw = read_json(path)
            part = raw["recorded"]
            return cls(raw["key"], dict(raw["files"]), None if part is None else RecordedPart.from_dict(part))
        except (KeyError, TypeError, ValueError) as error:
            what = f"not the record of a chunk: {in_words(error)}"
            raise DamageError(what, where=str(path), remedy="delete it, run again") from None

    def intact(self, directory: Path) -> bool:
        """True when every file still has its hash; the first that has not is named on stderr."""
        for file, digest in self.files.items():
            path = directory / file
            if not path.is_file() or sha256_file(path) != digest:
                log(f"{path}: torn, altered or gone since it was written; its chunk is answered again")
                return False
        return True


def write_index(directory: Path, layers: Sequence[int], parts: Sequence[RecordedPart]) -> None:
    """Say where the recorded states of each document are: one row per state of ``layers``, then the last."""
    write_json(directory / INDEX, {"layers": list(layers), "parts": [asdict(part) for part in parts]})


def read_index(directory: Path) -> tuple[tuple[int, ...], list[RecordedPart]]:
    """Layers and parts of a regeneration's output; none when it recorded nothing.  Raises DamageError when torn."""
    path = directory / INDEX
    if not path.is_file():
        return (), []
    try:
        raw = read_json(path)
        return tuple(raw["layers"]), [RecordedPart.from_dict(part) for part in raw["parts"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DamageError(f"not an index of recorded states: {in_words(error)}", where=str(path)) from None
