"""What is said about an option: unknown, ambiguous, a beginning, dead, replaced, or nothing."""

from __future__ import annotations

import pytest

from k25stack.engines.catalogue import FATAL, findings, names
from k25stack.engines.sglang import OWN as SGLANG_OWN
from k25stack.engines.sglang import SGLang
from k25stack.engines.vllm import OWN as VLLM_OWN
from k25stack.engines.vllm import VLLM

VERSIONS = [("sglang", version) for version in SGLang.versions] + [("vllm", version) for version in VLLM.versions]


@pytest.mark.parametrize(("engine", "version"), VERSIONS)
def test_every_version_has_a_catalogue_with_the_options_the_stack_writes(engine: str, version: str) -> None:
    assert len(names(engine, version)) > 300
    assert set(SGLANG_OWN if engine == "sglang" else VLLM_OWN) <= names(engine, version)


@pytest.mark.parametrize(
    ("version", "option", "problem", "remedy"),
    [
        ("0.5.20", "num-continuous-decode-steps", "dead", "leave it out"),
        ("0.5.23", "num-continuous-decode-steps", "dead", "leave it out"),
        ("0.5.20", "cuda-graph-max-bs", "ambiguous", "write cuda-graph-max-bs-decode"),
        ("0.5.20", "disable-cuda-graph", "replaced", "cuda-graph-backend-decode"),
        ("0.5.20", "max-running", "abbreviated", "write max-running-requests"),
        ("0.5.20", "atention-backend", "unknown", "did you mean attention-backend?"),
        ("0.5.20", "enable-return-aux-hidden-states", "unknown", ""),
    ],
)
def test_what_is_wrong_with_an_option(version: str, option: str, problem: str, remedy: str) -> None:
    (finding,) = findings("sglang", version, [option])
    assert finding.problem == problem
    assert remedy in finding.remedy


def test_versions_differ() -> None:
    (renamed,) = findings("sglang", "0.5.16", ["cuda-graph-max-bs"])
    assert (renamed.problem, renamed.remedy) == ("replaced", "write --cuda-graph-max-bs-decode")
    assert findings("sglang", "0.5.23", ["enable-return-aux-hidden-states"]) == []
    assert findings("vllm", "0.31.0", ["max-num-seqs", "enable-auto-tool-choice"]) == []


def test_good_options_and_versions_without_a_catalogue_are_passed_over() -> None:
    assert findings("sglang", "0.5.20", ["attention-backend", "tp-size", "tensor-parallel-size"]) == []
    assert findings("reference", "0.1.0", ["anything"]) == []


def test_only_what_ends_the_start_is_fatal() -> None:
    assert set(FATAL) == {"unknown", "ambiguous"}
