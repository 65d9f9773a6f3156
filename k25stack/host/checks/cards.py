"""Are the right cards there, whole and free?"""

from __future__ import annotations

import re
from typing import Any

from k25stack.host import cards as bus
from k25stack.host.check import FAIL, WARN, Judgement, bad, cards, check, ok
from k25stack.host.known import bad_version
from k25stack.host.lease import lease_of
from k25stack.host.parse import smi
from k25stack.host.parse.values import line_with, listed, number, plural
from k25stack.host.places import LEASE, LSPCI, PCI_CLASS, PCI_VENDOR, PROCESSES, SMI, SMI_CC
from k25stack.host.profile import Profile
from k25stack.host.seen import Seen, Unseen

FREE_MIB = 1024  # the driver and a display take less

LOST = re.compile(r"GPU is lost|Unable to determine the device handle|fallen off the bus", re.IGNORECASE)


@check(
    "gpu.count",
    "cards",
    severity=FAIL,
    sources=(SMI, PCI_VENDOR, PCI_CLASS, LSPCI),
    applies=cards,
    fix="look for Xid 79 in the kernel log; reset or reseat the missing card, then reboot",
    source="azurehpc-health-checks check_gpu_count; NVIDIA Xid catalogue (79)",
)
def count(seen: Seen, profile: Profile) -> Judgement:
    reading = seen.reading(SMI)
    whole = reading is not None and reading.rc == 0 and "</nvidia_smi_log>" in reading.text
    if reading is not None and not whole and (gone := line_with(LOST, reading.text)):
        return bad(f"a card has fallen off the bus: {gone}")
    if reading is not None and "No devices were found" in reading.text:
        return bad(f"the driver sees no card, expected {profile.gpus}", seen=0)
    found = smi.parse(seen.need(SMI))
    on_bus = bus.on_bus(seen)
    figures: dict[str, Any] = {
        "driver": len(found.gpus),
        "bus": None if on_bus is None else len(on_bus),
        "expected": profile.gpus,
    }
    if lost := [gpu for gpu in found.gpus if gpu.lost]:
        return bad(f"{listed(lost)} of {len(found.gpus)} lost", **figures)
    if found.attached not in (None, len(found.gpus)):
        return bad(f"the driver counts {found.attached} cards and describes {len(found.gpus)}", **figures)
    if on_bus is not None and len(on_bus) != len(found.gpus):
        return bad(f"{plural(len(on_bus), 'card')} on the bus, {len(found.gpus)} in the driver", **figures)
    if len(found.gpus) != profile.gpus:
        return bad(f"{plural(len(found.gpus), 'card')}, expected {profile.gpus}", **figures)
    aside = "" if on_bus is not None else " (the bus was not listed)"
    return ok(f"{plural(profile.gpus, 'card')} on the bus and in the driver{aside}", **figures)


@check(
    "gpu.model",
    "cards",
    severity=FAIL,
    sources=(SMI,),
    applies=cards,
    fix="choose the profile of this card (k25stack check host --profile ...); do not mix models in one server",
    source="local-inference-lab/rtx6kpro hardware/gpu-configs.md",
)
def model(seen: Seen, profile: Profile) -> Judgement:
    names = smi.parse(seen.need(SMI)).texts("product_name")
    kinds = sorted(set(names))
    if len(kinds) > 1:
        return bad(f"different models: {listed(kinds)}", models=kinds)
    if not profile.is_model(kinds[0]):
        return bad(f"{kinds[0]} is no card of profile {profile.name}", models=kinds)
    return ok(kinds[0], models=kinds)


@check(
    "gpu.memory",
    "cards",
    severity=FAIL,
    sources=(SMI,),
    applies=cards,
    fix="a card with less memory than its model has is faulty, or MIG or confidential computing takes a share",
    source="nvidia-smi of RTX PRO 6000 cards: 97,887 MiB in all, 637 MiB reserved",
)
def memory(seen: Seen, profile: Profile) -> Judgement:
    totals = smi.parse(seen.need(SMI)).numbers("MiB", "fb_memory_usage/total")
    small = [f"GPU {index}: {total:.0f} MiB" for index, total in enumerate(totals) if total < profile.gpu_memory_mib]
    if small:
        return bad(f"less than {profile.gpu_memory_mib} MiB: {listed(small)}", mib=totals)
    return ok(f"at least {min(totals):.0f} MiB each", mib=totals)


@check(
    "gpu.memory_free",
    "cards",
    severity=FAIL,
    sources=(SMI, LEASE),
    applies=cards,
    fix="stop what holds the memory: k25stack status names our own server; other processes by pid",
    source="azurehpc-health-checks; local-inference-lab/rtx6kpro troubleshooting",
)
def memory_free(seen: Seen, profile: Profile) -> Judgement:
    found = smi.parse(seen.need(SMI))
    used = found.numbers("MiB", "fb_memory_usage/used")
    full = [f"GPU {index}: {mib:.0f} MiB" for index, mib in enumerate(used) if mib >= FREE_MIB]
    if not full:
        return ok(f"at most {max(used):.0f} MiB in use", mib=used)
    pids = sorted({process.pid for gpu in found.gpus for process in gpu.processes or ()})
    holder = lease_of(seen)
    by = (
        f", held by {holder['who']}"
        if holder
        else f", pids {listed(pids)}"
        if pids
        else ", by processes not shown here"
    )
    return bad(f"memory in use: {listed(full, 4)}{by}", severity=WARN if holder else None, mib=used, pids=pids)


@check(
    "gpu.foreign",
    "cards",
    severity=WARN,
    sources=(SMI, PROCESSES, LEASE),
    applies=cards,
    fix="end these processes before serving or measuring; a benchmark beside them is marked",
    source="k25stack: figures measured beside other work are not comparable",
)
def foreign(seen: Seen, profile: Profile) -> Judgement:
    found = smi.parse(seen.need(SMI))
    if any(gpu.processes is None for gpu in found.gpus):
        raise Unseen("nvidia-smi -q -x: the processes of a card are not told")
    processes = {one.pid: one for gpu in found.gpus for one in gpu.processes or () if "C" in one.kind}
    parents, users = _family(seen.text(PROCESSES))
    holder = lease_of(seen)
    own = {pid for pid in processes if holder and _descends(pid, int(holder.get("pid") or 0), parents)}
    others = [one for pid, one in sorted(processes.items()) if pid not in own]
    if not others:
        return ok(f"{plural(len(own), 'process')} of our own" if own else "no process on the cards", own=sorted(own))
    named = [f"{one.pid} {one.name.rpartition('/')[2] or '?'} ({users.get(one.pid, 'user unknown')})" for one in others]
    return bad(f"foreign processes: {listed(named, 6)}", pids=[one.pid for one in others])


def _family(text: str | None) -> tuple[dict[int, int], dict[int, str]]:
    """Parent and user by pid from ``ps``; empty where it was not read."""
    rows = [line.split(None, 3) for line in (text or "").splitlines()]
    good = [row for row in rows if len(row) >= 3 and row[0].isdigit() and row[1].isdigit()]
    return {int(row[0]): int(row[1]) for row in good}, {int(row[0]): row[2] for row in good}


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    for _ in range(64):
        if pid == ancestor:
            return True
        if pid not in parents or pid <= 1:
            return False
        pid = parents[pid]
    return False


@check(
    "gpu.cc",
    "cards",
    severity=FAIL,
    sources=(SMI_CC,),
    applies=cards,
    fix="use images whose architecture list names this card (sm_120 for RTX PRO 6000, sm_90 for H200)",
    source="CUDA compute capabilities; vllm docker/versions.json architecture list",
)
def compute_capability(seen: Seen, profile: Profile) -> Judgement:
    found = [line.strip() for line in seen.need(SMI_CC).splitlines() if line.strip()]
    if not found or any(number(line) is None for line in found):
        raise Unseen(f"{SMI_CC}: {smi.first_line(' '.join(found))} is no compute capability")
    if set(found) != {profile.compute_cap}:
        return bad(f"compute capability {listed(sorted(set(found)))}, expected {profile.compute_cap}", found=found)
    return ok(f"compute capability {profile.compute_cap}", found=found)


@check(
    "vbios.known",
    "cards",
    severity=WARN,
    sources=(SMI,),
    applies=cards,
    fix="ask the vendor of the card or server for newer firmware",
    source="k25stack/host/known.yaml (each entry names its source)",
)
def vbios(seen: Seen, profile: Profile) -> Judgement:
    found = smi.parse(seen.need(SMI))
    versions = found.texts("vbios_version")
    for gpu, version in zip(found.gpus, versions, strict=True):
        if entry := bad_version("vbios", version, gpu.name or ""):
            return bad(f"VBIOS {version}: {entry.problem} ({entry.source})", fix=entry.fix, versions=versions)
    kinds = sorted(set(versions))
    if len(kinds) > 1:
        return bad(f"different VBIOS versions: {listed(kinds)}", versions=versions)
    if kinds == ["N/A"]:
        raise Unseen("nvidia-smi -q -x: no VBIOS version told")
    return ok(f"VBIOS {kinds[0]} on all cards, nothing known against it", versions=versions)


@check(
    "mig",
    "cards",
    severity=FAIL,
    sources=(SMI,),
    applies=cards,
    fix="nvidia-smi -mig 0 while nothing uses the cards",
    source="NVIDIA MIG user guide: a split card is not one device to NCCL",
)
def mig(seen: Seen, profile: Profile) -> Judgement:
    found = smi.parse(seen.need(SMI))
    now, then = found.texts("mig_mode/current_mig"), found.texts("mig_mode/pending_mig")
    if odd := sorted({*now, *then} - {"Enabled", "Disabled", "N/A"}):
        raise Unseen(f"nvidia-smi -q -x: MIG mode {listed(odd)}")
    if split := [f"GPU {index}" for index, modes in enumerate(zip(now, then, strict=True)) if "Enabled" in modes]:
        return bad(f"MIG is on or about to be: {listed(split)}", current=now, pending=then)
    return ok("MIG is off", current=now)


@check(
    "compute_mode",
    "cards",
    severity=WARN,
    sources=(SMI,),
    applies=cards,
    fix="nvidia-smi -c 0",
    repair=lambda seen, profile: [("nvidia-smi", "-c", "0")],
    source="NVIDIA nvidia-smi manual: exclusive modes refuse the second process of a card",
)
def compute_mode(seen: Seen, profile: Profile) -> Judgement:
    modes = smi.parse(seen.need(SMI)).texts("compute_mode")
    if other := sorted(set(modes) - {"Default"}):
        return bad(f"compute mode {listed(other)}", modes=modes)
    return ok("compute mode Default", modes=modes)
