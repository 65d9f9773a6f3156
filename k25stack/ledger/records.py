"""Append and read records (standard library only).

A ledger is a directory of ``<writer>.jsonl`` files.  Each writer owns its file, so writers never wait for each other;
a reader merges all files by (time, writer, seq).  Every line is one record::

    {"schema":1,"time":"2026-11-29T12:00:00.000001Z","writer":"run","seq":3,"kind":"step.end","data":{...}}

* A record is on the disk (fsync) when ``append`` returns.
* A crash can tear only the last line of a file.  Reading drops it with a warning; the next append cuts it off.
* A broken line anywhere else is damage and is named, never skipped.
* ``time`` never goes back within one file, also when the clock does, so the merge keeps each writer's own order.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from k25stack.errors import DamageError, UsageError
from k25stack.files import canonical_json, sync_directory

SCHEMA = 1

KINDS = frozenset(
    {
        "run.start",
        "run.end",
        "plan",
        "step.end",
        "bench.row",
        "train.epoch",
        "train.end",
        "coverage",
        "check",
        "walk",
        "note",
        "discovery",
        "decision",
        "assumption",
        "reference.row",
        "watch",
    }
)

TAIL = 1 << 16


@dataclass(frozen=True)
class Record:
    """One line of a ledger; ``time`` is UTC with microseconds, so its text sorts as time does."""

    time: str
    writer: str
    seq: int
    kind: str
    data: dict[str, Any]
    schema: int = SCHEMA

    def order(self) -> tuple[str, str, int]:
        return (self.time, self.writer, self.seq)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def append(path: Path, kind: str, data: dict[str, Any]) -> Record:
    """Add one record to the writer's file ``path`` (``<writer>.jsonl``) and fsync it; the file is made when absent.

    Raises UsageError for an unknown kind or data that is not JSON (NaN included), OSError when the disk refuses:
    then the file ends as it did before.
    """
    return append_all(path, [(kind, data)])[0]


def append_all(path: Path, items: Sequence[tuple[str, dict[str, Any]]]) -> list[Record]:
    """Add several records with one fsync: either all of them are there afterwards or, after an error, none."""
    for kind, _ in items:
        if kind not in KINDS:
            known = f"one of {', '.join(sorted(KINDS))}"
            raise UsageError(f"unknown record kind {kind!r}", where=str(path), remedy=known)
    new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        end, last = _last_whole_line(handle, path)
        previous = _parse(last, path) if last else None
        time, first = (max(now(), previous.time), previous.seq + 1) if previous else (now(), 0)
        records = [Record(time, path.stem, first + index, kind, data) for index, (kind, data) in enumerate(items)]
        _write(handle, end, b"".join(_line(record, path) for record in records))
    finally:
        os.close(handle)
    if new:
        sync_directory(path.parent)
    return records


def read(directory: Path, warn: Callable[[str], None] | None = None) -> list[Record]:
    """All records of a ledger directory in (time, writer, seq) order; an absent directory is an empty ledger.

    ``warn`` gets one line per torn last line (default: print to stderr).
    Raises DamageError for a broken line elsewhere or a record of a newer schema.
    """
    records = [record for path in sorted(directory.glob("*.jsonl")) for record in read_file(path, warn)]
    return sorted(records, key=Record.order)


def read_file(path: Path, warn: Callable[[str], None] | None = None) -> list[Record]:
    """The records of one writer, in the order they were appended."""
    *whole, torn = path.read_bytes().split(b"\n")
    if torn:
        (warn or _print)(f"{path}: torn last line dropped ({len(torn)} bytes)")
    return [_parse(line, path, number) for number, line in enumerate(whole, start=1)]


def _print(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr, flush=True)


def _line(record: Record, path: Path) -> bytes:
    try:
        return canonical_json(asdict(record)).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise UsageError(f"{record.kind} record is not JSON: {error}", where=str(path)) from None


def _write(handle: int, end: int, lines: bytes) -> None:
    """Put ``lines`` at ``end`` (cutting a torn line off); a disk that fills up leaves the file ending at ``end``."""
    os.ftruncate(handle, end)
    written = 0
    try:
        while written < len(lines):
            written += os.pwrite(handle, lines[written:], end + written)
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, end)
        raise


def _last_whole_line(handle: int, path: Path) -> tuple[int, bytes]:
    """(offset behind the last newline, the line before it); (0, b"") for a file without a whole line."""
    size = os.fstat(handle).st_size
    window = TAIL
    while True:
        start = max(0, size - window)
        block = os.pread(handle, size - start, start)
        stop = block.rfind(b"\n")
        begin = block.rfind(b"\n", 0, stop) + 1 if stop >= 0 else 0
        if start == 0 or begin > 0:
            return (start + stop + 1, block[begin:stop]) if stop >= 0 else (0, b"")
        window *= 4


def _parse(line: bytes, path: Path, number: int = 0) -> Record:
    where = f"{path}:{number}" if number else str(path)
    try:
        raw = json.loads(line)
        record = Record(raw["time"], raw["writer"], int(raw["seq"]), raw["kind"], dict(raw["data"]), int(raw["schema"]))
    except (ValueError, KeyError, TypeError):
        raise DamageError("not a ledger record", where=where, remedy="restore the file or remove that line") from None
    if record.schema > SCHEMA:
        raise DamageError(
            f"record of schema {record.schema}, this version reads up to {SCHEMA}",
            where=where,
            remedy="update k25stack",
        )
    return record
