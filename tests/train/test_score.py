"""Scoring any draft from shards: the figures of training's own walk, each switch against a plain recomputation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tiny_run import LAYERS, SPEC, params, write_inputs
from torch import Tensor
from typer.testing import CliRunner

from k25stack.cli.draft import app
from k25stack.draft.config import config_json
from k25stack.draft.convert import Request, convert
from k25stack.draft.formats import Hints, read_config
from k25stack.draft.mathematics import Mathematics
from k25stack.draft.model import DraftModel
from k25stack.draft.source import read_source
from k25stack.draft.spec import DraftSpec
from k25stack.draft.target import TargetFacts
from k25stack.errors import UsageError
from k25stack.states.reader import open_states
from k25stack.train.anydraft import AnyDraft, embedding_of
from k25stack.train.data import chain_starts
from k25stack.train.main import program
from k25stack.train.score import Score, lines, score_draft
from k25stack.worker import Spec

K = 3


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, tiny_target_dir: Path
) -> tuple[Path, dict[str, str], dict[str, Any]]:
    """(draft directory with float32 weights, the step's inputs, its result)."""
    root = tmp_path_factory.mktemp("score")
    inputs, out = write_inputs(root, tiny_target_dir), root / "trained"
    out.mkdir()
    result = program(Spec(params(dtype="float32", epochs=5), {n: Path(p) for n, p in inputs.items()}, out, 1))
    draft, target = root / "draft", TargetFacts.read(tiny_target_dir)
    draft.mkdir()
    save_file(load_file(out / "best.safetensors"), draft / "model.safetensors")
    (draft / "config.json").write_text(json.dumps(config_json(DraftSpec.from_dict(SPEC), target, LAYERS)))
    record = {"schema": 1, "canonical_layers": list(LAYERS), "k": K, "target": {"family": "llama"}}
    (draft / "k25stack.json").write_text(json.dumps(record))
    return draft, inputs, result


def test_the_score_is_what_training_predicted(made: tuple[Path, dict[str, str], dict[str, Any]]) -> None:
    draft, inputs, result = made
    found = score_draft(Score(draft, Path(inputs["states"]), target=Path(inputs["target"])))
    predicted = result["predicted"]
    assert found["accept_length"] == pytest.approx(predicted["accept_length"])
    assert found["interval"] == pytest.approx(predicted["interval"])
    assert found["survival_uniform"] == pytest.approx(predicted["survival_uniform"])
    assert found["rounds"] == predicted["rounds"]
    assert found["accept_length"] > 1.2  # it has learnt something


def test_a_converted_draft_scores_the_same(made: tuple[Path, dict[str, str], dict[str, Any]], tmp_path: Path) -> None:
    draft, inputs, result = made
    states, target = Path(inputs["states"]), Path(inputs["target"])
    convert(draft, tmp_path / "there", Request("speculators", target=target))
    found = score_draft(Score(tmp_path / "there", states, target=target, out=tmp_path / "walk.jsonl"))
    assert found["accept_length"] == pytest.approx(result["predicted"]["accept_length"])
    assert found["format"] == "speculators"
    rows = [json.loads(line) for line in (tmp_path / "walk.jsonl").read_text().splitlines()]
    assert sum(row["rounds"] for row in rows) == found["rounds"]
    assert "accept length" in next(lines(found))


def test_what_does_not_fit_is_one_line(made: tuple[Path, dict[str, str], dict[str, Any]], tmp_path: Path) -> None:
    draft, inputs, _ = made
    states, target = Path(inputs["states"]), Path(inputs["target"])
    with pytest.raises(UsageError, match="no embedding"):
        score_draft(Score(draft, states))
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in draft.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "k25stack.json").unlink()
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}))
    with pytest.raises(UsageError, match=r"trained on layers \[1, 2, 3\]"):
        score_draft(Score(copy, states, target=target))
    with pytest.raises(UsageError, match="no nothing response"):
        score_draft(Score(draft, states, split="nothing", target=target))
    done = CliRunner().invoke(app, ["score", str(draft), "--states", str(states), "--target", str(target), "--json"])
    assert json.loads(done.stdout)["k"] == K


def plainly(function: Mathematics, draft: AnyDraft, tokens: Tensor, aux: Tensor, start: int) -> int:
    """One chain with the readable module: all rows again for every step, each row seeing what it may."""
    spec, window = function.spec, function.window
    model = DraftModel(spec)
    model.load_state_dict({**{n: w for n, w in draft.weights.items() if n in dict(model.named_parameters())},
                           "d2t": model.d2t, "t2d": model.t2d})  # fmt: skip
    eps = spec.rms_eps
    if function.norm_before_fc:
        aux = F.rms_norm(aux, (aux.shape[1],), draft.weights["input_norm.weight"], eps)
    if function.fc_norm:
        parts = aux.chunk(spec.aux, dim=-1)
        scales = [draft.weights[f"fc_norm.{index}.weight"] for index in range(spec.aux)]
        aux = torch.cat([F.rms_norm(p, p.shape[-1:], s, eps) for p, s in zip(parts, scales, strict=True)], dim=-1)
    rows = model.fuse(aux[: start + 1])  # [t+1, H]
    for step in range(K):
        count = len(rows)
        if start + 2 + step >= len(tokens):
            return step
        places = torch.arange(count)
        seen = places[None] <= places[:, None]
        if window is not None:
            seen &= places[None] > places[:, None] - window

        def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor = seen) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)

        hidden, layer = rows, model.midlayer
        embeds = draft.embed[tokens[1 : count + 1]]
        stream = model.step(hidden[None], embeds[None], places, attend)[0]
        if function.norm_before_residual:
            attention = layer.self_attn
            x = torch.cat((layer.input_layernorm(embeds), layer.hidden_norm(hidden)), dim=-1)
            from k25stack.draft.model import rope_tables

            cos, sin = rope_tables(places, spec.head_dim, spec.rope_theta, torch.float32)
            stream = layer.hidden_norm(hidden) + attention(x[None], cos, sin, attend)[0]
            stream = stream + layer.mlp(layer.post_attention_layernorm(stream))
        best = int(draft.ids[model.logits(stream[-1]).argmax()])
        if best != int(tokens[start + 2 + step]):
            return step
        rows = torch.cat((rows, model.next_hidden(stream[-1:])))
    return K


SWITCHES: list[dict[str, Any]] = [
    {}, {"norm_before_residual": True}, {"norm_before_fc": True}, {"fc_norm": True}, {"norm_output": True},
    {"window": 4}, {"window": 1}, {"window": 100},
]  # fmt: skip


@pytest.mark.parametrize("switches", SWITCHES)
def test_every_switch_is_the_plain_recomputation(
    made: tuple[Path, dict[str, str], dict[str, Any]], switches: dict[str, Any]
) -> None:
    directory, inputs, _ = made
    config = json.loads((directory / "config.json").read_text())
    function = read_config(config, None, "", Hints(layers=LAYERS)).function
    if "norm_output" in switches:
        function = replace(function, spec=replace(function.spec, norm_output=True))
    else:
        function = replace(function, **switches)
    source = read_source(directory)
    draft = AnyDraft.load(source, function, embedding_of(source, Path(inputs["target"]), function, ""), "")
    generator = torch.Generator().manual_seed(1)
    extra = {name: 1 + 0.5 * torch.randn(shape, generator=generator) for name, shape in function.tensors().items()
             if name not in draft.weights and name not in ("d2t", "t2d")}  # fmt: skip
    draft = replace(draft, weights={**draft.weights, **extra})
    seen: list[int] = []
    with torch.no_grad():
        for document in list(open_states(Path(inputs["states"])).documents("held_out"))[:4]:
            starts = chain_starts(document.loss_mask)
            aux = document.aux.float()
            fast = draft.accepted(document.token_ids, aux, starts, K).tolist()
            assert fast == [plainly(function, draft, document.token_ids, aux, int(start)) for start in starts]
            seen += fast
    assert len(set(seen)) > 1
