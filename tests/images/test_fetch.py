"""``stack fetch`` of a hub's model: every file verified, an altered one named, no second reading, one-line errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images.hub_twin import COMMIT, Hub, serve

STACKS = Path(__file__).resolve().parents[2] / "stacks"
CODE = b"class Tokenizer: ...\n"


@pytest.fixture()
def hub(tiny_target_dir: Path) -> Iterator[Hub]:
    files = {path.name: path.read_bytes() for path in tiny_target_dir.iterdir() if path.name != "target.json"}
    files |= {"tokenization_tiny.py": CODE, "pytorch_model.bin": b"a pickle", "docs/readme.md": b"# words"}
    with serve(Hub("tiny/llama", files)) as running:
        yield running


@pytest.fixture()
def stack(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(
        f"extends: {os.path.relpath(STACKS / 'smollm2-cpu.yaml', tmp_path)}\n"
        f"name: tiny\ntarget:\n  source: {{kind: hub, repo: tiny/llama, revision: {COMMIT}}}\n"
    )
    return file


def fetch(hub: Hub, stack: Path, *words: str, token: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "1", "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1"}
    program = [sys.executable, "-m", "k25stack", "stack", "fetch", str(stack), *words]
    return subprocess.run(program, env=env, cwd=stack.parent, text=True, capture_output=True, timeout=120)


def test_a_model_is_fetched_verified_and_not_read_twice(hub: Hub, stack: Path, tmp_path: Path) -> None:
    into = tmp_path / "model"
    said = fetch(hub, stack, "--into", str(into), "-n")
    assert (said.returncode, into.exists()) == (0, False)
    assert f"tiny/llama@{COMMIT}: 6 files" in said.stdout

    done = fetch(hub, stack, "--into", str(into))
    assert done.returncode == 0, done.stderr
    assert "6 files by size and hash" in done.stdout
    assert "tokenization_tiny.py" in done.stdout, "code that the engines will run is listed"
    assert "pytorch_model.bin" not in hub.asked, "no pickle is fetched"
    assert not (into / "docs").exists()

    hub.asked.clear()
    again = fetch(hub, stack, "--into", str(into))
    assert (again.returncode, hub.asked) == (0, []), "a whole model costs no network"


def test_an_altered_and_a_missing_file_are_named_and_fetched_again(hub: Hub, stack: Path, tmp_path: Path) -> None:
    into = tmp_path / "model"
    assert fetch(hub, stack, "--into", str(into)).returncode == 0
    shard = into / "model.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    (into / "config.json").unlink()

    bad = fetch(hub, stack, "--into", str(into), "--verify")
    assert bad.returncode == 1
    assert bad.stderr.startswith(f"error: {into}: missing or altered: config.json, model.safetensors (")
    assert bad.stderr.count("\n") == 1

    hub.asked.clear()
    assert fetch(hub, stack, "--into", str(into)).returncode == 0
    assert sorted(set(hub.asked)) == ["config.json", "model.safetensors"], "the others stay"
    assert fetch(hub, stack, "--into", str(into), "--verify", "--full").returncode == 0


def test_what_the_hub_sends_must_be_what_it_lists(hub: Hub, stack: Path, tmp_path: Path) -> None:
    whole = hub.files["model.safetensors"]
    hub.listed["model.safetensors"] = whole[:-1] + bytes([whole[-1] ^ 1])
    done = fetch(hub, stack, "--into", str(tmp_path / "model"))
    assert done.returncode == 1
    assert "model.safetensors not what the hub lists, even fetched twice" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "model/k25stack-files.json").exists(), "nothing is recorded as verified"
    assert not (tmp_path / "model/model.safetensors").exists(), "what was refused is not left to be served"


def test_a_gated_model_wants_a_token(hub: Hub, stack: Path, tmp_path: Path) -> None:
    hub.token = "hf_secret"
    without = fetch(hub, stack, "--into", str(tmp_path / "model"))
    assert (without.returncode, without.stderr.count("\n")) == (3, 1)
    assert "HF_TOKEN is not set (accept its terms on the hub" in without.stderr
    refused = fetch(hub, stack, "--into", str(tmp_path / "model"), token="hf_other")
    assert "the token given is refused" in refused.stderr
    assert "hf_other" not in refused.stderr
    assert fetch(hub, stack, "--into", str(tmp_path / "model"), token="hf_secret").returncode == 0


def test_a_hub_that_is_not_there_or_has_no_such_model_is_one_line(hub: Hub, stack: Path, tmp_path: Path) -> None:
    hub.url, there = "http://127.0.0.1:9", hub.url
    gone = fetch(hub, stack, "--into", str(tmp_path / "model"))
    assert (gone.returncode, gone.stderr.count("\n")) == (3, 1)
    assert "cannot fetch tiny/llama at 4d01dfe0332d:" in gone.stderr
    hub.url = there
    stack.write_text(stack.read_text().replace("tiny/llama", "tiny/other"))
    unknown = fetch(hub, stack, "--into", str(tmp_path / "model"))
    assert (unknown.returncode, unknown.stderr.count("\n")) == (3, 1)
    assert "the hub does not have it" in unknown.stderr


def test_never_verified_and_another_model_are_refused(hub: Hub, stack: Path, tmp_path: Path) -> None:
    into = tmp_path / "model"
    into.mkdir()
    assert "it was never verified" in fetch(hub, stack, "--into", str(into), "--verify").stderr
    assert fetch(hub, stack, "--into", str(into)).returncode == 0
    stack.write_text(stack.read_text().replace("tiny/llama", "tiny/other"))
    assert "holds tiny/llama@4d01dfe0332d" in fetch(hub, stack, "--into", str(into), "--verify").stderr
