"""Do the cards sit in their slots as they should: speed, width, replays, power saving, BAR1?"""

from __future__ import annotations

import re

from k25stack.host import cards as bus
from k25stack.host.check import FAIL, WARN, Judgement, bad, cards, check, ok
from k25stack.host.parse import lspci, smi
from k25stack.host.parse.kernel import cmdline
from k25stack.host.parse.values import listed
from k25stack.host.places import AER, CMDLINE, LSPCI, SMI
from k25stack.host.profile import Profile
from k25stack.host.seen import Seen, Unseen

LINK = "pci/pci_gpu_link_info/"


@check(
    "pcie.gen",
    "pcie",
    severity=WARN,
    sources=(SMI,),
    applies=lambda p: p.gpus > 0 and p.pcie_gen > 0,
    fix="BIOS: slot speed to Gen5 (not Auto); risers, cables and retimers rated for it; the present "
    "speed counts under load only",
    source="nvidia-smi samples: idle cards run at generation 1; local-inference-lab/rtx6kpro "
    "hardware/pcie-bandwidth.md",
)
def generation(seen: Seen, profile: Profile) -> Judgement:
    found = smi.parse(seen.need(SMI))
    reachable = found.numbers("", f"{LINK}pcie_gen/max_link_gen")
    slow = []
    for gpu, best in zip(found.gpus, reachable, strict=True):
        if best < profile.pcie_gen:
            host = gpu.number("", f"{LINK}pcie_gen/max_host_link_gen")
            slow.append(f"{gpu}: generation {best:g}" + (", all that its slot offers" if host == best else ""))
    if slow:
        return bad(f"expected generation {profile.pcie_gen}: {listed(slow, 4)}", max_link_gen=reachable)
    return ok(f"all cards can reach generation {profile.pcie_gen}", max_link_gen=reachable)


@check(
    "pcie.width",
    "pcie",
    severity=FAIL,
    sources=(SMI,),
    applies=cards,
    fix="reseat the card; check the slot's wiring (bifurcation) and the riser",
    source="deepops NHC check_nv_pcie_link_width; cluster-health PCIe checks",
)
def width(seen: Seen, profile: Profile) -> Judgement:
    found = smi.parse(seen.need(SMI))
    best = found.numbers("x", f"{LINK}link_widths/max_link_width")
    now = found.numbers("x", f"{LINK}link_widths/current_link_width")
    narrow = [
        f"GPU {index}: x{lanes:g}" for index, lanes in enumerate(map(min, best, now)) if lanes < profile.pcie_width
    ]
    if narrow:
        return bad(f"expected x{profile.pcie_width}: {listed(narrow)}", maximum=best, current=now)
    return ok(f"at least x{min(now):g} on all cards", current=now)


@check(
    "pcie.replay",
    "pcie",
    severity=WARN,
    sources=(SMI, AER),
    applies=cards,
    fix="a bad link: reseat the card, exchange cable, riser or retimer; look again after an hour of load",
    source="gpud pci component; NVIDIA nvidia-smi manual (replay counter); Linux PCIe AER statistics",
)
def replays(seen: Seen, profile: Profile) -> Judgement:
    found = smi.parse(seen.need(SMI))
    counts = found.numbers("", "pci/replay_counter")
    rolled = found.numbers("", "pci/replay_rollover_counter")
    if repeated := [
        f"GPU {index}: {count:g}" for index, count in enumerate(map(sum, zip(counts, rolled, strict=True))) if count
    ]:
        return bad(f"packets were sent again: {listed(repeated)}", replays=counts, rollovers=rolled)
    errors = _aer(seen.text(AER) or "", {bus.gpu_address(gpu.bus) for gpu in found.gpus})
    if errors:
        return bad(f"PCIe errors: {listed(f'{place} {count}' for place, count in errors.items())}", errors=errors)
    return ok("no packet was sent again", replays=counts)


def _aer(text: str, addresses: set[str]) -> dict[str, int]:
    """Totals other than 0 of the cards, from ``.../0000:61:00.0/aer_dev_fatal:TOTAL_ERR_FATAL 0``.  Raises Unseen."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"/sys/bus/pci/devices/([0-9a-f:.]+)/aer_dev_(\w+):TOTAL_ERR_\w+ (\d{1,18})", line.strip())
        if not match and line.strip():
            raise Unseen(f"{AER}: an odd line: {line.strip()}")
        if match and match.group(1) in addresses and int(match.group(3)):
            found[f"{match.group(1)} {match.group(2)}"] = int(match.group(3))
    return found


@check(
    "pcie.aspm",
    "pcie",
    severity=WARN,
    sources=(LSPCI, CMDLINE),
    applies=lambda p: p.gpus > 0 and not p.virtual,
    fix="add pcie_aspm=off to the kernel command line (playbook role pcie_p2p), reboot",
    source="local-inference-lab/rtx6kpro (surprise link down)",
)
def aspm(seen: Seen, profile: Profile) -> Judgement:
    text = seen.text(CMDLINE)
    if text is not None and "off" in cmdline(text).get("pcie_aspm", []):
        return ok("the kernel leaves link power saving off")
    devices = lspci.cards(lspci.parse(seen.need(LSPCI)))
    if not devices:
        raise Unseen("lspci -vvv: no card in it")
    if any(device.aspm is None for device in devices):
        raise Unseen("lspci -vvv: the links of the cards are not readable for this user: run as root")
    if saving := [device.address for device in devices if device.aspm != "Disabled"]:
        return bad(f"link power saving is on: {listed(saving)}", cards=saving)
    return ok("link power saving is off on all cards", cards=[device.address for device in devices])


@check(
    "bar1",
    "pcie",
    severity=FAIL,
    sources=(SMI,),
    applies=cards,
    fix="BIOS: Above 4G Decoding and Resizable BAR on; Workstation cards: display mode selector to compute (headless)",
    source="local-inference-lab/rtx6kpro models/kimi-k25.md (96 GB BAR for P2P); NVIDIA display mode selector",
)
def bar1(seen: Seen, profile: Profile) -> Judgement:
    found = smi.parse(seen.need(SMI))
    window = found.numbers("MiB", "bar1_memory_usage/total")
    memory = found.numbers("MiB", "fb_memory_usage/total")
    small = [
        f"GPU {index}: {size:g} MiB"
        for index, (size, whole) in enumerate(zip(window, memory, strict=True))
        if size < whole
    ]
    if small:
        return bad(f"BAR1 is smaller than the card's memory: {listed(small)}", bar1_mib=window, memory_mib=memory)
    return ok(f"BAR1 covers the memory ({min(window):g} MiB)", bar1_mib=window)
