"""Children that must end within a time limit: one that hangs in a driver or waits for a peer is killed and told."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

FINE, UNABLE, FAILED, TIMEOUT = 0, 69, 70, 124  # exit codes of a job
POLL_S = 0.02


class Unable(Exception):
    """The job cannot be done here: no torch, no such card."""


def run_children(bodies: Sequence[Callable[[], None]], limit_s: float) -> int:
    """Run each body in a child of its own; FINE, or why not, told in one line on stdout.

    The first child that fails ends the others; after ``limit_s`` all that are left are killed.
    """
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="k25-live-") as place:
        children = {_fork(body, Path(place) / str(index), limit_s): index for index, body in enumerate(bodies)}
        left, code = dict(children), FINE
        deadline = time.monotonic() + limit_s
        while left and code == FINE:
            for pid, index in list(left.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    del left[pid]
                    code = code or _told(index, len(bodies), status, Path(place) / str(index))
            if left and time.monotonic() > deadline:
                ranks = ", ".join(str(index) for index in sorted(left.values()))
                print(f"# no end after {limit_s:g} s: rank {ranks} still runs", flush=True)
                code = TIMEOUT
            time.sleep(POLL_S)
        _kill(left)
    return code


def _fork(body: Callable[[], None], errors: Path, limit_s: float) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = FAILED
    try:
        signal.alarm(int(limit_s) + 10)  # the kernel ends it even when its parent is gone
        handle = os.open(errors, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(handle, 2)
        body()
        code = FINE
    except Unable as reason:
        os.write(2, f"{reason}\n".encode())
        code = UNABLE
    except BaseException:  # a child must not return into its parent's code: it tells and ends
        os.write(2, traceback.format_exc().encode())
    finally:
        sys.stdout.flush()
        os._exit(code)


def _told(index: int, count: int, status: int, errors: Path) -> int:
    """The exit code of a child, and why in one line when it is not 0."""
    code = os.waitstatus_to_exitcode(status)
    if code == FINE:
        return FINE
    said = errors.read_text(errors="replace").strip().splitlines() if errors.exists() else []
    wanted = [line for line in said if "Error" in line or "error" in line][-1:] or said[-1:]
    why = f"signal {-code}" if code < 0 else wanted[0].strip() if wanted else f"exit {code}"
    who = f"rank {index}: " if count > 1 else ""
    print(f"# {who}{why[:300]}", flush=True)
    return UNABLE if code == UNABLE else FAILED


def _kill(left: dict[int, int]) -> None:
    """Kill and wait a moment; a child that waits for a dead card in the kernel cannot be killed and is left behind."""
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    patience = time.monotonic() + 5
    for pid in left:
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > patience:
                print(f"# process {pid} does not die: it waits in the driver", flush=True)
                break
            time.sleep(POLL_S)
