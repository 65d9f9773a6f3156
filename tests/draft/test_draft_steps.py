"""The step programs as the pipeline starts them: real processes, spec files, exit codes, one-line errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from draft_cases import SPEC, random_rows, write_samples, write_target

from k25stack.draft.package import program as package
from k25stack.worker import run_worker


def write_spec(root: Path, params: dict, inputs: dict[str, Path]) -> str:
    (root / "out").mkdir(parents=True, exist_ok=True)
    spec = {"params": params, "inputs": {name: str(path) for name, path in inputs.items()}, "out": str(root / "out")}
    (root / "spec.json").write_text(json.dumps({**spec, "threads": 1}))
    return str(root / "spec.json")


def run_step(module: str, root: Path, params: dict, inputs: dict[str, Path]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"k25stack.{module}", write_spec(root, params, inputs)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_vocabulary_package_and_check_in_a_row(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    samples = write_samples(tmp_path / "samples", random_rows())
    done = run_step("draft.vocab", tmp_path / "vocab", {"size": 32}, {"samples": samples, "target": target})
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "vocab/out/result.json").read_text())["size"] == 32

    params = {"spec": SPEC.as_dict(), "layers": [2, 4, 6], "k": 3, "random": True, "seed": 1, "target_family": "llama"}
    inputs = {"target": target, "vocab": tmp_path / "vocab/out"}
    done = run_step("draft.package", tmp_path / "draft", params, inputs)
    assert done.returncode == 0, done.stderr
    first = {path.name: path.read_bytes() for path in (tmp_path / "draft/out").iterdir()}
    assert set(first) == {"config.json", "model.safetensors", "k25stack.json", "result.json"}
    # what a killed try leaves behind is replaced, with the same bytes
    (tmp_path / "draft/out/k25stack.json").unlink()
    (tmp_path / "draft/out/model.safetensors").write_bytes(b"torn")
    assert run_worker(package, [str(tmp_path / "draft/spec.json")]) == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "draft/out").iterdir()} == first

    engines = {"engines": ["reference", "sglang@0.5.20", "vllm@0.31.0"]}
    inputs = {"draft": tmp_path / "draft/out", "target": target}
    done = run_step("contract.main", tmp_path / "check", engines, inputs)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "check/out/result.json").read_text())
    assert result["verdict"] == "warn"  # a random control says so
    assert result["checks"]["fail"] == result["checks"]["unknown"] == 0

    (tmp_path / "draft/out/model.safetensors").write_bytes(first["model.safetensors"][:-7])
    done = run_step("contract.main", tmp_path / "check", engines, inputs)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")


def test_a_wrong_spec_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = write_target(tmp_path / "target")
    params = {"spec": {**SPEC.as_dict(), "heads": 5}, "layers": [2, 4, 6], "k": 3, "random": True, "seed": 1}
    spec = write_spec(tmp_path / "draft", params, {"target": target, "vocab": tmp_path})
    assert run_worker(package, [spec]) == 2
    assert capsys.readouterr().err == "error: draft spec: 5 query heads do not divide into groups of 2 kv heads\n"
