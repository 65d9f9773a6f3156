"""Memory plans against what real engines reported of themselves: within 5 %.

The recordings say version, machine and command.  The same is held live against vLLM in tests/vllm_cpu.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from k25stack.engines.memory import GIB, MemoryPlan, plan_memory
from k25stack.stack import load_stack

ROOT = Path(__file__).resolve().parents[2]
SGLANG = json.loads((Path(__file__).parent / "recordings" / "memory.json").read_text(encoding="utf-8"))[0]
LOG = "\n".join(SGLANG["log"])


def one(pattern: str) -> list[float]:
    """The numbers of the only line of the log that matches."""
    found = re.findall(pattern, LOG)
    assert len(found) == 1, found
    return [float(word) for word in (found[0] if isinstance(found[0], tuple) else found)]


@pytest.fixture(scope="module")
def plan() -> MemoryPlan:
    """The shipped slice with the recorded command's cap on tokens."""
    stack = load_stack(ROOT / "stacks" / "kimi-k2.5-slice-h200.yaml")
    profile = stack.profile("random")
    assert f"{profile.engine} {profile.version}" == SGLANG["engine"]
    assert f"--mem-fraction-static {profile.argv['mem-fraction-static']} " in SGLANG["command"]
    return plan_memory(stack, profile.model_copy(update={"argv": {**profile.argv, "max-total-tokens": 65536}}))


def test_weights_of_target_and_draft(plan: MemoryPlan) -> None:
    assert plan.weights / GIB == pytest.approx(one(r"DeepseekV3ForCausalLM.*mem usage=([\d.]+) GB")[0], rel=0.05)
    assert plan.draft.loaded / GIB == pytest.approx(one(r"LlamaForCausalLMEagle3.*mem usage=([\d.]+) GB")[0], rel=0.05)


def test_both_caches(plan: MemoryPlan) -> None:
    tokens, size = one(r"#tokens: (\d+), KV size: ([\d.]+) GB")
    assert plan.tokens == tokens
    assert plan.target_pool / GIB == pytest.approx(size, rel=0.05)
    keys, values = one(r"K size: ([\d.]+) GB, V size: ([\d.]+) GB")
    assert plan.draft_pool / GIB == pytest.approx(keys + values, rel=0.05)


def test_all_that_stays_on_the_card(plan: MemoryPlan) -> None:
    used = one(r"begin\. avail mem=([\d.]+) GB")[0] - one(r"available_gpu_mem=([\d.]+) GB")[0]
    assert plan.resident / GIB == pytest.approx(used, rel=0.05)
    card = plan.card / GIB
    assert card == pytest.approx(one(r"begin\. avail mem=([\d.]+) GB")[0], rel=0.01)
