"""Which NCCL level is advised for which facts."""

from __future__ import annotations

from typing import Any

import pytest

from k25stack.host.advise import advise, advise_p2p_level
from k25stack.host.parse.topo import parse_links
from k25stack.host.peer import peer_facts
from k25stack.host.seen import Seen

from .hosts import seen_of, whole_host

HOST = whole_host("8x-rtx-pro-6000")


def facts_of(**changes: Any) -> Any:
    return peer_facts(seen_of({"expect": "", **changes}))


@pytest.mark.parametrize(
    ("words", "level"),
    [
        ("PHB/SYS", "SYS"),
        ("PIX/PHB", "PHB"),
        ("PIX/NODE", "PHB"),
        ("PIX/PXB", "PXB"),
        ("PIX", "PIX"),
        ("NODE/SYS", "SYS"),
    ],
)
def test_the_level_is_that_of_the_farthest_pair(words: str, level: str) -> None:
    advice = advise_p2p_level(facts_of(topo=words))
    assert advice.level == level
    assert advice.env == {"NCCL_P2P_LEVEL": level}
    assert advice.certain and not advice.mend
    assert any("farthest pair" in why for why in advice.why)


def test_nvlink_needs_no_level() -> None:
    advice = advise_p2p_level(facts_of(topo="NV18"))
    assert advice.level is None and not advice.env


def test_a_translating_iommu_turns_peer_traffic_off_until_it_is_mended() -> None:
    advice = advise_p2p_level(facts_of(sysfs={"gpus": 8, "iommu": "DMA-FQ"}))
    assert advice.env == {"NCCL_P2P_DISABLE": "1"} and advice.mend == ("iommu",)
    assert any("DMA-FQ" in why for why in advice.why)


def test_redirecting_bridges_do_the_same() -> None:
    flags = "SrcValid- TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-"
    advice = advise_p2p_level(facts_of(lspci={"acs": {"root": flags}}))
    assert advice.env == {"NCCL_P2P_DISABLE": "1"} and advice.mend == ("acs",)


def test_a_refusing_driver_turns_it_off() -> None:
    advice = advise_p2p_level(facts_of(p2p={"r": "CNS"}))
    assert advice.env == {"NCCL_P2P_DISABLE": "1"} and advice.mend == ("topo.p2p",)
    assert any("chipset not supported" in why for why in advice.why)


def test_what_is_not_known_is_said() -> None:
    advice = advise_p2p_level(facts_of(without=["cmd/lspci_-vvv", "proc/cmdline"]))
    assert advice.level == "SYS" and not advice.certain
    assert any("lspci" in why for why in advice.why)
    nothing = advise_p2p_level(peer_facts(Seen({})))
    assert nothing.level is None and not nothing.env and not nothing.certain


def test_a_single_card_has_no_peer() -> None:
    advice = advise_p2p_level(facts_of(topo={"words": "PIX", "gpus": 1}))
    assert not advice.env and "no peer" in advice.why[0]


def test_infiniband_is_switched_off_where_there_is_none() -> None:
    seen = seen_of(HOST)
    assert advise(seen).env == {"NCCL_P2P_LEVEL": "SYS", "NCCL_IB_DISABLE": "1"}
    assert advise(seen).as_dict()["facts"]["pairs"] == {"PHB": 12, "SYS": 16}


def test_the_advice_is_valid_for_nccl() -> None:
    from k25stack.host.nccl_env import faults

    for changes in ({}, {"topo": "PIX/PXB"}, {"p2p": {"r": "NS"}}, {"sysfs": {"gpus": 8, "iommu": "DMA"}}):
        assert faults(advise_p2p_level(facts_of(**changes)).env) == []


def test_pairs_are_counted_once() -> None:
    matrix = parse_links("\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV4\tSYS\nGPU1\tNV4\t X \tSYS\nGPU2\tSYS\tSYS\t X \n")
    assert matrix.classes() == {"NV": 1, "SYS": 2} and matrix.farthest() == "SYS"
