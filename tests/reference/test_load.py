"""Loading is strict: a draft that another engine would take in silence is refused in one line."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from k25stack.errors import HostError, K25Error
from k25stack.reference.engine import Engine, EngineConfig
from k25stack.reference.load import Launch, load_engine
from k25stack.reference.loop import EngineLoop
from k25stack.reference.request import Event, Request
from k25stack.reference.server import main
from k25stack.reference.target import Target

SMALL = EngineConfig(slots=1, max_len=64)


@pytest.fixture
def draft_dir(tiny_draft_dir: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(tiny_draft_dir, tmp_path / "draft"))


def edit_config(directory: Path, **change: Any) -> None:
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def edit_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_a_packaged_draft_loads(tiny_target_dir: Path, tiny_draft_dir: Path) -> None:
    engine, tokenizer = load_engine(Launch(tiny_target_dir, tiny_draft_dir, SMALL, threads=1))
    assert engine.layers == (1, 3, 5)
    assert engine.drafter is not None
    assert tokenizer.eos_ids == (2,)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("lm_head.weight"), "lm_head.weight is missing"),
        (lambda t: t.pop("d2t"), "d2t is missing"),
        (lambda t: t.update(extra=torch.zeros(2)), "extra is not part of"),
        (lambda t: t.update({"fc.weight": torch.zeros(64, 64)}), "fc.weight is (64, 64), the draft needs (64, 192)"),
    ],
)
def test_unknown_missing_and_misshapen_tensors_are_refused(
    tiny_target_dir: Path, draft_dir: Path, change: Callable[[dict[str, torch.Tensor]], object], said: str
) -> None:
    edit_tensors(draft_dir, change)
    with pytest.raises(K25Error) as error:
        load_engine(Launch(tiny_target_dir, draft_dir, SMALL, threads=1))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("config", "card", "said"),
    [
        ({"eagle_aux_hidden_state_layer_ids": None}, None, "no list eagle_aux_hidden_state_layer_ids"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 9]}, None, "within 0..6"),
        ({"norm_before_residual": True}, None, "norm_before_residual is True"),
        ({}, {"canonical_layers": [2, 4, 6]}, "k25stack.json says [2, 4, 6]"),
    ],
)
def test_a_config_that_means_something_else_is_refused(
    tiny_target_dir: Path, draft_dir: Path, config: dict[str, Any], card: dict[str, Any] | None, said: str
) -> None:
    edit_config(draft_dir, **config)
    if card is not None:
        (draft_dir / "k25stack.json").write_text(json.dumps(card))
    with pytest.raises(K25Error) as error:
        load_engine(Launch(tiny_target_dir, draft_dir, SMALL, threads=1))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--target", "/nowhere"], 2, "/nowhere"),
        (["--target", "TARGET", "--draft", "/nowhere"], 2, "/nowhere"),
        (["--target", "TARGET", "--slots", "0"], 2, "slots is 0"),
        (["--target", "TARGET", "--max-len", "5000"], 2, "use at most 1024"),
        (["--target", "TARGET", "--host", "192.0.2.1"], 3, "cannot listen"),
    ],
)
def test_the_server_refuses_in_one_line(
    tiny_target_dir: Path, arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(tiny_target_dir) if word == "TARGET" else word for word in arguments]
    assert main([*words, "--port", "0", "--threads", "1"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failing_engine_ends_its_requests_and_says_so(target32: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    dead, events = threading.Event(), []
    loop = EngineLoop(Engine(target32, config=SMALL), on_death=dead.set)

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(loop.engine, "_decode", fail)
    loop.start()
    assert loop.healthy()
    loop.submit(Request("a", (5, 6), 9, on_event=events.append))
    loop.submit(Request("b", (5, 6), 9, on_event=events.append))
    assert dead.wait(30)
    ends: list[Event] = [event for event in events if event.finish is not None]
    assert {(event.request_id, event.finish) for event in ends} == {("a", "error"), ("b", "error")}
    loop.close()
    assert not loop.healthy()
    with pytest.raises(HostError, match="has stopped"):
        loop.submit(Request("c", (5, 6), 9))
