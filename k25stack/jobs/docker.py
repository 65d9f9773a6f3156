"""The Docker backend: a job is a container of this host's engine, by image digest.

What decides is kept in the control directory, which the container sees under the same path: the keeper inside holds its
lock, writes ``exit.json`` and the log.  So a job is followed and found again without the engine (it may be restarting
with live-restore); the engine is asked to start and stop, and why a container ended without a note.

The container sees the working directory under its own path (specs and inputs hold absolute paths), and this package
under ``/opt/k25stack``: the code that runs is the code whose hash is in the step's key.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from k25stack.errors import HostError
from k25stack.files import write_json
from k25stack.jobs.container import container_name, settings
from k25stack.jobs.control import (
    Control,
    changed,
    is_locked,
    locked,
    public,
    read_or_none,
    try_lock,
    wait_for,
    wait_for_process,
)
from k25stack.jobs.dockererrors import cause_of_end, explain, known, no_space, unreachable
from k25stack.jobs.images import pinned
from k25stack.jobs.job import Job, State
from k25stack.proc import alive, start_time

START_S = 60.0
CALL_S = 60.0
STOP_MARGIN_S = 10.0


class DockerBackend(Control):
    """Runs jobs as containers.  ``workspace`` is mounted under its own path; ``lease`` is the host's lease file."""

    kind = "docker"

    def __init__(self, root: Path, workspace: Path, lease: Path | None = None) -> None:
        super().__init__(root)
        self.workspace = workspace.resolve()
        self.lease = lease
        self._engine: Any = None
        self._pids: dict[str, tuple[int, int]] = {}
        self._owned: dict[str, int] = {}

    # --- what a backend does

    def submit(self, job: Job) -> str:
        """Raises UsageError for an image without digest, HostError when the engine does not start it."""
        image = pinned(job.image or "", job.step)
        directory = self.directory(job)
        directory.mkdir(parents=True, exist_ok=True)
        with (
            locked(directory / "lock", f"{job.step} of {job.run} is already running"),
            locked(job.lock, f"another run is making {job.step} ({job.lock})"),
        ):
            for old in ("exit.json", "pid.json", "owners.json", "container.json", "output.kept"):
                (directory / old).unlink(missing_ok=True)
            values = {name: os.environ[name] for name in job.pass_env if name in os.environ}
            record = {**public(job, self.kind), "pass_env": sorted(values), "memory_bytes": job.memory_bytes}
            record |= {"work_lock": _absolute(job.lock), "lease": _absolute(self.lease), "log": _absolute(job.log)}
            job.log.parent.mkdir(parents=True, exist_ok=True)
            write_json(directory / "job.json", record)
        with self._calls(job.step, image) as engine:
            self._remove(engine, directory)
            about = settings(engine, job, directory, self.root, self.workspace, self.lease, bool(values))
            made = engine.api.create_container(image, **about)
            write_json(directory / "container.json", {"id": made["Id"]})
            if values:
                self._start_with(engine, made["Id"], values)
            else:
                engine.api.start(made["Id"])
        self._wait_up(job, directory)
        return str(directory)

    def poll(self, handle: str) -> State:
        directory = Path(handle)
        begun = changed(directory / "job.json")
        for _ in range(2):  # it may end between the look at its lock and the look at exit.json
            if (ended := read_or_none(directory / "exit.json")) is not None:
                cause = cause_of_end(ended["code"], bool(ended.get("oom_kills")), _limit(directory), noted=True)
                return State("exited", ended["code"], ended["started"], ended["ended"], ended["peak_rss_gb"], cause)
            if is_locked(directory / "lock"):
                return State("running", started=begun)
            status = self._status(directory)
            if status in ("running", "restarting", "paused", "removing"):
                if not _noted(directory):
                    return State("running", started=begun)
                continue
            if status in ("exited", "dead"):
                return self._unnoted(directory, begun)
        return State("lost", started=begun, cause="its container is gone | run again: finished parts are kept")

    def wait(self, handle: str, timeout_s: float) -> State:
        keeper = self.roots(handle)
        if keeper:
            wait_for_process(keeper[0], timeout_s)
        else:
            wait_for(lambda: self.poll(handle).phase != "running", timeout_s)
        return self.poll(handle)

    def stop(self, handle: str, grace_s: float) -> State:
        directory = Path(handle)
        if self._status(directory) in ("running", "restarting", "paused"):
            with self._calls(directory.name, "") as engine:
                engine.api.stop(container_name(directory, self.root), timeout=max(1, round(grace_s)))
            wait_for(lambda: not is_locked(directory / "lock"), STOP_MARGIN_S)
        return self.poll(handle)

    def roots(self, handle: str) -> list[int]:
        """The container's first process, where the engine runs on this host."""
        if handle not in self._pids:
            found = self._inspect(Path(handle))
            pid = int(found["State"]["Pid"]) if found and found["State"].get("Running") else 0
            started = start_time(pid) if pid else None
            if started is None:
                return []
            self._pids[handle] = (pid, started)
        pid, started = self._pids[handle]
        return [pid] if alive(pid, started) else []

    def own(self, handle: str, owners: list[int], jobs: Sequence[str] = ()) -> None:
        """A container sees no process of the host: it looks at locks, this command's own and those of the jobs."""
        directory = Path(handle)
        mine = directory / "owner.lock"
        if os.getpid() in owners and handle not in self._owned:
            self._owned[handle] = os.open(mine, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try_lock(self._owned[handle], fcntl.LOCK_EX)
        locks = [mine, *(Path(job) / "lock" for job in jobs)]
        write_json(directory / "owners.json", [{"lock": str(lock)} for lock in locks])

    def forget(self, handle: str) -> None:
        if self.poll(handle).phase == "running":
            raise HostError("a running job cannot be forgotten", where=handle, remedy="stop it first")
        if (mine := self._owned.pop(handle, None)) is not None:
            os.close(mine)
        self._pids.pop(handle, None)
        with self._calls(Path(handle).name, "") as engine:
            self._remove(engine, Path(handle))
        shutil.rmtree(handle, ignore_errors=True)

    # --- starting

    def _start_with(self, engine: Any, container: str, values: dict[str, str]) -> None:
        """Start it and hand the values over on standard input."""
        link = engine.api.attach_socket(container, params={"stdin": 1, "stream": 1})
        raw = getattr(link, "_sock", link)
        try:
            engine.api.start(container)
            raw.sendall(json.dumps(values).encode() + b"\n")
        finally:
            raw.close()

    def _wait_up(self, job: Job, directory: Path) -> None:
        up = wait_for(lambda: is_locked(directory / "lock") or _noted(directory) or self._over(directory), START_S)
        if not up or (self._over(directory) and not _noted(directory)):
            said = self._keep_output(directory)
            if known(said):
                raise explain(said, job.image or "", job.step)
            last = f": {said.strip().splitlines()[-1]}" if said.strip() else ""
            raise HostError(f"{job.step} could not be started{last}", where=str(job.log), remedy="run again")

    def _over(self, directory: Path) -> bool:
        return self._status(directory) in ("exited", "dead", "")

    # --- asking the engine

    @contextmanager
    def _calls(self, where: str, image: str) -> Iterator[Any]:
        """The engine, with its errors turned into lines that name the remedy."""
        try:
            import docker
            import requests
        except ModuleNotFoundError as error:
            remedy = "pip install 'k25stack[host]'"
            raise HostError(f"{error.name} is not installed", where="the docker backend", remedy=remedy) from None
        try:
            if self._engine is None:
                self._engine = docker.from_env(timeout=int(CALL_S))
            yield self._engine
        except docker.errors.APIError as error:
            said = str(error.explanation or error)
            raise explain(said, image, where, self._data_root() if no_space(said) else "") from None
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            raise unreachable(error, os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")) from None

    def _data_root(self) -> str:
        """Where the engine keeps images and containers; empty when it does not say."""
        import docker
        import requests

        try:
            return str(self._engine.info().get("DockerRootDir", ""))
        except (docker.errors.DockerException, requests.exceptions.RequestException):
            return ""

    def _inspect(self, directory: Path) -> dict[str, Any] | None:
        """What the engine knows of the container; None when it knows none, or does not answer."""
        import docker

        try:
            with self._calls(directory.name, "") as engine:
                try:
                    return dict(engine.api.inspect_container(container_name(directory, self.root)))
                except docker.errors.NotFound:
                    return None
        except HostError:
            return None

    def _status(self, directory: Path) -> str:
        found = self._inspect(directory)
        return "" if found is None else str(found["State"]["Status"])

    def _unnoted(self, directory: Path, begun: float) -> State:
        """A container that ended before its keeper could write why."""
        found = self._inspect(directory)
        code, oom = (int(found["State"]["ExitCode"]), bool(found["State"].get("OOMKilled"))) if found else (137, False)
        self._keep_output(directory)
        cause = cause_of_end(code, oom, _limit(directory), noted=False)
        return State("exited", code, begun, time.time(), 0.0, cause)

    def _keep_output(self, directory: Path) -> str:
        """What went to the engine's own log (the keeper's last words) joins the job's log, once."""
        import docker

        marker = directory / "output.kept"
        if marker.exists() or not directory.exists():
            return ""
        try:
            with self._calls(directory.name, "") as engine:
                said = bytes(engine.api.logs(container_name(directory, self.root), tail=50))
        except (HostError, docker.errors.NotFound):
            return ""
        with self.logs(str(directory)).open("ab") as log:
            log.write(said)
        marker.touch()
        return said.decode(errors="replace")

    def _remove(self, engine: Any, directory: Path) -> None:
        import docker

        try:
            engine.api.remove_container(container_name(directory, self.root), force=True, v=True)
        except docker.errors.NotFound:
            return


def image_id(image: str) -> str:
    """``image`` when its digest is given; else the content hash of what this machine has under the name.

    Raises HostError when it has none, or no engine answers.
    """
    if "@sha256:" in image:
        return image
    backend = DockerBackend(Path(), Path())
    with backend._calls("--image", image) as engine:
        return str(engine.api.inspect_image(image)["Id"])


def _limit(directory: Path) -> int:
    return int((read_or_none(directory / "job.json") or {}).get("memory_bytes", 0))


def _noted(directory: Path) -> bool:
    return (directory / "exit.json").exists()


def _absolute(path: Path | None) -> str:
    return "" if path is None else str(path.resolve())
