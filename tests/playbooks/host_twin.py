"""A host for playbooks: a container that runs real systemd, reached over real SSH with sudo."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "k25-playbooks/host:1"
# What systemd needs of a container that is not privileged.
RIGHTS = (
    "--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined", "--cgroupns=host",
    "--tmpfs=/run", "--tmpfs=/run/lock", "--tmpfs=/tmp:exec", "--volume=/sys/fs/cgroup:/sys/fs/cgroup:rw",
)  # fmt: skip


def docker(*argv: str, stdin: str | None = None, check: bool = True) -> str:
    done = subprocess.run(["docker", *argv], input=stdin, text=True, capture_output=True, timeout=240, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"docker {' '.join(argv)}: {done.stderr.strip()[-600:]}")
    return done.stdout


@dataclass(frozen=True)
class Recap:
    """What ``ansible-playbook`` did to one host, its output, exit code and time."""

    rc: int
    text: str
    seconds: float  # wall clock
    cpu_s: float = 0.0  # processor time on the controller
    changed: int = -1
    failed: int = -1
    unreachable: int = -1

    def failures(self) -> list[str]:
        """The message of every failed task."""
        found = []
        for line in self.text.splitlines():
            if line.startswith(("fatal: ", "failed: ")) and "=> " in line:
                found.append(str(json.loads(line.split("=> ", 1)[1]).get("msg", "")))
        return found


@dataclass(frozen=True)
class HostTwin:
    name: str
    address: str
    place: Path  # keys, inventory, known hosts

    def sh(self, script: str, check: bool = True) -> str:
        """Run a script as root on the host, past SSH."""
        return docker("exec", "-i", self.name, "sh", "-s", stdin="set -e\n" + script, check=check)

    def read(self, path: str) -> str:
        return self.sh(f"cat '{path}'")

    def line(self, user: str = "deploy", alias: str = "", **more: str) -> str:
        """This host's line of an inventory."""
        known = f"-o UserKnownHostsFile={self.place}/known_hosts -o StrictHostKeyChecking=yes"
        words = {
            "ansible_host": self.address,
            "ansible_user": user,
            "ansible_ssh_private_key_file": str(self.place / "key"),
            "ansible_ssh_common_args": f"'{known}'",
            **more,
        }
        return " ".join([alias or self.name, *(f"{key}={value}" for key, value in words.items())])

    def play(self, book: str, *words: str, variables: Mapping[str, Any] | None = None, inventory: str = "") -> Recap:
        """Run a playbook against this host, or against an inventory given as text."""
        hosts = self.place / "hosts.ini"
        hosts.write_text((inventory or self.line()) + "\n")
        extra = self.place / "extra.json"
        extra.write_text(json.dumps(dict(variables or {})))
        began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(hosts),
             str(ROOT / "playbooks" / book), "-e", f"@{extra}", *words],
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(ROOT / "playbooks/ansible.cfg"),
                "ANSIBLE_LOCAL_TEMP": str(self.place / "local"),
                "ANSIBLE_SSH_CONTROL_PATH_DIR": "/tmp/k25-cp",  # a socket's path is short
                "ANSIBLE_NOCOLOR": "1",
                "LC_ALL": "C.UTF-8",
            },
            text=True, capture_output=True, timeout=600, check=False,
        )  # fmt: skip
        text, after = done.stdout + done.stderr, resource.getrusage(resource.RUSAGE_CHILDREN)
        (self.place / f"{book}.log").write_text(text)
        counts = {}
        for line in done.stdout.splitlines():
            if line.split(" ")[0] == self.name and " : ok=" in line:
                counts = dict(word.split("=") for word in line.split(":", 1)[1].split())
        return Recap(
            done.returncode, text, round(time.monotonic() - began, 1),
            round(after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime, 1),
            *(int(counts.get(key, -1)) for key in ("changed", "failed", "unreachable")),
        )  # fmt: skip


def build_image() -> None:
    if not docker("image", "ls", "-q", IMAGE).strip():
        docker("build", "-q", "-t", IMAGE, str(Path(__file__).parent / "image"))


def start(name: str, place: Path, *words: str) -> HostTwin:
    """A fresh host that accepts our key."""
    place.mkdir(parents=True, exist_ok=True)
    docker("rm", "-f", name, check=False)
    docker("run", "-d", "--name", name, "--hostname", name, *RIGHTS, *words, IMAGE)
    address = docker("inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name).strip()
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / "key")],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    twin = HostTwin(name, address, place)
    key = (place / "key.pub").read_text().strip()
    wait(lambda: docker("exec", name, "systemctl", "is-active", "ssh", check=False).strip() == "active", "sshd")
    for user in ("deploy", "careful"):
        twin.sh(
            f"install -d -m 700 -o {user} -g {user} /home/{user}/.ssh\n"
            f"echo '{key}' >/home/{user}/.ssh/authorized_keys\nchown {user} /home/{user}/.ssh/authorized_keys"
        )
    host_key = twin.read("/etc/ssh/ssh_host_ed25519_key.pub").split()
    (place / "known_hosts").write_text(f"{address} {host_key[0]} {host_key[1]}\n")
    return twin


def wait(ready: Any, what: str, limit_s: float = 60) -> None:
    """Ask until it is so."""
    deadline = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not ready in {limit_s:.0f} s")
        time.sleep(0.3)
