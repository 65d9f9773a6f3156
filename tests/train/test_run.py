"""A whole run on the tiny target: it learns, its figures are what the readable module gives, bad input is one line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import DRAFT_VOCAB, SPEC, VOCAB, params, write_inputs, write_vocabulary

from k25stack.draft.model import DraftModel
from k25stack.draft.spec import DraftSpec
from k25stack.errors import UsageError
from k25stack.speculation import greedy_walk
from k25stack.states.manifest import Manifest
from k25stack.states.reader import open_states
from k25stack.train.loss import chain
from k25stack.train.main import program
from k25stack.worker import Spec


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_target_dir: Path) -> dict[str, str]:
    return write_inputs(tmp_path_factory.mktemp("inputs"), tiny_target_dir)


def run(inputs: dict[str, str], out: Path, **changes: Any) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    return program(Spec(params(**changes), {name: Path(path) for name, path in inputs.items()}, out, 1))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, str]) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("trained")
    return out, run(inputs, out, dtype="float32", epochs=5)


def module(out: Path) -> DraftModel:
    model = DraftModel(DraftSpec.from_dict(SPEC))
    model.load_state_dict(load_file(out / "best.safetensors"))
    return model


def accepted(model: DraftModel, inputs: dict[str, str], split: str, k: int) -> dict[str, Sequence[int]]:
    """Leading matches at every chain start of every document, by the readable module."""
    embed = load_file(Path(inputs["target"]) / "model.safetensors")["model.embed_tokens.weight"]
    result = {}
    for document in open_states(Path(inputs["states"])).documents(split):
        with torch.no_grad():
            streams = chain(model, document, embed, k)
            proposed = [model.target_ids()[model.logits(stream).argmax(-1)] for stream in streams]
        first = int(document.loss_mask.nonzero()[0])
        runs = []
        for row in range(first - 1, len(document) - 2):
            run = 0
            while run < k and row + 2 + run < len(document) and proposed[run][row] == document.token_ids[row + 2 + run]:
                run += 1
            runs.append(run)
        result[document.doc_id] = runs
    return result


def test_it_learns(trained: tuple[Path, dict[str, Any]]) -> None:
    out, result = trained
    epochs = [json.loads(line) for line in (out / "epochs.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in epochs] == [1, 2, 3, 4, 5]
    assert epochs[-1]["loss"] < epochs[0]["loss"] / 2
    assert epochs[-1]["accuracy"][0] > epochs[0]["accuracy"][0]
    assert result["walk"]["accept_length"] > 1.3 and result["survival_uniform"] > 1.3


def test_the_walk_is_what_the_module_does(trained: tuple[Path, dict[str, Any]], inputs: dict[str, str]) -> None:
    """walk.jsonl from the packed fast forward, against the served tensors in the readable module."""
    out, result = trained
    runs = accepted(module(out), inputs, "held_out", 3)
    records = [json.loads(line) for line in (out / "walk.jsonl").read_text().splitlines()]
    assert {record["doc_id"] for record in records} == set(runs)
    for record in records:
        rounds = greedy_walk(runs[record["doc_id"]], 3)
        assert (record["rounds"], record["accepted"], record["cut"]) == (
            rounds.verify_calls,
            rounds.accepted,
            rounds.cut,
        )
        assert record["histogram"] == list(rounds.histogram) and record["domain"] in ("code", "talk")
    values = [run for runs_of_one in runs.values() for run in runs_of_one]
    assert result["survival_uniform"] == pytest.approx(1 + sum(values) / len(values))


def test_figures(trained: tuple[Path, dict[str, Any]], inputs: dict[str, str]) -> None:
    _, result = trained
    walk, train = result["walk"], result["train"]
    assert walk["accept_length"] == pytest.approx(1 + sum(result["survival"]))
    assert walk["interval"][0] <= walk["accept_length"] <= walk["interval"][1]
    assert set(walk["by_domain"]) == {"code", "talk"}
    assert sum(part["rounds"] for part in walk["by_domain"].values()) == walk["rounds"]
    predicted = ("accept_length", "interval", "survival_uniform", "rounds", "verify_rule")
    assert result["predicted"] == {name: walk[name] for name in predicted}
    assert train["stopped"] == "epochs" and train["epochs"] == 5 and train["tok_s"] > 0
    response = sum(s.response_tokens for s in Manifest.read(Path(inputs["states"])).shards if s.split == "train")
    assert train["response_tokens"] == 5 * response
    assert set(result["coverage"]) == {"train", "validation", "held_out"}
    assert all(0 < share < 1 for share in result["coverage"].values())
    json.dumps(result, allow_nan=False)


def test_saved_tensors_are_exactly_the_drafts(trained: tuple[Path, dict[str, Any]]) -> None:
    out, _ = trained
    tensors = load_file(out / "best.safetensors")
    assert {name: tuple(t.shape) for name, t in tensors.items()} == DraftSpec.from_dict(SPEC).tensors()
    assert tensors["fc.weight"].dtype == torch.float32
    assert torch.equal(tensors["d2t"] + torch.arange(DRAFT_VOCAB), tensors["t2d"].nonzero().squeeze(1))


def test_two_processes_train_the_same_draft(tmp_path: Path, inputs: dict[str, str]) -> None:
    """Sums are formed in another order, nothing else differs: the weights agree but for rounding, which Newton-Schulz
    enlarges in directions that have almost no gradient."""
    results = [run(inputs, tmp_path / str(n), processes=n, epochs=1, dtype="float32") for n in (1, 2)]
    one, two = (load_file(tmp_path / str(n) / "best.safetensors") for n in (1, 2))
    for name in DraftSpec.from_dict(SPEC).weights():
        value = one[name]
        difference = (two[name] - value).float().norm() / value.float().norm()
        assert difference < 0.03, (name, float(difference))
    assert results[1]["train"]["processes"] == 2
    assert results[0]["loss"] == pytest.approx(results[1]["loss"], rel=1e-3)


def test_patience_stops_and_the_best_is_kept(tmp_path: Path, inputs: dict[str, str]) -> None:
    """With a rate of almost nothing no walk gets better than the first."""
    tiny = {"kind": "adamw", "lr": 1e-12}
    result = run(inputs, tmp_path, optimizer=tiny, epochs=9, eval={"patience": 1})
    assert result["train"]["stopped"] == "patience"
    assert (result["train"]["epochs"], result["train"]["best_epoch"]) == (2, 1)


def test_fp8_shards_train_nearly_the_same(tmp_path: Path, tiny_target_dir: Path) -> None:
    counts = {"train": 8, "validation": 2, "held_out": 2}
    losses = {
        dtype: run(write_inputs(tmp_path / dtype, tiny_target_dir, counts, dtype), tmp_path / dtype / "out")["loss"]
        for dtype in ("bfloat16", "float8_e4m3fn")
    }
    assert losses["float8_e4m3fn"] == pytest.approx(losses["bfloat16"], rel=0.05)
    assert losses["float8_e4m3fn"] != losses["bfloat16"]


def test_the_held_out_split_chooses_nothing(tmp_path: Path, tiny_target_dir: Path) -> None:
    """Other held-out documents, the same weights."""
    files = []
    for name, counts in (
        ("a", {"train": 8, "validation": 3, "held_out": 2}),
        ("b", {"train": 8, "validation": 3, "held_out": 5}),
    ):
        run(write_inputs(tmp_path / name, tiny_target_dir, counts), tmp_path / name / "out", epochs=1)
        files.append((tmp_path / name / "out" / "best.safetensors").read_bytes())
    assert files[0] == files[1]


def test_bad_input_is_one_line(tmp_path: Path, inputs: dict[str, str], tiny_target_dir: Path) -> None:
    def refused(words: str, given: dict[str, str] = inputs, **changes: Any) -> None:
        with pytest.raises(UsageError) as caught:
            run(given, tmp_path / "out", **changes)
        assert words in str(caught.value) and "\n" not in str(caught.value), str(caught.value)

    refused("input vocab is missing", {name: inputs[name] for name in ("target", "states")})
    refused("run the vocabulary step", {**inputs, "vocab": str(tmp_path)})
    refused("states of 3 x 64, the spec has 3 x 32", spec={**SPEC, "hidden": 32, "heads": 2})
    refused("the target has 64 and 512", spec={**SPEC, "target_vocab": 600})
    refused("make spec and vocabulary agree", spec={**SPEC, "draft_vocab": 50})
    refused("no manifest.json", {**inputs, "states": str(tmp_path)})
    refused("no *.safetensors file", {**inputs, "target": str(empty_target(tmp_path, tiny_target_dir))})
    bare = write_inputs(tmp_path / "bare", tiny_target_dir, {"train": 3, "validation": 2})
    refused("no held_out response to walk", bare)
    untaught = tmp_path / "untaught"
    write_vocabulary(untaught, torch.arange(VOCAB - DRAFT_VOCAB, VOCAB))
    refused("no train document teaches anything", {**inputs, "vocab": str(untaught)})
    assert not (tmp_path / "out" / "best.safetensors").exists()


def empty_target(directory: Path, target: Path) -> Path:
    empty = directory / "empty"
    empty.mkdir()
    (empty / "config.json").write_bytes((target / "config.json").read_bytes())
    return empty


def test_pre_norm_states_teach_the_same(tmp_path: Path, tiny_target_dir: Path, inputs: dict[str, str]) -> None:
    """States taken before the final norm go through it: with a norm of ones, only their size is lost."""
    from k25stack.train.data import _normed
    from k25stack.train.weights import Frozen

    rows = torch.randn(5, 64, dtype=torch.float64)
    rows /= rows.square().mean(-1, keepdim=True).sqrt()
    nothing = torch.zeros(0)
    frozen = Frozen(nothing, nothing, nothing, nothing, nothing, torch.full((64,), 2.0), 0.0)
    torch.testing.assert_close(_normed(rows * 7, frozen), rows * 2)
    assert _normed(rows, replace(frozen, final_norm=None)) is rows
