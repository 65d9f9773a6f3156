"""How cards reach each other: the facts about topology, driver, IOMMU and ACS that decide peer-to-peer traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from k25stack.host import cards as bus
from k25stack.host.parse import lspci, topo
from k25stack.host.parse.kernel import cmdline
from k25stack.host.places import CMDLINE, IOMMU_MEMBERS, IOMMU_TYPES, IOMMU_UNITS, LSPCI, P2P_READ, P2P_WRITE, TOPO
from k25stack.host.seen import Seen, Unseen

Translation = Literal["off", "passthrough", "translated", "unknown"]
TRANSLATED = frozenset({"DMA", "DMA-FQ"})
TYPES = TRANSLATED | {"identity", "blocked", "auto"}


@dataclass(frozen=True)
class PeerFacts:
    """What ``advise_p2p_level`` needs.  None and "unknown": not told."""

    links: topo.Matrix | None
    access: Mapping[str, topo.Matrix]  # "read", "write": whether the driver allows it
    iommu: Translation
    iommu_why: str
    redirecting: tuple[str, ...] | None  # bridges above cards whose ACS sends peer traffic to the root complex
    missing: tuple[str, ...]  # why something is unknown


def peer_facts(seen: Seen) -> PeerFacts:
    """Everything that is known; what is not is named in ``missing``."""
    missing: list[str] = []
    links, access = None, {}
    try:
        links = topo.parse_links(seen.need(TOPO))
    except Unseen as reason:
        missing.append(str(reason))
    for name, source in (("read", P2P_READ), ("write", P2P_WRITE)):
        try:
            access[name] = topo.parse_p2p(seen.need(source), str(source))
        except Unseen as reason:
            missing.append(str(reason))
    iommu: Translation = "unknown"
    why = ""
    try:
        iommu, why = translation(seen)
    except Unseen as reason:
        missing.append(str(reason))
    redirecting: tuple[str, ...] | None = None
    try:
        redirecting = tuple(f"{device.address} ({', '.join(flags)})" for device, flags in redirects(seen))
    except Unseen as reason:
        missing.append(str(reason))
    return PeerFacts(links, access, iommu, why, redirecting, tuple(missing))


def translation(seen: Seen) -> tuple[Translation, str]:
    """Whether the IOMMU translates the cards' addresses, and what says so.  Raises Unseen."""
    arguments = cmdline(seen.need(CMDLINE))
    units = seen.names(IOMMU_UNITS) if seen.reading(IOMMU_UNITS) is not None else None
    off = [name for name in ("iommu", "amd_iommu", "intel_iommu") if "off" in arguments.get(name, [])]
    try:
        types = {place.split("/")[-2]: text.strip() for place, text in seen.group(IOMMU_TYPES).items()}
    except Unseen:
        types = {}
    if odd := [kind for kind in types.values() if kind not in TYPES]:
        raise Unseen(f"{IOMMU_TYPES}: {odd[0]!r} is no type of group")
    if not types:
        if units == []:
            return "off", f"the kernel has no IOMMU{_named(off)}"
        if off and units is None:
            return "off", f"switched off on the kernel command line{_named(off)}"
        if "pt" in arguments.get("iommu", []):
            return "passthrough", "iommu=pt on the kernel command line"
        raise Unseen(
            "/sys/kernel/iommu_groups: not collected, and the kernel command line does not switch the IOMMU off"
        )
    groups = _groups_of_cards(seen)
    judged = {group: kind for group, kind in types.items() if groups is None or group in groups}
    whose = "the cards' groups" if groups else "some group"
    if translated := sorted(group for group, kind in judged.items() if kind in TRANSLATED):
        return "translated", f"{whose} {', '.join(translated[:8])}: type {judged[translated[0]]}"
    return "passthrough", f"all {len(judged)} groups that count are of type identity"


def _groups_of_cards(seen: Seen) -> set[str] | None:
    """IOMMU groups that hold a card; None when that is not known."""
    if seen.reading(IOMMU_MEMBERS) is None:
        return None
    addresses = set(bus.on_bus(seen) or ())
    members = [path.split("/") for path in seen.names(IOMMU_MEMBERS)]
    found = {parts[4] for parts in members if len(parts) == 7 and parts[6] in addresses}
    return found or None


def _named(words: list[str]) -> str:
    return f" ({', '.join(f'{word}=off' for word in words)})" if words else ""


def redirects(seen: Seen) -> list[tuple[lspci.Device, list[str]]]:
    """Bridges above cards with ACS flags that harm peer traffic.  Raises Unseen when that cannot be told."""
    devices = lspci.parse(seen.need(LSPCI))
    cards = lspci.cards(devices)
    if not cards:
        raise Unseen("lspci -vvv: no card in it")
    bridges: dict[str, lspci.Device] = {}
    for card in cards:
        chain = lspci.above(card, devices)
        if not chain:
            raise Unseen(f"lspci -vvv: no bridge above {card.address} (a virtual machine hides the real ones)")
        bridges.update({bridge.address: bridge for bridge in chain})
    if denied := [bridge.address for bridge in bridges.values() if bridge.denied]:
        raise Unseen(f"lspci -vvv: the capabilities of {denied[0]} are not readable for this user: run as root")
    return [(bridge, flags) for _, bridge in sorted(bridges.items()) if (flags := lspci.redirects(bridge))]
