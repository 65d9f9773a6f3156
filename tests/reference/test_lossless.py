"""The lossless check: right engines pass, near-ties are told from faults, and wrong verifiers fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tiny_draft
import torch
from tiny_draft import LAYERS, K
from torch import Tensor

from k25stack.draft.model import DraftModel
from k25stack.errors import UsageError
from k25stack.reference import verify
from k25stack.reference.drafting import Drafter
from k25stack.reference.engine import Engine, EngineConfig
from k25stack.reference.lossless import Lossless, Pair, judge, verdict
from k25stack.reference.request import Request
from k25stack.reference.target import Target

TOKENS = 48
RESPONSES = 24
STOP = (2, 475)


def served(target: Target, draft: DraftModel | None) -> list[tuple[int, ...]]:
    engine = Engine(target, draft, LAYERS if draft is not None else (), EngineConfig(slots=8, max_len=128, k=K))
    asked = tiny_draft.prompts(RESPONSES, seed=21)
    results = engine.generate(Request(str(i), p, TOKENS, stop_ids=STOP) for i, p in enumerate(asked))
    return [results[str(i)].tokens for i in range(RESPONSES)]


@pytest.fixture(scope="module")
def plain(target16: Target) -> list[tuple[int, ...]]:
    return served(target16, None)


def compare(target: Target, plain: list[tuple[int, ...]], draft: DraftModel) -> Lossless:
    asked = tiny_draft.prompts(RESPONSES, seed=21)
    pairs = zip(asked, plain, served(target, draft), strict=True)
    return judge(target, [Pair(str(i), *pair) for i, pair in enumerate(pairs)], K, batch=12)


def test_the_engine_is_lossless(target16: Target, draft16: DraftModel, plain: list[tuple[int, ...]]) -> None:
    result = compare(target16, plain, draft16)
    assert result.faults == 0
    assert result.compared == RESPONSES
    assert result.tokens > 900
    assert result.positions > 300
    assert result.as_dict()["ties"] == result.ties


class OneBadTokenIn200:
    """A greedy verifier that, once in 200 tokens, lets a proposal pass that the target did not choose."""

    def __init__(self) -> None:
        self.right = verify.greedy
        self.tokens = 0
        self.passed = 0

    def __call__(self, proposals: Sequence[int], argmax: Sequence[int]) -> verify.Verdict:
        result = self.right(proposals, argmax)
        if result.accepted < len(proposals) and self.tokens >= 200 * (self.passed + 1):
            self.passed += 1
            wrong = [*proposals[: result.accepted + 1], argmax[result.accepted + 1]]
            result = verify.Verdict(result.accepted + 1, wrong)
        self.tokens += len(result.tokens)
        return result


def test_a_verifier_that_accepts_one_bad_token_in_200_fails(
    target16: Target, draft16: DraftModel, plain: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = OneBadTokenIn200()
    monkeypatch.setattr(verify, "greedy", wrong)
    result = compare(target16, plain, draft16)
    assert 0 < wrong.passed <= wrong.tokens / 200
    assert result.faults > 0


def test_a_cache_that_is_not_rolled_back_fails(
    target16: Target, draft16: DraftModel, plain: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rejected rows that stay visible: every round's start is one too far once something was rejected."""
    right = Engine._verify_logits

    def shifted(self: Engine, running: list[Any], proposals: list[list[int]]) -> Any:
        for active in running:
            active.cached += len(active.output) > 20
        try:
            return right(self, running, proposals)
        finally:
            for active in running:
                active.cached -= len(active.output) > 20

    monkeypatch.setattr(Engine, "_verify_logits", shifted)
    assert compare(target16, plain, draft16).faults > 0


def test_stale_draft_states_cost_acceptance_but_no_text(
    target16: Target, draft16: DraftModel, plain: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Drafter, "observe", lambda self, slots, aux: None)
    assert compare(target16, plain, draft16).faults == 0


class Noisy:
    """A target whose logits depend on how many rows are computed together, as on other machines."""

    def __init__(self, target: Target, size: float) -> None:
        self._target = target
        self._size = size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def logits(self, last: Tensor) -> Tensor:
        logits = self._target.logits(last).float()
        generator = torch.Generator().manual_seed(logits[..., 0].numel())
        return logits + self._size * torch.rand(logits.shape, generator=generator)


def test_batch_shape_noise_gives_ties_and_no_faults(target16: Target, draft16: DraftModel) -> None:
    noisy: Any = Noisy(target16, 0.3)
    result = compare(noisy, served(noisy, None), draft16)
    assert result.ties > 0
    assert result.faults == 0
    assert 0.2 < result.band < 0.6
    assert all(d.gap is not None and d.gap <= result.band for d in result.divergences)


def test_a_gap_beyond_the_band_is_a_fault() -> None:
    pair = Pair("a", (1, 2), (5, 6, 7), (5, 4, 7))
    assert pair.divergence() == 1
    assert pair.text() == [1, 2, 5]
    logits = torch.zeros(2, 10)
    logits[:, 6], logits[:, 4] = 3.0, 2.75
    assert verdict(pair, 1, logits, band=0.25).verdict == "tie"
    assert verdict(pair, 1, logits, band=0.24).verdict == "fault"
    logits[1, 4] = 3.0  # under one row count they are equal
    assert verdict(pair, 1, logits, band=0.0).verdict == "tie"


def test_an_early_end_is_a_fault() -> None:
    pair = Pair("a", (1,), (5, 6, 7), (5, 6))
    assert pair.divergence() == 2
    end = verdict(pair, 2, torch.zeros(2, 10), band=9.0)
    assert (end.verdict, end.plain, end.drafted, end.gap) == ("fault", 7, None, None)


def test_nothing_to_compare_is_an_error(target16: Target) -> None:
    with pytest.raises(UsageError, match="no responses"):
        judge(target16, [], K)
