"""What a Docker Engine says when it does not start a container, in one line with the remedy (standard library only)."""

from __future__ import annotations

import re

from k25stack.errors import HostError

# (pattern of the engine's words, what it means, remedy); the first that fits counts
KNOWN = (
    (r'could not select device driver "cdi"|CDI (?:is|support) (?:not|disabled)',
     "the engine does not do CDI",
     'Docker Engine 25 or newer with "features": {{"cdi": true}} in /etc/docker/daemon.json'),
    (r"could not select device driver",
     "the engine has no GPU runtime",
     "install the NVIDIA container toolkit, nvidia-ctk runtime configure, restart docker (playbooks/site.yml), or CDI"),
    (r"unresolvable CDI devices? (\S+)|CDI device injection failed(?!.*unresolvable)",
     "the host has no such CDI device {0}",
     "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; k25stack check host"),
    (r"unknown or invalid runtime name: (\S+)",
     "the engine has no runtime {0}",
     "nvidia-ctk runtime configure --runtime=docker, restart docker"),
    (r"No such image: (\S+)|pull access denied|manifest unknown|no such image",
     "image {0} is not on this machine",
     "get it: k25stack stack fetch STACK, or build it: k25stack stack build NAME"),
    (r"(?:(/[^\s:\"']+): )?no space left on device",
     "no space left on the disk of {place}",
     "free some there: docker system df, docker image prune, docker builder prune"),
    (r"[Ss]et(?:ting)? r?limit|RLIMIT_|rlimit",
     "the engine may not raise the limits that GPUs need (memlock)",
     "run the engine with LimitMEMLOCK=infinity: k25stack check host"),
    (r"executable file not found in \$PATH|exec (?:python3|bash) failed: No such file",
     "the image lacks the program that is to be started",
     "steps need python3 (3.11 or newer), servers bash too: use an image of k25stack stack build"),
    (r"bind source path does not exist: (\S+)",
     "there is no {0} to mount",
     "make it first"),
    (r"port is already allocated|address already in use",
     "a port of the job is in use",
     "end what listens there, or choose another serving.port"),
)  # fmt: skip


def known(said: str) -> bool:
    """True when `explain` has more to say than the words themselves."""
    return any(re.search(pattern, said) for pattern, _, _ in KNOWN)


def no_space(said: str) -> bool:
    """True when a disk is full: which, is told best by who knows the engine's data directory."""
    return "no space left on device" in said


def explain(said: str, image: str, where: str, root: str = "") -> HostError:
    """The error for what the engine said; its own words stand in it where they are not known.

    ``root``: the engine's data directory, where it is known.
    """
    for pattern, what, remedy in KNOWN:
        found = re.search(pattern, said)
        if found:
            named = next((group for group in found.groups() if group), image).strip("\"',.")
            place = root if root and (not found.group(0).startswith("/") or named.startswith(root)) else named
            if not place.startswith("/"):
                place = "the engine's data directory"
            return HostError(what.format(named, place=place).strip(), where=where, remedy=remedy.format())
    words = " ".join(said.split())
    return HostError(f"the engine refused: {words[:300]}", where=where, remedy="docker logs and journalctl -u docker")


def unreachable(error: object, host: str) -> HostError:
    """No engine answers, or it does not let this user in."""
    said = str(error)
    if "Permission denied" in said or "PermissionError" in said:
        remedy = "join the group docker, log in again"
        return HostError("this user may not use the Docker Engine", where=host, remedy=remedy)
    remedy = "start it (systemctl start docker), or set DOCKER_HOST"
    return HostError("no Docker Engine answers", where=host, remedy=remedy)


def cause_of_end(code: int, out_of_memory: bool, limit_bytes: int, noted: bool) -> str:
    """``what | remedy`` of an end that the exit code alone does not explain; empty for any other."""
    if out_of_memory and code == 137:
        limit = f"its container's limit of {limit_bytes / 1e9:.1f} GB" if limit_bytes else "the host's memory"
        return f"it was killed by the kernel: more than {limit} | raise the limit, or take a smaller batch"
    if code == 137 and not noted:
        what = "its container was killed (exit 137: docker kill, or a stop that took too long)"
        return f"{what} | run again: finished parts are kept"
    return ""
