"""Can the cards reach each other?"""

from __future__ import annotations

import re

from k25stack.host.check import FAIL, WARN, Judgement, bad, check, ok, over_pcie, several
from k25stack.host.parse import smi, topo
from k25stack.host.parse.values import keyed_lines, listed, plural
from k25stack.host.peer import redirects, translation
from k25stack.host.places import (
    CMDLINE,
    DRIVER_PARAMS,
    HMM,
    IOMMU_MEMBERS,
    IOMMU_TYPES,
    IOMMU_UNITS,
    LSPCI,
    P2P_NVLINK,
    P2P_READ,
    P2P_WRITE,
    PCI_CLASS,
    PCI_VENDOR,
    SMI,
    TOPO,
)
from k25stack.host.profile import Profile
from k25stack.host.seen import Seen, Unseen


def on_own_metal(profile: Profile) -> bool:
    return profile.p2p and not profile.virtual


@check(
    "topo.matrix",
    "peer",
    severity=WARN,
    sources=(TOPO,),
    applies=several,
    fix="move cards so that pairs that talk most share a switch; k25stack host nccl advise names the level that fits",
    source="NVIDIA nvidia-smi manual (topo -m); local-inference-lab/rtx6kpro hardware/topology.md",
)
def matrix(seen: Seen, profile: Profile) -> Judgement:
    found = topo.parse_links(seen.need(TOPO))
    classes = dict(found.classes())
    if found.count != profile.gpus:
        return bad(f"the topology shows {plural(found.count, 'card')}, expected {profile.gpus}", pairs=classes)
    if profile.link == "nvlink" and set(classes) != {"NV"}:
        return bad(f"pairs without NVLink: {listed(sorted(set(classes) - {'NV'}))}", severity=FAIL, pairs=classes)
    if profile.link == "pcie" and "NV" in classes:
        return bad("NVLink on a host whose profile has none", pairs=classes)
    return ok(", ".join(f"{plural(count, 'pair')} {word}" for word, count in sorted(classes.items())), pairs=classes)


@check(
    "topo.p2p",
    "peer",
    severity=FAIL,
    sources=(P2P_READ, P2P_WRITE, P2P_NVLINK),
    applies=several,
    fix="iommu, acs and p2p.override come first; OK here proves nothing, check host --live does",
    source="local-inference-lab/rtx6kpro#15 (all OK and NCCL hung); NVML nvmlGpuP2PStatus_t",
)
def p2p(seen: Seen, profile: Profile) -> Judgement:
    sources = (P2P_NVLINK,) if profile.link == "nvlink" else (P2P_READ, P2P_WRITE)
    if profile.link == "nvlink" and seen.reading(P2P_NVLINK) is None:
        sources = (P2P_READ,)
    words: dict[str, int] = {}
    for source in sources:
        if source is P2P_WRITE and seen.reading(source) is None:
            continue
        found = topo.parse_p2p(seen.need(source), str(source))
        if found.count != profile.gpus:
            return bad(f"{source} shows {plural(found.count, 'card')}, expected {profile.gpus}")
        for word in found.cells.values():
            words[word] = words.get(word, 0) + 1
    if refused := {word: count for word, count in words.items() if word != "OK"}:
        told = listed(f"{count} directions {word} ({topo.P2P_WORDS[word]})" for word, count in sorted(refused.items()))
        return bad(f"peer access refused: {told}", words=words)
    return ok("the driver allows peer access for all pairs (proven only with --live)", words=words)


@check(
    "iommu",
    "peer",
    severity=FAIL,
    applies=on_own_metal,
    sources=(CMDLINE, IOMMU_UNITS, IOMMU_TYPES, IOMMU_MEMBERS, PCI_VENDOR, PCI_CLASS, LSPCI),
    fix="kernel arguments amd_iommu=off or iommu=pt (Intel: intel_iommu=off), reboot (playbook role pcie_p2p)",
    source="vllm-project/vllm#33041, NVIDIA/nccl#1999, local-inference-lab/rtx6kpro#15: NCCL hangs with "
    "translated addresses",
)
def iommu(seen: Seen, profile: Profile) -> Judgement:
    state, why = translation(seen)
    if state == "translated":
        return bad(f"the IOMMU translates the cards' addresses: {why}", state=state)
    return ok(f"{state}: {why}", state=state)


@check(
    "acs",
    "peer",
    severity=FAIL,
    sources=(LSPCI,),
    applies=on_own_metal,
    fix="clear it on root and switch ports: setpci -s BDF ECAP_ACS+6.w=0000 at every boot (playbook "
    "role pcie_p2p), or BIOS: ACS off",
    source="NVIDIA/nccl#2079; local-inference-lab/rtx6kpro ASUS ESC8000A page (50 -> 103 GB/s for a pair "
    "on one switch)",
)
def acs(seen: Seen, profile: Profile) -> Judgement:
    found = redirects(seen)
    if found:
        named = [f"{bridge.address} {'+'.join(flags)}" for bridge, flags in found]
        return bad(f"peer traffic is sent up to the root complex: {listed(named, 4)}", bridges=named)
    return ok("no bridge above the cards redirects peer traffic")


@check(
    "uvm.hmm",
    "peer",
    severity=WARN,
    sources=(HMM, SMI),
    applies=over_pcie,
    fix="options nvidia_uvm uvm_disable_hmm=1 in /etc/modprobe.d, reboot (playbook role pcie_p2p)",
    source="local-inference-lab/rtx6kpro models/kimi-k25.md (without it NCCL locks up)",
)
def hmm(seen: Seen, profile: Profile) -> Judgement:
    value = (seen.text(HMM) or "").strip()
    if value in ("Y", "N"):
        return ok("heterogeneous memory management is off") if value == "Y" else bad("uvm_disable_hmm is N")
    if value:
        raise Unseen(f"{HMM}: {value!r}")
    modes = sorted(set(smi.parse(seen.need(SMI)).texts("addressing_mode")))
    if "HMM" in modes:
        return bad("the cards' addressing mode is HMM", modes=modes)
    if modes == ["None"]:
        return ok("the cards' addressing mode is not HMM", modes=modes)
    seen.need(HMM)
    raise Unseen(f"nvidia-smi -q -x: addressing mode {listed(modes)}")


@check(
    "p2p.override",
    "peer",
    severity=WARN,
    sources=(DRIVER_PARAMS, TOPO),
    applies=lambda p: p.p2p and p.custom_all_reduce,
    fix="in /etc/modprobe.d: options nvidia NVreg_RegistryDwords="
    '"ForceP2P=0x11;RMForceP2PType=1;RMPcieP2PType=2;GrdmaPciTopoCheckOverride=1", then reboot',
    source="local-inference-lab/rtx6kpro optimization/pcie-oneshot-allreduce.md (242 against 17 microseconds)",
)
def override(seen: Seen, profile: Profile) -> Judgement:
    parameters = keyed_lines(seen.need(DRIVER_PARAMS), ":")
    if "RegistryDwords" not in parameters:
        raise Unseen(f"{DRIVER_PARAMS}: no RegistryDwords in it")
    forced = re.search(r"ForceP2P=(0x)?[0-9a-fA-F]+", parameters["RegistryDwords"])
    far = set(topo.parse_links(seen.need(TOPO)).classes()) & {"PHB", "NODE", "SYS"}
    if forced:
        return ok(f"{forced.group(0)} is set", dwords=parameters["RegistryDwords"])
    if far:
        return bad(
            f"pairs over host bridges ({listed(sorted(far))}) and no ForceP2P: the engine's own all-reduce is slow"
        )
    return ok("all pairs share switches: no override is needed")
