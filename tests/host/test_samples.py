"""Public outputs of real machines that may lie beside the checkout; they are read where they are and not copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from k25stack.host.checks import check_named
from k25stack.host.parse import smi, topo
from k25stack.host.profile import load_profile

SAMPLES = Path(__file__).parents[3] / "shared" / "samples"
pytestmark = pytest.mark.skipif(not SAMPLES.is_dir(), reason="no samples beside this checkout")


def judge(id: str, text: str, profile: str) -> str:
    check = check_named(id)
    assert check is not None
    return str(check.judge(text, 0, load_profile(profile))["verdict"])


def test_rtx_pro_6000_maxq() -> None:
    text = (SAMPLES / "nvidia-smi-q-x.pro-6000-maxq-blackwell-v13.xml").read_text()
    found = smi.parse(text)
    assert (found.generation, found.driver, found.cuda, len(found.gpus)) == ("v13", "590.44.01", "13.1", 1)
    looked = (
        "gpu.model gpu.memory gpu.memory_free driver.gsp ecc.errors ecc.remap gpu.recovery persistence power.cap temp "
        "clocks.events pcie.gen pcie.width bar1 mig gpu.foreign"
    )
    verdicts = {id: judge(id, text, "8x-rtx-pro-6000-maxq") for id in looked.split()}
    assert {id for id, verdict in verdicts.items() if verdict != "pass"} == {
        "gpu.memory_free",
        "pcie.gen",
        "gpu.foreign",
    }


def test_a100() -> None:
    found = smi.parse((SAMPLES / "nvidia-smi-q-x.a100-sxm4-v12.xml").read_text())
    assert (found.generation, found.driver, found.attached) == ("v12", "535.54.03", 4)
    assert judge("mig", (SAMPLES / "nvidia-smi-q-x.a100-sxm4-v12.xml").read_text(), "8x-h200") == "fail"
    assert judge("gpu.count", (SAMPLES / "nvidia-smi-q-x.a100-sxm4-v12.xml").read_text(), "8x-h200") == "fail"


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("topo-m.8x-rtxpro6000-dual-cpu-phb-sys.txt", {"PHB": 12, "SYS": 16}),
        ("topo-m.8x-rtxpro6000-switch-pix-phb.txt", {"PIX": 12, "PHB": 16}),
    ],
)
def test_topologies(name: str, classes: dict[str, int]) -> None:
    text = (SAMPLES / name).read_text()
    assert topo.parse_links(text).classes() == classes
    assert judge("topo.matrix", text, "8x-rtx-pro-6000") == "pass"
