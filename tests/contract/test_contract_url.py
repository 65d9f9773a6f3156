"""A running server judged from outside: the reference server as a real process, with a good and with a wrong draft."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from k25stack.bench.kinds import KINDS
from k25stack.cli.check import check
from k25stack.contract import diagnosis, logs
from k25stack.contract.finding import Check, Result, Verdict
from k25stack.contract.probe import Answer, Probe
from k25stack.contract.url import UrlQuestion, accepted, check_url, explained, outputs, requests
from k25stack.engines.info import ServerFacts, facts_of
from k25stack.errors import HostError
from k25stack.speculation import RoundCounts

cli = typer.Typer()
cli.command()(check)
K = 3


@pytest.fixture(scope="module")
def tiny_draft(tmp_path_factory: pytest.TempPathFactory, tiny_target_dir: Path) -> Path:
    sys.path.insert(0, str(Path(__file__).parents[1] / "reference"))
    import tiny_draft
    import torch

    from k25stack.reference.target import Target

    trained = tiny_draft.train(Target.load(tiny_target_dir, torch.float32))
    directory = tiny_draft.write(trained, tmp_path_factory.mktemp("d") / "draft")
    record = {"schema": 1, "canonical_layers": list(tiny_draft.LAYERS), "k": K, "target": {"family": "llama"}}
    (directory / "k25stack.json").write_text(json.dumps(record))
    return directory


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory, tiny_draft: Path) -> Path:
    """Held-out rows that the draft can do something with: it has seen the tiny target's text after such prompts."""
    import tiny_draft as tiny

    path = tmp_path_factory.mktemp("samples") / "samples.jsonl"
    rows = [
        {"doc_id": f"d{number}", "turn": 1, "domain": "bytes", "split": "held_out", "prompt_ids": list(prompt),
         "decode": {"kind": "greedy", "temperature": 0.0, "max_new_tokens": 48}}
        for number, prompt in enumerate(tiny.prompts(48, seed=1, longest=8))
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@contextmanager
def served(target: Path, draft: Path | None) -> Iterator[str]:
    words = [
        sys.executable,
        "-m",
        "k25stack.reference.server",
        "--target",
        str(target),
        "--port",
        "0",
        "--threads",
        "1",
    ]
    words += ["--draft", str(draft), "--k", str(K)] if draft else []
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[1]
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def server(tiny_target_dir: Path, tiny_draft: Path) -> Iterator[str]:
    with served(tiny_target_dir, tiny_draft) as url:
        yield url


@pytest.fixture(scope="module")
def plain(tiny_target_dir: Path) -> Iterator[str]:
    with served(tiny_target_dir, None) as url:
        yield url


def by_id(result: Result, name: str) -> list[Check]:
    return [check for check in result.checks if check.id == name]


def test_a_good_server_passes(server: str, plain: str, tiny_draft: Path, tiny_target_dir: Path, samples: Path) -> None:
    question = UrlQuestion(tiny_draft, tiny_target_dir, samples, plain, rounds=150)
    result = check_url(server, question)
    shown = {check.id: check.verdict for check in result.checks}
    assert shown["U1"] is shown["U3"] is shown["U5"] is shown["U6"] is Verdict.PASS, result.as_dict()
    found = by_id(result, "U3")[0].evidence
    assert found["accept_length"] > 1.05
    assert found["counters"]["verify_calls"] >= 150
    assert sum(found["counters"]["histogram"]) == found["counters"]["verify_calls"]
    assert json.loads(json.dumps(result.as_dict()))["kind"] == "url"


def test_outputs_of_another_target_are_faults(
    server: str, tmp_path: Path, samples: Path, tiny_target_dir: Path
) -> None:
    from safetensors.torch import load_file, save_file

    other = tmp_path / "other"
    shutil.copytree(tiny_target_dir, other)
    tensors = load_file(other / "model.safetensors")
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].roll(1, 0).contiguous()
    save_file(tensors, other / "model.safetensors")
    result = check_url(server, UrlQuestion(None, other, samples, rounds=40))
    found = by_id(result, "U6")[0]
    assert found.verdict is Verdict.FAIL
    assert found.evidence["faults"] > 0


def test_too_few_rounds_is_no_verdict(server: str, samples: Path) -> None:
    result = check_url(server, UrlQuestion(samples=samples, rounds=10**6, seconds=0.2))
    assert by_id(result, "U3")[0].verdict is Verdict.UNKNOWN
    assert "not enough rounds" in by_id(result, "U3")[0].message
    assert result.verdict is not Verdict.PASS


def test_a_prediction_that_is_not_met(server: str, tiny_draft: Path, samples: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    for file in tiny_draft.iterdir():
        (draft / file.name).write_bytes(file.read_bytes())
    record = json.loads((draft / "k25stack.json").read_text())
    (draft / "k25stack.json").write_text(json.dumps({**record, "predicted": {"accept_length": 3.9}}))
    result = check_url(server, UrlQuestion(draft, samples=samples, rounds=60))
    gap = by_id(result, "U4")[0]
    assert gap.verdict is Verdict.UNKNOWN  # under 1,500 rounds no gap ratio is a verdict
    assert gap.evidence["gap_ratio"] == pytest.approx((gap.evidence["measured"] - 1) / 2.9)
    (draft / "k25stack.json").write_text(json.dumps({**record, "k": 5, "predicted": {"accept_length": 3.9}}))
    assert "not comparable" in by_id(check_url(server, UrlQuestion(draft, samples=samples, rounds=40)), "U4")[0].message


def test_a_server_without_a_draft(plain: str, tiny_draft: Path) -> None:
    assert by_id(check_url(plain, UrlQuestion(max_tokens=16)), "U2")[0].verdict is Verdict.PASS
    assert by_id(check_url(plain, UrlQuestion(tiny_draft, max_tokens=16)), "U2")[0].verdict is Verdict.FAIL


def test_every_kind_of_request_and_the_server_is_the_same_after(server: str) -> None:
    """Through a server that speculates; what the reference engine does not do, it refuses in order."""
    found = {str(check.evidence["kind"]): check for check in requests(server)}
    assert set(found) == set(KINDS)
    assert {name for name, check in found.items() if check.verdict is Verdict.FAIL} == set(), found
    for name in ("streaming", "abort mid-stream", "prompt at the context limit"):
        assert found[name].verdict is Verdict.PASS, found[name]


def test_a_server_that_died_before_the_kinds_is_a_finding() -> None:
    found = list(requests("http://127.0.0.1:9"))
    assert [(check.id, check.verdict) for check in found] == [("U10", Verdict.FAIL)]


def test_nobody_there_exits_3() -> None:
    with pytest.raises(HostError, match="no answer"):
        check_url("http://127.0.0.1:9")
    done = CliRunner().invoke(cli, ["http://127.0.0.1:9"])
    assert isinstance(done.exception, HostError)


# -- from recorded answers -------------------------------------------------------------------------------------------


def recorded(histogram: tuple[int, ...], facts: ServerFacts | None = None, text: str = "a b") -> Probe:
    """Two prompts of these rounds, as SGLang would have counted them."""
    half = tuple(count // 2 for count in histogram)
    answers = tuple(
        Answer(f"p{i}", f"p{i}", (), text, tuple(range(40)) if text == "a b" else None, "stop",
               RoundCounts.from_histogram(half)) for i in range(2)
    )  # fmt: skip
    return Probe("sglang", "m", facts or ServerFacts(), answers)


def test_a_dead_draft_is_explained_by_its_trap(tiny_draft: Path) -> None:
    facts = facts_of("sglang", {"version": "0.5.20", "speculative_algorithm": "EAGLE", "max_running_requests": 48})
    found = recorded((2000, 0, 0, 0), facts)
    asked = UrlQuestion(tiny_draft)
    acceptance = list(accepted(found, {}, asked))
    assert [check.verdict for check in acceptance] == [Verdict.FAIL]
    causes = list(explained(found, acceptance, asked, None))
    assert causes[0].message.startswith("T1")
    assert causes[0].fix == "--speculative-algorithm EAGLE3"
    assert causes[-1].message == "explained by T1"
    assert causes[1].message.startswith("T9")
    assert causes[1].verdict is Verdict.WARN


def test_a_server_that_speculates_and_does_not_count_is_no_failure() -> None:
    """SGLang before 0.5.20 answers chat prompts without counters: seen with 0.5.16."""
    answer = Answer("p", "p", (), "a b", None, "stop", None)
    for facts, verdict in ((ServerFacts(algorithm="EAGLE3"), Verdict.UNKNOWN), (ServerFacts(), Verdict.PASS)):
        found = Probe("sglang", "m", facts, (answer,))
        assert [(check.id, check.verdict) for check in accepted(found, {}, UrlQuestion())] == [("U2", verdict)]


@pytest.mark.parametrize(
    ("measured", "verdict"), [((1900, 80, 10, 10), Verdict.FAIL), ((900, 600, 300, 200), Verdict.WARN)]
)
def test_the_gap_ratio_decides(measured: tuple[int, ...], verdict: Verdict) -> None:
    found = recorded(measured)
    record = {"k": 3, "predicted": {"accept_length": 2.6}}
    gap = next(check for check in accepted(found, record, UrlQuestion()) if check.id == "U4")
    assert gap.verdict is verdict


def test_too_few_rounds_for_the_gap_ratio_say_how_many_it_takes() -> None:
    record, found = {"k": 3, "predicted": {"accept_length": 2.6}}, recorded((300, 200, 100, 50))
    gap = next(check for check in accepted(found, record, UrlQuestion(rounds=600)) if check.id == "U4")
    assert gap.verdict is Verdict.UNKNOWN and "1,500 rounds or more" in gap.fix


TRAPS: list[tuple[str, dict[str, Any], str]] = [
    ("T3", {"drop": "lm_head.weight"}, "C3"),
    ("T4", {"drop": "d2t"}, "C4"),
    ("T2", {"rename": "fc.weight"}, "C2"),
    ("T8", {"config": {"norm_before_residual": True}}, "C7"),
    ("T7", {"config": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}}}, "C5"),
    ("T6", {"config": {"eagle_config": {}, "eagle_aux_hidden_state_layer_ids": [1, 3, 5]}}, "C5"),
]


@pytest.mark.parametrize(("trap", "damage", "check_id"), TRAPS)
def test_every_trap_of_the_files_is_named(
    tiny_draft: Path, tmp_path: Path, trap: str, damage: dict[str, Any], check_id: str
) -> None:
    from safetensors.torch import load_file, save_file

    draft = tmp_path / "draft"
    draft.mkdir()
    config = json.loads((tiny_draft / "config.json").read_text()) | damage.get("config", {})
    (draft / "config.json").write_text(json.dumps(config))
    tensors = load_file(tiny_draft / "model.safetensors")
    if "drop" in damage:
        del tensors[damage["drop"]]
    if "rename" in damage:
        tensors["x." + damage["rename"]] = tensors.pop(damage["rename"])
    save_file(tensors, draft / "model.safetensors")
    record = {"schema": 1, "canonical_layers": [1, 3, 5], "target": {"family": "llama"}}
    (draft / "k25stack.json").write_text(json.dumps(record))
    found = recorded((2000, 0, 0, 0), ServerFacts(version="0.5.20", algorithm="EAGLE3", raw={"version": "0.5.20"}))
    asked = UrlQuestion(draft)
    causes = list(explained(found, list(accepted(found, {}, asked)), asked, None))
    named = [cause for cause in causes if cause.message.startswith(f"{trap}:")]
    if trap == "T6" and not named:  # the default layers of this target are unknown without its config
        assert causes[-1].verdict is Verdict.UNKNOWN
        return
    assert named, [cause.as_dict() for cause in causes]
    assert check_id in named[0].evidence["why"]
    assert causes[-1].evidence["T1"].startswith("excluded")


def test_the_target_that_a_server_names_is_looked_at(tiny_draft: Path, tiny_target_dir: Path, tmp_path: Path) -> None:
    """C5 could not be judged beside a server that says where its target lies, and T6 and T7 stayed open."""
    draft = tmp_path / "draft"
    shutil.copytree(tiny_draft, draft)
    (draft / "k25stack.json").write_text(json.dumps({"schema": 1, "canonical_layers": [1, 3, 5]}))  # no family
    info = {"version": "0.5.16", "speculative_algorithm": "EAGLE3", "model_path": str(tiny_target_dir)}
    for known, state in ((info, "excluded"), ({**info, "model_path": "/nowhere"}, "not looked at")):
        facts = facts_of("sglang", known)
        found = replace(recorded((2000, 0, 0, 0), facts), root=facts.model)
        asked = UrlQuestion(draft)
        causes = list(explained(found, list(accepted(found, {}, asked)), asked, None))
        assert causes[-1].evidence["T6"].startswith(state), causes[-1].evidence
        assert causes[-1].evidence["T7"].startswith(state)


def test_another_draft_than_the_served_one_is_told(tiny_draft: Path, tmp_path: Path) -> None:
    asked = UrlQuestion(tiny_draft)
    for served, count in ((tmp_path, 1), (tiny_draft, 0), (Path("/nowhere"), 0)):
        found = recorded((900, 600, 300, 200), ServerFacts(version="0.5.20", draft=str(served), raw={"a": 1}))
        told = [check for check in explained(found, [], asked, None) if "another draft" in check.message]
        assert len(told) == count


def test_what_is_no_trap_is_told_too(tiny_draft: Path, tmp_path: Path) -> None:
    """A random control contributes nothing, and its record says why; it was told to be none of the traps."""
    draft = tmp_path / "draft"
    shutil.copytree(tiny_draft, draft)
    record = {"schema": 1, "canonical_layers": [1, 3, 5], "target": {"family": "llama"}, "random": True}
    (draft / "k25stack.json").write_text(json.dumps(record))
    found, asked = recorded((2000, 0, 0, 0), ServerFacts(version="0.5.20", raw={"a": 1})), UrlQuestion(draft)
    causes = list(explained(found, list(accepted(found, {}, asked)), asked, None))
    assert any("a random control" in cause.message for cause in causes)
    assert not [cause for cause in explained(found, [], asked, None) if "random" in cause.message]  # nothing to explain


def test_eagle_is_no_trap_for_a_draft_of_its_kind() -> None:
    """DeepSeek's own next-token layer is served as EAGLE or NEXTN: nothing is wrong with that."""
    for algorithm in ("EAGLE", "NEXTN"):
        facts = ServerFacts(algorithm=algorithm, raw={"a": 1})
        assert diagnosis.tree(facts, "sglang", None, None)[0].state == "not looked at"
        named = replace(facts, draft="/models/kimi-k2.5-eagle3")
        assert diagnosis.tree(named, "sglang", None, None)[0].state == "found"


def test_default_layers_that_it_was_trained_on_are_no_trap(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("Using Eagle3 auxiliary layers from model: (2, 3, 4)\n")
    log = list(logs.check_log(tmp_path / "log"))
    for verdict, state in ((Verdict.PASS, "excluded"), (Verdict.FAIL, "found")):
        draft = Result("d", "draft", (Check("C5", "vllm@0.33.0", verdict, "captured layers"),))
        tree = {branch.id: branch.state for branch in diagnosis.tree(ServerFacts(), "vllm", draft, log)}
        assert tree["T6"] == state


def test_short_answers_whose_last_rounds_are_cut_give_no_accept_length() -> None:
    """With two tokens an answer every round that accepts something is cut: what is left says 1.00."""
    counts = RoundCounts(60, 0, 180, (60, 0, 0, 0), 40)
    answer = Answer("p", "p", (), "a b", None, "length", counts)
    found = list(accepted(Probe("sglang", "m", ServerFacts(), (answer,)), {}, UrlQuestion()))
    assert [(check.id, check.verdict) for check in found] == [("U3", Verdict.UNKNOWN)]
    assert "40 cut ones" in found[0].message


def test_a_prediction_of_another_decode_mode_is_not_comparable() -> None:
    found = replace(recorded((900, 600, 300, 200)), recorded=True, mode={"kind": "greedy", "thinking": False})
    record = {"k": 3, "predicted": {"accept_length": 2.6}}
    for mode, verdict in (({**found.mode}, Verdict.WARN), ({**found.mode, "thinking": True}, Verdict.UNKNOWN)):
        gap = next(one for one in accepted(found, {**record, "decode": mode}, UrlQuestion()) if one.id == "U4")
        assert gap.verdict is verdict
    assert "(thinking): not comparable" in gap.message


def test_a_config_alone_is_a_target_that_is_not_rescored(plain: str, tiny_target_dir: Path) -> None:
    result = check_url(plain, UrlQuestion(target=tiny_target_dir / "config.json", max_tokens=16))
    assert by_id(result, "U1")[0].verdict is Verdict.PASS


def test_the_tree_says_what_it_did_not_look_at() -> None:
    branches = diagnosis.tree(ServerFacts(), "sglang", None, None)
    assert [branch.id for branch in branches] == list(diagnosis.TRAPS)
    assert {branch.state for branch in branches} == {"not looked at"}
    found = list(diagnosis.judge(branches, wrong=True))
    assert found[0].verdict is Verdict.UNKNOWN
    assert "--draft" in found[0].fix


def test_repeated_tokens_are_no_output() -> None:
    stuck = Probe("vllm", "m", ServerFacts(), (Answer("p", "p", (), "! " * 60, None, "length", None),))
    assert next(iter(outputs.sanity(stuck))).verdict is Verdict.FAIL
    loop = Probe("vllm", "m", ServerFacts(), (Answer("p", "p", (), "", (1, 2, 3, 4) * 20, "length", None),))
    assert next(iter(outputs.sanity(loop))).verdict is Verdict.WARN
    fine = Probe("vllm", "m", ServerFacts(), (Answer("p", "p", (), "", tuple(range(60)), "length", None),))
    assert next(iter(outputs.sanity(fine))).verdict is Verdict.PASS


LOG = """\
[2026-01-01 00:00:00] Max running requests is reset to 48 for speculative decoding. You can override this by ...
[01] Eagle3 MLA: skipping unexpected weight model.layers.0.up_proj --api-key sk-1234567890
[2026-01-01 00:00:02] Decode batch, accept len: 1.00, accept rate: 0.25, cuda graph: True
[2026-01-01 00:00:03] Decode batch, accept len: 1.68, accept rate: 0.42, cuda graph: True
[2026-01-01 00:00:04] Decode batch, accept len: 0.00, accept rate: 0.00, cuda graph: True
"""


def test_log_markers_and_old_rates(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG)
    found = list(logs.check_log(tmp_path / "log"))
    assert [check.message.partition(":")[0] for check in found if check.id == "U8"] == ["T2", "T9"]
    assert "sk-1234567890" not in json.dumps([check.as_dict() for check in found])
    old = next(check for check in found if check.id == "U9")
    assert old.evidence["draft_tokens"] == 4
    assert old.evidence["accept_rate"] == pytest.approx((1.68 - 1) / 3, abs=1e-3)
    branches = diagnosis.tree(ServerFacts(raw={"a": 1}), "sglang", None, found)
    assert {branch.id for branch in branches if branch.state == "found"} == {"T2", "T9"}
    (tmp_path / "new").write_text("accept len: 1.68, accept rate: 0.23\naccept len: 2.50, accept rate: 0.50\n")
    assert [check.id for check in logs.check_log(tmp_path / "new", 4)] == ["U8"]
    with pytest.raises(HostError):
        list(logs.check_log(tmp_path / "nowhere"))
