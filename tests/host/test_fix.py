"""Repairs: only declared ones, run in order, told when they fail, and judged again."""

from __future__ import annotations

from pathlib import Path

import pytest

from k25stack.errors import HostError, UsageError
from k25stack.host.checks import all_checks, check_named
from k25stack.host.collect import Target
from k25stack.host.fix import Repair, apply_repair, check_again, plan_repair
from k25stack.host.profile import load_profile
from k25stack.host.seen import Seen

from .hosts import seen_of, whole_host

PROFILE = load_profile("8x-rtx-pro-6000")
HEALTHY = seen_of(whole_host("8x-rtx-pro-6000"))
DANGEROUS = ("reboot", "shutdown", "-mig", "--gpu-reset", "rm", "systemctl", "kill", "mkfs", "docker", "apt-get")


def test_repairs_are_harmless_commands() -> None:
    for check in all_checks():
        if check.repair is None:
            continue
        for argv in check.repair(HEALTHY, PROFILE):
            assert not any(word in DANGEROUS for word in argv), (check.id, argv)


def test_what_has_no_repair_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="is not mended by a command") as error:
        plan_repair("iommu", HEALTHY, PROFILE)
    assert "amd_iommu=off" in str(error.value)
    with pytest.raises(UsageError, match="did you mean persistence"):
        plan_repair("persistance", HEALTHY, PROFILE)
    with pytest.raises(UsageError, match="does not apply to profile cpu"):
        plan_repair("persistence", HEALTHY, load_profile("cpu"))
    with pytest.raises(HostError, match="not collected"):
        plan_repair("driver.hold", Seen({}), PROFILE)


def test_swap_goes_off_only_where_memory_can_take_it_back() -> None:
    header = "Filename Type Size Used Priority\n/dev/sda2 partition 8388608"
    for used, free, commands in ((0, 100, [("swapoff", "-a")]), (4000, 9000, [("swapoff", "-a")]), (4000, 7000, None)):
        files = {
            "proc/swaps": f"{header} {used} -2\n",
            "proc/meminfo": f"MemTotal: 10000 kB\nMemAvailable: {free} kB\n",
        }
        seen = seen_of({"expect": "fail", "files": files})
        if commands is None:
            with pytest.raises(HostError, match="swapped out"):
                plan_repair("swap", seen, PROFILE)
        else:
            assert list(plan_repair("swap", seen, PROFILE).commands) == commands


def test_the_named_packages_are_held() -> None:
    files = {"cmd/dpkg-query_-W": "ii  nvidia-container-toolkit 1.18.1\nhi  nvidia-driver-580-open 580.95.05\n"}
    seen = seen_of({"expect": "warn", "files": files})
    assert plan_repair("driver.hold", seen, PROFILE).lines() == ["apt-mark hold nvidia-container-toolkit"]


def test_commands_run_in_order_until_one_fails(tmp_path: Path) -> None:
    check = check_named("thp")
    assert check is not None
    script = f"echo $1 >>'{tmp_path}/log'"
    run = [("sh", "-c", script, "sh", word) for word in ("one", "two")]
    apply_repair(Repair(check, tuple(run)), Target("here"))
    with pytest.raises(HostError, match=r"here: sh -c 'exit 5'.*exit 5") as error:
        apply_repair(Repair(check, (run[0], ("sh", "-c", "exit 5"), run[1])), Target("here"))
    assert "\n" not in str(error.value)
    assert (tmp_path / "log").read_text().split() == ["one", "two", "one"]


def test_a_repaired_check_is_judged_anew() -> None:
    check = check_named("memory.total")
    assert check is not None
    judged = check_again(Repair(check, ()), Target("here"), load_profile("cpu"))
    assert judged["id"] == "memory.total" and judged["verdict"] in ("pass", "warn")
