"""The engine: the same text with and without a draft, rounds that the walk predicts, and slots that do not leak."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import tiny_draft
import torch
from test_verify import chi_square
from tiny_draft import LAYERS, SPEC, K

from k25stack.draft.model import DraftModel, causal_attend
from k25stack.errors import UsageError
from k25stack.reference import verify
from k25stack.reference.attention import Span
from k25stack.reference.engine import Engine, EngineConfig, Result
from k25stack.reference.packed_draft import PackedDraft
from k25stack.reference.request import Event, Request
from k25stack.reference.sampling import Sampling, probabilities
from k25stack.reference.target import Target
from k25stack.speculation import RoundCounts, greedy_walk

STOP = (2, 475)  # 475 occurs in the tiny target's texts, so some responses end by themselves
TOKENS = 48


def requests(count: int, seed: int = 9, sampling: Sampling | None = None, tokens: int = TOKENS) -> list[Request]:
    asked = tiny_draft.prompts(count, seed)
    return [Request(str(i), p, tokens, sampling or Sampling(), STOP) for i, p in enumerate(asked)]


def run(
    target: Target, draft: DraftModel | None, asked: Sequence[Request], config: EngineConfig
) -> tuple[Engine, dict[str, Result]]:
    engine = Engine(target, draft, LAYERS if draft is not None else (), config)
    return engine, engine.generate(asked)


def tokens(results: dict[str, Result]) -> dict[str, tuple[int, ...]]:
    return {name: result.tokens for name, result in results.items()}


# -- lossless ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 5])
def test_same_rows_gives_the_same_text_with_and_without_a_draft(
    target16: Target, draft16: DraftModel, slots: int
) -> None:
    config = EngineConfig(slots=slots, max_len=128, k=K, same_rows=True)
    asked = requests(4 if slots == 1 else 20)
    _, plain = run(target16, None, asked, config)
    engine, drafted = run(target16, draft16, asked, config)
    assert tokens(plain) == tokens(drafted)
    assert {name: r.finish for name, r in plain.items()} == {name: r.finish for name, r in drafted.items()}
    if slots > 1:
        assert {r.finish for r in plain.values()} == {"stop", "length"}
        assert all(count > 0 for count in engine.totals.histogram), "rounds must accept none, some and all"
        assert engine.totals.cut > 0


def test_text_does_not_depend_on_the_batch_or_the_chunks(target32: Target, draft32: DraftModel) -> None:
    asked = requests(8, tokens=32)
    _, expected = run(target32, None, asked, EngineConfig(slots=1, max_len=128))
    for config in (
        EngineConfig(slots=8, max_len=128, k=K),
        EngineConfig(slots=3, max_len=128, k=1, prefill_chunk=7, prefill_tokens=20),
        EngineConfig(slots=5, max_len=96, k=5),
    ):
        _, drafted = run(target32, draft32, asked, config)
        assert tokens(drafted) == tokens(expected)


def test_results_are_the_same_when_run_again(target16: Target, draft16: DraftModel) -> None:
    asked = requests(6, sampling=Sampling(0.8, top_p=0.9, seed=5))
    config = EngineConfig(slots=4, max_len=128, k=K)
    assert run(target16, draft16, asked, config)[1] == run(target16, draft16, asked, config)[1]


def test_a_request_with_a_seed_is_the_same_beside_others(target32: Target, draft32: DraftModel) -> None:
    asked = requests(8, sampling=Sampling(0.9, seed=3))
    config = EngineConfig(slots=8, max_len=128, k=K)
    _, together = run(target32, draft32, asked, config)
    _, alone = run(target32, draft32, asked[5:6], config)
    assert alone["5"] == together["5"]


# -- counters and the walk --------------------------------------------------------------------------------------------


def teacher_forced(target: Target, draft: DraftModel, prompt: Sequence[int], response: Sequence[int]) -> list[int]:
    """Leading matches at every chain start of a finished response, by the draft's plain form and without a cache."""
    text = torch.tensor([*prompt, *response])
    aux = target.prefill_packed(text, torch.tensor([0, len(text)]), LAYERS).aux  # [T, 3H]
    target_ids = draft.target_ids()
    accepted = []
    for t in range(len(response) - 1):
        rows = len(prompt) + t  # rows 0 .. rows-1 have a state of the target's and a known next token
        hidden = draft.fuse(aux[None, :rows])
        following = text[1 : rows + 1].tolist()
        matches = 0
        for step in range(K):
            embeds = target.embed[torch.tensor([following])]
            stream = draft.step(hidden, embeds, torch.arange(rows + step), causal_attend)
            token = int(target_ids[draft.logits(stream[0, -1]).argmax()])
            if t + 1 + step >= len(response) or token != response[t + 1 + step]:
                break
            matches += 1
            following.append(token)
            # The next row takes the newest row's own state; causal attention gives the old rows their old values.
            hidden = torch.cat([hidden, draft.next_hidden(stream[:, -1:])], 1)
        accepted.append(matches)
    return accepted


def test_rounds_are_those_of_the_greedy_walk(target32: Target, draft32: DraftModel) -> None:
    asked = requests(10)
    engine, results = run(target32, draft32, asked, EngineConfig(slots=4, max_len=128, k=K, same_rows=True))
    total = RoundCounts.zero(K)
    for request in asked:
        result = results[request.id]
        assert result.counts == greedy_walk(teacher_forced(target32, draft32, request.prompt, result.tokens), K)
        total += result.counts
    assert engine.totals.rounds() == total
    assert total.accepted > 0
    assert total.cut > 0


def test_tokens_add_up_to_rounds(target16: Target, draft16: DraftModel) -> None:
    engine, results = run(target16, draft16, requests(20), EngineConfig(slots=6, max_len=128, k=K))
    for result in results.values():
        counts = result.counts
        assert counts is not None
        in_whole_rounds = 1 + counts.verify_calls + counts.accepted  # the first token comes from the prefill
        assert counts.cut in (0, 1)
        assert in_whole_rounds <= len(result.tokens) <= in_whole_rounds + counts.cut * K
        assert (len(result.tokens) > in_whole_rounds) == bool(counts.cut)
    assert engine.totals.generation_tokens == sum(len(result.tokens) for result in results.values())
    assert engine.totals.finished["stop"] + engine.totals.finished["length"] == 20


def test_a_random_draft_is_worth_nothing_and_harms_nothing(target16: Target) -> None:
    draft = DraftModel(SPEC).init_random(3).to(torch.bfloat16).requires_grad_(False)
    asked = requests(8)
    config = EngineConfig(slots=8, max_len=128, k=K, same_rows=True)
    engine, drafted = run(target16, draft, asked, config)
    assert engine.totals.rounds().accept_length() < 1.02
    assert tokens(drafted) == tokens(run(target16, None, asked, config)[1])


# -- sampling ---------------------------------------------------------------------------------------------------------

SAMPLED = Sampling(temperature=1.5, top_k=4)
LENGTH = 3


def exact_sequences(target: Target, prompt: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """Probability of every response of LENGTH tokens, from prefills of all of them."""
    table: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        texts = [[*prompt, *sequence] for sequence in table]
        offsets = torch.tensor([0, *itertools.accumulate(len(text) for text in texts)])
        last = target.prefill_packed(torch.tensor([*itertools.chain(*texts)]), offsets).last[offsets[1:] - 1]
        rows = probabilities(target.logits(last), SAMPLED)
        table = {
            (*sequence, int(token)): before * float(row[token])
            for (sequence, before), row in zip(table.items(), rows, strict=True)
            for token in row.nonzero().flatten()
        }
    return table


@pytest.mark.parametrize(("rule", "broken"), [("rejection", False), ("target_only", False), ("target_only", True)])
def test_sampled_sequences_are_distributed_as_the_targets(
    target32: Target, draft32: DraftModel, rule: str, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tiny_draft.prompts(1, seed=12)[0]
    expected = exact_sequences(target32, prompt)
    outside = [t for sequence in expected for t in sequence if not bool(draft32.t2d[t])]
    assert outside, "some of the target's tokens must lie outside the draft vocabulary"
    assert sum(expected.values()) == pytest.approx(1.0, abs=1e-4)
    if broken:
        monkeypatch.setattr(verify, "residual", lambda p, q: p)
    config = EngineConfig(slots=32, max_len=64, k=2, sample_rule=rule)  # type: ignore[arg-type]
    asked = [Request(str(i), prompt, LENGTH, replace(SAMPLED, seed=i)) for i in range(640)]
    _, results = run(target32, draft32, asked, config)
    p_value = chi_square(Counter(tokens(results).values()), expected)
    assert p_value < 1e-6 if broken else p_value > 1e-3


# -- slots, aborts, refusals ------------------------------------------------------------------------------------------


def test_an_abort_frees_its_slot_and_changes_no_other_text(target32: Target, draft32: DraftModel) -> None:
    asked = requests(6)
    _, expected = run(target32, draft32, asked, EngineConfig(slots=2, max_len=128, k=K))
    events: dict[str, list[Event]] = {request.id: [] for request in asked}
    engine = Engine(target32, draft32, LAYERS, EngineConfig(slots=2, max_len=128, k=K))
    for request in asked:
        engine.submit(replace(request, on_event=events[request.id].append))
    engine.step()
    engine.step()
    engine.abort("0")  # running
    engine.abort("4")  # waiting
    engine.abort("unknown")
    while engine.busy:
        engine.step()
    ends = {name: seen[-1].finish for name, seen in events.items()}
    assert (ends["0"], ends["4"]) == ("abort", "abort")
    for name in ("1", "2", "3", "5"):
        assert sum((event.tokens for event in events[name]), ()) == expected[name].tokens
    assert len(engine.scheduler.free) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": ()}, "empty"),
        ({"prompt": (1, 512)}, "outside 0..511"),
        ({"prompt": (5,) * 100}, "context holds 128"),
        ({"max_tokens": 0}, "at least 1"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(target32: Target, change: dict[str, object], message: str) -> None:
    engine = Engine(target32, config=EngineConfig(slots=1, max_len=128))
    with pytest.raises(UsageError, match=message):
        engine.submit(replace(requests(1)[0], **change))  # type: ignore[arg-type]
    assert not engine.busy


def test_two_requests_of_one_id_are_refused(target32: Target) -> None:
    engine = Engine(target32, config=EngineConfig(slots=1, max_len=128))
    engine.submit(requests(1)[0])
    with pytest.raises(UsageError, match="in flight"):
        engine.submit(requests(1)[0])


def test_a_draft_of_another_target_is_refused(target32: Target, draft32: DraftModel) -> None:
    for spec, layers, message in (
        (replace(SPEC, hidden=32, target_hidden=32), LAYERS, "hidden size is 32"),
        (replace(SPEC, target_vocab=600), LAYERS, "vocabulary is 600"),
        (SPEC, (1, 3), "captured layers is 3"),
        (SPEC, (5, 3, 1), "ascending"),
        (SPEC, (1, 3, 7), "within 0..6"),
    ):
        with pytest.raises(UsageError, match=message):
            Engine(target32, DraftModel(spec), layers, EngineConfig(slots=1, max_len=64))
    with pytest.raises(UsageError, match="use at most 1022"):
        Engine(target32, draft32, LAYERS, EngineConfig(slots=1, max_len=1024))


# -- the packed draft beside the plain one ----------------------------------------------------------------------------


@pytest.mark.parametrize("norm_output", [False, True])
def test_the_packed_draft_computes_what_the_module_does(norm_output: bool) -> None:
    spec = replace(SPEC, norm_output=norm_output, head_dim=24, heads=6, kv_heads=3)  # a scale that is no power of two
    model = DraftModel(spec).init_random(1).requires_grad_(False)
    packed, cache = PackedDraft(model, 3, 64), model.new_cache(3, 64)
    generator = torch.Generator().manual_seed(0)

    def states(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, spec.hidden, generator=generator)

    slots, start = torch.tensor([2, 0]), torch.tensor([20, 20])
    hidden, embeds = states(2, 20), states(2, 20)
    zero = torch.zeros(2, dtype=torch.long)
    expected = model.forward_cached(hidden, embeds, cache, slots, zero)
    spans = [Span(0, 20, 2, 0), Span(20, 40, 0, 0)]
    assert torch.allclose(packed.step_packed(hidden.flatten(0, 1), embeds.flatten(0, 1), spans), expected.flatten(0, 1),
                          atol=1e-5)  # fmt: skip
    hidden, embeds = states(2, 3), states(2, 3)
    expected = model.forward_cached(hidden, embeds, cache, slots, start)
    stream = packed.step(hidden, embeds, slots, start)
    assert torch.allclose(stream, expected, atol=1e-5)
    assert torch.allclose(packed.logits(stream[:, -1]), model.logits(expected[:, -1]), atol=1e-5)
    assert torch.allclose(packed.next_hidden(stream), model.next_hidden(expected), atol=1e-5)
