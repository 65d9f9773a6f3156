"""Memory of the host: swap, size, pages, limits, shared memory."""

from __future__ import annotations

import re

from k25stack.host.check import FAIL, WARN, Judgement, bad, check, ok
from k25stack.host.checks.docker import containers, with_cards
from k25stack.host.parse.kernel import fstab_swaps, meminfo, swaps
from k25stack.host.parse.values import keyed_lines, listed, number
from k25stack.host.places import CONTAINERS, FSTAB, LIMITS, MEMINFO, SHM, SWAP_UNITS, SWAPS, THP, ULIMIT, UNIT_LIMITS
from k25stack.host.profile import Profile
from k25stack.host.seen import Seen, Unseen

KIB_PER_GIB = 1 << 20
UNITS = {"masked", "disabled", "enabled", "static", "generated", "transient", "alias", "indirect", "linked", "bad"}


def _swapoff(seen: Seen) -> list[tuple[str, ...]]:
    """``swapoff -a`` where memory holds twice what is swapped out.  Raises Unseen elsewhere."""
    used = sum(one.used_kib for one in swaps(seen.need(SWAPS)))
    free = meminfo(seen.need(MEMINFO)).get("MemAvailable", 0)
    if used and 2 * used > free:
        raise Unseen(f"{used / KIB_PER_GIB:.1f} GiB are swapped out, {free / KIB_PER_GIB:.1f} GiB of memory are free")
    return [("swapoff", "-a")]


@check(
    "swap",
    "memory",
    severity=FAIL,
    sources=(SWAPS, FSTAB, SWAP_UNITS),
    applies=lambda p: p.swap == "forbidden",
    fix="swapoff -a; comment the line in /etc/fstab, mask the units (systemctl mask), no zram (playbook role base)",
    repair=lambda seen, profile: _swapoff(seen),
    source="kubespray preinstall 0010-swapoff; azurehpc-health-checks check_hw_swap",
)
def swap(seen: Seen, profile: Profile) -> Judgement:
    active = swaps(seen.need(SWAPS))
    if active:
        total = sum(one.size_kib for one in active) / KIB_PER_GIB
        return bad(f"{total:.1f} GiB of swap is on: {listed(one.device for one in active)}", total_gib=round(total, 2))
    table = seen.text(FSTAB)
    again = fstab_swaps(table) if table is not None else []
    if again:
        return bad(f"swap is off now and comes back at the next boot: /etc/fstab has {listed(again)}", fstab=again)
    units = _swap_units(seen.text(SWAP_UNITS) or "")
    if units:
        return bad(f"swap is off now, systemd starts it again: {listed(units)}", units=units)
    return ok("no swap, and nothing brings it back")


def _swap_units(text: str) -> list[str]:
    """Swap units that are not masked.  Raises Unseen."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        if len(words) < 2 or not words[0].endswith(".swap") or words[1].removesuffix("-runtime") not in UNITS:
            raise Unseen(f"{SWAP_UNITS}: an odd line: {line.strip()}")
        if words[1].removesuffix("-runtime") not in ("masked", "disabled"):
            found.append(words[0])
    return found


@check(
    "memory.total",
    "memory",
    severity=WARN,
    sources=(MEMINFO,),
    applies=lambda p: p.memory_gib > 0,
    fix="more memory: the page cache holds the weights (595 GB) between two starts",
    source="Kimi-K2.5 INT4 on disk: 595 GB",
)
def total(seen: Seen, profile: Profile) -> Judgement:
    gib = meminfo(seen.need(MEMINFO))["MemTotal"] / KIB_PER_GIB
    # Firmware and kernel keep a few percent of what is plugged in.
    if gib < 0.95 * profile.memory_gib:
        return bad(f"{gib:.0f} GiB of memory, expected {profile.memory_gib} GiB", gib=round(gib, 1))
    return ok(f"{gib:.0f} GiB of memory", gib=round(gib, 1))


@check(
    "thp",
    "memory",
    severity=WARN,
    sources=(THP,),
    fix="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, kept by tmpfiles.d (playbook role base)",
    repair=lambda seen, profile: [("sh", "-c", f"echo {profile.thp[0]} >/sys/kernel/mm/transparent_hugepage/enabled")],
    source="Linux documentation on transparent huge pages",
)
def huge(seen: Seen, profile: Profile) -> Judgement:
    text = seen.need(THP)
    chosen = re.search(r"\[(always|madvise|never)\]", text)
    if chosen is None or set(text.replace("[", "").replace("]", "").split()) - {"always", "madvise", "never"}:
        raise Unseen(f"{THP}: {text.strip()[:60]!r}")
    if chosen.group(1) not in profile.thp:
        return bad(f"transparent huge pages: {chosen.group(1)}, expected {listed(profile.thp)}", mode=chosen.group(1))
    return ok(f"transparent huge pages: {chosen.group(1)}", mode=chosen.group(1))


@check(
    "hugepages",
    "memory",
    severity=WARN,
    sources=(MEMINFO,),
    fix="sysctl vm.nr_hugepages=0, and remove hugepages= from the kernel command line, unless something uses them",
    source="Linux documentation on hugetlbfs: reserved pages are lost to everybody else",
)
def reserved(seen: Seen, profile: Profile) -> Judgement:
    found = meminfo(seen.need(MEMINFO))
    if "HugePages_Total" not in found:
        return ok("this kernel has no huge pages to reserve")
    gib = found["HugePages_Total"] * found.get("Hugepagesize", 2048) / KIB_PER_GIB
    if gib * KIB_PER_GIB > 0.01 * found["MemTotal"]:
        return bad(f"{gib:.1f} GiB are reserved as huge pages", gib=round(gib, 2))
    return ok("no memory is reserved as huge pages", gib=round(gib, 2))


@check(
    "limits",
    "memory",
    severity=FAIL,
    sources=(ULIMIT, UNIT_LIMITS, LIMITS),
    applies=lambda p: p.gpus > 0,
    fix="memlock unlimited and nofile 65536 in /etc/security/limits.d and as drop-ins of docker and "
    "containerd (playbook role base)",
    source="NVIDIA NCCL documentation: troubleshooting (memlock); SGLang docker/compose.yaml",
)
def limits(seen: Seen, profile: Profile) -> Judgement:
    lines = seen.need(ULIMIT).split()
    if len(lines) != 2 or any(not (word.isdigit() or word == "unlimited") for word in lines):
        raise Unseen(f"{ULIMIT}: {' '.join(lines)[:60]!r}")
    low = _low("this login", lines[0], lines[1], profile.nofile)
    for unit in re.split(r"\n\s*\n", seen.text(UNIT_LIMITS) or ""):
        keys = keyed_lines(unit)
        if keys.get("LoadState") == "loaded":
            low += _low(
                keys.get("Id", "a unit"), keys.get("LimitMEMLOCK", ""), keys.get("LimitNOFILE", ""), profile.nofile
            )
    if low:
        return bad(f"limits are low: {listed(low)}", low=low)
    return ok("memlock is unlimited, enough files may be open", login=lines)


def _low(who: str, memlock: str, nofile: str, wanted: int) -> list[str]:
    found = []
    if memlock not in ("unlimited", "infinity", "18446744073709551615"):
        found.append(f"{who} memlock {memlock or 'not told'}")
    if nofile not in ("unlimited", "infinity", "18446744073709551615") and (number(nofile) or 0) < wanted:
        found.append(f"{who} nofile {nofile or 'not told'}")
    return found


@check(
    "shm",
    "memory",
    severity=FAIL,
    sources=(SHM, CONTAINERS),
    applies=lambda p: p.gpus > 0,
    fix="shm_size: 32g or ipc: host in the compose file; on the host: mount -o remount,size=32G /dev/shm",
    source="vllm-project/vllm#1393, #1710, #6574; production-stack#44: NCCL fails with Docker's default of 64 MiB",
)
def shared(seen: Seen, profile: Profile) -> Judgement:
    rows = [line.split() for line in seen.need(SHM).splitlines() if line.strip()]
    row = rows[-1] if len(rows) > 1 else []
    kib = number(row[1]) if len(row) >= 6 and row[5] == "/dev/shm" else None
    if kib is None:
        raise Unseen(f"{SHM}: no line for /dev/shm")
    gib = kib / KIB_PER_GIB
    small = []
    for one in with_cards(containers(seen) or []):
        size = one.get("shm")
        if one.get("ipc") != "host" and isinstance(size, int) and size < profile.shm_gib << 30:
            small.append(f"{str(one.get('name', '?')).lstrip('/')} {size / (1 << 20):.0f} MiB")
    if small:
        return bad(
            f"containers with too little shared memory: {listed(small)}", containers=small, host_gib=round(gib, 1)
        )
    if gib < profile.shm_gib:
        return bad(f"/dev/shm has {gib:.1f} GiB, needed {profile.shm_gib} GiB", host_gib=round(gib, 1))
    return ok(f"/dev/shm has {gib:.0f} GiB", host_gib=round(gib, 1))
