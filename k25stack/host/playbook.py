"""Run a playbook on the hosts of an inventory, and say by host and role what it did (ansible-runner).

Every run has a private data directory of its own, which goes away with it: ansible-runner keeps variables of earlier
runs otherwise.  A host with a fault in its lines is named and left out; the others go on.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from k25stack.errors import HostError, UsageError
from k25stack.host.collect import Target
from k25stack.host.inventory import read_inventory, without_faults
from k25stack.host.play import HostRun, Watcher

PLAYBOOKS = Path(__file__).resolve().parents[2] / "playbooks"
FORKS = 64
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Order:
    """What to run, where, and how."""

    playbook: Path
    inventory: Path
    limit: str = ""
    tags: str = ""
    check: bool = False  # change nothing, show the differences
    password: str = ""  # of sudo, where the inventory has none
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    order: Order
    hosts: tuple[HostRun, ...]
    seconds: float

    @property
    def exit_code(self) -> int:
        """3 when a host could not be reached or read, else 1 for a failed task, else 0."""
        return max((3 if host.unreached else 1 if host.failure else 0 for host in self.hosts), default=0)


def hosts_of(inventory: Path) -> tuple[list[str], list[HostError]]:
    """(usable hosts, one error per faulty one).  Raises UsageError for the file."""
    found = read_inventory(inventory, opened=True)
    return (
        [one.name for one in found if isinstance(one, Target)],
        [one for one in found if isinstance(one, HostError)],
    )


def run_playbook(order: Order, told: Callable[[str], None] = lambda line: None) -> Run:
    """Run it to its end; ``told`` hears of each task and of what changes.

    Raises UsageError (inventory, limit, playbook), HostError (no ansible-runner).
    """
    began = time.monotonic()
    usable, faulty = hosts_of(order.inventory)
    if not order.playbook.is_file():
        raise UsageError("no such playbook", where=str(order.playbook), remedy="work in a clone of the repository")
    left_out = [HostRun.unusable(error) for error in faulty if _meant(error.where, order.limit, usable)]
    if not usable:
        return Run(order, tuple(left_out), time.monotonic() - began)
    watcher = Watcher(told, order.check)
    with _private_directory() as place:
        inventory = _copied(order.inventory, place) if faulty else order.inventory.absolute()
        status = _ansible(order, inventory, [error.where for error in faulty], place, watcher)
    if status == "canceled":
        raise KeyboardInterrupt
    if not watcher.hosts:
        raise _never_ran(order, watcher.remarks)
    hosts = sorted((*watcher.hosts.values(), *left_out), key=lambda host: host.failure is not None)
    return Run(order, tuple(hosts), time.monotonic() - began)


def _meant(name: str, limit: str, usable: Sequence[str]) -> bool:
    """Whether a faulty host is in the limit; one that names groups may mean any host."""
    patterns = [word for word in re.split(r"[,:]", limit) if word and word[0] not in "!&"]
    if not patterns or any(fnmatch(name, pattern) for pattern in patterns):
        return True
    return not all(any(fnmatch(other, pattern) for other in usable) for pattern in patterns)


@contextmanager
def _private_directory() -> Iterator[Path]:
    """In memory where there is such a place, as passwords pass through it."""
    shared = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="k25-ansible-", dir=shared) as place:
        yield Path(place)


def _copied(inventory: Path, place: Path) -> Path:
    """The inventory without lines that Ansible would refuse as a whole, with its variables beside it."""
    if inventory.suffix in (".yml", ".yaml"):
        return inventory.absolute()
    directory = place / "hosts"
    directory.mkdir()
    for name in ("group_vars", "host_vars"):
        if (inventory.parent / name).is_dir():
            (directory / name).symlink_to((inventory.parent / name).absolute())
    copy = directory / inventory.name
    copy.write_text(without_faults(inventory.read_text(encoding="utf-8")), encoding="utf-8")
    return copy


def _ansible(order: Order, inventory: Path, left_out: Sequence[str], place: Path, watcher: Watcher) -> str:
    try:
        import ansible_runner
    except ImportError:
        raise HostError("no ansible-runner", where="host", remedy="pip install 'k25stack[host]'") from None
    words = ["--forks", str(FORKS)]
    if order.check:
        words += ["--check", "--diff"]
    limits = [*(order.limit.split(",") if order.limit else ["all"]), *(f"!{name}" for name in left_out)]
    if order.limit or left_out:
        words += ["--limit", ",".join(limits)]
    if order.tags:
        words += ["--tags", order.tags]
    done = ansible_runner.run(
        private_data_dir=str(place),
        project_dir=str(order.playbook.absolute().parent),
        playbook=order.playbook.name,
        inventory=str(inventory),
        cmdline=shlex.join(words),
        envvars=_environment(order),
        extravars=dict(order.variables),
        event_handler=watcher.event,
        quiet=True,
        rotate_artifacts=0,
    )
    return str(done.status)


def _environment(order: Order) -> dict[str, str]:
    """No question is ever asked on a terminal: an unknown host key or a missing passphrase is an error at once."""
    env = {
        # ansible-runner turns the check of host keys off unless it is told otherwise.
        "ANSIBLE_HOST_KEY_CHECKING": os.environ.get("ANSIBLE_HOST_KEY_CHECKING", "True"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "SSH_ASKPASS": "/bin/false",
        "SSH_ASKPASS_REQUIRE": "force",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "0",
        "LC_ALL": "C.UTF-8",
    }
    settings = order.playbook.absolute().parent / "ansible.cfg"
    if settings.is_file() and "ANSIBLE_CONFIG" not in os.environ:
        env["ANSIBLE_CONFIG"] = str(settings)
    if order.password:
        env["ANSIBLE_BECOME_PASS"] = order.password
    return env


def _never_ran(order: Order, remarks: Sequence[str]) -> UsageError:
    """Ansible refused before it touched a host."""
    errors = [line for line in remarks if "ERROR" in line] or [line for line in remarks if line.strip()]
    what = errors[0].replace("[ERROR]:", "").replace("ERROR!", "").strip() if errors else "Ansible did not start"
    if "no hosts to target" in what or "does not match any hosts" in what or "no hosts matched" in what:
        return UsageError(f"no host matches {order.limit or 'all'}", where="--limit", remedy=f"see {order.inventory}")
    return UsageError(what, where=str(order.playbook), remedy="ansible-playbook --syntax-check shows the place")
