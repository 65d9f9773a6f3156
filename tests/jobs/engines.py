"""A Docker Engine for tests that restart it, or that need eight cards which are not there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from k25stack.jobs import Mount
from k25stack.jobs.control import wait_for

TINY = "local/k25-jobs:tiny"
PREFIX = sys.base_prefix


class Engine:
    """An engine of its own with live-restore, on its own bridge: it is restarted without disturbing others."""

    def __init__(self, place: Path, name: str = "jobs", address: str = "172.31.254.1/24") -> None:
        self.place, self.address = place, address
        self.run = Path(f"/run/k25-{name}-{os.getpid()}")
        self.socket = f"unix://{self.run}/docker.sock"
        self.bridge = f"k25{name[0]}{os.getpid() % 100000}"
        self.daemon: subprocess.Popen[bytes] | None = None

    def start(self, hook: str = "") -> None:
        """Start it; ``hook`` is a program that stands for the NVIDIA runtime's hook."""
        programs = self.place / "bin"
        for path in (self.run, programs, self.place / "cdi"):
            path.mkdir(parents=True, exist_ok=True)
        if hook:
            (programs / "nvidia-container-runtime-hook").write_text(hook)
            (programs / "nvidia-container-runtime-hook").chmod(0o755)
        if subprocess.run(["ip", "link", "show", self.bridge], capture_output=True, check=False).returncode:
            for words in (
                ["link", "add", self.bridge, "type", "bridge"],
                ["addr", "add", self.address, "dev", self.bridge],
                ["link", "set", self.bridge, "up"],
            ):
                subprocess.run(["ip", *words], check=True)
        settings = {
            "features": {"cdi": True, "containerd-snapshotter": True}, "live-restore": True, "log-level": "warn",
            "hosts": [self.socket], "data-root": str(self.place / "data"), "exec-root": str(self.run),
            "pidfile": str(self.run / "docker.pid"), "bridge": self.bridge, "iptables": False, "ip6tables": False,
            "cdi-spec-dirs": [str(self.place / "cdi")],
        }  # fmt: skip
        (self.place / "daemon.json").write_text(json.dumps(settings))
        log = (self.place / "dockerd.log").open("ab")
        self.daemon = subprocess.Popen(
            ["dockerd", "--config-file", str(self.place / "daemon.json")], stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, start_new_session=True, env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        )  # fmt: skip
        assert wait_for(lambda: self.docker("version").returncode == 0, 60.0), "dockerd did not start"

    def docker(self, *words: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "DOCKER_HOST": self.socket}
        return subprocess.run(["docker", *words], env=env, capture_output=True, text=True, timeout=120)

    def end(self) -> None:
        """Stop the engine; with live-restore its containers go on."""
        assert self.daemon is not None
        self.daemon.terminate()
        self.daemon.wait(60)

    def clear(self) -> None:
        if left := self.docker("ps", "-aq").stdout.split():
            self.docker("rm", "-f", "-v", *left)
        self.end()
        containerd = self.run / "containerd/containerd.pid"
        if containerd.exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(containerd.read_text()), signal.SIGTERM)
        for mounted in (self.place / "data", *self.run.glob("netns/*")):
            subprocess.run(["umount", "-l", str(mounted)], capture_output=True, check=False)
        shutil.rmtree(self.run, ignore_errors=True)
        subprocess.run(["ip", "link", "del", self.bridge], check=False)

    def eight_cards(self) -> None:
        """A CDI description of eight cards that are the null device."""
        devices = []
        for index in range(8):
            nodes = [{"path": f"/dev/nvidia{index}", "hostPath": "/dev/null"}]
            devices.append({"name": str(index), "containerEdits": {"deviceNodes": nodes}})
        spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
        (self.place / "cdi/nvidia.json").write_text(json.dumps(spec))

    def image(self) -> None:
        """Make ``TINY``: nothing but links into this host's /usr, which is mounted, so that no image need be copied."""
        tree = self.place / "empty"
        for name in ("usr", "tmp", "etc", "dev", "proc", "sys", "sbin"):
            (tree / name).mkdir(parents=True, exist_ok=True)
        for name in ("bin", "lib", "lib64"):
            (tree / name).symlink_to(f"usr/{name}")
        (tree / PREFIX.lstrip("/")).mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-cf", str(self.place / "empty.tar"), "-C", str(tree), "."], check=True)
        self.docker("import", "--change", f"ENV PATH={PREFIX}/bin:/usr/bin", str(self.place / "empty.tar"), TINY)


class SmallEngine(Engine):
    """An engine whose data directory is a small tmpfs of its own."""

    def __init__(self, place: Path, size: str) -> None:
        super().__init__(place, "full", "172.31.253.1/24")
        self.data = place / "data"
        self.data.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(self.data)], check=True)

    def resize(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.data)], check=True)

    def fill(self) -> None:
        """Not a byte is left."""
        with (self.data / "fill").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                continue

    def free(self) -> None:
        (self.data / "fill").unlink()


def mounts() -> tuple[Mount, ...]:
    """What the tiny image needs of this host."""
    places = {"/usr"} if PREFIX.startswith("/usr/") else {"/usr", PREFIX}
    return tuple(Mount(place, place) for place in sorted(places))


HOOK = """#!/bin/sh
# Stands for nvidia-container-runtime-hook: a hook gets the container's state on standard input.
exec cat >/dev/null
"""
