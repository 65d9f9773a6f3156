"""Batched answers, and the regeneration step around them."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import steps
import torch
from hf_llama import hf_model
from torch import Tensor

from k25stack.errors import HostError, UsageError
from k25stack.model.tokenizer import Tokenizer
from k25stack.reference.answer import Answer, Ask, Batch, answer, converse
from k25stack.reference.exact import shape_exact
from k25stack.reference.pool import Factory, run_tasks
from k25stack.reference.recording import Recorded, Recording
from k25stack.reference.sampling import Sampling, probabilities
from k25stack.reference.target import ForwardOut, Target
from k25stack.train.samples import Prompt, read_samples, write_records

STOP = (2,)


def asks(count: int, max_new: int = 15, shared: int = 10) -> list[Ask]:
    """Prompts of 12 to 60 tokens with a common beginning."""
    generator = torch.Generator().manual_seed(5)
    start = torch.randint(4, 500, (shared,), generator=generator).tolist()
    tails = [torch.randint(4, 500, (2 + 7 * i % 50,), generator=generator).tolist() for i in range(count)]
    return [Ask((*start, *tail), max_new) for tail in tails]


def text_of(count: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(4, 500, (count,), generator=torch.Generator().manual_seed(seed)).tolist())


def states(recording: Recording) -> tuple[Tensor, ...]:
    return recording.aux, recording.last, recording.argmax


# -- the batch


def test_greedy_answers_are_hugging_faces(target32: Target, tiny_target_dir: Path) -> None:
    model = hf_model(tiny_target_dir, torch.float32)
    found = answer(target32, asks(7), slots=3, stop_ids=STOP)
    for ask, reply in zip(asks(7)[:4], found, strict=False):
        prompt = torch.tensor([ask.prompt])
        options = {"do_sample": False, "max_new_tokens": 15, "eos_token_id": 2, "pad_token_id": 2}
        wanted = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0, len(ask.prompt) :]
        assert list(reply.tokens) == wanted.tolist()
        assert reply.finish == ("stop" if reply.tokens[-1] == 2 else "length")


@pytest.mark.parametrize("slots", [1, 4, 64])
def test_answers_do_not_depend_on_who_is_asked_beside(target32: Target, slots: int) -> None:
    together = answer(target32, asks(20), slots=slots, stop_ids=range(0, 500, 9))
    alone = [answer(target32, [ask], slots=1, stop_ids=range(0, 500, 9))[0] for ask in asks(20)]
    assert [reply.tokens for reply in together] == [reply.tokens for reply in alone]
    assert len({len(reply.tokens) for reply in together}) > 3  # slots were freed and refilled at different times


def test_long_sequences_take_the_room_of_several(target32: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = answer(target32, asks(9), slots=9, stop_ids=STOP)
    for positions, at_once in ((0, 1), (3 * max(ask.longest for ask in asks(9)), 9)):
        monkeypatch.setattr("k25stack.reference.answer.CACHE_BYTES", positions * target32.position_bytes)
        batch, most = Batch(target32, 9, STOP, None), 0
        batch.add(asks(9))
        while batch.waiting or batch.running:
            batch.refill()
            most = max(most, len(batch.running))
            taken = sum(sequence.ask.longest for sequence in batch.running)
            assert taken <= positions or len(batch.running) == 1
            batch.step()
        assert 1 <= most <= at_once
        assert answer(target32, asks(9), slots=9, stop_ids=STOP) == wanted
    assert most > 3


def test_recorded_states_are_those_of_a_prefill(target16: Target) -> None:
    layers = (2, 3, 5)
    several = [*asks(12), *(replace(ask, sampling=Sampling(1.0), seed=i) for i, ask in enumerate(asks(4)))]
    exact = shape_exact(target16)
    for ask, reply in zip(several, answer(target16, several, slots=5, stop_ids=STOP, layers=layers), strict=True):
        text, recording = torch.tensor([*ask.prompt, *reply.tokens]), reply.recording
        assert recording is not None and len(recording.last) == len(text)  # rows = tokens
        out = target16.prefill_packed(text, torch.tensor([0, len(text)]), layers)
        predicting = slice(len(ask.prompt) - 1, len(text) - 1)
        assert (recording.argmax[: predicting.start] == -1).all() and recording.argmax[-1] == -1
        if ask.sampling.greedy:
            assert recording.argmax[predicting].tolist() == list(reply.tokens)
        if exact:
            assert torch.equal(recording.aux, out.aux) and torch.equal(recording.last, out.last)
            assert torch.equal(recording.argmax[predicting], target16.argmax(out.last[predicting]).to(torch.int32))
        else:
            for mine, theirs in ((recording.aux, out.aux), (recording.last, out.last)):
                assert (mine.float() - theirs.float()).norm() < 0.03 * theirs.float().norm()


@pytest.mark.parametrize("record", [None, (2, 3, 5)])
def test_a_further_turn_goes_on_where_the_last_one_ended(target16: Target, record: tuple[int, ...] | None) -> None:
    """Answers and states are those of the same prompts asked anew, and the known beginning is not computed again."""
    several, more = asks(9), text_of(7, seed=8)
    computed: list[int] = []

    def follow(index: int, answers: list[Answer]) -> Ask | None:
        if len(answers) == 2 or index == 4:
            return None
        said = answers[-1].tokens
        return Ask((*(several[index].prompt if len(answers) == 1 else ()), *said, *more), 15)

    def counted(ids: Tensor, *rest: Any) -> ForwardOut:
        computed.append(len(ids))
        return run(ids, *rest)

    run = target16.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target16, "run", counted)
        found = converse(target16, several, follow, slots=4, stop_ids=STOP, layers=record)
    assert [len(answers) for answers in found] == [1 if index == 4 else 2 for index in range(9)]
    again = [follow(index, answers[:1]) for index, answers in enumerate(found) if len(answers) == 2]
    anew = answer(target16, [ask for ask in again if ask], slots=4, stop_ids=STOP, layers=record)
    seconds = [answers[1] for answers in found if len(answers) == 2]
    fed = sum(len(a.tokens) - (record is None) for answers in found for a in answers)
    prompts = sum(len(ask.prompt) for ask in several) + len(seconds) * (len(more) + (record is None))
    assert sum(computed) == prompts - 10 * (len(several) - 1) + fed  # ten tokens begin every prompt
    if shape_exact(target16):
        assert [reply.tokens for reply in seconds] == [reply.tokens for reply in anew]
        for mine, theirs in zip(seconds, anew, strict=True):
            if mine.recording is not None and theirs.recording is not None:
                assert all(
                    torch.equal(a, b) for a, b in zip(states(mine.recording), states(theirs.recording), strict=True)
                )


def test_sampled_tokens_follow_the_distribution(target32: Target) -> None:
    """Chi-square of the first token over 2,000 seeds, rare tokens pooled."""
    sampling, draws = Sampling(temperature=3.0, top_p=0.9, top_k=40), 2000
    prompt = asks(1)[0].prompt
    several = [Ask(prompt, 1, sampling, seed) for seed in range(draws)]
    found = answer(target32, several, slots=64, stop_ids=STOP)
    last = target32.prefill_packed(torch.tensor(prompt), torch.tensor([0, len(prompt)])).last[-1]
    expected = probabilities(target32.logits(last), sampling).double() * draws
    counts = torch.bincount(torch.tensor([reply.tokens[0] for reply in found]), minlength=512).double()
    assert counts[expected == 0].sum() == 0
    common = expected >= 10
    pooled = torch.stack([counts[~common].sum(), expected[~common].sum()])
    statistic = float(((counts - expected)[common] ** 2 / expected[common]).sum())
    statistic += float((pooled[0] - pooled[1]) ** 2 / pooled[1]) if pooled[1] > 0 else 0.0
    freedom = int(common.sum())
    assert freedom > 5
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5


# -- the step


@pytest.fixture(scope="module")
def made(tiny_target_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished regeneration."""
    out = tmp_path_factory.mktemp("generate") / "out"
    steps.run_generate(steps.generate_spec(tiny_target_dir, out))
    return out


def test_every_turn_is_answered_in_the_order_of_the_prompts(made: Path, tiny_target_dir: Path) -> None:
    samples = read_samples(made)
    prompts = steps.write_prompts(made.parent / "again.jsonl")
    assert [(s.doc_id, s.turn) for s in samples] == [(p.doc_id, t) for p in prompts for t in range(len(p.turns))]
    assert all(s.finish == ("stop" if s.response_ids[-1] == 2 else "length") for s in samples)
    assert all(1 <= len(s.response_ids) <= 12 for s in samples)
    tokenizer = Tokenizer.load(tiny_target_dir)
    by_name = {s.name: s for s in samples}
    for prompt in (p for p in prompts if len(p.turns) == 2):
        first, second = by_name[f"{prompt.doc_id}/0"], by_name[f"{prompt.doc_id}/1"]
        talk = [
            {"role": "user", "content": prompt.turns[0]},
            {"role": "assistant", "content": tokenizer.decode(first.response_ids)},
            {"role": "user", "content": prompt.turns[1]},
        ]
        assert list(second.prompt_ids) == tokenizer.ids_of_chat(talk)


def test_only_training_documents_are_sampled(made: Path) -> None:
    samples = read_samples(made)
    kinds = {(s.split, s.decode["kind"]) for s in samples}
    assert kinds == {("train", "greedy"), ("train", "sampled"), ("validation", "greedy"), ("held_out", "greedy")}
    for s in samples:
        assert (s.decode["temperature"], s.decode["top_p"]) == ((1.0, 0.9) if s.decode["kind"] == "sampled" else (0, 1))
    assert len({(s.doc_id, s.decode["kind"]) for s in samples}) == 20  # all turns of a document in one way


def test_every_sample_has_its_recording(made: Path) -> None:
    recorded = Recorded.open(made).intact()
    assert recorded.layers == tuple(steps.LAYERS)
    for sample in read_samples(made):
        rows = recorded.get(sample.name)
        assert rows.aux.shape == (sample.tokens, 3 * 64)
        assert rows.last.shape == (sample.tokens, 64)


def test_two_processes_give_the_same_bytes(made: Path, tiny_target_dir: Path) -> None:
    out = made.parent / "two"
    figures = steps.run_generate(steps.generate_spec(tiny_target_dir, out, processes=2))
    assert steps.contents(out) == steps.contents(made)
    assert figures["samples"] == 24 and figures["tok_s"] > 0


def test_a_second_try_finishes_what_is_missing(made: Path, tiny_target_dir: Path) -> None:
    """Absent, torn and half-written parts are made again; the rest is kept."""
    out = made.parent / "resumed"
    spec = steps.generate_spec(tiny_target_dir, out)
    steps.run_generate(spec)
    parts = out / "parts"
    (parts / "part-0000.json").unlink()  # killed before the record
    torn = parts / "part-0001.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    (parts / "part-0009.jsonl").write_text("of another plan")
    kept = {path: path.stat().st_mtime_ns for path in parts.glob("part-0002.*")}
    (out / "samples.jsonl").unlink()
    steps.run_generate(spec)
    assert steps.contents(out) == steps.contents(made)
    assert kept and all(path.stat().st_mtime_ns == written for path, written in kept.items())


def test_another_param_is_answered_anew(made: Path, tiny_target_dir: Path) -> None:
    out = made.parent / "changed"
    steps.run_generate(steps.generate_spec(tiny_target_dir, out))
    steps.run_generate(steps.generate_spec(tiny_target_dir, out, seed=4, record=None))
    fresh = made.parent / "fresh"
    steps.run_generate(steps.generate_spec(tiny_target_dir, fresh, seed=4, record=None))
    assert steps.contents(out) == steps.contents(fresh)
    assert read_samples(out) != read_samples(made)
    assert not (out / "recorded.json").exists()


def test_killed_at_any_moment_the_next_try_ends_with_the_same_bytes(made: Path, tiny_target_dir: Path) -> None:
    spec = steps.generate_spec(tiny_target_dir, made.parent / "killed", processes=2)
    process = steps.start("generate", spec)
    wait_for(lambda: any((spec.out / "parts").glob("*.json")), process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not any(Path(f"/proc/{child}/exe").exists() for child in children))  # they go with their parent
    figures = steps.run_generate(replace(spec, params={**spec.params, "processes": 1}))
    assert steps.contents(spec.out) == steps.contents(made)
    assert figures["samples"] == 24


def wait_for(happened: object, process: object = None, seconds: float = 60.0) -> None:
    """Poll until ``happened()``; fails when the process ends or the time is over before."""
    end = time.monotonic() + seconds
    while not happened():  # type: ignore[operator]
        assert time.monotonic() < end, "did not happen in time"
        assert process is None or process.poll() is None, process.stderr.read()  # type: ignore[attr-defined]
        time.sleep(0.01)


# -- bad input


def one_turn_prompts(directory: Path) -> list[Prompt]:
    """Five documents without follow-ups, where `steps.generate_spec` looks for them."""
    prompts = [replace(p, turns=p.turns[:1]) for p in steps.write_prompts(directory / "prompts-5.jsonl", 5)]
    write_records(directory / "prompts-5.jsonl", prompts)
    return prompts


def test_a_prompt_longer_than_the_context_is_named(tiny_target_dir: Path, tmp_path: Path) -> None:
    one_turn_prompts(tmp_path)
    spec = steps.generate_spec(tiny_target_dir, tmp_path / "out", prompts=5, context=40)
    with pytest.raises(UsageError, match=r"document 0{15}4 \(even q4\), turn 0: a prompt of \d+ tokens leaves no room"):
        steps.run_generate(spec)
    assert not any((tmp_path / "out").iterdir())


def test_an_answer_ends_with_the_context(tiny_target_dir: Path, tmp_path: Path) -> None:
    one_turn_prompts(tmp_path)
    steps.run_generate(steps.generate_spec(tiny_target_dir, tmp_path / "out", prompts=5, context=50))
    samples = read_samples(tmp_path / "out")
    assert max(sample.tokens for sample in samples) == 50
    assert all(sample.tokens == 50 or sample.finish == "stop" or len(sample.response_ids) == 12 for sample in samples)


def test_no_prompts_is_said(tiny_target_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts-20.jsonl").write_text("")
    with pytest.raises(UsageError, match="no record in it"):
        steps.run_generate(steps.generate_spec(tiny_target_dir, tmp_path / "out"))


@pytest.mark.parametrize("processes", [1, 2])
def test_errors_of_a_worker_reach_the_caller(tmp_path: Path, processes: int) -> None:
    factory = Factory("pool_tasks", "make", None)
    with pytest.raises(UsageError, match="task 3: broken on purpose"):
        run_tasks(factory, [1, 2, 3, 4], processes=processes)


def test_a_dead_worker_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="a worker process died with exit code -9"):
        run_tasks(Factory("pool_tasks", "make", None), ["die", 1], processes=2)


def test_tasks_that_become_ready_go_first() -> None:
    order: list[int] = []

    def then(task: int, result: int) -> list[int]:
        order.append(result)
        return [task + 10] if task < 10 else []

    units: list[int] = []
    run_tasks(Factory("pool_tasks", "make", None), [1, 2], processes=1, then=then, progress=units.append)
    assert order == [-1, -11, -2, -12] and units == [1, 1, 1, 1]
