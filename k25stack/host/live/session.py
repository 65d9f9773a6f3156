"""The host's side: starts the worker where torch is, asks it one thing after the other, and never waits for ever."""

from __future__ import annotations

import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from k25stack.errors import HostError
from k25stack.host.live.family import FINE, TIMEOUT

PACKAGE = Path(__file__).resolve().parents[3]  # the directory that holds k25stack/
MODULE = "k25stack.host.live.worker"
KILL_S = 20  # for a container to go
GRACE_S = 30  # beyond a job's own limit: Python starts, torch is loaded, children are killed


@dataclass(frozen=True)
class Place:
    """Where the worker runs: a Python of this machine, or a container with the cards."""

    python: str = sys.executable
    image: str = ""  # by name or digest; never pulled

    def argv(self, name: str) -> list[str]:
        """The worker's command line; ``name`` is that of its container."""
        if not self.image:
            return [self.python, "-m", MODULE]
        python = "python3" if self.python == sys.executable else self.python
        return [
            *("docker", "run", "--rm", "--interactive", "--pull=never", "--name", name),
            *("--device", "nvidia.com/gpu=all", "--ipc=host", "--network=host", "--ulimit", "memlock=-1"),
            *("--volume", f"{PACKAGE / 'k25stack'}:/opt/k25live/k25stack:ro", "--env", "PYTHONPATH=/opt/k25live"),
            *("--env", "PYTHONDONTWRITEBYTECODE=1", "--entrypoint", python, self.image, "-m", MODULE),
        ]

    def told(self) -> str:
        return f"image {self.image}" if self.image else self.python


@dataclass
class Answer:
    """What a job printed and how it ended."""

    lines: list[str] = field(default_factory=list)
    code: int = FINE
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    def why(self) -> str:
        """The last remark: why it failed."""
        return next((line.lstrip("# ") for line in reversed(self.lines) if line.startswith("#")), f"exit {self.code}")


class Session:
    """A running worker; the next question after a hang starts a new one.  Use it as a context."""

    def __init__(self, place: Place, keeps: tuple[int, ...] = ()) -> None:
        """``keeps``: descriptors that the worker inherits, the lease's for one."""
        self.place = place
        self.keeps = keeps
        self.process: subprocess.Popen[str] | None = None
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.errors: Any = None
        self.name = f"k25-live-{os.getpid()}"

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def ask(self, job: str, limit_s: float, told: Callable[[str], None] = lambda line: None, **request: Any) -> Answer:
        """One job's answer; ``told`` sees its lines as they come.  A hang is an answer too, with code 124.

        Raises HostError when the worker does not start or dies.
        """
        began = time.monotonic()
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"job": job, "limit_s": limit_s, **request}) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        answer = Answer()
        while True:
            left = began + limit_s + GRACE_S - time.monotonic()
            try:
                line = self.lines.get(timeout=max(left, 0))
            except queue.Empty:
                answer.lines.append(f"# no end after {limit_s:g} s: the worker was killed")
                answer.code = TIMEOUT
                self.stop()
                break
            if line is None:
                raise self._died()
            if line.startswith("# end "):
                answer.code = int(line.split()[2])
                break
            answer.lines.append(line)
            told(line)
        answer.seconds = time.monotonic() - began
        return answer

    def _running(self) -> subprocess.Popen[str]:
        if self.process is not None:
            return self.process
        self.errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.lines = queue.Queue()
        argv = self.place.argv(self.name)
        path = os.pathsep.join([str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
                errors="replace",
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
                pass_fds=self.keeps,
            )
        except OSError as error:
            raise HostError(
                f"{argv[0]}: {error.strerror}", where=shlex.join(argv), remedy="give --python or --image"
            ) from None
        threading.Thread(target=_read, args=(self.process, self.lines), daemon=True).start()
        return self.process

    def _died(self) -> HostError:
        assert self.process is not None
        code = self.process.wait()
        self.errors.seek(0)
        said = [line for line in self.errors.read().splitlines() if line.strip()][-1:] or [f"exit {code}"]
        self.stop()
        remedy = "give --python with a Python that has torch, or --image with one that is here"
        if "CDI device" in said[0] or "device driver" in said[0]:
            remedy = "containers get no card: mend cdi.spec and docker.runtime first"
        return HostError(f"the worker ended: {said[0].strip()}", where=self.place.told(), remedy=remedy)

    def stop(self) -> None:
        """End the worker and all its children, now."""
        if self.process is None:
            return
        process, self.process = self.process, None
        if self.place.image:
            with suppress(subprocess.TimeoutExpired):  # the engine itself may wait for a process that does not die
                subprocess.run(["docker", "rm", "-f", self.name], capture_output=True, timeout=KILL_S, check=False)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # it may wait in the kernel for a dead card: only a reboot ends that
            process.wait(5)
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()
        self.errors.close()


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line.rstrip("\n"))
    lines.put(None)


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """The NCCL variables of a set, for the ranks."""
    return {name: value for name, value in env.items() if name.startswith("NCCL_")}


def pairs_and_all(cards: Sequence[int]) -> list[list[int]]:
    """Which cards to join: the nearest two, the farthest two, all of them."""
    wanted = [[cards[0], cards[1]], [cards[0], cards[-1]], list(cards)] if len(cards) > 1 else []
    return [group for index, group in enumerate(wanted) if group not in wanted[:index]]
