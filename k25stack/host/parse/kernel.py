"""Text of the kernel and the base system: command line, log, modules, mounts, meminfo, swaps, sockets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from k25stack.host.seen import Unseen

# At least one of these stands in a real command line; garbage has none.
COMMON = re.compile(r"(?:^|\s)(?:BOOT_IMAGE=|root=|console=|init=|ro(?:\s|$)|rw(?:\s|$)|quiet|initrd=|panic=|pci=)")


def cmdline(text: str) -> dict[str, list[str]]:
    """Kernel arguments by name, each with its values in order.  Raises Unseen for what is no command line."""
    line = text.strip()
    if not line.isprintable() or "\n" in line or not COMMON.search(line):
        raise Unseen("/proc/cmdline: this is no kernel command line")
    found: dict[str, list[str]] = {}
    for word in line.split():
        name, _, value = word.partition("=")
        found.setdefault(name, []).append(value)
    return found


@dataclass(frozen=True)
class Line:
    seconds: float  # since boot
    text: str


def kernel_log(text: str, what: str) -> list[Line]:
    """Lines of dmesg or ``journalctl -k -o short-monotonic``.  Raises Unseen unless nearly all lines are such lines."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("-- ")]
    matches = [re.match(r"(?:<\d+>)?\[\s*(\d+\.\d+)\]\s?(.*)", line) for line in lines]
    found = [Line(float(match.group(1)), match.group(2)) for match in matches if match]
    if not found or len(found) < 0.9 * len(lines):
        raise Unseen(f"{what}: this is no kernel log")
    return found


def modules(text: str) -> set[str]:
    """Names in /proc/modules.  Raises Unseen for other text."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    good = [
        words[0] for words in lines if len(words) >= 6 and words[1].isdigit() and re.fullmatch(r"-?\d+|-", words[2])
    ]
    if not good or len(good) < len(lines):
        raise Unseen("/proc/modules: this is no list of modules")
    return set(good)


@dataclass(frozen=True)
class Mount:
    device: str
    point: str
    kind: str
    options: tuple[str, ...]


def mounts(text: str) -> list[Mount]:
    """/proc/mounts.  Raises Unseen for other text."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    good = [words for words in lines if _is_mount(words)]
    if not good or len(good) < len(lines):
        raise Unseen("/proc/mounts: this is no list of mounts")
    return [Mount(words[0], words[1].replace("\\040", " "), words[2], tuple(words[3].split(","))) for words in good]


def _is_mount(words: list[str]) -> bool:
    return len(words) == 6 and words[1].startswith("/") and words[4].isdigit() and words[5].isdigit()


def mount_of(path: str, found: list[Mount]) -> Mount | None:
    """The mount that holds a path (the last of the longest prefixes)."""
    holding = [m for m in found if path == m.point or path.startswith(m.point.rstrip("/") + "/")]
    return max(holding, key=lambda m: len(m.point), default=None)


def meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in KiB (counts of pages as they are).  Raises Unseen for other text."""
    found = {name: int(value) for name, value in re.findall(r"^(\w[\w()]*):\s+(\d{1,15})(?: kB)?$", text, re.MULTILINE)}
    if "MemTotal" not in found:
        raise Unseen("/proc/meminfo: no MemTotal in it")
    return found


@dataclass(frozen=True)
class Swap:
    device: str
    size_kib: int
    used_kib: int


def swaps(text: str) -> list[Swap]:
    """/proc/swaps.  Raises Unseen for other text, the empty one too."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or lines[0].split() != ["Filename", "Type", "Size", "Used", "Priority"]:
        raise Unseen("/proc/swaps: its header is missing")
    found = []
    for line in lines[1:]:
        words = line.split()
        if len(words) < 5 or not (words[-3].isdigit() and words[-2].isdigit()):
            raise Unseen(f"/proc/swaps: an odd line: {line}")
        found.append(Swap(words[0], int(words[-3]), int(words[-2])))
    return found


def fstab_swaps(text: str) -> list[str]:
    """Devices that fstab turns into swap.  Raises Unseen when a line is none of fstab's."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if not 4 <= len(words) <= 6 and len(words) != 3:
            raise Unseen(f"/etc/fstab: an odd line: {line.strip()}")
        if words[2] == "swap":
            found.append(words[0])
    return found


def os_release(text: str) -> dict[str, str]:
    """Raises Unseen without an ID."""
    found = {name: value.strip().strip("\"'") for name, value in re.findall(r"^([A-Z_]+)=(.*)$", text, re.MULTILINE)}
    if not found.get("ID"):
        raise Unseen("/etc/os-release: no ID in it")
    return found


def listeners(text: str) -> list[tuple[str, int]]:
    """(address, port) of ``ss -H -ltn``.  Raises Unseen when a line is none of its lines."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        local = re.fullmatch(r"(.*):(\d{1,5})", words[3]) if len(words) >= 5 and words[0] == "LISTEN" else None
        if local is None:
            raise Unseen(f"ss -H -ltn: an odd line: {line.strip()}")
        found.append((local.group(1), int(local.group(2))))
    return found
