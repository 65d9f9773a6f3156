"""The base system: release, kernel, time, processors, reboots that wait or were not clean."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from k25stack.host import cards as bus
from k25stack.host.check import FAIL, WARN, Judgement, bad, check, in_containers, ok, several
from k25stack.host.checks.driver import kernel_name, newest_kernel
from k25stack.host.parse import topo
from k25stack.host.parse.kernel import os_release
from k25stack.host.parse.values import at_least, keyed_lines, listed, plural, version
from k25stack.host.places import (
    BALANCING,
    BOOTS,
    CHRONY,
    DOCKER_GROUP,
    GOVERNORS,
    KERNELS,
    LSPCI,
    NODES,
    OS_RELEASE,
    PCI_CLASS,
    PCI_NODE,
    PCI_VENDOR,
    PSTORE,
    REBOOT,
    TIME,
    TOPO,
    UNAME,
)
from k25stack.host.profile import Profile
from k25stack.host.seen import Seen, Unseen


@check(
    "os",
    "system",
    severity=FAIL,
    sources=(OS_RELEASE,),
    fix="use one of these releases; the playbooks and checks are made for them",
    source="kubespray preinstall 0040-verify-settings (a list of supported systems)",
)
def system(seen: Seen, profile: Profile) -> Judgement:
    found = os_release(seen.need(OS_RELEASE))
    name = f"{found['ID']} {found.get('VERSION_ID', '')}".strip()
    if not re.fullmatch(r"[\w.-]+( [\w.]+)?", name):
        raise Unseen(f"{OS_RELEASE}: {name!r} is no release")
    if profile.systems and name not in profile.systems:
        return bad(f"{name} is not supported (supported: {listed(profile.systems)})", system=name)
    return ok(name, system=name)


@check(
    "kernel",
    "system",
    severity=WARN,
    sources=(UNAME, KERNELS),
    fix="reboot into the newest installed kernel; install a newer one if that is too old",
    source="Linux releases; needrestart",
)
def kernel(seen: Seen, profile: Profile) -> Judgement:
    running = kernel_name(seen)
    number = version(re.split(r"[-+~]", running)[0])
    if number is None:
        raise Unseen(f"{UNAME}: {running!r}")
    if not at_least(number, profile.kernel_min):
        return bad(f"kernel {running}, needed {profile.kernel_min} or newer", running=running)
    newest = newest_kernel(seen)
    if newest and newest != running:
        return bad(f"kernel {running} runs, {newest} is installed", running=running, newest=newest)
    return ok(f"kernel {running}", running=running, newest=newest)


@check(
    "reboot.pending",
    "system",
    severity=WARN,
    sources=(REBOOT, UNAME, KERNELS),
    fix="reboot when no server runs",
    source="Debian and Ubuntu update-notifier (reboot-required); needrestart",
)
def reboot(seen: Seen, profile: Profile) -> Judgement:
    if seen.text(REBOOT) is not None:
        return bad("packages ask for a reboot (/run/reboot-required)")
    running, newest = kernel_name(seen), newest_kernel(seen)
    if newest and newest != running:
        return bad(f"the next boot takes kernel {newest} instead of {running}", running=running, newest=newest)
    if not seen.lacks(REBOOT) and newest is None:
        seen.need(REBOOT)
    return ok("nothing waits for a reboot", running=running)


@check(
    "boots.unclean",
    "system",
    severity=WARN,
    sources=(BOOTS, PSTORE),
    fix="look at the end of the log before (journalctl -b -1 -e), at the BMC's event log, power and "
    "memory; soak the host",
    source="last(1): a boot without a shutdown before it; kernel pstore; fwupd/fwupd#10896 (hosts that "
    "reset in silence)",
)
def boots(seen: Seen, profile: Profile) -> Judgement:
    dumps = seen.names(PSTORE) if seen.reading(PSTORE) is not None else []
    if dumps:
        return bad(f"the kernel left {plural(len(dumps), 'crash record')} in /sys/fs/pstore", records=len(dumps))
    lines = [line for line in seen.need(BOOTS).splitlines() if line.strip()]
    if not lines or not re.match(r"(wtmp|\S+) begins ", lines[-1]):
        raise Unseen(f"{BOOTS}: this is no list of boots")
    events = []  # newest first
    for line in lines[:-1]:
        found = re.match(r"(reboot|shutdown)\s+(?:system\s+(?:boot|down)|~)\s+(.*)", line)
        if not found:
            raise Unseen(f"{BOOTS}: an odd line: {line}")
        events.append((found.group(1), found.group(2)))
    if not events:
        raise Unseen(f"{BOOTS}: no boot in it")
    unclean = [when for (kind, when), (before, _) in pairwise(events) if kind == before == "reboot"]
    if unclean:
        return bad(
            f"{len(unclean)} of {plural(len(events), 'boot')} without a shutdown before, last {unclean[0][:60]}",
            count=len(unclean),
        )
    return ok("every boot that is on record followed a shutdown", events=len(events))


@check(
    "time",
    "system",
    severity=WARN,
    sources=(TIME, CHRONY),
    fix="install chrony or systemd-timesyncd; timedatectl set-ntp true",
    repair=lambda seen, profile: [("timedatectl", "set-ntp", "true")],
    source="systemd timedatectl; chronyc manual: logs of several writers are merged by time",
)
def clock(seen: Seen, profile: Profile) -> Judgement:
    told = keyed_lines(seen.text(TIME) or "").get("NTPSynchronized")
    row = (seen.text(CHRONY) or "").strip().split(",")
    offset = float(row[4]) if len(row) >= 14 and re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", row[4]) else None
    if offset is not None and abs(offset) >= 1:
        return bad(f"the clock is off by {offset:.3f} s", offset_s=offset)
    if told == "yes" or (offset is not None and row[0] not in ("", "00000000")):
        return ok(
            "the clock is synchronised" + ("" if offset is None else f" (off by {offset:.6f} s)"), offset_s=offset
        )
    if told == "no":
        return bad("the clock is not synchronised")
    seen.need(TIME)
    raise Unseen(f"{TIME}: no NTPSynchronized in it")


@check(
    "numa.affinity",
    "system",
    severity=WARN,
    sources=(TOPO, PCI_NODE, PCI_VENDOR, PCI_CLASS, NODES, LSPCI),
    applies=several,
    fix="BIOS: NUMA nodes per socket (NPS), memory in every node's slots; pin each rank to its card's node",
    source="NVIDIA nvidia-smi manual (topo -m affinity columns); local-inference-lab/rtx6kpro hardware/topology.md",
)
def numa(seen: Seen, profile: Profile) -> Judgement:
    where = _card_nodes(seen)
    if not where:
        seen.need(TOPO)
        raise Unseen("neither nvidia-smi topo -m nor sysfs tells the cards' NUMA nodes")
    figures: dict[str, Any] = {"nodes": where}
    if any(node in ("-1", "N/A") for node in where) and len(set(where)) > 1:
        return bad("some cards belong to no NUMA node", **figures)
    counts = {node: where.count(node) for node in sorted(set(where))}
    if len(set(counts.values())) > 1:
        return bad(
            f"cards are split unevenly: {listed(f'{count} on node {node}' for node, count in counts.items())}",
            **figures,
        )
    memory = seen.group(NODES) if any(NODES.pattern.fullmatch(place) for place in seen.readings) else {}
    if bare := [place.split("/")[-2] for place, text in memory.items() if re.search(r"MemTotal:\s+0 kB", text)]:
        return bad(f"no memory on {listed(bare)}", **figures)
    return ok(listed(f"{plural(count, 'card')} on node {node}" for node, count in counts.items()), **figures)


def _card_nodes(seen: Seen) -> list[str]:
    """NUMA node of each card as text; empty when it is not told."""
    text = seen.text(TOPO)
    if text is not None:
        found = topo.parse_links(text)
        if len(found.nodes) == found.count:
            return [found.nodes[card] for card in range(found.count)]
    try:
        nodes, addresses = seen.group(PCI_NODE), bus.on_bus(seen) or []
    except Unseen:
        return []
    found_nodes = [nodes.get(f"sys/bus/pci/devices/{address}/numa_node", "").strip() for address in addresses]
    return found_nodes if all(re.fullmatch(r"-?\d+", node) for node in found_nodes) else []


@check(
    "numa.balancing",
    "system",
    severity=WARN,
    sources=(BALANCING,),
    fix="sysctl -w kernel.numa_balancing=0 (and in /etc/sysctl.d)",
    repair=lambda seen, profile: [("sysctl", "-w", "kernel.numa_balancing=0")],
    source="SGLang documentation; local-inference-lab/rtx6kpro",
)
def balancing(seen: Seen, profile: Profile) -> Judgement:
    if seen.lacks(BALANCING):
        return ok("this kernel does not balance memory between NUMA nodes")
    value = seen.need(BALANCING).strip()
    if value == "0":
        return ok("memory stays on its NUMA node")
    if value in ("1", "2", "3"):
        return bad("the kernel moves memory between NUMA nodes while the server runs", value=value)
    raise Unseen(f"{BALANCING}: {value!r}")


@check(
    "cpu.governor",
    "system",
    severity=WARN,
    sources=(GOVERNORS,),
    fix="cpupower frequency-set -g performance, kept by a unit (playbook role base)",
    repair=lambda seen, profile: [("cpupower", "frequency-set", "-g", "performance")],
    source="Linux cpufreq documentation; local-inference-lab/rtx6kpro",
)
def governor(seen: Seen, profile: Profile) -> Judgement:
    found = sorted({text.strip() for text in seen.group(GOVERNORS).values()})
    if not found:
        return ok("no frequency scaling on this machine")
    if odd := [name for name in found if not re.fullmatch(r"[a-z]{4,20}", name)]:
        raise Unseen(f"{GOVERNORS}: {odd[0]!r} is no governor")
    if found != ["performance"]:
        return bad(f"frequency governor {listed(found)}", governors=found)
    return ok("frequency governor performance", governors=found)


@check(
    "user.groups",
    "system",
    severity=WARN,
    sources=(DOCKER_GROUP,),
    applies=in_containers,
    fix="add the operator with usermod -aG docker (they are root in effect), or use rootless Docker",
    source="Docker documentation: post-installation steps, the docker group is root",
)
def groups(seen: Seen, profile: Profile) -> Judgement:
    reading = seen.reading(DOCKER_GROUP)
    if reading is not None and reading.rc == 2 and not reading.text.strip():
        return bad("there is no group docker: only root reaches the daemon")
    found = re.fullmatch(r"docker:[^:]*:\d+:(.*)", seen.need(DOCKER_GROUP).strip())
    if not found or not re.fullmatch(r"[\w.,@$-]*", found.group(1)):
        raise Unseen(f"{DOCKER_GROUP}: this is no group")
    members = [name for name in found.group(1).split(",") if name]
    who = f"{listed(members)} reach Docker and so are root in effect" if members else "only root reaches Docker"
    return ok(who, members=members)
