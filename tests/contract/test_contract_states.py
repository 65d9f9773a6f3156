"""Hidden states judged: a healthy set passes, each known mistake of extraction is named."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from states_cases import LAYERS, Answered, answered, checks, meta, write
from typer.testing import CliRunner

from k25stack.cli.check import check
from k25stack.contract.finding import Verdict
from k25stack.contract.states import StatesQuestion, check_states
from k25stack.contract.states_text import enough, unique_bigrams
from k25stack.contract.states_values import odd_value
from k25stack.draft.model import DraftModel
from k25stack.draft.spec import DraftSpec
from k25stack.errors import UsageError
from k25stack.model.tensorfile import read_header
from k25stack.states.document import Document

cli = typer.Typer()
cli.command()(check)


@pytest.fixture(scope="module")
def samples(tiny_target_dir: Path) -> list[Answered]:
    return answered(tiny_target_dir)


def test_a_healthy_set_passes(tmp_path: Path, tiny_target_dir: Path, samples: list[Any]) -> None:
    states = write(tmp_path / "s", tiny_target_dir, samples, meta())
    for deep in (False, True):
        result = check_states(states, StatesQuestion(tiny_target_dir, layers=LAYERS, deep=deep))
        found = checks(result)
        assert {name: one.verdict for name, one in found.items() if one.verdict is not Verdict.PASS} in (
            {},
            {"D6": "warn"},
        )
        assert found["D4"].evidence["agree"] > 0.99
        assert found["D4"].evidence["rows_of_unit_rms"] == 1.0
    assert checks(check_states(states))["D4"].verdict is Verdict.WARN  # no target: the record was not compared


@pytest.mark.parametrize(("pre", "recorded"), [(True, "post"), (False, "pre")])
def test_the_wrong_side_of_the_final_norm_is_found(
    tmp_path: Path, tiny_target_dir: Path, samples: list[Any], pre: bool, recorded: str
) -> None:
    states = write(tmp_path / "s", tiny_target_dir, samples, meta(last_norm=recorded), pre)
    found = checks(check_states(states, StatesQuestion(tiny_target_dir)))["D4"]
    assert found.verdict is Verdict.FAIL, found.as_dict()
    assert f"recorded as {recorded}-norm and is {'pre' if pre else 'post'}-norm" in found.message
    assert "#313" in found.source


def test_pre_norm_states_said_so_pass(tmp_path: Path, tiny_target_dir: Path, samples: list[Any]) -> None:
    states = write(tmp_path / "s", tiny_target_dir, samples, meta(last_norm="pre"), pre=True)
    assert checks(check_states(states, StatesQuestion(tiny_target_dir)))["D4"].verdict is Verdict.PASS


def test_states_of_another_layer_or_target(tmp_path: Path, tiny_target_dir: Path, samples: list[Any]) -> None:
    moved = write(tmp_path / "moved", tiny_target_dir, samples, meta(),
                  change=lambda d: replace(d, last=d.last.roll(1, 0)))  # fmt: skip
    assert "other tokens" in checks(check_states(moved, StatesQuestion(tiny_target_dir)))["D4"].message
    states = write(tmp_path / "s", tiny_target_dir, samples, meta())
    wrong = checks(check_states(states, StatesQuestion(layers=(1, 2, 4))))["D2"]
    assert wrong.verdict is Verdict.FAIL
    assert "T7" in wrong.message


def test_text_that_the_target_did_not_write(tmp_path: Path, tiny_target_dir: Path, samples: list[Any]) -> None:
    def foreign(document: Document) -> Document:
        ids = document.token_ids.clone()
        ids[document.loss_mask] = torch.arange(int(document.loss_mask.sum())) + 100
        return replace(document, token_ids=ids)

    states = write(tmp_path / "s", tiny_target_dir, samples, meta(), change=foreign)
    found = checks(check_states(states))["D5"]
    assert found.verdict is Verdict.FAIL
    assert found.evidence["documents_own"]["held_out"] == 0
    sampled = write(tmp_path / "t", tiny_target_dir, samples, meta(decode={"kind": "sampled", "temperature": 1.0}),
                    change=foreign)  # fmt: skip
    assert checks(check_states(sampled))["D5"].verdict is Verdict.WARN


def test_looping_text(tmp_path: Path, tiny_target_dir: Path, samples: list[Any]) -> None:
    def loop(document: Document) -> Document:
        ids = document.token_ids.clone()
        ids[document.loss_mask] = torch.arange(int(document.loss_mask.sum())) % 3 + 50
        return replace(document, token_ids=ids)

    states = write(tmp_path / "s", tiny_target_dir, samples, meta(), change=loop)
    found = checks(check_states(states))["D6"]
    assert found.verdict is Verdict.WARN
    assert found.evidence["looping"] == found.evidence["judged"] == 24
    assert unique_bigrams([1, 2, 1, 2, 1]) == 0.5


def test_what_is_not_recorded(tmp_path: Path, tiny_target_dir: Path, samples: list[Any]) -> None:
    states = write(tmp_path / "s", tiny_target_dir, samples, meta(target_revision="", decode={}))
    found = checks(check_states(states))["D3"]
    assert found.verdict is Verdict.WARN
    assert "target_revision, decode" in found.message


def test_the_draft_that_is_trained_on_them(tmp_path: Path, tiny_target_dir: Path, samples: list[Any]) -> None:
    from k25stack.draft.config import config_json
    from k25stack.draft.target import TargetFacts
    from k25stack.draft.weights import save_portable

    states = write(tmp_path / "s", tiny_target_dir, samples, meta())
    spec, draft = DraftSpec(64, 4, 2, 16, 96, 48, 512), tmp_path / "draft"
    draft.mkdir()
    save_portable(draft / "model.safetensors", spec, DraftModel(spec).init_random(0).state_dict(), {})
    (draft / "config.json").write_text(json.dumps(config_json(spec, TargetFacts.read(tiny_target_dir), LAYERS)))
    training = {"train": {"epochs": 5}}  # as package.py writes it
    record = {"canonical_layers": list(LAYERS), "training": training, "target": {"revision": "0" * 64}}
    (draft / "k25stack.json").write_text(json.dumps(record))
    found = checks(check_states(states, StatesQuestion(draft=draft)))
    assert found["D2"].verdict is Verdict.PASS
    assert "data-limited" in found["D7"].message
    assert found["D7"].evidence["tokens"] == 16 * 40
    assert (found["D8"].verdict, found["D8"].source) == (Verdict.WARN, "deepseek-ai/DeepSpec #84")
    (draft / "k25stack.json").write_text(json.dumps({**record, "target": {"revision": "1" * 64}}))
    assert checks(check_states(states, StatesQuestion(draft=draft)))["D3"].verdict is Verdict.FAIL


def test_damage_goes_before_everything(tmp_path: Path, tiny_target_dir: Path, samples: list[Any]) -> None:
    states = write(tmp_path / "s", tiny_target_dir, samples, meta())
    shard = sorted((states / "shards").iterdir())[0]
    raw = bytearray(shard.read_bytes())
    raw[-5000] ^= 1
    shard.write_bytes(raw)
    assert check_states(states).verdict is not Verdict.FAIL  # contents are not read
    assert checks(check_states(states, StatesQuestion(deep=True)))["D1"].verdict is Verdict.FAIL
    shard.write_bytes(raw[:-1])
    assert [one.id for one in check_states(states).checks] == ["D1"]
    done = CliRunner().invoke(cli, [str(states), "--json"])
    assert (json.loads(done.stdout)["kind"], done.exit_code) == ("states", 1)
    with pytest.raises(UsageError, match=r"manifest\.json"):
        check_states(tmp_path)


def patched(states: Path, name: str, code: str, place: int, values: list[int]) -> None:
    """Write raw values over a tensor of the first shard, and the manifest's hash with them: wrong from the start."""
    path = sorted((states / "shards").glob("*.safetensors"))[0]
    info = read_header(path).tensors[name]
    raw = bytearray(path.read_bytes())
    struct.pack_into(f"<{len(values)}{code}", raw, info.begin + place, *values)
    manifest = json.loads((states / "manifest.json").read_text())
    record = next(one for one in manifest["shards"] if one["file"].endswith(path.name))
    record["sha256"] = hashlib.sha256(raw).hexdigest()
    path.write_bytes(raw)
    (states / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ["aux", "last"])
@pytest.mark.parametrize("value", [0x7FC0, 0x7F80, 0xFF80])  # NaN and the infinities of bf16
def test_states_that_are_no_numbers_are_found(
    tmp_path: Path, tiny_target_dir: Path, samples: list[Any], name: str, value: int
) -> None:
    states = write(tmp_path / "s", tiny_target_dir, samples, meta())
    wide = 64 * (3 if name == "aux" else 1)
    patched(states, name, "H", 2 * wide * 200, [value] * wide * 5)  # five rows: seen among all, or by every third
    for deep in (False, True):
        found = [one for one in check_states(states, StatesQuestion(deep=deep)).checks if one.id == "D1"]
        assert [one.verdict for one in found] == [Verdict.PASS, Verdict.FAIL], [one.as_dict() for one in found]
        assert f"in {name} of shards/" in found[1].message


def test_large_values_are_numbers() -> None:
    assert odd_value(struct.pack("<4H", 0x7F7F, 0xFF7F, 0x3F80, 0x007F), "BF16") is None
    assert odd_value(struct.pack("<4H", 0x3F80, 0x7F7F, 0xFFC1, 0), "BF16") == 4
    assert odd_value(bytes((0x7E, 0x00, 0xFF)), "F8_E4M3") == 2


@pytest.mark.parametrize("name", ["token_ids", "argmax"])
@pytest.mark.parametrize("value", [-1, -(2**31), 512, 2**31 - 1])
def test_ids_that_are_no_tokens_are_found(
    tmp_path: Path, tiny_target_dir: Path, samples: list[Any], name: str, value: int
) -> None:
    states = write(tmp_path / "s", tiny_target_dir, samples, meta())
    patched(states, name, "i", 4 * 20, [value])
    found = [one for one in check_states(states, StatesQuestion(tiny_target_dir)).checks if one.id == "D1"]
    assert found[-1].verdict is Verdict.FAIL
    assert f"{name} of" in found[-1].message and str(value) in found[-1].message


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("value", [-1, 3, 1 << 40, 1 << 62, -(1 << 62)])
def test_offsets_of_any_value_are_a_finding(
    tmp_path: Path, tiny_target_dir: Path, samples: list[Any], place: int, value: int
) -> None:
    states = write(tmp_path / "s", tiny_target_dir, samples, meta())
    path = sorted((states / "shards").glob("*.safetensors"))[0]
    info = read_header(path).tensors["offsets"]
    patched(states, "offsets", "q", (place * 8) % (info.end - info.begin), [value])
    for deep in (False, True):
        assert check_states(states, StatesQuestion(tiny_target_dir, deep=deep)).verdict is Verdict.FAIL


def test_a_draft_without_weights_has_no_tokens_per_parameter() -> None:
    assert [one.verdict for one in enough(10, 0)] == [Verdict.PASS]


def test_names_that_are_none_are_damage(tmp_path: Path, tiny_target_dir: Path, samples: list[Any]) -> None:
    """The reader of the states refuses them; so does the check, instead of not judging D4."""
    states = write(tmp_path / "s", tiny_target_dir, samples, meta())
    patched(states, "doc_ids", "b", 4, [ord("x")])  # over the first name's "1"
    found = check_states(states, StatesQuestion(tiny_target_dir))
    assert [(one.id, one.verdict) for one in found.checks] == [("D1", Verdict.FAIL)]
