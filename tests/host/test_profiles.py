"""Profiles, the table of bad versions, NCCL's variables and the shape of nvidia-smi's generations."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from k25stack.errors import UsageError
from k25stack.host.checks import all_checks
from k25stack.host.known import bad_version, table
from k25stack.host.nccl_env import faults, levels
from k25stack.host.parse import smi
from k25stack.host.parse.values import at_least, number, version
from k25stack.host.profile import load_profile, profile_names
from k25stack.host.seen import Unseen

from .hosts import smi_xml


def test_the_shipped_profiles_load() -> None:
    assert profile_names() == ["1x-h200", "2x-h200", "8x-h200", "8x-rtx-pro-6000", "8x-rtx-pro-6000-maxq", "cpu"]
    for name in profile_names():
        profile = load_profile(name)
        assert profile.name == name and profile.about
        assert set(profile.skip) <= {check.id for check in all_checks()}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x\nabout: y\ngpus: 1\ngpu_memroy_mib: 5\n", "did you mean gpu_memory_mib"),
        ("name: x\nabout: y\ngpus: '8'\n", "'8' is no int"),
        ("name: x\nabout: y\ngpus: true\n", "True is no int"),
        ("name: x\nabout: y\ngpus: 1\nlink: sli\n", "none of none, pcie, nvlink"),
        ("name: x\nabout: y\ngpus: 1\nsystems: debian\n", "is no list"),
        ("name: x\n", "about, gpus must be given"),
        ("name: [\n", "no YAML"),
        ("- a\n", "no mapping"),
        ("extends: nothing\nname: x\n", "cannot be read"),
    ],
)
def test_a_wrong_profile_file_says_what_and_where(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        load_profile(str(path))
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_profile_of_ones_own_extends_a_shipped_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: 8x-rtx-pro-6000\nname: mine\ngpus: 4\n")
    profile = load_profile(str(path))
    assert (profile.name, profile.gpus, profile.gpu_memory_mib) == ("mine", 4, 97000)


def test_an_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 8x-rtx-pro-6000"):
        load_profile("8x-rtx-pro-600")


def test_a_stack_file_brings_its_images() -> None:
    stack = Path(__file__).parents[2] / "stacks" / "kimi-k2.5-8x-rtx-pro-6000.yaml"
    profile = load_profile(str(stack))
    assert profile.name == "8x-rtx-pro-6000"
    assert profile.images["lmsysorg/sglang:v0.5.20"].startswith("sha256:06e4f2ed")


def test_every_bad_version_has_a_source_and_a_date() -> None:
    for entry in table():
        assert entry.source and entry.problem and entry.fix
        assert entry.what in ("driver", "vbios", "nccl", "toolkit")
        assert datetime.date.fromisoformat(str(entry.reviewed))
        assert entry.covers(entry.last, "NVIDIA RTX PRO 6000 Blackwell Max-Q A100 GH200")


@pytest.mark.parametrize(
    ("what", "found", "card", "hit"),
    [
        ("driver", "580.95.05", "NVIDIA RTX PRO 6000 Blackwell Server Edition", False),
        ("driver", "590.48.01", "NVIDIA RTX PRO 6000 Blackwell Server Edition", False),
        ("driver", "580.126.20", "NVIDIA RTX PRO 6000 Blackwell Server Edition", True),
        ("driver", "580.126.20", "NVIDIA H200", False),
        ("driver", "570.124.06", "NVIDIA H200", True),
        ("driver", "570.133.20", "NVIDIA H200", False),
        ("vbios", "96.00.A5.00.20", "NVIDIA GH200 480GB", False),
        ("vbios", "96.00.9F.00.01", "NVIDIA GH200 480GB", True),
        ("vbios", "N/A", "NVIDIA GH200 480GB", False),
        ("nccl", "2.26.2", "", True),
        ("nccl", "2.26.20", "", False),
        ("nccl", "2.29.3", "", False),
        ("toolkit", "1.17.7", "", True),
        ("toolkit", "1.17.8", "", False),
    ],
)
def test_bad_versions(what: str, found: str, card: str, hit: bool) -> None:
    assert (bad_version(what, found, card) is not None) is hit


def test_nccl_levels_are_spelled_as_nccl_reads_them() -> None:
    assert "SYS" in levels() and "NODE" not in levels()
    for level in levels():
        assert faults({"NCCL_P2P_LEVEL": level}) == []
        assert faults({"NCCL_P2P_LEVEL": level.lower()})[0].severity == "fail"
    assert faults({"PATH": "/bin", "CUDA_HOME": "x"}) == []
    assert faults({"NCCL_NVLS_CHUNKSIZE": "131072", "NCCL_VERSION": "2.28.9-1"}) == []
    assert faults({"NCCL_SOMETHING_NEW": "1"})[0].severity == "warn"
    assert [fault.name for fault in faults({"NCCL_MIN_NCHANNELS": "32", "NCCL_MAX_NCHANNELS": "8"})] == [
        "NCCL_MIN_NCHANNELS"
    ]


@pytest.mark.parametrize("generation", ["v11", "v12", "v13"])
def test_three_generations_read_alike(generation: str) -> None:
    found = smi.parse(smi_xml(generation, gpus=2))
    assert (found.generation, len(found.gpus), found.attached) == (generation, 2, 2)
    assert found.numbers("MiB", "fb_memory_usage/total")[0] > 15000
    assert found.gpus[1].bus == "00000000:21:00.0"
    assert found.gpus[0].processes == () and not found.gpus[0].lost


def test_remarks_around_the_xml_are_kept() -> None:
    found = smi.parse(smi_xml(gpus=1, before="WARNING: infoROM is corrupted at gpu 0000:01:00.0\n"))
    assert found.remarks == ("WARNING: infoROM is corrupted at gpu 0000:01:00.0",)


@pytest.mark.parametrize(
    "text", ["", "<?xml", "<nvidia_smi_log/>", "<?xml?><nvidia_smi_log></nvidia_smi_log>", "No devices were found"]
)
def test_what_is_no_whole_document_is_unseen(text: str) -> None:
    with pytest.raises(Unseen):
        smi.parse(text)


def test_a_bomb_of_entities_is_not_opened() -> None:
    entities = '<!ENTITY a "aaaaaaaa"><!ENTITY b "&a;&a;&a;">'
    bomb = f'<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [{entities}]><nvidia_smi_log>&b;</nvidia_smi_log>'
    with pytest.raises(Unseen, match="not what nvidia-smi prints"):
        smi.parse(bomb)


def test_numbers_and_versions_are_not_guessed() -> None:
    assert number("97887 MiB", "MiB") == 97887 and number("16x", "x") == 16 and number("-5 C", "C") == -5
    for text in ("97,887 MiB", "N/A", "", "97887", "1e5 MiB", "٣ MiB x", None):
        assert number(text, "MiB") is None
    assert version("580.95.05") == (580, 95, 5) and version("6.8.0-87-generic") == (6, 8, 0)
    assert version("2.26.1-4") == (2, 26, 1) and version("v1.2") == (1, 2) and version("N/A") is None
    assert at_least((580, 95, 5), "580") and not at_least((579, 99), "580") and at_least((2, 28), "2.28.0")


def test_the_documentation_lists_every_check_and_profile() -> None:
    text = (Path(__file__).parents[2] / "docs" / "host.md").read_text()
    for check in all_checks():
        severity = "E" if check.severity == "fail" else "W"
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{check.id}` |")]
        cells = [cell.strip() for cell in row.split(" | ")]
        assert cells[2] == severity and (row.rstrip(" |").endswith("fix") == (check.repair is not None)), check.id
    for name in profile_names():
        assert f"`{name}`" in text
