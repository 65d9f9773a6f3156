"""Job: everything that is needed to start one program; Backend: whoever starts it (standard library only).

A job outlives the command that submitted it.  Later commands find it again by (run, step).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

GpuRequest = Literal["nvidia", "cdi"]
GPU_LIMITS: Mapping[str, int] = {"memlock": -1, "stack": 67108864, "nofile": 65536}  # NCCL registers memory


@dataclass(frozen=True)
class Mount:
    """What a container sees at ``target``: a host directory, or a named volume when ``source`` has no slash.

    The process backend sees the host itself and needs none.
    """

    source: str
    target: str
    writable: bool = False

    @property
    def is_volume(self) -> bool:
        return not any(sign in self.source for sign in "/$~.")


@dataclass(frozen=True)
class Health:
    """A server is ready once ``GET http://127.0.0.1:<port><path>`` answers 200, at the latest after ``ready_s``."""

    path: str
    port: int
    ready_s: float


@dataclass(frozen=True)
class Ground:
    """What the script of a job proves before it starts the program.  Paths are those the program sees; an empty value
    is not looked at.
    """

    gpu_free_mib: int = 0  # of every card; less means that somebody else holds memory there
    min_driver: str = ""
    cuda: str = ""  # of the image, named in the message about the driver
    models: tuple[str, ...] = ()  # directories whose weight files must be there and whole
    configs: tuple[str, ...] = ()  # directories that need no weights: the engine makes them
    lease: str = ""  # lock file of the host's GPU lease; it must be free
    nccl_file: str = ""  # KEY=VALUE lines under the job's own environment
    nccl_names: tuple[str, ...] = ()  # variables that may stand there
    nccl_levels: tuple[str, ...] = ()  # values of NCCL_P2P_LEVEL; NCCL passes over any other without a word
    jit: str = ""  # directory of compiled kernels, one per image
    jit_env: Mapping[str, str] = field(default_factory=dict)  # variable -> directory below ``jit``


@dataclass(frozen=True)
class Job:
    """One program.  ``argv`` is a list, never a shell line.  ``env`` is all the environment that is declared;
    ``pass_env`` names variables taken from the submitting process (credentials): their values are never written.
    """

    run: str
    step: str
    key: str
    argv: tuple[str, ...]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    image: str | None = None  # with digest; None: no container
    mounts: tuple[Mount, ...] = ()
    gpus: int = 0
    ports: tuple[int, ...] = ()
    shm_bytes: int = 0
    health: Health | None = None
    nodes: int = 1
    lock: Path | None = None  # held while the program runs: two jobs never share a work directory
    orphan_s: float | None = None  # stop the program so long after the last of its ``owners`` is gone; None: never
    gpu_request: GpuRequest = "nvidia"  # how a container asks for its cards
    user: str = ""  # uid:gid in the container; empty: the image's
    workdir: str = ""  # of the program in a container; empty: the image's
    memory_bytes: int = 0  # limit of a container; 0: none
    ulimits: Mapping[str, int] = field(default_factory=dict)  # of a container; -1: none
    network: Literal["host", "none"] = "host"  # of a container
    grace_s: float = 20.0  # between SIGTERM and SIGKILL
    ground: Ground | None = None  # None: nothing is proven first
    policy: Mapping[str, Any] | None = None  # of the supervisor; None: the program runs without one


@dataclass(frozen=True)
class State:
    """Where a job stands.  ``lost``: neither running nor ended in order (its keeper was killed)."""

    phase: Literal["running", "exited", "lost"]
    code: int | None = None  # 128 + signal when a signal ended it
    started: float = 0.0  # seconds since the epoch
    ended: float | None = None
    peak_rss_gb: float = 0.0  # largest sum over the program's process tree
    cause: str = ""  # why it ended, where the backend knows more than the code tells: "what | remedy"

    @property
    def seconds(self) -> float:
        return (self.ended or self.started) - self.started


class Backend(Protocol):
    """What the process, Docker and Slurm backends have in common.  A handle is a plain string."""

    def submit(self, job: Job) -> str:
        """Start the job and return at once.  Raises HostError when it cannot be started."""

    def poll(self, handle: str) -> State:
        """Where it stands now."""

    def wait(self, handle: str, timeout_s: float) -> State:
        """Where it stands once it has ended or the time is over, whichever is first."""

    def logs(self, handle: str) -> Path:
        """The file its output goes to."""

    def stop(self, handle: str, grace_s: float) -> State:
        """Ask it to end, wait up to ``grace_s`` seconds, then kill all that is left of it."""

    def find(self, run: str, step: str) -> str | None:
        """The handle of the newest job of this step of this run, running or ended; None when there is none."""

    def jobs(self, run: str) -> list[str]:
        """Handles of all jobs that are kept of a run."""

    def step(self, handle: str) -> str:
        """The step that the job was submitted for."""

    def key(self, handle: str) -> str:
        """The step key that the job was submitted for."""

    def ports(self, handle: str) -> tuple[int, ...]:
        """The ports that the job was submitted with."""

    def roots(self, handle: str) -> list[int]:
        """Processes of this host that a running job hangs on (empty where the backend runs elsewhere)."""

    def own(self, handle: str, owners: list[int], jobs: Sequence[str] = ()) -> None:
        """Name the processes and jobs that need a scoped service; it ends some time after the last of them."""

    def forget(self, handle: str) -> None:
        """Drop what is kept about an ended job."""
