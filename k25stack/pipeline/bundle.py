"""What somebody else needs to see what went wrong: the small files of a run in one archive (standard library only).

Logs are cut to their last `LOG_BYTES`.  Values of variables and fields whose names look like secrets are blacked out;
weights, states and answers never go in.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from k25stack.errors import UsageError
from k25stack.files import replacing
from k25stack.pipeline import fingerprint
from k25stack.pipeline.status import overview
from k25stack.pipeline.workspace import Run, Workspace

LOG_BYTES = 1 << 20
DOCUMENTS = ("stack.resolved.yaml", "plan.json", "summary.json", "status.md")
NAMES = (*DOCUMENTS, "ledger/*.jsonl", "steps/*/*.json", "steps/*/*log")
WORD = rb"(?:[\w-]*[_-])?(?:token|secret|password|passwd|api[_-]?key|authorization)"
SECRET = re.compile(WORD.join((rb"(?i)(\b", rb"""["']?\s*[=:]\s*["']?(?:bearer )?)[^\s"',}]{6,}""")))


def write_bundle(workspace: Workspace, run: Run, path: Path) -> list[str]:
    """Write ``path`` (a .tar.gz), whole or not at all; returns the names in it.  Raises UsageError when it is there."""
    if path.exists():
        raise UsageError("it exists already", where=str(path), remedy="choose another name")
    names = []
    with replacing(path) as partial, tarfile.open(partial, "w:gz") as archive:
        for name, data in contents(workspace, run):
            entry = tarfile.TarInfo(f"{run.name}/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
            names.append(name)
    return names


def contents(workspace: Workspace, run: Run) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of everything that goes in."""
    about = {"status": overview(workspace), "host": fingerprint.host(), "versions": fingerprint.versions([])}
    yield "about.json", blacked(json.dumps(about, indent=2).encode())
    for pattern in NAMES:
        for file in sorted(run.directory.glob(pattern)):
            yield str(file.relative_to(run.directory)), blacked(_tail(file))


def blacked(data: bytes) -> bytes:
    """``data`` without the values of secrets."""
    return SECRET.sub(rb"\1***", data)


def _tail(file: Path) -> bytes:
    with file.open("rb") as handle:
        size = handle.seek(0, io.SEEK_END)
        handle.seek(max(0, size - LOG_BYTES) if file.name.endswith("log") else 0)
        return handle.read()
