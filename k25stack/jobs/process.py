"""The process backend: a job is a process of this host, kept by a small keeper in its own session (see ``shim.py``).

A handle is the path of the job's control directory ``<root>/<run>/<step>``.  The command that submitted a job may be
killed at any moment: the next one finds the job by (run, step), and knows it by pid and start time, or finds its
``exit.json``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from k25stack.errors import HostError
from k25stack.files import write_json
from k25stack.jobs.control import Control, changed, is_locked, locked, public, read_or_none, wait_for, wait_for_process
from k25stack.jobs.job import Job, State
from k25stack.proc import alive, snapshot, start_time

MARK = "K25_JOB"
BASE = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
PACKAGE_ROOT = Path(__file__).resolve().parents[2]
START_S = 20.0


class ProcessBackend(Control):
    """Runs jobs as processes of this host.  ``inherit`` gives descriptors (a held lease) that keepers keep open."""

    kind = "process"

    def __init__(self, root: Path, inherit: Callable[[], tuple[int, ...]] = tuple) -> None:
        super().__init__(root)
        self.inherit = inherit
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def submit(self, job: Job) -> str:
        directory = self.directory(job)
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory / "lock", f"{job.step} of {job.run} is already running") as own:
            _kill_marked(directory)
            for old in ("exit.json", "pid.json", "owners.json"):
                (directory / old).unlink(missing_ok=True)
            write_json(directory / "job.json", public(job, self.kind) | {"argv": _program(job, directory)})
            with locked(job.lock, f"another run is making {job.step} ({job.lock})") as work:
                self._start(job, directory, (*own, *work, *self.inherit()))
        return str(directory)

    def _start(self, job: Job, directory: Path, fds: tuple[int, ...]) -> None:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "k25stack.jobs.shim", str(directory)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment(job), MARK: str(directory)},
                start_new_session=True,
                pass_fds=fds,
            )
        self._children[str(directory)] = child
        wait_for(lambda: (directory / "pid.json").exists() or child.poll() is not None, START_S)
        if not (directory / "pid.json").exists():
            raise HostError(f"{job.step} could not be started", where=str(job.log), remedy="read the log, run again")

    def poll(self, handle: str) -> State:
        self._reap(handle)
        directory = Path(handle)
        for _ in range(2):  # it may end between the look at its pid and the look at exit.json
            if (ended := read_or_none(directory / "exit.json")) is not None:
                return State("exited", ended["code"], ended["started"], ended["ended"], ended["peak_rss_gb"])
            pids = read_or_none(directory / "pid.json")
            if pids is None and is_locked(directory / "lock"):
                return State("running", started=time.time())
            if pids is not None and alive(pids["pid"], pids["start"]):
                return State("running", started=changed(directory / "job.json"))
        return State("lost", started=changed(directory / "job.json"))

    def wait(self, handle: str, timeout_s: float) -> State:
        keeper = self.roots(handle)
        if keeper:
            wait_for_process(keeper[0], timeout_s)
        return self.poll(handle)

    def roots(self, handle: str) -> list[int]:
        pids = read_or_none(Path(handle) / "pid.json")
        return [] if pids is None or not alive(pids["pid"], pids["start"]) else [int(pids["pid"])]

    def own(self, handle: str, owners: list[int], jobs: Sequence[str] = ()) -> None:
        record = [{"pid": pid, "start": start} for pid in owners if (start := start_time(pid)) is not None]
        write_json(Path(handle) / "owners.json", record)

    def stop(self, handle: str, grace_s: float) -> State:
        directory = Path(handle)
        pids = read_or_none(directory / "pid.json")
        if self.poll(handle).phase == "running" and pids is not None:
            _signal(pids["pid"], pids["start"], signal.SIGTERM)
            if not self._ended(handle, grace_s):
                if pids.get("child"):
                    _signal_group(pids["child"], pids["child_start"])
                if not self._ended(handle, 5.0):
                    _signal(pids["pid"], pids["start"], signal.SIGKILL)
                    self._ended(handle, 5.0)
        _kill_marked(directory)
        return self.poll(handle)

    def forget(self, handle: str) -> None:
        if self.poll(handle).phase == "running":
            raise HostError("a running job cannot be forgotten", where=handle, remedy="stop it first")
        shutil.rmtree(handle, ignore_errors=True)

    def _ended(self, handle: str, within_s: float) -> bool:
        return wait_for(lambda: self.poll(handle).phase != "running", within_s)

    def _reap(self, handle: str) -> None:
        child = self._children.get(handle)
        if child is not None and child.poll() is not None:
            del self._children[handle]


def _program(job: Job, directory: Path) -> list[str]:
    """The job's own argv, or the supervisor that starts it when the job has a policy."""
    if job.policy is None:
        return list(job.argv)
    write_json(directory / "policy.json", dict(job.policy))
    return [sys.executable, "-m", "k25stack.watch.main", "--policy", str(directory / "policy.json"), "--", *job.argv]


def environment(job: Job) -> dict[str, str]:
    """What the program sees: a minimal base, variables passed by name, then what the job declares."""
    names = (*BASE, "PYTHONPATH", *job.pass_env)
    env = {"LANG": "C.UTF-8"} | {name: os.environ[name] for name in names if name in os.environ}
    if "site-packages" not in PACKAGE_ROOT.parts:  # a clone that is not installed
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (env.get("PYTHONPATH"), str(PACKAGE_ROOT))))
    return {**env, **job.env}


def _signal(pid: int, started: int, number: signal.Signals) -> None:
    if alive(pid, started):
        os.kill(pid, number)


def _signal_group(pid: int, started: int) -> None:
    if alive(pid, started):
        os.killpg(pid, signal.SIGKILL)


def _kill_marked(directory: Path) -> None:
    """Kill what is left of a job whose keeper was killed: every process that carries the job's mark."""
    mark = f"{MARK}={directory}".encode()
    for pid in snapshot():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if mark in variables and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
