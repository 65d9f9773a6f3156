"""Every shipped stack loads, says what the project promises, and survives being written out again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from k25stack.engines import catalogue
from k25stack.stack import Stack, dump_stack, load_stack
from tests.stack.conftest import SHIPPED, STACKS

BIG = "kimi-k2.5-8x-rtx-pro-6000"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_it_loads_and_is_named_after_its_file(path: Path) -> None:
    assert load_stack(path).name == path.stem


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_resolved_file_is_the_same_stack_and_needs_nothing_else(path: Path, tmp_path: Path) -> None:
    stack = load_stack(path)
    resolved = tmp_path / "stack.resolved.yaml"
    resolved.write_text(dump_stack(stack), encoding="utf-8")
    assert load_stack(resolved) == stack
    assert "extends" not in resolved.read_text(encoding="utf-8")
    assert dump_stack(load_stack(resolved)) == dump_stack(stack)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_option_exists_in_the_pinned_engine_and_none_is_dead(path: Path) -> None:
    for name, profile in load_stack(path).serving.profiles.items():
        if profile.engine != "reference":
            assert catalogue.names(profile.engine, profile.version), name
        assert catalogue.findings(profile.engine, profile.version, profile.argv) == [], name


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_nothing_lowers_the_precision(path: Path) -> None:
    stack = load_stack(path)
    assert stack.target.dtype == "bfloat16"
    for profile in stack.serving.profiles.values():
        assert not {"quantization", "kv-cache-dtype", "dtype", "torchao-config"} & set(profile.argv)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_draft_preset_agrees(path: Path) -> None:
    from k25stack.draft.spec import PRESETS, DraftSpec

    stack = load_stack(path)
    assert stack.draft.preset is not None
    assert DraftSpec.from_dict(stack.draft_spec()) == PRESETS[stack.draft.preset]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_one_baseline_and_every_draft_row_knows_its_plain_row(path: Path) -> None:
    profiles = load_stack(path).serving.profiles
    assert [profile.role for profile in profiles.values()].count("baseline") == 1
    for profile in profiles.values():
        if profile.speculative is not None:
            plain = profiles[str(profile.compare_to)]
            assert plain.speculative is None
            assert (plain.argv, plain.env, plain.engine) == (profile.argv, profile.env, profile.engine)


def big() -> Stack:
    return load_stack(STACKS / f"{BIG}.yaml")


def test_the_big_stack_has_the_six_profiles_of_the_table() -> None:
    stack = big()
    assert stack.bench_profiles() == (
        "vllm-baseline",
        "sglang-eager",
        "sglang-graphs",
        "sglang-nccl",
        "sglang-eagle3-aq",
        "sglang-eagle3-own",
    )
    assert stack.profile("sglang-nccl").env == {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS"}
    aq = stack.profile("sglang-eagle3-aq").speculative
    assert aq is not None
    assert (aq.draft, aq.alternatives) == ("AQ-MedAI/Kimi-K25-eagle3", ("AQ-MedAI/Kimi-K2-Instruct-eagle3",))
    own = stack.profile("sglang-eagle3-own").speculative
    assert own is not None
    assert (own.draft, own.k, own.rows, own.alternatives) == ("own", 3, 4, ())


def test_the_dead_option_is_left_out_and_said() -> None:
    winner = big().profile("sglang-nccl")
    assert "num-continuous-decode-steps" not in winner.argv
    assert any("num-continuous-decode-steps" in note for note in winner.notes)


def test_the_known_results_stand_there_and_are_not_comparable_yet() -> None:
    results = big().reference_results
    table = {
        (result.profile, result.concurrency): result.value
        for result in results
        if result.metric in ("single_stream", "throughput")
    }
    assert [table[name, 1] for name in big().bench_profiles()] == [82.5, 27.0, 63.6, 90.0, 62.9, 40.8]
    assert [table[name, 128] for name in big().bench_profiles()] == [1536, 2216, 2370, 2320, 849, 597]
    assert not any(result.comparable for result in results)
    speculative = [r for r in results if r.profile in ("sglang-eagle3-aq", "sglang-eagle3-own") and r.concurrency]
    assert all(any("NCCL tuning" in confounder for confounder in r.confounders) for r in speculative)
    assert all(any("48" in c for c in r.confounders) for r in speculative if r.concurrency == 128)
    assert all(any("old definition" in c for c in r.confounders) for r in results if r.metric == "accept_rate_old")


def test_the_public_bar_is_stated_with_its_conditions() -> None:
    bar = {bool(r.conditions["thinking"]): r.value for r in big().reference_results if r.metric == "accept_length"}
    assert bar == {True: 2.88, False: 2.75}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_sizes_and_times_are_plain_numbers_with_the_unit_in_the_key(path: Path) -> None:
    assert not re.search(r":\s*[0-9.]+\s*(GiB|MiB|GB|MB|kB|min|ms|s|h)\s*(#|$)", path.read_text(encoding="utf-8"), re.M)
