"""Killed at any moment and started again, a run ends with the same bytes; where that cannot be promised it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import params, write_inputs, write_spec

from k25stack.errors import DamageError, DriftError
from k25stack.train.checkpoint import Cursor, checkpoint_files, differences, resume, save
from k25stack.train.main import program
from k25stack.worker import Spec

# What a later step reads.  result.json and the checkpoints also hold seconds.
OUTPUTS = ("best.safetensors", "epochs.jsonl", "walk.jsonl")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_target_dir: Path) -> dict[str, str]:
    return write_inputs(
        tmp_path_factory.mktemp("inputs"), tiny_target_dir, {"train": 12, "validation": 3, "held_out": 3}
    )


def run(inputs: dict[str, str], out: Path, **changes: Any) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    paths = {name: Path(path) for name, path in inputs.items()}
    return program(Spec(params(**changes), paths, out, int(changes.get("processes", 1))))


def killed_after(spec: Path, words: str) -> None:
    """Start the step program and kill its whole process group as soon as it says ``words``."""
    argv = [sys.executable, "-m", "k25stack.train.main", str(spec)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if words in line:
            break
    else:
        pytest.fail(f"it never said {words!r}: {seen}")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()


@pytest.mark.parametrize("processes", [1, 2])
def test_killed_and_resumed_gives_the_same_bytes(tmp_path: Path, inputs: dict[str, str], processes: int) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    changes: dict[str, Any] = {"processes": processes, "checkpoint_s": 0.0}
    whole = run(inputs, straight, **changes)
    killed_after(write_spec(tmp_path / "spec.json", inputs, broken, threads=processes, **changes), "epoch 1/3")
    found = checkpoint_files(broken / "checkpoints")
    assert found and not (broken / "result.json").exists()
    done = int(found[-1].stem.removeprefix("step-"))
    assert done < whole["train"]["steps"]
    resumed = run(inputs, broken, **changes)
    for name in OUTPUTS:
        assert (broken / name).read_bytes() == (straight / name).read_bytes(), name
    assert resumed["walk"] == whole["walk"] and resumed["train"]["inexact"] == []


def test_every_place_to_stop_is_as_good_as_any(tmp_path: Path, inputs: dict[str, str]) -> None:
    """Resume from each checkpoint of a run, as if it had been killed right after writing it."""
    straight = tmp_path / "straight"
    steps = run(inputs, straight, checkpoint_s=0.0, keep_checkpoints=99)["train"]["steps"]
    files = checkpoint_files(straight / "checkpoints")
    assert len(files) == steps
    for file in files[:: max(1, steps // 4)]:
        again = tmp_path / file.stem
        (again / "checkpoints").mkdir(parents=True)
        os.link(file, again / "checkpoints" / file.name)
        # The best weights so far would lie beside it; these are of the end, and must be found again.
        (again / "best.safetensors").write_bytes((straight / "best.safetensors").read_bytes())
        run(inputs, again)
        for name in OUTPUTS:
            assert (again / name).read_bytes() == (straight / name).read_bytes(), (file.name, name)


def test_finished_run_started_again_only_walks(tmp_path: Path, inputs: dict[str, str]) -> None:
    first = run(inputs, tmp_path)
    newest = checkpoint_files(tmp_path / "checkpoints")[-1].stat().st_mtime_ns
    second = run(inputs, tmp_path)
    assert second["walk"] == first["walk"] and second["train"]["steps"] == first["train"]["steps"]
    assert checkpoint_files(tmp_path / "checkpoints")[-1].stat().st_mtime_ns == newest


def test_other_params_are_refused_by_name(tmp_path: Path, inputs: dict[str, str]) -> None:
    run(inputs, tmp_path, epochs=1)
    with pytest.raises(DriftError) as caught:
        run(inputs, tmp_path, epochs=2)
    assert "params.epochs was 1, is 2" in str(caught.value) and "train.inexact" in str(caught.value)
    # Neither how often checkpoints are written nor the permission itself changes any bit.
    run(inputs, tmp_path, epochs=1, checkpoint_s=5.0, keep_checkpoints=1)


def test_inexact_resume_is_allowed_and_recorded(tmp_path: Path, inputs: dict[str, str]) -> None:
    run(inputs, tmp_path, checkpoint_s=0.0, epochs=1)
    newest = checkpoint_files(tmp_path / "checkpoints")[-1]
    newest.unlink()  # the one before is in the middle of the epoch
    result = run(inputs, tmp_path, epochs=1, loss_decay=0.7, inexact=True)
    assert result["train"]["inexact"] == ["params.loss_decay was None, is 0.7"]


def test_torn_checkpoint_is_one_line(tmp_path: Path) -> None:
    state = {"a.master": torch.arange(6.0)}
    path = save(tmp_path, state, Cursor(step=3), {"torch": "1"}, keep=2)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DamageError, match="truncated"):
        resume(tmp_path, state, {"torch": "1"}, inexact=False)


def test_checkpoint_round_trip_and_rotation(tmp_path: Path) -> None:
    state = {"a.master": torch.randn(3, 4), "a.momentum": torch.randn(3, 4)}
    for step in range(1, 5):
        save(tmp_path, state, Cursor(step=step, best=1.5, epochs=[{"epoch": 1}]), {"torch": "1"}, keep=2)
    assert [file.name for file in checkpoint_files(tmp_path)] == [
        "step-00000003.safetensors",
        "step-00000004.safetensors",
    ]
    torch.manual_seed(7)
    generator = torch.get_rng_state()
    save(tmp_path, state, Cursor(step=5), {"torch": "1"}, keep=2)
    torch.manual_seed(8)
    empty = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    cursor = resume(tmp_path, empty, {"torch": "1"}, inexact=False)
    assert cursor == Cursor(step=5)
    assert all(torch.equal(empty[name], state[name]) for name in state)
    assert torch.equal(torch.get_rng_state(), generator)
    assert resume(tmp_path / "none", empty, {}, inexact=False) is None


def test_differences_are_named_with_their_path() -> None:
    then = {"isa": "AVX2", "params": {"a": 1, "b": {"c": 2}}}
    now = {"isa": "AVX512", "params": {"a": 1, "b": {"c": 3}}, "threads": 2}
    assert differences(then, now) == [
        "isa was 'AVX2', is 'AVX512'",
        "params.b.c was 2, is 3",
        "threads was None, is 2",
    ]
