"""Read speed of a directory's files, past the page cache (standard library only; nothing is written)."""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from k25stack.host.live.family import Unable

BLOCK = 8 << 20  # bytes of one read
SMALLEST = 64 << 20  # smaller files tell more about opening than about reading
THREADS = 8


def measure(request: Mapping[str, Any]) -> None:
    """Read at most ``bytes`` or for ``seconds`` from the largest files of ``directory``; one JSON object.

    ``direct`` is false where the file system takes no O_DIRECT: then the page cache was dropped first, if the kernel
    did so, and the figure may be that of memory.
    """
    directory = Path(request["directory"])
    files = sorted(_large(directory), key=lambda path: -path.stat().st_size)
    if not files:
        raise Unable(f"{directory}: no file of {SMALLEST >> 20} MiB or more to read")
    direct = _takes_direct(files[0])
    blocks = _blocks(files, int(request["bytes"]))
    deadline = time.monotonic() + float(request["seconds"])
    done = [0] * THREADS
    began = time.monotonic()
    threads = [
        threading.Thread(target=_read, args=(blocks[n::THREADS], direct, deadline, done, n)) for n in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.monotonic() - began
    found = {
        "bytes": sum(done),
        "seconds": round(spent, 4),
        "direct": direct,
        "files": len({path for path, _ in blocks}),
    }
    print(json.dumps(found), flush=True)


def _large(directory: Path) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if path.is_file() and path.stat().st_size >= SMALLEST]
    except OSError as error:
        raise Unable(f"{directory}: {error.strerror}") from None


def _takes_direct(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return False
    try:
        with mmap.mmap(-1, BLOCK) as page:
            os.preadv(handle, [page], 0)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _blocks(files: list[Path], most: int) -> list[tuple[Path, int]]:
    """(file, offset) of whole blocks, from the files in turn so that all of them are touched."""
    ends = {path: path.stat().st_size // BLOCK * BLOCK for path in files}
    found: list[tuple[Path, int]] = []
    for offset in range(0, max(ends.values()), BLOCK):
        for path in files:
            if offset < ends[path]:
                found.append((path, offset))
                if len(found) * BLOCK >= most:
                    return found
    return found


def _read(blocks: list[tuple[Path, int]], direct: bool, deadline: float, done: list[int], index: int) -> None:
    flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
    handles: dict[Path, int] = {}
    try:
        with mmap.mmap(-1, BLOCK) as page:  # page-aligned, as O_DIRECT asks for
            for path, offset in blocks:
                if time.monotonic() > deadline:
                    return
                if path not in handles:
                    handles[path] = os.open(path, flags)
                if not direct:
                    os.posix_fadvise(handles[path], offset, BLOCK, os.POSIX_FADV_DONTNEED)
                done[index] += os.preadv(handles[path], [page], offset)
    finally:
        for handle in handles.values():
            os.close(handle)
