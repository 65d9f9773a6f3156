"""Which NCCL_P2P_LEVEL fits a host, and why: from topology, driver, IOMMU and ACS alone, nothing is measured.

The advice is a starting point for ``host nccl sweep``: low latency for single streams and throughput for many ask for
different settings (local-inference-lab/rtx6kpro models/kimi-k25.md), and only a measurement on the host decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from k25stack.host.parse.topo import P2P_WORDS
from k25stack.host.parse.values import plural
from k25stack.host.peer import PeerFacts, peer_facts
from k25stack.host.places import (
    CMDLINE,
    INFINIBAND,
    IOMMU_MEMBERS,
    IOMMU_TYPES,
    IOMMU_UNITS,
    LSPCI,
    NCCL_FILE,
    P2P_READ,
    P2P_WRITE,
    PCI_CLASS,
    PCI_VENDOR,
    SMI,
    TOPO,
)
from k25stack.host.seen import Seen

# nvidia-smi's word -> the NCCL level that includes such pairs.  NCCL has no NODE: paths through host bridges of one
# NUMA node are PHB to it (nccl src/graph/paths.cc).
LEVEL = {"NV": "NVL", "PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS"}

SOURCES = (
    *(TOPO, P2P_READ, P2P_WRITE, SMI, LSPCI, PCI_VENDOR, PCI_CLASS),
    *(CMDLINE, IOMMU_UNITS, IOMMU_TYPES, IOMMU_MEMBERS, INFINIBAND, NCCL_FILE),
)


@dataclass(frozen=True)
class Advice:
    level: str | None  # value of NCCL_P2P_LEVEL; None: leave it unset
    env: Mapping[str, str]  # what to write to nccl.env
    why: tuple[str, ...]
    mend: tuple[str, ...] = ()  # ids of checks to mend first; the advice changes after that
    certain: bool = True  # False: a fact was missing
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "env": dict(self.env),
            "why": list(self.why),
            "mend": list(self.mend),
            "certain": self.certain,
            "facts": dict(self.facts),
        }


def advise(seen: Seen) -> Advice:
    """Advice for the host that was read: the P2P level, and InfiniBand off where there is none."""
    advice = advise_p2p_level(peer_facts(seen))
    if seen.reading(INFINIBAND) is None or seen.names(INFINIBAND):
        return advice
    why = (*advice.why, "there is no InfiniBand device: NCCL need not look for one")
    return Advice(advice.level, {**advice.env, "NCCL_IB_DISABLE": "1"}, why, advice.mend, advice.certain, advice.facts)


def advise_p2p_level(facts: PeerFacts) -> Advice:
    """The level for these facts, or peer traffic off where it would hang, each with its reasons."""
    if facts.links is None:
        return Advice(None, {}, ("the topology is not known: nothing to advise", *facts.missing), certain=False)
    if facts.links.count < 2:
        return Advice(None, {}, ("one card: NCCL has no peer to talk to",), facts=_figures(facts))
    classes = facts.links.classes()
    farthest = facts.links.farthest()
    why = [f"{plural(count, 'pair')} {word}" for word, count in sorted(classes.items())]
    if set(classes) == {"NV"}:
        why.append("all cards are linked by NVLink: NCCL finds it without help")
        return Advice(None, {}, tuple(why), facts=_figures(facts))
    if broken := _refused(facts):
        return Advice(None, {"NCCL_P2P_DISABLE": "1"}, (*why, broken), ("topo.p2p",), facts=_figures(facts))
    harm, mend = _harm(facts)
    if harm:
        why += [*harm, "until that is mended, peer traffic may hang: shared memory is slower and works"]
        return Advice(None, {"NCCL_P2P_DISABLE": "1"}, tuple(why), tuple(mend), facts=_figures(facts))
    level = LEVEL[farthest]
    why.append(f"the farthest pair is {farthest}: level {level} lets NCCL use peer access for all pairs")
    if level in ("PHB", "SYS"):
        why.append(
            "left to itself NCCL refuses peer access over host bridges with more than two cards (NVIDIA/nccl PR #2080)"
        )
    unsure = facts.missing or not facts.access
    why += [f"not known: {reason}" for reason in facts.missing]
    why.append("allowed is not proven: check host --live copies and compares every pair")
    return Advice(level, {"NCCL_P2P_LEVEL": level}, tuple(why), certain=not unsure, facts=_figures(facts))


def _refused(facts: PeerFacts) -> str:
    for name, matrix in facts.access.items():
        refused = [(pair, word) for pair, word in sorted(matrix.cells.items()) if word != "OK"]
        if refused:
            (one, other), word = refused[0]
            first = f"GPU{one} to GPU{other}: {P2P_WORDS[word]}"
            return f"the driver refuses peer {name} for {len(refused)} directions, first {first}"
    return ""


def _harm(facts: PeerFacts) -> tuple[list[str], list[str]]:
    """Reasons why peer traffic would hang or crawl, and the checks to mend."""
    harm, mend = [], []
    if facts.iommu == "translated":
        harm.append(f"the IOMMU translates the cards' addresses ({facts.iommu_why})")
        mend.append("iommu")
    if facts.redirecting:
        harm.append(f"ACS sends peer traffic up to the root complex at {', '.join(facts.redirecting[:4])}")
        mend.append("acs")
    return harm, mend


def _figures(facts: PeerFacts) -> dict[str, Any]:
    return {
        "pairs": dict(facts.links.classes()) if facts.links else None,
        "iommu": facts.iommu,
        "acs_redirecting": None if facts.redirecting is None else list(facts.redirecting),
        "peer_access": {name: dict(_count(matrix.cells.values())) for name, matrix in facts.access.items()},
    }


def _count(words: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in words:
        found[word] = found.get(word, 0) + 1
    return found
