"""The extraction step: what is in the shards, and what happens when something is damaged."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import steps
import torch

from k25stack.errors import ContractError, UsageError
from k25stack.reference.exact import shape_exact
from k25stack.reference.parts import write_index
from k25stack.reference.recording import Recorded, Recording, write_part
from k25stack.reference.target import Target
from k25stack.states.reader import open_states
from k25stack.train.samples import read_samples, write_records


@pytest.fixture(scope="module")
def samples(tiny_target_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples with recorded states."""
    out = tmp_path_factory.mktemp("extract") / "samples"
    steps.run_generate(steps.generate_spec(tiny_target_dir, out))
    return out


@pytest.fixture(scope="module")
def prefilled(samples: Path, tiny_target_dir: Path) -> Path:
    """Their states by prefill."""
    out = samples.parent / "prefilled"
    figures = steps.run_extract(steps.extract_spec(tiny_target_dir, samples, out))
    assert figures["tokens_prefilled"] == figures["tokens"] and figures["shards"] >= 8
    return out


def test_rows_are_the_states_of_the_tokens(prefilled: Path, samples: Path, target16: Target) -> None:
    states = open_states(prefilled, check_hashes=True)
    wanted = {sample.name: sample for sample in read_samples(samples)}
    exact = shape_exact(target16)
    found = list(states.documents())
    assert sorted(document.name for document in found) == sorted(wanted)
    for document in found:
        sample = wanted[document.name]
        text = torch.tensor([*sample.prompt_ids, *sample.response_ids])
        assert torch.equal(document.token_ids, text)
        assert document.loss_mask.tolist() == [False] * len(sample.prompt_ids) + [True] * len(sample.response_ids)
        out = target16.prefill_packed(text, torch.tensor([0, len(text)]), steps.LAYERS)
        for mine, theirs in ((document.aux, out.aux), (document.last, out.last)):
            assert torch.equal(mine, theirs) if exact else torch.allclose(mine, theirs, rtol=0.1, atol=0.1)
        predicts_response = torch.cat([document.loss_mask[1:], torch.tensor([False])])
        choices = target16.argmax(document.last).to(torch.int32)
        assert torch.equal(document.argmax, torch.where(predicts_response, choices, -1))


def test_the_manifest_says_how_the_states_were_made(prefilled: Path, samples: Path) -> None:
    meta, sample = open_states(prefilled).meta, read_samples(samples)[0]
    assert meta.layers == tuple(steps.LAYERS) and meta.last_norm == "post" and meta.tp == 1
    assert (meta.template_hash, meta.target_revision) == (sample.template_hash, sample.target_revision)
    assert meta.decode["kind"] == "greedy"  # figures are reported on held-out rows, which are greedy


def test_recorded_states_are_prefilled_ones(
    prefilled: Path, samples: Path, tiny_target_dir: Path, target16: Target
) -> None:
    out = samples.parent / "recorded"
    figures = steps.run_extract(steps.extract_spec(tiny_target_dir, samples, out, mode="recorded"))
    assert figures["tokens_prefilled"] == 0
    compared = figures["recorded_against_prefill"]
    assert compared["documents"] == 4 and len(compared["relative_error"]) == 4
    if shape_exact(target16):
        assert compared["relative_error"] == [0.0] * 4 and compared["argmax_agreement"] == 1.0
        assert steps.contents(out) == steps.contents(prefilled)
        return
    agree = total = 0
    for mine, theirs in zip(open_states(out).documents(), open_states(prefilled).documents(), strict=True):
        for a, b in ((mine.aux, theirs.aux), (mine.last, theirs.last)):
            assert (a.float() - b.float()).norm() < 0.03 * b.float().norm()
        agree += int((mine.argmax == theirs.argmax).sum())
        total += len(mine)
    assert agree > 0.97 * total


def test_damaged_recordings_are_prefilled(
    prefilled: Path, samples: Path, tiny_target_dir: Path, tmp_path: Path
) -> None:
    directory = steps.copied(samples, tmp_path / "samples")
    steps.flip_byte(directory / "parts" / "part-0001.safetensors")
    (directory / "parts" / "part-0002.safetensors").unlink()
    spec = steps.extract_spec(tiny_target_dir, directory, tmp_path / "out", mode="recorded")
    figures = steps.run_extract(spec)
    assert 0 < figures["tokens_prefilled"] < figures["tokens"]
    same_documents(tmp_path / "out", prefilled)


def test_recordings_of_other_tokens_are_found_out(samples: Path, tiny_target_dir: Path, tmp_path: Path) -> None:
    """Every hash is right, but the rows were shifted by one before they were written."""
    directory = steps.copied(samples, tmp_path / "samples")
    recorded = Recorded.open(directory)
    parts = []
    for part in recorded.parts:
        rows = [recorded.get(name) for name in part.documents]
        shifted = [Recording(r.aux.roll(1, 0), r.last.roll(1, 0), r.argmax) for r in rows]
        parts.append(write_part(directory, part.file.replace("parts/", "shifted-"), part.documents, shifted))
    write_index(directory, recorded.layers, parts)
    spec = steps.extract_spec(tiny_target_dir, directory, tmp_path / "out", mode="recorded")
    with pytest.raises(ContractError, match="recorded states differ from prefilled ones by"):
        steps.run_extract(spec)


def test_recordings_of_other_layers_are_not_taken(samples: Path, tiny_target_dir: Path, tmp_path: Path) -> None:
    spec = steps.extract_spec(tiny_target_dir, samples, tmp_path / "out", mode="recorded", layers=[1, 3, 5])
    figures = steps.run_extract(spec)
    assert figures["tokens_prefilled"] == figures["tokens"]


def test_without_recordings_everything_is_prefilled(prefilled: Path, samples: Path, tiny_target_dir: Path) -> None:
    file = samples.parent / "alone" / "samples.jsonl"
    write_records(file, read_samples(samples))
    out = samples.parent / "from-file"
    steps.run_extract(steps.extract_spec(tiny_target_dir, file, out, mode="recorded", threads=2))
    assert steps.contents(out) == steps.contents(prefilled)  # and two processes give the same bytes


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_shard_is_made_again_alone(
    prefilled: Path, samples: Path, tiny_target_dir: Path, damage: str
) -> None:
    before = steps.contents(prefilled)
    shard = prefilled / "shards" / "00002.safetensors"
    others = {path: path.stat().st_mtime_ns for path in shard.parent.iterdir() if path != shard}
    if damage == "flip":
        steps.flip_byte(shard)
    elif damage == "truncate":
        shard.write_bytes(shard.read_bytes()[:-100])
    else:
        shard.unlink()
    figures = steps.run_extract(steps.extract_spec(tiny_target_dir, samples, prefilled))
    assert 0 < figures["tokens_prefilled"] < figures["tokens"]
    assert steps.contents(prefilled) == before
    assert {path: path.stat().st_mtime_ns for path in others} == others


def test_a_full_disk_is_one_line_and_the_next_try_goes_on(
    prefilled: Path, samples: Path, tiny_target_dir: Path, tmp_path: Path
) -> None:
    spec = steps.extract_spec(tiny_target_dir, samples, tmp_path / "out")
    limit = 40_000  # no file may become larger, as on a small disk

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = steps.start("extract", spec, preexec_fn=small_disk)
    _, errors = process.communicate(timeout=120)
    last = errors.strip().splitlines()[-1]
    assert process.returncode == 3, errors
    assert last.startswith("error: ") and "File too large" in last
    assert "Traceback" not in errors
    assert not list((tmp_path / "out" / "shards").glob("*.safetensors"))
    steps.run_extract(spec)
    assert steps.contents(tmp_path / "out") == steps.contents(prefilled)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layers": [3, 2, 5]}, r"layers \[3, 2, 5\] \(ascending ids within 0\.\.6"),
        ({"layers": [2, 3, 7]}, r"layers \[2, 3, 7\]"),
        ({"mode": "guess"}, "mode is 'guess'"),
        ({"dtype": "float64"}, "unknown state type"),
    ],
)
def test_impossible_params_are_named(
    samples: Path, tiny_target_dir: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        steps.run_extract(steps.extract_spec(tiny_target_dir, samples, tmp_path / "out", **changes))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target_revision": "f" * 64}, "made by target revision ffffffffffff, this target is 000000000000"),
        ({"prompt_ids": (1, 600)}, "a token id is not below 512"),
        ({"prompt_ids": (1,) * 1024}, "tokens exceed the target's context of 1024"),
        ({"template_hash": "other"}, "samples of 2 chat templates"),
    ],
)
def test_samples_that_do_not_fit_are_named(
    samples: Path, tiny_target_dir: Path, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    first, *rest = read_samples(samples)
    write_records(tmp_path / "samples.jsonl", [replace(first, **change), *rest])
    with pytest.raises(UsageError, match=said):
        steps.run_extract(steps.extract_spec(tiny_target_dir, tmp_path, tmp_path / "out"))


def same_documents(mine: Path, theirs: Path) -> None:
    """The same documents in both, with the same states up to rounding."""
    for a, b in zip(open_states(mine).documents(), open_states(theirs).documents(), strict=True):
        assert a.name == b.name
        assert (a.aux.float() - b.aux.float()).norm() <= 0.03 * b.aux.float().norm()
