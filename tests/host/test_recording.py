"""Recordings: written masked and whole, read back with the same verdicts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k25stack.errors import DamageError, HostError, UsageError
from k25stack.host import check_host
from k25stack.host.fleet import checks_for, guess_profile, judge, sources_for
from k25stack.host.mask import HOSTNAME, Masker, mask, mask_text
from k25stack.host.profile import load_profile
from k25stack.host.recording import read_recording, write_recording
from k25stack.host.seen import Reading, Seen

from .hosts import cases, profile_of, seen_of, whole_host, write_host

PROFILE = load_profile("8x-rtx-pro-6000")
SOURCES = sources_for(PROFILE, live=True)


def verdicts(seen: Seen) -> dict[str, str]:
    return {check["id"]: check["verdict"] for check in judge(seen, PROFILE, "x")["checks"]}


def test_a_healthy_host_passes_every_check() -> None:
    result = judge(seen_of(whole_host("8x-rtx-pro-6000")), PROFILE, "host")
    assert result["verdict"] == "pass", [check for check in result["checks"] if check["verdict"] != "pass"]
    assert set(result) == {"target", "kind", "verdict", "checks"}
    assert set(result["checks"][0]) == {"id", "group", "verdict", "message", "evidence", "fix", "source"}
    assert len(result["checks"]) == len([check for check in checks_for(PROFILE) if not check.live])


def test_a_recording_gives_the_verdicts_of_the_host(tmp_path: Path) -> None:
    seen = seen_of(whole_host("8x-rtx-pro-6000"))
    write_recording(tmp_path / "rec", seen, PROFILE.name, "2026-11-29")
    again = read_recording(tmp_path / "rec", SOURCES)
    assert verdicts(again) == verdicts(seen)
    assert again.absent == seen.absent
    assert (tmp_path / "rec/proc/swaps").is_file() and (tmp_path / "rec/cmd/nvidia-smi_-q_-x").is_file()
    assert (tmp_path / "rec/cmd/nccl-conf-home.rc").read_text() == "66\n"


@pytest.mark.parametrize("id", sorted({id for id, _, case in cases() if case["expect"] in ("fail", "warn")}))
def test_masking_changes_no_verdict(id: str) -> None:
    for name, _, case in cases():
        # An address that a profile names cannot be known again once it is masked.
        if name == id and "proxy" not in case.get("profile", {}):
            profile = profile_of(case)
            check = next(one for one in checks_for(profile) if one.id == id)
            assert check.judge_seen(mask(seen_of(case)), profile)["verdict"] == case["expect"]


SECRETS = {
    "cmd/nvidia-smi_-q_-x": "<serial>1320099887766</serial><pdi>0x7f3a9b1c2d4e5f60</pdi>"
    "<uuid>GPU-5f7a9ad6-8a58-1f45-473a-76281b72153c</uuid>",
    "cmd/lspci_-vvv": "61:00.0 x\n\tCapabilities: [100] Device Serial Number 48-b0-2d-ff-fe-12-34-56\n",
    "cmd/nvme_list_-o_json": '{"Devices":[{"SerialNumber":"S6EUNX0R123456"}]}',
    "cmd/docker_info_--format_json": '{"ID":"WXYZ:ABCD","Name":"gpu07.example.org",'
    '"HTTPSProxy":"http://ann:geheim@10.1.2.3:3128"}',
    "cmd/journalctl_-k": "[ 1.0] e1000 0000:05:00.0 eth0: 3c:ec:ef:12:34:56\n"
    "[ 2.0] usb 1-1: SerialNumber: 4C530001\n[ 3.0] gpu07 up\n",
    "proc/mounts": "filer07.example.org:/export /srv nfs4 rw,clientaddr=10.1.2.3 0 0\n",
    "etc/fstab": "UUID=5f7a9ad6-8a58-1f45-473a-76281b72153c / ext4 defaults 0 1\n",
    "etc/resolv.conf": "nameserver 10.1.2.3\nnameserver fd12:3456::53\n",
    "cmd/getent_group_docker": "docker:x:988:ann,bert\n",
    "cmd/ps_-eo_pid,ppid,user,comm": "    PID    PPID USER     COMMAND\n   4711       1 ann      python3\n",
    HOSTNAME: "gpu07\n",
}


def test_nothing_that_names_a_host_or_its_owner_is_recorded() -> None:
    masked = mask(Seen({place: Reading(text) for place, text in SECRETS.items()}))
    text = "\n".join(reading.text for reading in masked.readings.values())
    for secret in (
        "1320099887766", "5f7a9ad6", "7f3a9b1c", "12-34-56", "S6EUNX0R", "WXYZ", "gpu07", "geheim", "10.1.2.3",
        "3c:ec:ef", "4C530001", "filer07", "fd12", "ann", "bert",
    ):  # fmt: skip
        assert secret not in text, secret
    assert "61:00.0" in text and "0000:05:00.0" in text


def test_equal_secrets_stay_equal_and_the_result_is_the_same_again() -> None:
    seen = Seen({place: Reading(text) for place, text in SECRETS.items()})
    once, twice = mask(seen), mask(seen)
    assert once == twice
    assert "192.0.2.1" in once.readings["proc/mounts"].text
    assert "192.0.2.1" in once.readings["etc/resolv.conf"].text
    disk = re.search(r"UUID=(\S+)", once.readings["etc/fstab"].text)
    assert disk is not None and disk.group(1) in once.readings["cmd/nvidia-smi_-q_-x"].text


@pytest.mark.parametrize(
    "kept",
    [
        "580.95.05",
        "98.02.6A.00.04",
        "127.0.0.1:30000",
        "0.0.0.0:22",
        "00000000:61:00.0",
        "0000:61:00.0",
        "09:49:57",
        "6.8.0-87-generic",
        "::1",
        "NCCL 2.28.9",
    ],
)
def test_versions_loopback_and_pci_addresses_stay(kept: str) -> None:
    assert mask_text(f"a {kept} b", Masker()) == f"a {kept} b"


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=200))
def test_masking_any_text_never_fails(text: str) -> None:
    mask_text(text, Masker(), ("gpu07",), "cmd/getent_group_docker")


def test_a_recording_by_hand_needs_no_index(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/swaps").write_text("Filename Type Size Used Priority\n/dev/sda2 partition 1048576 0 -2\n")
    result = check_host(source=tmp_path, profile="8x-rtx-pro-6000")
    found = {check["id"]: check for check in result["checks"]}
    assert found["swap"]["verdict"] == "fail"
    assert found["gpu.count"]["verdict"] == "unknown" and "not collected" in found["gpu.count"]["message"]
    assert all(check["verdict"] != "pass" for check in result["checks"])
    assert [check["verdict"] for check in result["checks"]].index("fail") == 0


def test_bad_recordings_are_one_line_each(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        read_recording(tmp_path / "none", SOURCES)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no recording of a host"):
        read_recording(tmp_path / "empty", SOURCES)
    rec = write_host(whole_host("8x-rtx-pro-6000"), tmp_path / "rec")
    (rec / "cmd/uname_-r.rc").write_text("none\n")
    with pytest.raises(DamageError, match="no exit code"):
        read_recording(rec, SOURCES)
    (rec / "cmd/uname_-r.rc").unlink()
    (rec / "recording.json").write_text("{")
    with pytest.raises(DamageError, match="no JSON"):
        read_recording(rec, SOURCES)
    (rec / "recording.json").write_text('{"schema": 99}')
    with pytest.raises(DamageError, match="this version"):
        read_recording(rec, SOURCES)


def test_a_recording_is_whole_or_absent(tmp_path: Path) -> None:
    seen = seen_of(whole_host("8x-rtx-pro-6000"))
    target = tmp_path / "rec"
    target.mkdir()
    (target / "mine").write_text("x")
    with pytest.raises(UsageError, match="is not empty"):
        write_recording(target, seen, "cpu", "2026-11-29")
    bad = Seen({"a": Reading("file"), "a/b": Reading("below a file")})
    with pytest.raises(HostError):
        write_recording(tmp_path / "other", bad, "cpu", "2026-11-29")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rec"]


def test_the_profile_is_told_by_the_cards() -> None:
    seen = seen_of(whole_host("8x-rtx-pro-6000"))
    assert guess_profile(seen).name == "8x-rtx-pro-6000"
    bare = Seen(
        {
            "sys/bus/pci/devices/0000:00:00.0/vendor": Reading("0x8086\n"),
            "sys/bus/pci/devices/0000:00:00.0/class": Reading("0x060000\n"),
        }
    )
    assert guess_profile(bare).name == "cpu"
    with pytest.raises(UsageError, match="cannot be told"):
        guess_profile(Seen({}))
    seven = seen_of({"smi": {"gpus": 7}})
    assert guess_profile(seven).name == "8x-rtx-pro-6000"
    with pytest.raises(UsageError, match="no profile fits 4x Tesla T4"):
        guess_profile(seen_of({"smi": {"generation": "v11", "gpus": 4}}))
    hidden = seen_of({"sysfs": {"gpus": 8}, "rc": {"cmd/nvidia-smi_-q_-x": 127}})
    with pytest.raises(UsageError, match="cannot be told"):
        guess_profile(hidden)


def test_json_of_a_recording(tmp_path: Path) -> None:
    rec = write_host(whole_host("8x-rtx-pro-6000"), tmp_path / "rec")
    json.dumps(check_host(source=rec), allow_nan=False)


def test_a_real_host_with_two_cards() -> None:
    """Recorded on two H200 in a virtual machine; only what tells about cards, driver and links was kept."""
    recording = Path(__file__).parent / "recordings" / "2x-h200"
    result = check_host(source=recording, profile="2x-h200")
    verdicts = {check["id"]: check["verdict"] for check in result["checks"]}
    passed = {id for id, verdict in verdicts.items() if verdict == "pass"}
    wanted = (
        "gpu.count gpu.model gpu.memory gpu.memory_free gpu.cc driver.version driver.open driver.gsp kmod.loaded "
        "ecc.mode ecc.errors ecc.remap gpu.recovery temp topo.matrix topo.p2p bar1"
    )
    assert passed >= set(wanted.split())
    assert set(verdicts.values()) == {"pass", "unknown"}
    live = {check["id"]: check["message"] for check in result["checks"] if check["group"] == "live"}
    assert live == {
        "nccl.live": "14 sizes up to 536870912 B right, 311.2 GB/s bus bandwidth of 2 cards",
        "p2p.live": "every pair at least 392.04 GB/s",
        "stress": "60 s of load without an Xid",
    }
    assert verdicts["nccl.version"] == "pass"
    other = {check["id"]: check["verdict"] for check in check_host(source=recording, profile="8x-h200")["checks"]}
    assert other["gpu.count"] == other["topo.p2p"] == "fail" and other["topo.matrix"] == "warn"


def test_a_real_host_with_one_card() -> None:
    recording = Path(__file__).parent / "recordings" / "1x-h200"
    verdicts = {check["id"]: check["verdict"] for check in check_host(source=recording)["checks"]}
    assert {id for id, verdict in verdicts.items() if verdict not in ("pass", "unknown")} == {"pcie.replay"}
    assert verdicts["gpu.count"] == verdicts["driver.open"] == verdicts["ecc.errors"] == "pass"
    assert "topo.p2p" not in verdicts
