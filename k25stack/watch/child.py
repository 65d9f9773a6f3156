"""The engine as a child process: its log is passed through and read on the way, its whole tree ends with it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from k25stack.errors import HostError
from k25stack.proc import children, die_with, start_time
from k25stack.watch.load import Phases
from k25stack.watch.policy import Policy

PIECE = 1 << 16
LINE = 1 << 14  # bytes of a line without an end that are kept
FRESH_S = 300.0  # a fatal line older than this does not explain an end
KILL_S = 60.0  # a killed engine gives back hundreds of GB first


class Child:
    """One life of the engine.  Raises HostError when the program cannot be started."""

    def __init__(self, policy: Policy, argv: Sequence[str], inherit: tuple[int, ...]) -> None:
        self.phases = Phases(policy.load_markers)
        names = policy.fatal_markers
        self.fatal = {name: re.compile(text.encode()) for name, text in names.items()}
        self.any_fatal = re.compile("|".join(f"(?:{text})" for text in names.values()).encode()) if names else None
        self.marked: tuple[str, str, float] | None = None
        self.gone = threading.Event()
        self.code: int | None = None
        try:
            self.process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                process_group=0,  # a terminal's Ctrl-C comes to us alone
                pass_fds=inherit,
                preexec_fn=die_with(os.getpid()),
            )
        except OSError as error:
            raise HostError(f"cannot be started: {error.strerror}", where=argv[0], remedy="is it installed?") from None
        self.pid = self.process.pid
        self.start = start_time(self.pid)
        self.pump = threading.Thread(target=self._pump, name="log", daemon=True)
        self.pump.start()

    def marker(self) -> tuple[str, str] | None:
        """(name, line) of the newest fatal line of the log, unless it is too old to explain an end."""
        if self.marked is None or time.monotonic() - self.marked[2] > FRESH_S:
            return None
        return self.marked[0], self.marked[1]

    def ended(self, status: int) -> None:
        """Note the status that waitpid gave."""
        code = os.waitstatus_to_exitcode(status)
        self.process.returncode = code  # so that subprocess does not wait for it as well
        self.code = code if code >= 0 else 128 - code
        self.gone.set()

    def signal(self, number: int) -> None:
        if self.code is None:
            os.kill(self.pid, number)  # not waited for yet, so the pid is still its own

    def kill(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self.signal(signal.SIGKILL)

    def finish_log(self) -> None:
        """Wait until the log is passed on whole (whoever holds its other end is dead by now)."""
        self.pump.join(2.0)
        if self.process.stdout is not None and not self.pump.is_alive():
            self.process.stdout.close()

    def _pump(self) -> None:
        assert self.process.stdout is not None
        source, rest = self.process.stdout.fileno(), b""
        while piece := os.read(source, PIECE):
            _write(piece)
            whole, end, tail = piece.replace(b"\r", b"\n").rpartition(b"\n")  # progress bars go back with CR
            if end:
                self._read(rest + whole)
                rest = tail
            else:
                rest += tail
            rest = rest[-LINE:]

    def _read(self, block: bytes) -> None:
        """Whole lines of the log.  While the engine is up, one search per block is all that is done."""
        loading = self.phases.end is None
        if not loading and (self.any_fatal is None or not self.any_fatal.search(block)):
            return
        for line in block.split(b"\n"):
            if loading:
                self.phases.line(line)
            for name, pattern in self.fatal.items():
                if pattern.search(line):
                    self.marked = (name, line[-300:].decode(errors="replace").strip(), time.monotonic())


def _write(data: bytes) -> None:
    """To our own standard output; when nobody reads it any more, the engine goes on without a log."""
    try:
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]
    except OSError:
        return


def kill_rest(group: int) -> set[int]:
    """Kill what an ended engine left behind, and wait for it; returns the processes that do not die.

    Orphans come to us (we adopt them), so whoever is our child now and is no engine is such a leftover.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    deadline = time.monotonic() + KILL_S
    while left := children():
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        reap()
        if time.monotonic() > deadline:
            return children()
        time.sleep(0.005)
    return set()


def reap() -> dict[int, int]:
    """Wait for every child that has ended: pid -> status."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status
