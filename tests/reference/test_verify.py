"""The verifiers and samplers: exactness on distributions known in closed form."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from k25stack.errors import UsageError
from k25stack.reference import verify
from k25stack.reference.sampling import Sampling, draw, probabilities

VOCAB, LENGTH, K = 5, 3, 2
DRAFT_IDS = torch.tensor([0, 2, 3])  # ids 1 and 4 can only come from the target
ROUNDS = 4_000


def rows(seed: int, count: int, width: int, sharpness: float) -> Tensor:
    return (torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) * sharpness).softmax(-1)


# A first-order chain: the row of the last token gives the next one.  The target has about 45 % of its mass on ids
# 1 and 4, which the draft does not have.
TARGET = rows(1, VOCAB, VOCAB, 1.0)
DRAFT = rows(2, VOCAB, len(DRAFT_IDS), 1.0)


def exact() -> dict[tuple[int, ...], float]:
    """Probability of every sequence of LENGTH tokens after token 0, sampled plainly from the target."""
    table = {}
    for sequence in itertools.product(range(VOCAB), repeat=LENGTH):
        probability = 1.0
        for before, token in zip((0, *sequence), sequence, strict=False):
            probability *= float(TARGET[before, token])
        table[sequence] = probability
    return table


def speculate(rng: random.Random, rule: str) -> tuple[int, ...]:
    """One sequence of LENGTH tokens by speculative rounds of K draft tokens."""
    tokens = [0]
    while len(tokens) <= LENGTH:
        chain, q = [tokens[-1]], []
        for _ in range(K):
            row = DRAFT[chain[-1]]
            local = draw(row, rng.random()) if rule == "rejection" else int(row.argmax())
            q.append(row)
            chain.append(int(DRAFT_IDS[local]))
        p = TARGET[chain]  # [K + 1, V]
        uniforms = [rng.random() for _ in range(K + 1)]
        if rule == "rejection":
            verdict = verify.rejection(chain[1:], p, verify.scatter(torch.stack(q), DRAFT_IDS, VOCAB), uniforms)
        else:
            verdict = verify.target_only(chain[1:], p, uniforms)
        assert len(verdict.tokens) == verdict.accepted + 1
        tokens += verdict.tokens
    return tuple(tokens[1 : LENGTH + 1])


def chi_square(observed: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """p-value of the observed sequences under the expected distribution; rare sequences share one cell."""
    total = sum(observed.values())
    rare = [s for s, p in expected.items() if p * total < 10]
    cells = [(observed[s], p * total) for s, p in expected.items() if p * total >= 10]
    if rare:
        cells.append((sum(observed[s] for s in rare), sum(expected[s] for s in rare) * total))
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    half = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def sequences(rule: str, seed: int) -> Counter[tuple[int, ...]]:
    rng = random.Random(seed)
    return Counter(speculate(rng, rule) for _ in range(ROUNDS))


def test_much_of_the_target_lies_outside_the_draft_vocabulary() -> None:
    assert 0.3 < float(TARGET[:, [1, 4]].sum(-1).mean()) < 0.6


@pytest.mark.parametrize("rule", ["rejection", "target_only"])
def test_sequences_are_distributed_as_the_targets(rule: str) -> None:
    assert chi_square(sequences(rule, seed=7), exact()) > 1e-3


def no_residual(p: Tensor, q: Tensor) -> Tensor:
    return p


def residual_inside_the_draft_vocabulary(p: Tensor, q: Tensor) -> Tensor:
    inside = torch.zeros_like(p)
    inside[DRAFT_IDS] = 1.0
    return (p - q).clamp_min(0.0) * inside


@pytest.mark.parametrize("wrong", [no_residual, residual_inside_the_draft_vocabulary])
def test_a_verifier_without_the_residual_fails(
    wrong: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "residual", wrong)
    assert chi_square(sequences("rejection", seed=7), exact()) < 1e-9


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.lists(st.integers(0, 3), min_size=7, max_size=7))
def test_greedy_keeps_the_leading_matches_and_adds_the_targets_token(proposals: list[int], choices: list[int]) -> None:
    argmax = choices[: len(proposals) + 1]
    verdict = verify.greedy(proposals, argmax)
    assert verdict.tokens == argmax[: verdict.accepted + 1]
    assert verdict.tokens[:-1] == proposals[: verdict.accepted]
    if verdict.accepted < len(proposals):
        assert proposals[verdict.accepted] != argmax[verdict.accepted]


def test_equal_distributions_accept_everything() -> None:
    p = rows(3, 4, VOCAB, 1.0)
    for uniform in (0.0, 0.5, 0.999999):
        assert verify.rejection([1, 2, 0], p, p[:3], [uniform] * 4).accepted == 3


def test_a_token_the_target_rules_out_never_stands() -> None:
    p = torch.tensor([[0.0, 0.6, 0.4], [1.0, 0.0, 0.0]])
    q = torch.tensor([[1.0, 0.0, 0.0]])
    for uniform in (0.0, 0.3, 0.99):
        verdict = verify.rejection([0], p, q, [0.0, uniform])
        assert verdict.accepted == 0
        assert verdict.tokens[0] in (1, 2)


def test_scatter_puts_draft_mass_on_target_ids() -> None:
    full = verify.scatter(torch.tensor([[0.25, 0.75], [1.0, 0.0]]), torch.tensor([4, 1]), 6)
    assert full.tolist() == [[0, 0.75, 0, 0, 0.25, 0], [0, 1.0 * 0, 0, 0, 1, 0]]


@settings(deadline=None)
@given(
    st.lists(st.floats(-8, 8), min_size=2, max_size=40),
    st.floats(0.1, 3.0),
    st.floats(0.05, 1.0),
    st.integers(0, 8),
)
def test_filters_keep_the_leading_tokens_in_proportion(
    scores: Sequence[float], temperature: float, top_p: float, top_k: int
) -> None:
    logits = torch.tensor(scores)
    probs = probabilities(logits, Sampling(temperature, top_p, top_k))
    full = (logits / temperature).softmax(-1)
    kept = probs > 0
    assert float(probs.sum()) == pytest.approx(1.0, abs=1e-5)
    assert 1 <= int(kept.sum()) <= (top_k or len(scores))
    assert float(full[kept].min()) >= float(full[~kept].max()) if bool((~kept & (full > 0)).any()) else True
    assert torch.allclose(probs[kept], full[kept] / full[kept].sum(), atol=1e-4)


def test_top_p_of_a_flat_distribution_looks_past_the_first_candidates() -> None:
    probs = probabilities(torch.zeros(5000), Sampling(1.0, top_p=0.5))
    assert abs(int((probs > 0).sum()) - 2500) <= 1


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 2))
def test_draw_never_returns_a_weightless_index(uniform: float, place: int) -> None:
    weights = torch.zeros(3)
    weights[place] = 0.3
    assert draw(weights, uniform) == place


def test_draw_refuses_an_empty_distribution() -> None:
    with pytest.raises(UsageError, match="zero"):
        draw(torch.zeros(3), 0.5)


@pytest.mark.parametrize(
    "fields", [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": -2}]
)
def test_sampling_refuses_values_outside_their_range(fields: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(fields))):
        Sampling(**{"temperature": 1.0, **fields})  # type: ignore[arg-type]
