"""NCCL's environment: names, values and conflicts for its version."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k25stack.contract.finding import Verdict, worst
from k25stack.contract.nccl import check_environment, facts, newest_version, profiles
from k25stack.errors import UsageError


def judged(version: str = "", **env: str) -> list[tuple[str, str]]:
    return [(check.id, check.verdict.value) for check in check_environment(env, version)]


PASS, FAIL, WARN = [("N0", "pass")], "fail", "warn"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, []),
        ({"PATH": "/bin"}, []),
        ({"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS"}, PASS),
        ({"NCCL_PROTO": "ll,simple"}, PASS),  # lists do not mind the case
        ({"NCCL_PROTO": "^LL128"}, PASS),
        ({"NCCL_ALGO": "ring,tree;allreduce:tree"}, PASS),
        ({"NCCL_P2P_LEVEL": "4"}, PASS),  # the old numbers
        ({"NCCL_P2P_LEVEL": "sys"}, [("N2", FAIL)]),  # levels do
        ({"NCCL_P2P_LEVEL": "NODE"}, [("N2", FAIL)]),
        ({"NCCL_PROTO": "LL,Fast"}, [("N2", FAIL)]),
        ({"NCCL_PROTO": ""}, [("N2", FAIL)]),
        ({"NCCL_ALGO": "Ring;Tree"}, [("N2", FAIL)]),
        ({"NCCL_ALGO": "scatter:Ring"}, [("N2", FAIL)]),
        ({"NCCL_BUFFSIZE": "64m"}, [("N2", FAIL)]),
        ({"NCCL_MIN_NCHANNELS": "many"}, [("N2", FAIL)]),
        ({"NCCL_DEBUG": "LOUD"}, [("N2", WARN)]),
        ({"NCCL_P2P_LEVL": "SYS"}, [("N1", FAIL)]),
        ({"NCCL_FASTRAK_X": "1"}, [("N1", WARN)]),  # a plugin may read it
        ({"NCCL_VERSION": "2.27.7-1", "NCCL_HOME": "/usr"}, PASS),  # images set them
        ({"NCCL_BUFFSIZE": ""}, PASS),  # as if it were not set
        ({"NCCL_BUFFSIZE": "0x400000"}, PASS),
        ({"NCCL_MAX_NCHANNELS": "010"}, [("N2", FAIL)]),  # 8 to C
        ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, [("N3", WARN)]),
        ({"NCCL_SHM_DISABLE": "1"}, PASS),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"}, [("N3", WARN)]),
        ({"NCCL_MIN_NCHANNELS": "64", "NCCL_MAX_NCHANNELS": "8"}, [("N3", FAIL)]),
        ({"NCCL_ALGO": "Tree"}, [("N3", FAIL)]),  # no kernel for anything but the all-reduce
        ({"NCCL_ALGO": "allreduce:Tree"}, PASS),
        ({"NCCL_ALGO": "NVLS,Ring", "NCCL_PROTO": "LL"}, PASS),
        ({"NCCL_ALGO": "allreduce:NVLS", "NCCL_PROTO": "LL"}, [("N3", FAIL)]),
        ({"NCCL_PROTO": "LL,LL128,Simple"}, [("N3", WARN)]),  # LL128 between PCIe cards
    ],
)
def test_names_values_and_conflicts(env: dict[str, str], expected: list[tuple[str, str]]) -> None:
    assert judged(**env) == expected


def test_versions_read_different_things() -> None:
    assert judged("2.23.4", NCCL_PROTO="allreduce:LL") == [("N2", FAIL)]
    assert judged("2.24.3", NCCL_PROTO="allreduce:LL") == PASS
    assert judged("2.26.2", NCCL_P2P_LEVEL="P2C") == [("N2", FAIL)]
    assert judged("2.27.3", NCCL_P2P_LEVEL="P2C") == PASS
    assert "PAT" in facts("2.23.4").algorithms
    assert "PAT" not in facts("2.22.3").algorithms
    (check,) = check_environment({"NCCL_GIN_ENABLE": "1"}, "2.26.2")
    assert (check.id, check.verdict) == ("N1", Verdict.WARN)
    assert "from 2." in check.message
    assert judged("2.31.2", NCCL_IB_RAIL_POLICY="x") == [("N1", WARN)]
    assert judged("2.32.3", NCCL_IB_RAIL_POLICY="x") == PASS
    assert judged("2.99.0", NCCL_SOMETHING_NEW="x") == [("N1", "unknown")]
    assert judged("2.99.0", NCCL_P2P_LEVL="SYS") == [("N1", FAIL)]
    with pytest.raises(UsageError):
        facts("newest")


def test_every_profile_is_clean_and_says_where_it_comes_from() -> None:
    assert {"default", "low-latency", "throughput", "diagnosis"} <= set(profiles())
    for profile in profiles().values():
        assert worst(check.verdict for check in check_environment(profile.env)) in (Verdict.PASS, Verdict.UNKNOWN)
        assert profile.meant_for
        assert profile.source
    low = profiles()["low-latency"].env
    assert low == {"NCCL_P2P_LEVEL": "SYS", "NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}
    assert profiles()["throughput"].env["NCCL_P2P_DISABLE"] == "1"


def test_every_finding_has_evidence_and_a_way_out() -> None:
    env = {"NCCL_P2P_LEVEL": "sys", "NCCL_ALGO": "Tree", "NCCL_X": "1", "NCCL_BUFFSIZE": "1m"}
    for check in check_environment(env, newest_version()):
        assert check.evidence
        assert check.fix
        assert "NCCL" in check.source


@settings(deadline=None, max_examples=30)  # the first example reads the table
@given(st.dictionaries(st.sampled_from(sorted(facts().names)), st.text(max_size=20), max_size=4))
def test_any_value_is_judged(env: dict[str, str]) -> None:
    assert all(check.message for check in check_environment(env))


VALUES = st.sampled_from(["", "0", "-1", "\u00b2", "\u0663", "9" * 5000, "0x", "1e3", "^", "^^", "LL;allreduce:^LL",
                          ";;", ":LL", "a:", "Ring,", "sys", "99", "\n", "\ud800", "allreduce:Tree"])  # fmt: skip
NAMES = st.sampled_from([*facts().names, "NCCL_", "NCCL_X"])
OFTEN = st.sampled_from(["NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_ALGO",
                         "NCCL_PROTO", "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE"])  # fmt: skip


@given(st.dictionaries(NAMES | OFTEN, VALUES, max_size=6), st.sampled_from(["", "2.19", "2.21.5", "2.30.7", "2.99"]))
@settings(max_examples=300, deadline=None)
def test_any_values_are_judged(env: dict[str, str], version: str) -> None:
    for check in check_environment(env, version):
        json.dumps(check.as_dict(), allow_nan=False)
