"""Hidden states judged: a healthy set passes, each known mistake of extraction is named."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import struct
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from sample_row import Row
from typer.testing import CliRunner

from k25stack.cli.check import check
from k25stack.contract import probe
from k25stack.contract.finding import Check, Result, Verdict
from k25stack.contract.states import StatesFacts, StatesQuestion, check_states, one_origin
from k25stack.contract.states_text import enough, goes_round, looping, on_policy, once, unique_bigrams
from k25stack.contract.states_values import odd_value
from k25stack.draft.model import DraftModel
from k25stack.draft.spec import DraftSpec
from k25stack.errors import UsageError
from k25stack.model.tensorfile import read_header
from k25stack.reference.engine import Engine, EngineConfig
from k25stack.reference.request import Request
from k25stack.reference.target import Target
from k25stack.states.document import Document
from k25stack.states.manifest import Manifest, StatesMeta, plan_shards
from k25stack.states.tokens import Text
from k25stack.states.writer import ShardWriter

LAYERS = (2, 3, 5)
DECODE = {"kind": "greedy", "temperature": 0.0, "max_new_tokens": 40}
cli = typer.Typer()
cli.command()(check)


Change = Callable[[Document], Document]


def meta(**changes: Any) -> StatesMeta:
    return replace(StatesMeta("k25stack-reference", "0.1.0", LAYERS, 64, "t" * 64, "0" * 64, decode=DECODE), **changes)


@pytest.fixture(scope="module")
def samples(tiny_target_dir: Path) -> list[tuple[Row, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Greedy answers of the tiny target with their states: (sample, aux, residual stream before the norm, last)."""
    target = Target.load(tiny_target_dir)
    generator = torch.Generator().manual_seed(0)
    prompts = [tuple(torch.randint(4, 500, (6,), generator=generator).tolist()) for _ in range(24)]
    engine = Engine(target, config=EngineConfig(slots=24, max_len=128))
    done = engine.generate(Request(str(i), prompt, 40) for i, prompt in enumerate(prompts))
    found = []
    for number, prompt in enumerate(prompts):
        split = "train" if number < 16 else "held_out"
        sample = Row(f"d{number:02d}", 1, "bytes", split, list(prompt), list(done[str(number)].tokens))
        ids = torch.tensor(sample.prompt_ids + sample.response_ids)
        out = target.prefill_packed(ids, torch.tensor([0, len(ids)]), (*LAYERS, 6))
        found.append((sample, out.aux[:, : 3 * 64], out.aux[:, 3 * 64 :], out.last))
    return found


def write(
    directory: Path,
    target: Path,
    samples: list[Any],
    record: StatesMeta,
    pre: bool = False,
    change: Change | None = None,
) -> Path:
    loaded = Target.load(target)
    plans = plan_shards([sample for sample, *_ in samples], record, 200_000)
    writer = ShardWriter(directory, record)
    for plan in plans:
        with writer.open(plan) as shard:
            for place in plan.members:
                sample, aux, stream, last = samples[place]
                choices = loaded.argmax(last).to(torch.int32)
                choices[: len(sample.prompt_ids) - 1] = choices[-1] = -1  # not asked, as our own extraction leaves them
                document = Document.from_sample(sample, aux, stream if pre else last, choices)
                shard.add(change(document) if change else document)
    writer.finish(plans)
    return directory


def checks(result: Result) -> dict[str, Check]:
    """The worst check of every id."""
    return {one.id: one for one in sorted(result.checks, key=lambda one: one.verdict.rank)}


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


# -- what a record cannot say ----------------------------------------------------------------------------------------

AUX: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "permuted": (lambda aux: aux.unflatten(1, (3, 64))[:, [2, 0, 1]].flatten(1), "not in rising order"),
    "swapped": (lambda aux: aux.unflatten(1, (3, 64))[:, [0, 2, 1]].flatten(1), "not in rising order"),
    "a row late": (lambda aux: aux.roll(1, 0), "shifted by a row"),
    "a row early": (lambda aux: aux.roll(-1, 0), "shifted by a row"),
    "one layer thrice": (lambda aux: aux[:, :64].repeat(1, 3), "blocks 0 and 1 of aux hold the same states"),
    "zeros": (torch.zeros_like, "zeros alone"),
    "fp16 bits": (lambda aux: aux.half().view(torch.bfloat16), "no state of this target"),
}


@pytest.mark.parametrize("name", AUX)
def test_aux_that_is_not_what_the_record_says(
    tmp_path: Path, tiny_target_dir: Path, samples: list[Any], name: str
) -> None:
    """Such sets passed: ids were compared, and nothing looked at the states."""
    damage, told = AUX[name]
    states = write(tmp_path / "s", tiny_target_dir, samples, meta(),
                   change=lambda document: replace(document, aux=damage(document.aux).contiguous()))  # fmt: skip
    known = (True, False) if name != "fp16 bits" else (True,)  # the last one needs the target to be seen
    for target in (tiny_target_dir if one else None for one in known):
        found = checks(check_states(states, StatesQuestion(target)))["D2"]
        assert found.verdict is Verdict.FAIL, (name, target)
        assert told in found.message


def test_states_of_the_next_layer_under_the_recorded_ids(
    tmp_path: Path, tiny_target_dir: Path, samples: list[Any]
) -> None:
    """T7 in the data: each width and order is right, and every layer is one too late."""
    loaded, moved = Target.load(tiny_target_dir), []
    for sample, _, stream, last in samples:
        ids = torch.tensor(sample.prompt_ids + sample.response_ids)
        moved.append((sample, loaded.prefill_packed(ids, torch.tensor([0, len(ids)]), (3, 4, 6)).aux, stream, last))
    states = write(tmp_path / "s", tiny_target_dir, moved, meta())
    found = checks(check_states(states, StatesQuestion(tiny_target_dir, layers=LAYERS)))["D2"]
    assert found.verdict is Verdict.FAIL
    assert "recorded as layers [2, 3, 5], the states are those of [3, 4, 6]" in found.message


def test_states_of_another_target_of_equal_width(
    tmp_path: Path, tiny_target_dir: Path, other_target_dir: Path, samples: list[Any]
) -> None:
    states = write(tmp_path / "s", tiny_target_dir, samples, meta())
    found = checks(check_states(states, StatesQuestion(other_target_dir)))
    assert "no state of this target" in found["D2"].message
    assert "another target or revision" in found["D4"].message
    (other_target_dir / "target.json").write_text(json.dumps({"revision": "1" * 64}))
    assert checks(check_states(states, StatesQuestion(other_target_dir)))["D3"].verdict is Verdict.FAIL


LASTS: dict[str, tuple[Change, str]] = {
    "argmax late": (lambda d: replace(d, argmax=d.argmax.roll(1)), "argmax is shifted by one row"),
    "argmax early": (lambda d: replace(d, argmax=d.argmax.roll(-1)), "argmax is shifted by one row"),
    "last late": (lambda d: replace(d, last=d.last.roll(1, 0)), "last is shifted by one row"),
    "a layer's": (lambda d: replace(d, last=d.aux[:, :64].contiguous()), "neither side of the final norm"),
}


@pytest.mark.parametrize("name", LASTS)
def test_what_is_wrong_with_last_or_argmax_is_named(
    tmp_path: Path, tiny_target_dir: Path, samples: list[Any], name: str
) -> None:
    damage, told = LASTS[name]
    states = write(tmp_path / "s", tiny_target_dir, samples, meta(), change=damage)
    found = checks(check_states(states, StatesQuestion(tiny_target_dir)))["D4"]
    assert found.verdict is Verdict.FAIL
    assert told in found.message


def test_a_norm_applied_twice_is_named(tmp_path: Path, tiny_target_dir: Path, samples: list[Any]) -> None:
    """Its weight must not be all ones here, else twice is once."""
    from safetensors.torch import load_file, save_file

    target = tmp_path / "target"
    shutil.copytree(tiny_target_dir, target)
    tensors = load_file(target / "model.safetensors")
    weight = torch.rand(64, generator=torch.Generator().manual_seed(0)) * 3 + 0.1
    save_file({**tensors, "model.norm.weight": weight.bfloat16()}, target / "model.safetensors")
    loaded, found = Target.load(target), []
    for sample, aux, stream, _ in samples:
        last = loaded.prefill_packed(torch.tensor(sample.prompt_ids + sample.response_ids),
                                     torch.tensor([0, len(aux)])).last  # fmt: skip
        found.append((sample, aux, stream, last))

    def again(document: Document) -> Document:
        wide = torch.nn.functional.rms_norm(document.last.float(), (64,), loaded.final_norm.float(), 1e-5)
        return replace(document, last=wide.bfloat16())

    once = write(tmp_path / "once", target, found, meta())
    twice = write(tmp_path / "twice", target, found, meta(), change=again)
    assert checks(check_states(once, StatesQuestion(target)))["D4"].verdict is not Verdict.FAIL
    assert "the final norm was applied twice" in checks(check_states(twice, StatesQuestion(target)))["D4"].message


@pytest.mark.parametrize(("kept", "layers"), [(64, [5]), (128, [2, 5])])
def test_states_of_too_few_layers_are_a_finding(
    tmp_path: Path, tiny_target_dir: Path, samples: list[Any], kept: int, layers: list[int]
) -> None:
    """7168 instead of 21504, the width that passes fc by: also where the record is honest about it."""
    states = write(tmp_path / "s", tiny_target_dir, samples, meta())
    manifest = json.loads((states / "manifest.json").read_text())
    manifest["meta"]["layers"] = layers
    (states / "manifest.json").write_text(json.dumps(manifest))
    found = checks(check_states(states))["D2"]
    assert (found.verdict, "aux layers of width 64" in found.message) == (Verdict.FAIL, True)
    manifest["meta"]["layers"], manifest["meta"]["hidden"] = list(LAYERS), kept // 3
    (states / "manifest.json").write_text(json.dumps(manifest))
    assert checks(check_states(states))["D2"].verdict is Verdict.FAIL


def test_shards_of_two_origins_are_named_so(tmp_path: Path, tiny_target_dir: Path, samples: list[Any]) -> None:
    states = write(tmp_path / "s", tiny_target_dir, samples, meta())
    for name, value in {
        "engine": "vllm",
        "engine_version": "9",
        "target_revision": "f" * 64,
        "decode": {"a": 1},
    }.items():
        manifest = json.loads((states / "manifest.json").read_text())
        manifest["meta"][name] = value
        (states / "manifest.json").write_text(json.dumps(manifest))
        found = checks(check_states(states))["D3"]
        assert (found.verdict, f"metadata {name} is" in found.message) == (Verdict.FAIL, True)
        write(states, tiny_target_dir, samples, meta())


def test_a_draft_of_another_decode_mode_is_not_comparable(
    tmp_path: Path, tiny_target_dir: Path, samples: list[Any]
) -> None:
    states = write(tmp_path / "s", tiny_target_dir, samples, meta())
    manifest = Manifest.read(states)
    for record, verdict in (
        ({"decode": DECODE, "template_hash": "t" * 64}, Verdict.PASS),
        ({"decode": {**DECODE, "thinking": True}}, Verdict.WARN),
        ({"template_hash": "u" * 64}, Verdict.WARN),
    ):
        facts = StatesFacts(states, manifest, [], StatesQuestion(), record)
        assert [one.verdict for one in one_origin(facts)] == [verdict]


def sampled(target: Path, heat: float, seed: int) -> list[Any]:
    """The tiny target's sampled answers with their states."""
    loaded, generator, found = Target.load(target), torch.Generator().manual_seed(seed), []
    for number in range(12):
        ids = torch.randint(4, 500, (6,), generator=generator).tolist()
        for _ in range(40):
            out = loaded.prefill_packed(torch.tensor(ids), torch.tensor([0, len(ids)]))
            chances = (loaded.logits(out.last[-1:]).float()[0] / heat).softmax(-1)
            ids.append(int(torch.multinomial(chances, 1, generator=generator)))
        sample = Row(f"d{number:02d}", 1, "bytes", "train" if number < 8 else "held_out", ids[:6], ids[6:])
        out = loaded.prefill_packed(torch.tensor(ids), torch.tensor([0, len(ids)]), (*LAYERS, 6))
        found.append((sample, out.aux[:, : 3 * 64], out.aux[:, 3 * 64 :], out.last))
    return found


def test_sampled_text_is_held_against_its_own_sampling(tmp_path: Path, tiny_target_dir: Path) -> None:
    """A healthy sampled set has no finding; sampled far hotter than recorded, it is not that target's text."""
    decode = {"kind": "sampled", "temperature": 0.8, "top_p": 1.0}
    for heat, verdict in ((0.8, Verdict.PASS), (4.0, Verdict.WARN)):
        states = write(tmp_path / str(heat), tiny_target_dir, sampled(tiny_target_dir, heat, 3), meta(decode=decode))
        result = check_states(states, StatesQuestion(tiny_target_dir))
        found = [one for one in result.checks if one.id == "D5" and one.group == "head"]
        assert [one.verdict for one in found] == [verdict], found[0].evidence
        if verdict is Verdict.PASS:
            odd = {one.id for one in result.checks if one.verdict is not Verdict.PASS}
            assert odd <= {"D6"}  # the tiny target goes round in circles even so


def text(name: str, ids: list[int], prompt: int = 1, wrong: int = 0, split: str = "train") -> Text:
    """A document whose argmax is its next token, but for its last ``wrong`` ones."""
    argmax = [*ids[1:], 0]
    for place in range(len(ids) - 1 - wrong, len(ids) - 1):
        argmax[place] += 1
    mask = bytes(int(place >= prompt) for place in range(len(ids)))
    return Text(name, split, 0, 0, array("i", ids), mask, array("i", argmax))


def test_near_ties_in_short_answers_are_no_foreign_text() -> None:
    """At 98 % agreement one answer of nine tokens in six holds a near-tie, and was called foreign."""
    texts = [text(f"d{n}/0", list(range(n, n + 10)), wrong=int(n % 6 == 0), split="held_out") for n in range(120)]
    assert [one.verdict for one in on_policy(texts, DECODE)] == [Verdict.PASS]
    foreign = [text(f"d{n}/0", list(range(n, n + 10)), wrong=4, split="held_out") for n in range(120)]
    assert [one.verdict for one in on_policy(foreign, DECODE)] == [Verdict.FAIL]


def test_a_long_healthy_text_does_not_loop() -> None:
    """Unique bigrams of a whole text fall with its length, as those of our own sources do."""
    words: dict[str, int] = {}
    source = " ".join(path.read_text() for path in sorted((Path(probe.__file__).parents[1]).rglob("*.py"))[:80])
    ids = [words.setdefault(word, len(words)) for word in re.findall(r"\s*(?:\w+|\W)", source)][:32_000]
    assert unique_bigrams(ids) < 0.4
    assert not goes_round(ids)
    assert goes_round(ids[:4000] + ids[4000:4020] * 60)  # it ends in a loop
    assert [one.verdict for one in looping([text("a/0", [1, 2] * 40), text("b/0", list(range(80)))])] == [Verdict.PASS]


def test_documents_that_lie_there_twice() -> None:
    texts = [text(f"d{n}/0", list(range(n, n + 50))) for n in range(100)]
    assert [one.verdict for one in once(texts)] == [Verdict.PASS]
    assert [one.verdict for one in once([*texts, *texts[:3]])] == [Verdict.FAIL]  # under their own names
    renamed = [replace(one, name=f"again-{one.name}") for one in texts]
    assert [one.verdict for one in once([*texts, *renamed[:3]])] == [Verdict.WARN]
    leaked = next(once([*texts, replace(renamed[0], split="held_out")]))
    assert (leaked.verdict, "are training data as well" in leaked.message) == (Verdict.FAIL, True)


@pytest.mark.parametrize("steps", [1, -1])
def test_a_mask_that_is_shifted_is_found(tmp_path: Path, tiny_target_dir: Path, samples: list[Any], steps: int) -> None:
    states = write(tmp_path / "s", tiny_target_dir, samples, meta(),
                   change=lambda document: replace(document, loss_mask=document.loss_mask.roll(steps)))  # fmt: skip
    found = checks(check_states(states))["D1"]
    assert (found.verdict, "loss_mask" in found.message) == (Verdict.FAIL, True)


def test_names_that_are_none_are_damage(tmp_path: Path, tiny_target_dir: Path, samples: list[Any]) -> None:
    """The reader of the states refuses them; so does the check, instead of not judging D4."""
    states = write(tmp_path / "s", tiny_target_dir, samples, meta())
    patched(states, "doc_ids", "b", 4, [ord("x")])  # over the first name's "1"
    found = check_states(states, StatesQuestion(tiny_target_dir))
    assert [(one.id, one.verdict) for one in found.checks] == [("D1", Verdict.FAIL)]
