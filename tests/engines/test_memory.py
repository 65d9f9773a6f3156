"""Bytes from shapes, against figures that are published or were seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from k25stack.draft.mathematics import Mathematics
from k25stack.draft.spec import PRESETS
from k25stack.engines.draftcost import draft_bytes_per_token
from k25stack.engines.memory import GIB, MemoryPlan, loaders_for, plan_memory, usual
from k25stack.model.shapes import kv_bytes_per_layer, kv_bytes_per_token, weight_parts
from k25stack.stack import Profile, Stack, load_stack

STACKS = Path(__file__).resolve().parents[2] / "stacks"


@pytest.fixture(scope="module")
def kimi() -> Stack:
    return load_stack(STACKS / "kimi-k2.5-8x-rtx-pro-6000.yaml")


@pytest.fixture(scope="module")
def piece() -> Stack:
    """The slice of the GPU twin."""
    return load_stack(STACKS / "kimi-k2.5-slice-h200.yaml")


def without_cap(stack: Stack, name: str) -> Profile:
    profile = stack.profile(name)
    argv = {key: value for key, value in profile.argv.items() if key != "max-total-tokens"}
    return profile.model_copy(update={"argv": argv})


def with_argv(stack: Stack, name: str, **argv: object) -> Profile:
    profile = stack.profile(name)
    return profile.model_copy(update={"argv": {**profile.argv, **argv}})


def test_the_weights_of_kimi_are_the_published_595_gb(kimi: Stack) -> None:
    parts = {part.name: part for part in weight_parts(kimi.target)}
    assert sum(part.bytes for part in parts.values()) == pytest.approx(554.3 * GIB, rel=0.002)  # the hub's own sum
    assert parts["routed experts"].parameters == pytest.approx(1.0147e12, rel=0.001)
    assert parts["routed experts"].bytes / parts["routed experts"].parameters == 0.5625  # INT4 and a scale per 32
    assert sum(part.parameters for part in parts.values()) == pytest.approx(1.026e12, rel=0.01)


def test_cache_of_latent_attention_and_of_heads(kimi: Stack) -> None:
    shape = kimi.target.shape
    assert kv_bytes_per_layer(shape) == 1152  # 576 values of two bytes
    assert kv_bytes_per_token(shape) == 70272
    assert kv_bytes_per_token(shape, tensor_parallel=8) == 70272  # every card keeps all of it
    llama = load_stack(STACKS / "smollm2-cpu.yaml").target.shape
    assert kv_bytes_per_token(llama) == 2 * 3 * 64 * 2 * 30
    assert kv_bytes_per_token(llama, tensor_parallel=8) == 2 * 1 * 64 * 2 * 30  # never less than one head


def test_one_draft_layer_of_64_heads_costs_28_layers_of_the_target(piece: Stack) -> None:
    assert draft_bytes_per_token(Mathematics(PRESETS["kimi-k2.5"]), 1) == 32768
    assert draft_bytes_per_token(Mathematics(PRESETS["kimi-k2.5"]), 8) == 4096
    assert draft_bytes_per_token(Mathematics(PRESETS["kimi-k2.5-gqa8"]), 1) == 4096
    plan = plan_memory(piece, piece.profile("random"))
    assert plan.draft_in_target_layers == pytest.approx(28.4, abs=0.1)


def test_the_first_request_of_the_drafts_pool_is_the_97_gib_that_was_seen(piece: Stack) -> None:
    """SGLang 0.5.16 on one H200, mem-fraction-static 0.6: out of memory at a request of 97 GiB."""
    plan = plan_memory(piece, without_cap(piece, "random"))
    assert plan.largest_request / GIB == pytest.approx(97, rel=0.01)
    assert plan.over > plan.reserve  # so the start fails
    assert plan.fitting * (plan.target_token + plan.draft_token) <= plan.budget


def test_a_cap_on_tokens_holds(piece: Stack) -> None:
    plan = plan_memory(piece, piece.profile("random"))
    assert plan.capped
    assert plan.tokens == 131072
    assert plan.draft_pool == 4 * GIB
    assert plan.over == 0


def test_weights_of_the_slice(piece: Stack) -> None:
    plan = plan_memory(piece, piece.profile("baseline"))
    assert plan.weights == pytest.approx(8.8e9 * 2, rel=0.01)  # 8 layers, 16 experts, all in bf16
    assert plan.draft.loaded == 0
    drafted = plan_memory(piece, piece.profile("random"))
    assert drafted.draft.weights == PRESETS["kimi-k2.5"].parameters() * 2
    assert drafted.draft.embedding == 163840 * 7168 * 2
    assert drafted.draft.leftover == 2 * 7168 * (3 * 18432 + 3 * 8192)  # an MLP and a projection of the base class


def test_eight_cards_hold_an_eighth_and_what_is_held_whole(kimi: Stack) -> None:
    plan = plan_memory(kimi, with_argv(kimi, "sglang-nccl", **{"mem-fraction-static": 0.841}))
    assert plan.weights / GIB == pytest.approx(71.8, abs=0.2)
    assert plan.budget + plan.weights + plan.reserve == pytest.approx(plan.card, abs=2)
    assert 100_000 < plan.tokens < 200_000


def test_vllm_counts_what_target_and_draft_really_need(kimi: Stack) -> None:
    speculative = kimi.profile("sglang-eagle3-aq").speculative
    profile = kimi.profile("vllm-baseline").model_copy(update={"speculative": speculative})
    plan = plan_memory(kimi, profile)
    assert plan.over == 0
    assert plan.fraction == 0.92
    assert plan.tokens == plan.fitting


def test_loading_is_bounded_by_threads_and_files(kimi: Stack) -> None:
    plan: MemoryPlan = plan_memory(kimi, kimi.profile("sglang-nccl"))
    assert plan.host_ram == 8 * (8 + 2) * plan.shard
    threads = loaders_for(512 * GIB, plan.shard * 64, 64, 8)
    assert 0 < threads < 8
    assert 8 * (threads + 2) * plan.shard <= 0.8 * 512 * GIB
    assert loaders_for(64 * GIB, plan.shard * 64, 64, 8) == 0


def test_sglang_lowers_its_default_share_for_the_image_tower(kimi: Stack, piece: Stack) -> None:
    """sglang 0.5.20: 27 layers of 1152 against 24 of 1024 are 1.42, so 0.95 * (1 - 0.042) of the default is left."""
    bare = kimi.profile("sglang-nccl")
    bare = bare.model_copy(update={"argv": {k: v for k, v in bare.argv.items() if k != "mem-fraction-static"}})
    plan = plan_memory(kimi, bare)
    assert plan.lowered_from == pytest.approx(0.841)
    assert plan.fraction == pytest.approx(0.841 * 0.95 * (1 - 0.1 * (27 * 1152**2 / (24 * 1024**2) - 1)))
    for argv in ({"language-model-only": True}, {"mem-fraction-static": 0.841}):
        same = plan_memory(kimi, bare.model_copy(update={"argv": {**bare.argv, **argv}}))
        assert same.lowered_from is None
        assert same.fraction == pytest.approx(0.841)
    assert plan_memory(kimi, kimi.profile("vllm-baseline")).lowered_from is None
    assert plan_memory(piece, piece.profile("baseline")).lowered_from is None


def test_cache_types_count_for_both_pools(kimi: Stack) -> None:
    wide = plan_memory(kimi, with_argv(kimi, "sglang-eagle3-aq", **{"mem-fraction-static": 0.9}))
    half = plan_memory(
        kimi, with_argv(kimi, "sglang-eagle3-aq", **{"mem-fraction-static": 0.9, "kv-cache-dtype": "fp8_e4m3"})
    )
    assert (half.target_token * 2, half.draft_token * 2) == (wide.target_token, wide.draft_token)
    own = {"mem-fraction-static": 0.9, "kv-cache-dtype": "fp8_e4m3", "speculative-draft-kv-cache-dtype": "bf16"}
    assert plan_memory(kimi, with_argv(kimi, "sglang-eagle3-aq", **own)).draft_token == wide.draft_token
    odd = plan_memory(kimi, with_argv(kimi, "sglang-nccl", **{"kv-cache-dtype": "nvfp4", "cpu-offload-gb": 4}))
    assert odd.left_out == ("cpu-offload-gb", "kv-cache-dtype nvfp4")


def test_data_parallel_attention_holds_attention_whole(kimi: Stack) -> None:
    plain = plan_memory(kimi, with_argv(kimi, "sglang-nccl", **{"mem-fraction-static": 0.9}))
    ranks = plan_memory(
        kimi, with_argv(kimi, "sglang-nccl", **{"mem-fraction-static": 0.9, "dp-size": 8, "enable-dp-attention": True})
    )
    assert ranks.shares["attention"] == plain.shares["attention"] * 8
    assert ranks.shares["embedding"] == 163840 * 7168 * 2
    assert ranks.shares["routed experts"] == plain.shares["routed experts"]
    assert (ranks.gpus, ranks.schedulers) == (8, 8)
    newer = {"mem-fraction-static": 0.9, "attn-dp-size": 8}  # 0.5.23
    assert plan_memory(kimi, with_argv(kimi, "sglang-nccl", **newer)).shares == ranks.shares
    copies = plan_memory(kimi, with_argv(kimi, "sglang-nccl", **{"mem-fraction-static": 0.9, "dp-size": 2}))
    assert (copies.gpus, copies.shares) == (16, plain.shares)


def test_pipelines_and_context_parallelism_divide_layers_and_tokens(kimi: Stack) -> None:
    plain = plan_memory(kimi, kimi.profile("vllm-baseline"))
    two = plan_memory(kimi, with_argv(kimi, "vllm-baseline", **{"pipeline-parallel-size": 2}))
    assert two.shares["routed experts"] == pytest.approx(plain.shares["routed experts"] / 2, rel=1e-6)
    assert (two.gpus, two.target_token, two.shares["embedding"]) == (16, plain.target_token // 2, 0)
    eight = plan_memory(kimi, with_argv(kimi, "vllm-baseline", **{"decode-context-parallel-size": 8}))
    assert eight.target_token == plain.target_token // 8
    assert eight.weights == plain.weights
    wide = plan_memory(kimi, with_argv(kimi, "vllm-baseline", **{"data-parallel-size": 2}))
    assert wide.shares["routed experts"] == pytest.approx(plain.shares["routed experts"] / 2, rel=1e-6)
    assert wide.shares["attention"] == plain.shares["attention"]


def test_the_default_batch_and_chunk_are_those_of_the_cards_size() -> None:
    assert [usual(gib * GIB, 8) for gib in (16, 24, 48, 80, 96, 141, 180)] == [
        (2048, 8), (4096, 160), (4096, 160), (8192, 512), (8192, 512), (8192, 512), (16384, 512)]  # fmt: skip
    assert usual(80 * GIB, 1) == (8192, 256)
