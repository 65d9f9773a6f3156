"""``docker compose`` for one serving directory: rendered files, chosen values, and what its containers say."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.errors import HostError
from k25stack.proc import run

SECRETS = "/run/k25stack/secrets"
TRIES = 5
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
NO_DOCKER = "install Docker Engine 25 or newer with its compose plugin, and be allowed to use it: k25stack check host"


@dataclass(frozen=True)
class Compose:
    """One compose project.  ``values`` are the variables of the compose file that were chosen here."""

    directory: Path
    file: str
    project: str
    values: Mapping[str, str]
    monitoring: bool = False

    def argv(self, *words: str) -> list[str]:
        """The command line; ``values`` come through the environment, so nothing here depends on a .env file."""
        files = ["-f", self.file, *(["-f", "monitoring.yaml"] if self.monitoring else [])]
        return ["docker", "compose", "--project-directory", ".", "-p", self.project, *files, *words]

    @property
    def env(self) -> dict[str, str]:
        """COMPOSE_FILE and the like of the caller's shell would mean another project."""
        inherited = {
            name: "" for name in os.environ if name.startswith("COMPOSE_") and name != "COMPOSE_PARALLEL_LIMIT"
        }
        return {**inherited, **self.values}

    def run(self, *words: str, timeout_s: float = 120.0, check: bool = True) -> str:
        """Run one command to its end; returns its output.  Raises HostError."""
        done = run(
            self.argv(*words), timeout_s=timeout_s, env=self.env, cwd=self.directory, check=check, remedy=NO_DOCKER
        )
        return done.stdout

    def start(self, *words: str, log: Path) -> subprocess.Popen[bytes]:
        """Run one command beside this one; its output goes to ``log``.  It goes on when this process is killed."""
        with log.open("wb") as out:
            return subprocess.Popen(
                self.argv(*words), cwd=self.directory, env={**os.environ, **self.env}, stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def containers(self) -> dict[str, dict[str, Any]]:
        """Service -> what `docker compose ps` says of it (State, Health, ExitCode, Image, ID)."""
        text = self._listing()
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        flat = [row for item in rows for row in (item if isinstance(item, list) else [item])]
        return {str(row["Service"]): row for row in flat}

    def _listing(self) -> str:
        """Asked again when a container went away while it was being listed."""
        words = self.argv("ps", "--all", "--format", "json")
        for _ in range(TRIES):
            done = run(words, timeout_s=60, env=self.env, cwd=self.directory, check=False, remedy=NO_DOCKER)
            if done.returncode == 0 or "No such container" not in done.stderr:
                break
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise HostError(f"docker compose ps: {said}", where=str(self.directory), remedy=NO_DOCKER)
        return done.stdout

    def tail(self, service: str, lines: int = 12) -> list[str]:
        """The last lines of a service's log; empty when there is none."""
        text = self.run("logs", "--no-log-prefix", "--no-color", "--tail", str(lines), service, check=False)
        return [line for raw in text.splitlines() if (line := ANSI.sub("", raw).strip())]

    def restarts(self, container: str) -> int:
        """How often Docker has started a container again."""
        done = run(["docker", "inspect", "--format", "{{.RestartCount}}", container], timeout_s=30, check=False)
        return int(done.stdout) if done.stdout.strip().isdigit() else 0

    def secret(self, name: str) -> str:
        """A file of the proxy: api-keys or tls.crt."""
        return self.run("exec", "-T", "proxy", "cat", f"{SECRETS}/{name}", timeout_s=30)


def require_docker() -> None:
    """Raises HostError when no Docker Engine with compose answers."""
    done = run(["docker", "compose", "version", "--short"], timeout_s=30, check=False, remedy=NO_DOCKER)
    if done.returncode != 0:
        raise HostError("docker has no compose plugin", where="docker compose version", remedy=NO_DOCKER)
    done = run(["docker", "version", "--format", "{{.Server.Version}}"], timeout_s=30, check=False, remedy=NO_DOCKER)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise HostError(f"no Docker Engine answers: {said}", where="docker version", remedy=NO_DOCKER)


def image_id(image: str) -> str:
    """The id of an image that is here.  Raises HostError when it is not."""
    done = run(["docker", "image", "inspect", "--format", "{{.Id}}", image], timeout_s=60, check=False)
    if done.returncode != 0:
        name = image.partition("/")[2].partition(":")[0]
        own = image.startswith("k25stack/") and "@" not in image  # a digest cannot be built, only fetched
        raise HostError(f"no image {image} on this host", where="docker image inspect",
                        remedy=f"k25stack stack build {name}" if own else f"docker pull {image}")  # fmt: skip
    return done.stdout.strip()


def keep_image(image: str) -> str:
    """A name for exactly this image that a later build does not take away; returns it."""
    found = image_id(image)
    kept = f"{image.partition('@')[0].rpartition(':')[0] or image}:kept-{found.removeprefix('sha256:')[:12]}"
    run(["docker", "tag", found, kept], timeout_s=60)
    return kept


def keys_of(text: str) -> list[tuple[str, str, str]]:
    """(name, role, key) of every line of an api-keys file."""
    words = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [(one[0], one[1], one[2]) for one in words if len(one) == 3]


def key_for(text: str, role: str, where: Sequence[str] = ()) -> str:
    """The first key of a role.  Raises HostError when there is none."""
    for _, found, key in keys_of(text):
        if found == role:
            return key
    raise HostError(
        f"no key of role {role}", where="api-keys", remedy=f'add a line "NAME {role} KEY" and restart the proxy'
    )
