"""Options to words: types, order of precedence, and what is refused before a server is started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from k25stack import engines
from k25stack.engines import Launch
from k25stack.engines.options import render
from k25stack.errors import UsageError
from tests.engines.conftest import CHAIN, profile

VERSIONS = {"sglang": "0.5.20", "vllm": "0.31.0"}
BOTH = sorted(VERSIONS.items())


def words(engine: str, launch: Launch, version: str | None = None, **fields: Any) -> list[str]:
    return engines.get(engine).argv(profile(engine, version or VERSIONS[engine], **fields), launch)


def after(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_each_type_of_option_has_one_way_to_be_written() -> None:
    options = {
        "flag": True,
        "off": False,
        "text": "a b",
        "number": 4,
        "share": 0.5,
        "several": [1, "x", True],
        "object": {"b": [1, 2], "a": None},
    }
    assert render(options) == [
        *("--flag", "--text", "a b", "--number", "4", "--share", "0.5"),
        *("--several", "1", "x", "true", "--object", '{"b":[1,2],"a":null}'),
    ]


@pytest.mark.parametrize(("engine", "version"), BOTH)
def test_options_keep_the_order_of_the_profile(engine: str, version: str, launch: Launch) -> None:
    argv = words(engine, launch, argv={"zeta": 1, "alpha": True, "mid": "x"})
    assert " ".join(argv).endswith("--zeta 1 --alpha --mid x")


@pytest.mark.parametrize(("engine", "option"), [("sglang", "--context-length"), ("vllm", "--max-model-len")])
def test_a_profiles_context_goes_before_the_targets(engine: str, option: str, launch: Launch) -> None:
    assert after(words(engine, launch), option) == "4096"
    assert after(words(engine, launch, context=1024), option) == "1024"


@pytest.mark.parametrize(("engine", "option"), [("sglang", "--max-running-requests"), ("vllm", "--max-num-seqs")])
def test_a_speculative_server_is_told_its_batch(engine: str, option: str, drafted: Launch) -> None:
    assert after(words(engine, drafted, max_running=32, speculative=CHAIN), option) == "32"
    assert option not in words(engine, drafted)


def test_sglang_gets_eagle3_and_all_three_numbers(drafted: Launch) -> None:
    argv = words("sglang", drafted, max_running=8, speculative={**CHAIN, "attention_backend": "triton"})
    assert argv[argv.index("--speculative-algorithm") :] == [
        *("--speculative-algorithm", "EAGLE3"),
        *("--speculative-draft-model-path", "/models/draft"),
        *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
        *("--speculative-draft-attention-backend", "triton"),
    ]


def test_sglang_takes_a_tree(drafted: Launch) -> None:
    tree = {"k": 3, "topk": 4, "draft_tokens": 16, "draft": "own"}
    argv = words("sglang", drafted, max_running=8, speculative=tree)
    assert after(argv, "--speculative-eagle-topk") == "4"
    assert after(argv, "--speculative-num-draft-tokens") == "16"


def test_vllm_names_the_method_and_refuses_a_tree(drafted: Launch) -> None:
    argv = words("vllm", drafted, max_running=8, speculative=CHAIN)
    assert argv[-2:] == [
        "--speculative-config",
        '{"method":"eagle3","model":"/models/draft","num_speculative_tokens":3}',
    ]
    with pytest.raises(UsageError, match="a chain, not a tree"):
        words("vllm", drafted, max_running=8, speculative={"k": 3, "topk": 2, "draft_tokens": 8, "draft": "own"})


@pytest.mark.parametrize(("engine", "version"), BOTH)
def test_random_weights_are_the_targets_alone(engine: str, version: str, drafted: Launch) -> None:
    argv = words(engine, replace(drafted, dummy_seed=7), max_running=8, speculative=CHAIN)
    assert after(argv, "--load-format") == "dummy"
    assert "7" in argv
    assert "auto" in " ".join(argv[argv.index("--load-format") + 2 :])


@pytest.mark.parametrize(("engine", "version"), BOTH)
def test_a_revision_is_passed_on(engine: str, version: str, launch: Launch) -> None:
    assert after(words(engine, replace(launch, revision="abc")), "--revision") == "abc"
    assert "--revision" not in words(engine, launch)


def test_a_draft_s_revision_is_passed_on(drafted: Launch) -> None:
    pinned = replace(drafted, draft_revision="abc")
    fields: dict[str, Any] = {"max_running": 8, "speculative": CHAIN}
    assert after(words("sglang", pinned, **fields), "--speculative-draft-model-revision") == "abc"
    assert '"revision":"abc"' in words("vllm", pinned, **fields)[-1]
    for engine in ("sglang", "vllm"):
        assert "revision" not in " ".join(words(engine, drafted, **fields))


@pytest.mark.parametrize(
    ("engine", "option", "key"),
    [
        ("sglang", "tp-size", "tensor_parallel"),
        ("sglang", "speculative-num-steps", "speculative.k"),
        ("sglang", "context-length", "context"),
        ("vllm", "max-num-seqs", "max_running"),
        ("vllm", "speculative-config", "speculative"),
    ],
)
def test_an_option_that_has_a_typed_key_is_refused(engine: str, option: str, key: str, launch: Launch) -> None:
    with pytest.raises(UsageError, match=f"'{option}' is written by the stack.*set {key} instead"):
        words(engine, launch, argv={option: 1})


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_version_that_was_not_read_is_refused(engine: str, launch: Launch) -> None:
    with pytest.raises(UsageError, match=r"9\.9\.9 is not a version whose options were read.*known are"):
        words(engine, launch, "9.9.9")


@pytest.mark.parametrize(("engine", "version"), [*BOTH, ("reference", "0.1.0")])
def test_speculation_without_a_draft_is_refused(engine: str, version: str, launch: Launch) -> None:
    speculating = profile(engine, version, max_running=8, speculative=CHAIN)
    with pytest.raises(UsageError, match="no draft was given"):
        engines.get(engine).argv(speculating, launch)


def test_an_unknown_engine_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no engine 'llama\.cpp'.*reference, sglang, vllm"):
        engines.get("llama.cpp")


def test_the_environment_is_the_profiles(launch: Launch) -> None:
    for engine, version in BOTH:
        env = {"NCCL_PROTO": "LL"}
        assert engines.get(engine).env(profile(engine, version, env=env), launch) == env


def test_extraction_commands(launch: Launch) -> None:
    sglang = engines.get("sglang").extraction_argv(profile("sglang", "0.5.23"), launch, [2, 30, 58], "/out")
    assert sglang[-8:] == [
        *("--disable-radix-cache", "--enable-return-aux-hidden-states", "--speculative-algorithm", "EAGLE3"),
        *("--return-aux-hidden-state-layer-ids", "2", "30", "58"),
    ]
    vllm = engines.get("vllm").extraction_argv(profile("vllm", "0.31.0"), launch, [2, 30, 58, 61], "/out")
    assert after(vllm, "--speculative-config") == (
        '{"method":"extract_hidden_states","num_speculative_tokens":1,'
        '"draft_model_config":{"hf_config":{"eagle_aux_hidden_state_layer_ids":[2,30,58,61]}}}'
    )
    assert '"shared_storage_path":"/out"' in after(vllm, "--kv-transfer-config")


@pytest.mark.parametrize("version", ["0.5.16", "0.5.20"])
def test_extraction_is_refused_where_the_engine_cannot(version: str, launch: Launch) -> None:
    with pytest.raises(UsageError, match=r"only inside speculation.*use 0\.5\.23"):
        engines.get("sglang").extraction_argv(profile("sglang", version), launch, [2, 30, 58], "/out")
