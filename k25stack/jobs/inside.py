"""The keeper of a program in a container: ``python3 -m k25stack.jobs.inside DIRECTORY`` (standard library only).

It is the shim of the process backend, with what a descriptor inherited from the submitting command gives there:

* the lock of the control directory and that of the work directory are taken here, since no descriptor comes along;
* the GPU lease is waited for: the kernel hands it over at the moment in which the submitting command dies;
* output goes straight to the job's log file, so that nothing is lost while no command listens;
* values of variables that are passed by name come on standard input: they are in no file and in no `docker inspect`.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import sys
import threading
from pathlib import Path
from typing import Any

from k25stack.files import read_json
from k25stack.jobs import shim
from k25stack.jobs.control import try_lock, wait_for

VALUES_S = 30.0  # until the values must have come
BUSY = 75


def main(directory: Path) -> int:
    job = read_json(directory / "job.json")
    log = os.open(job["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    if not _hold(directory / "lock"):
        print("error: the job is already running", file=sys.stderr, flush=True)
        return BUSY
    os.dup2(log, 1)
    os.dup2(log, 2)
    if job["work_lock"] and not _hold(Path(job["work_lock"])):
        print(f"error: another run is making {job['step']} ({job['work_lock']})", file=sys.stderr, flush=True)
        return BUSY
    if job["pass_env"] and not _take_values():
        print("error: the command that started the job died before it was up (run again)", file=sys.stderr, flush=True)
        return BUSY
    if job["lease"]:
        threading.Thread(target=_inherit, args=(job["lease"],), daemon=True).start()
    return shim.main(directory, _notes)


def _hold(path: Path) -> bool:
    """Take a lock for as long as this process lives."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    return wait_for(lambda: try_lock(handle, fcntl.LOCK_EX), 2.0)


def _inherit(lease: str) -> None:
    """Hold the lease from the moment on in which its present holder dies."""
    fcntl.flock(os.open(lease, os.O_RDWR | os.O_CLOEXEC), fcntl.LOCK_EX)


def _notes() -> dict[str, Any]:
    """How often the kernel killed something here for want of memory: engines tell it of the first process alone."""
    for name in ("memory.events", "memory/memory.oom_control"):  # cgroup 2 and 1
        path = Path("/sys/fs/cgroup") / name
        if path.is_file():
            words = path.read_text(encoding="ascii").split()
            return {"oom_kills": int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0}
    return {}


def _take_values() -> bool:
    """One line of JSON on standard input: the values of variables that are passed by name."""
    if not select.select([0], [], [], VALUES_S)[0]:
        return False
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return False
    os.environ.update(json.loads(line))
    return True


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
