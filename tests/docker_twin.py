"""A real Docker Engine for tests: dockerd with CDI and the containerd image store, compose and buildx, all from Debian.

Debian 12's own engine is too old for CDI and its compose is the Python one; those of Debian 13 run on Debian 12 beside
its runc (the newer runc wants a newer libc).  Needs root.  By hand: ``eval "$(python tests/docker_twin.py up)"``,
later ``down``.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = Path(os.environ.get("K25_TWIN_DIR", ROOT / "state/twins/docker"))
RUN = Path("/run") / f"k25-twin-{hashlib.sha256(str(HOME).encode()).hexdigest()[:8]}"  # a socket's path is short
BASE = "local/debian:bookworm"
PACKAGES = ("docker.io", "containerd", "docker-cli", "docker-compose", "docker-buildx")
BINARIES = ("dockerd", "docker-proxy", "containerd", "containerd-shim-runc-v2", "ctr", "docker")


@dataclass(frozen=True)
class DockerTwin:
    env: dict[str, str]  # DOCKER_HOST, DOCKER_CONFIG, PATH
    base: str = BASE
    home: Path = HOME

    @property
    def secret_args(self) -> list[str]:
        """Build arguments that hand this machine's certificates and pip settings to a build, never into a layer."""
        given = {"ca": Path("/etc/ssl/certs/ca-certificates.crt"), "pip": Path("/etc/pip.conf")}
        return [word for name, path in given.items() if path.exists() for word in ("--secret", f"id={name},src={path}")]

    def docker(self, *argv: str, timeout_s: float = 120, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", *argv], env={**os.environ, **self.env}, text=True,
            capture_output=True, timeout=timeout_s, check=check,
        )  # fmt: skip


def why_not() -> str:
    """Why no engine can run here; empty when one can."""
    if os.getuid() != 0:
        return "not root"
    if shutil.which("apt-get") is None:
        return "not a Debian or Ubuntu host"
    return ""


def environment() -> dict[str, str]:
    return {
        "DOCKER_HOST": f"unix://{RUN}/docker.sock",
        "DOCKER_CONFIG": str(HOME / "config"),
        "PATH": f"{HOME / 'bin'}:{os.environ['PATH']}",
    }


def up(keep: bool = False) -> tuple[DockerTwin, bool]:
    """The engine, started when it is not there yet; and whether this call started it."""
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        twin = DockerTwin(environment())
        started = not _answers(twin)
        if started:
            _host_packages()
            _programs()
            _start(twin)
        if keep:
            (HOME / "keep").touch()
        if twin.docker("image", "inspect", BASE, check=False).returncode != 0:
            _base_image(twin)
        return twin, started and not (HOME / "keep").exists()


def down() -> None:
    """Stop the engine; images and containers stay in its data directory."""
    (HOME / "keep").unlink(missing_ok=True)
    for name in ("docker.pid", "containerd/containerd.pid"):
        file = RUN / name
        if not file.exists():
            continue
        pid = int(file.read_text())
        try:
            os.kill(pid, signal.SIGTERM)
            for _ in range(200):
                os.kill(pid, 0)
                time.sleep(0.1)
        except ProcessLookupError:
            continue


def _answers(twin: DockerTwin) -> bool:
    return shutil.which("docker", path=twin.env["PATH"]) is not None and (
        twin.docker("version", check=False).returncode == 0
    )


def _host_packages() -> None:
    wanted = {"runc": "docker.io", "docker-init": "docker.io", "iptables": "iptables", "mmdebstrap": "mmdebstrap"}
    missing = [package for program, package in wanted.items() if shutil.which(program) is None]
    if missing:
        _run("apt-get", "update", "-qq")
        _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing, DEBIAN_FRONTEND="noninteractive")


def _programs() -> None:
    """The newer engine, unpacked beside the system's: a private apt state leaves the machine's own sources alone."""
    if all((HOME / "bin" / name).exists() for name in BINARIES):
        return
    apt, debs, tree = HOME / "apt", HOME / "debs", HOME / "tree"
    for path in (apt / "etc/sources.list.d", apt / "lists/partial", apt / "cache/archives/partial", debs):
        path.mkdir(parents=True, exist_ok=True)
    (apt / "etc/sources.list.d/trixie.sources").write_text(
        f"Types: deb\nURIs: {_mirror()}\nSuites: trixie\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    (apt / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "{apt}/etc/sources.list.d";\n'
        f'Dir::State::lists "{apt}/lists";\nDir::Cache "{apt}/cache";\nAPT::Sandbox::User "root";\n'
    )
    _run("apt-get", "update", "-qq", APT_CONFIG=str(apt / "apt.conf"))
    _run("apt-get", "download", "-qq", *PACKAGES, cwd=debs, APT_CONFIG=str(apt / "apt.conf"))
    for deb in debs.glob("*.deb"):
        _run("dpkg", "-x", str(deb), str(tree))
    (HOME / "config/cli-plugins").mkdir(parents=True, exist_ok=True)
    (HOME / "bin").mkdir(exist_ok=True)
    for plugin in (tree / "usr/libexec/docker/cli-plugins").iterdir():
        shutil.copy2(plugin, HOME / "config/cli-plugins")
    for name in BINARIES:
        found = next(
            path for folder in ("usr/bin", "usr/sbin", "usr/libexec/docker") if (path := tree / folder / name).exists()
        )
        shutil.copy2(found, HOME / "bin" / name)
    for path in (apt, debs, tree):
        shutil.rmtree(path)


def _mirror() -> str:
    """The Debian mirror that this machine's own apt asks."""
    for file in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")):
        if file.is_file():
            found = re.search(
                r"^(?:URIs:|deb)\s+(?:\[[^]]*\]\s*)?(\S+/debian/?)\s*$|^deb\s+(\S+/debian/?)\s", file.read_text(), re.M
            )
            if found:
                return next(group for group in found.groups() if group)
    raise RuntimeError("no Debian mirror in /etc/apt/sources.list*")


def _start(twin: DockerTwin) -> None:
    RUN.mkdir(parents=True, exist_ok=True)
    (HOME / "cdi").mkdir(exist_ok=True)
    (HOME / "daemon.json").write_text(
        json.dumps(
            {
                "features": {"cdi": True, "containerd-snapshotter": True},
                "cdi-spec-dirs": [str(HOME / "cdi")],
                "live-restore": True,
                "log-level": "warn",
                "hosts": [f"unix://{RUN}/docker.sock"],
                "data-root": str(HOME / "data"),
                "exec-root": str(RUN),
                "pidfile": str(RUN / "docker.pid"),
            }
        )
    )
    log = (HOME / "dockerd.log").open("ab")
    daemon = subprocess.Popen(
        [str(HOME / "bin/dockerd"), "--config-file", str(HOME / "daemon.json")],
        env={**os.environ, **twin.env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
    for _ in range(300):
        if _answers(twin):
            return
        if daemon.poll() is not None:
            break
        time.sleep(0.2)
    tail = (HOME / "dockerd.log").read_text(errors="replace").splitlines()[-3:]
    raise RuntimeError("dockerd did not start: " + " | ".join(tail))


def _base_image(twin: DockerTwin) -> None:
    tar = HOME / "base.tar"
    _run("mmdebstrap", "--variant=minbase", "--include=ca-certificates", "--quiet", "bookworm", str(tar))
    _run("docker", "import", "--change", "CMD bash", str(tar), BASE, **twin.env)
    tar.unlink()


def _run(*argv: str, cwd: Path | None = None, **env: str) -> None:
    done = subprocess.run(argv, cwd=cwd, env={**os.environ, **env}, text=True, capture_output=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(argv)}: exit {done.returncode}: {done.stderr.strip()[-400:]}")


if __name__ == "__main__":
    if reason := why_not():
        sys.exit(f"error: no Docker twin here: {reason}")
    if sys.argv[1:] == ["down"]:
        down()
    elif sys.argv[1:] == ["up"]:
        for key, value in up(keep=True)[0].env.items():
            print(f"export {key}={shlex.quote(value)}")
    else:
        sys.exit("usage: python tests/docker_twin.py up|down")
