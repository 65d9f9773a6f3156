"""Every check on its recorded inputs."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest

from k25stack.host.checks import all_checks, check_named
from k25stack.host.places import IOMMU_UNITS
from k25stack.host.profile import load_profile

from .hosts import cases, profile_of, seen_of


@pytest.mark.parametrize(("id", "case"), [pytest.param(id, case, id=f"{id}-{name}") for id, name, case in cases()])
def test_a_recorded_input_gets_its_verdict(id: str, case: dict[str, Any]) -> None:
    check = check_named(id)
    assert check is not None
    judged = check.judge_seen(seen_of(case), profile_of(case))
    assert judged["verdict"] == case["expect"], judged
    assert case.get("says", "") in judged["message"], judged
    assert bool(judged["fix"]) == (judged["verdict"] != "pass")


def test_every_check_has_an_input_that_passes_one_that_does_not_and_an_odd_one() -> None:
    expected: dict[str, set[str]] = defaultdict(set)
    count: dict[str, int] = defaultdict(int)
    for id, _, case in cases():
        expected[id].add({"warn": "bad", "fail": "bad"}.get(case["expect"], case["expect"]))
        count[id] += 1
    for check in all_checks():
        assert expected[check.id] >= {"pass", "bad", "unknown"}, check.id
        assert count[check.id] >= 3
    assert expected.keys() == {check.id for check in all_checks()}


def test_every_check_says_what_to_do_and_who_says_so() -> None:
    for check in all_checks():
        assert check.fix and check.source and check.sources, check.id
        assert re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)?(/proxy)?", check.id)
        assert check.severity in ("warn", "fail")


def test_a_check_judges_a_text_and_an_exit_code() -> None:
    swap, cdi = check_named("swap"), check_named("iommu")
    assert swap is not None and cdi is not None
    profile = load_profile("8x-rtx-pro-6000")
    header = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
    assert swap.judge(header, 0, profile)["verdict"] == "pass"
    assert swap.judge(header + "/dev/sda2 partition 100 0 -2\n", 0, profile)["verdict"] == "fail"
    assert swap.judge(header, 1, profile)["verdict"] == swap.judge("", 0, profile)["verdict"] == "unknown"
    also = {IOMMU_UNITS: ("", 0)}
    assert cdi.judge("root=/dev/sda1 amd_iommu=off\n", 0, profile, also)["verdict"] == "pass"


def test_a_message_of_a_host_cannot_play_with_the_terminal() -> None:
    system = check_named("os")
    assert system is not None
    judged = system.judge('ID="\x1b[2Jevil"\nVERSION_ID=1\n', 0, load_profile("cpu"))
    assert "\x1b" not in judged["message"] and judged["verdict"] == "unknown"
