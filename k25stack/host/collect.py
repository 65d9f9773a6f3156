"""Read a host: this machine, or another one in a single SSH session.  Nothing is changed there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k25stack.errors import HostError
from k25stack.host.script import NO_ROOM, SUDO_FAILED, build, parse
from k25stack.host.seen import ABSENT, Reading, Seen
from k25stack.host.sources import Source

if TYPE_CHECKING:
    import subprocess

LIMIT_S = 12  # for everything that is read, in parallel
CONNECT_S = 8


@dataclass(frozen=True)
class Target:
    """Where to read.  ``address`` "local" is this machine."""

    name: str  # as the user wrote it
    address: str = "local"  # [user@]host
    port: int | None = None
    key: str = ""
    options: tuple[str, ...] = ()  # further arguments of ssh
    become: bool = True  # use sudo where it needs no password, or with the one given
    password: str = ""
    profile: str = ""  # name of the host's profile, "" for the one of the command line

    def __repr__(self) -> str:
        """Without the password."""
        return f"Target({self.name!r}, {self.address!r})"

    @property
    def local(self) -> bool:
        return self.address == "local"


def target_of(text: str) -> Target:
    """``local`` or ``[user@]host[:port]``."""
    if text in ("local", "localhost"):
        return Target("local")
    host, _, port = text.rpartition(":") if re.fullmatch(r"[^:]+:\d{1,5}", text) else (text, "", "")
    return Target(text, host, int(port) if port else None)


def command_for(target: Target, remote: str) -> list[str]:
    """The command line that runs ``remote`` (text for a POSIX shell) on the target."""
    if target.local:
        return ["sh", "-c", remote]
    if not re.fullmatch(r"[A-Za-z0-9_.%:\[\]@+-]+", target.address) or target.address.startswith("-"):
        raise HostError("this is no host", where=target.name, remedy="write [user@]host")
    options = [
        "-o",
        "BatchMode=yes",
        "-o",
        f"ConnectTimeout={CONNECT_S}",
        "-o",
        "ServerAliveInterval=5",
        "-T",
        *target.options,
    ]
    if target.port is not None:
        options += ["-p", str(target.port)]
    if target.key:
        options += ["-i", target.key]
    return ["ssh", *options, "--", target.address, remote]


def collect(target: Target, sources: Sequence[Source], limit_s: int = LIMIT_S) -> Seen:
    """Read all sources at once.  Raises HostError in one line when the host cannot be read."""
    import secrets  # here and below: judging a recording needs neither this nor subprocess, and should start at once

    boundary = "k25x" + secrets.token_hex(12)
    script = build(sources, boundary, limit_s, target.password, target.become)
    done = talk(target, script, limit_s + CONNECT_S + 10)
    if done.returncode == SUDO_FAILED:
        raise HostError(
            "sudo refuses the password", where=target.name, remedy="mend ansible_become_password or K25_BECOME_PASSWORD"
        )
    if done.returncode == NO_ROOM:
        raise HostError(
            "no place for temporary files", where=target.name, remedy="free space in /dev/shm, /run or /tmp"
        )
    try:
        answer = parse(done.stdout, boundary, len(sources))
    except ValueError as error:
        raise _refused(target, done, str(error)) from None
    return seen_of(sources, answer.readings)


def seen_of(sources: Sequence[Source], readings: Sequence[Reading]) -> Seen:
    """Readings by place; what does not exist is remembered as absent."""
    found: dict[str, Reading] = {}
    absent: set[str] = set()
    for source, reading in zip(sources, readings, strict=True):
        if reading.rc == ABSENT and source.kind in ("file", "files"):
            absent.add(source.place)
        elif source.kind == "files" and reading.rc == 0:
            found.update(split_files(source, reading.text))
        else:
            found[source.place] = reading
    return Seen(found, frozenset(absent))


def split_files(source: Source, text: str) -> dict[str, Reading]:
    """``path:line`` lines of grep -> the files.  Paths may hold colons, so the glob tells where they end.

    A star takes as little as it can: lines hold colons more often (YAML) than the last part of a path.
    """
    pattern = re.compile("(/" + source.pattern.pattern.replace("[^/]*", "[^/]*?") + "):(.*)", re.DOTALL)
    lines: dict[str, list[str]] = {}
    for line in text.splitlines(keepends=True):
        match = pattern.fullmatch(line)
        if match:
            lines.setdefault(match.group(1).lstrip("/"), []).append(match.group(2))
    return {place: Reading("".join(parts)) for place, parts in lines.items()}


def talk(target: Target, script: str, timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    """Run a script on the target's shell.  It travels on standard input, as it may hold a password."""
    import subprocess

    argv = ["sh", "-s"] if target.local else command_for(target, "exec sh -s")
    try:
        return subprocess.run(argv, input=script.encode(), capture_output=True, timeout=timeout_s, check=False)
    except FileNotFoundError:
        raise HostError("no ssh on this machine", where=target.name, remedy="install openssh-client") from None
    except subprocess.TimeoutExpired:
        raise HostError(
            f"no answer in {timeout_s:.0f} s", where=target.name, remedy="look at the host's console"
        ) from None


# What ssh prints -> (what it means, what to do); {host} and {address} are the target's.
SSH_TROUBLE = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key has changed",
        "make sure it is the same machine, then ssh-keygen -R {host}",
    ),
    ("Host key verification failed", "its host key is not known", "connect once by hand: ssh {address}"),
    ("No matching host key", "no common kind of host key", "try: ssh -v {address}"),
    ("Permission denied", "login refused", "check the user and key: ssh-copy-id, or ansible_ssh_private_key_file"),
    ("Could not resolve hostname", "no such host name", "check the spelling, or set ansible_host"),
    ("Name or service not known", "no such host name", "check the spelling, or set ansible_host"),
    ("Connection refused", "connection refused", "is sshd running, and the port right?"),
    ("timed out", "no answer", "is it on, and the address right?"),
    ("No route to host", "no route to it", "check the network"),
    ("not found", "no POSIX shell there", "install one"),
)


def ssh_trouble(said: str, name: str, address: str) -> HostError | None:
    """What keeps ssh from reaching a host, from what it printed; None when it is nothing known."""
    host = shlex.quote(address.rpartition("@")[2])
    for sign, what, remedy in SSH_TROUBLE:
        if sign in said:
            return HostError(what, where=name, remedy=remedy.format(host=host, address=address))
    return None


def _refused(target: Target, done: subprocess.CompletedProcess[bytes], told: str) -> HostError:
    """Why there was no whole answer, from what ssh printed."""
    said = done.stderr.decode("utf-8", errors="replace")
    if done.returncode != 0 and (known := ssh_trouble(said, target.name, target.address)) is not None:
        return known
    last = (said.strip().splitlines() or [told])[-1]
    return HostError(
        f"{told}: {last}" if last != told else told, where=target.name, remedy=f"try by hand: ssh {target.address} true"
    )
