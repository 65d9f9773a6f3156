"""A draft that a hub has: pinned by a commit, fetched beside the target, every file verified, judged for its engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from k25stack.draft.spec import DraftSpec
from k25stack.draft.target import TargetFacts
from k25stack.errors import StackError
from k25stack.stack import load_stack
from k25stack.stack.serving import Speculative
from tests.contract.contract_cases import Case, write_case
from tests.images.hub_twin import COMMIT, Hub, serve

STACKS = Path(__file__).resolve().parents[2] / "stacks"
REPO = "tiny/eagle3"
TINY = DraftSpec(64, 4, 2, 16, 96, 32, 512, max_position=8192)
CODE = b"class Eagle: ...\n"
PROGRAM = [sys.executable, "-c", "import sys; from k25stack.cli.main import main; sys.exit(main())"]


def tiny_draft(directory: Path) -> Path:
    """A draft for the tiny target of these tests."""
    target = TargetFacts("llama", "llama", 64, 6, 512, 1024, (2,), 1)
    return write_case(directory, Case(TINY, target, [1, 3, 5]))


def write_stack(directory: Path, revision: str | None) -> Path:
    """The shipped CPU stack with a profile whose draft a hub has."""
    file = directory / "tiny.yaml"
    pin = "null" if revision is None else f"'{revision}'"
    file.write_text(
        f"extends: {os.path.relpath(STACKS / 'smollm2-vllm-cpu.yaml', directory)}\nname: tiny\nserving:\n  profiles:\n"
        f"    hub:\n      extends: vllm-own\n      speculative: {{draft: {REPO}, draft_revision: {pin}}}\n"
    )
    return file


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    made = tiny_draft(tmp_path_factory.mktemp("draft") / "d")
    return {path.name: path.read_bytes() for path in made.iterdir()} | {"modeling_eagle.py": CODE, "weights.bin": b"x"}


@pytest.fixture
def hub(files: dict[str, bytes]) -> Iterator[Hub]:
    with serve(Hub(REPO, dict(files))) as running:
        yield running


def fetch(hub: Hub, stack: Path, *words: str, token: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "1", "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(
        [*PROGRAM, "stack", "fetch", str(stack), "--draft", "hub", *words],
        env={**env, **more}, cwd=stack.parent, text=True, capture_output=True, timeout=120,
    )  # fmt: skip


def one_line(done: subprocess.CompletedProcess[str], code: int, *said: str) -> None:
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (done.returncode, len(lines)) == (code, 1), done.stderr
    assert "Traceback" not in done.stderr and all(one in lines[0] for one in said), done.stderr


def test_a_pinned_draft_is_fetched_verified_and_judged(hub: Hub, tmp_path: Path, tiny_target_dir: Path) -> None:
    stack, into = write_stack(tmp_path, COMMIT), tmp_path / "draft"
    planned = fetch(hub, stack, "--into", str(into), "-n")
    assert f"{REPO}@{COMMIT}: 4 files" in planned.stdout and not into.exists()

    done = fetch(hub, stack, "--into", str(into), "--target", str(tiny_target_dir))
    assert done.returncode == 0, done.stderr
    assert "4 files by size and hash" in done.stdout and "modeling_eagle.py" in done.stdout
    assert "a draft for vllm 0.32.0" in done.stdout and "weights.bin" not in hub.asked

    hub.asked.clear()
    (into / "config.json").touch()
    assert fetch(hub, stack, "--into", str(into)).returncode == 0 and hub.asked == []
    listed = (into / "k25stack-files.json").read_text()
    assert str((into / "config.json").stat().st_mtime_ns) in listed, "what was read again is noted"


def test_what_is_altered_or_missing_is_named_and_fetched_again(hub: Hub, tmp_path: Path) -> None:
    stack, into = write_stack(tmp_path, COMMIT), tmp_path / "draft"
    assert fetch(hub, stack, "--into", str(into)).returncode == 0
    weights = into / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    (into / "config.json").unlink()
    one_line(fetch(hub, stack, "--into", str(into), "--verify"), 1,
             "missing or altered: config.json, model.safetensors", "stack fetch STACK --draft PROFILE")  # fmt: skip
    hub.asked.clear()
    assert fetch(hub, stack, "--into", str(into)).returncode == 0
    assert sorted(set(hub.asked)) == ["config.json", "model.safetensors"]


def test_what_the_hub_lacks_or_garbles_stops_it(hub: Hub, tmp_path: Path) -> None:
    into = tmp_path / "draft"
    one_line(fetch(hub, write_stack(tmp_path, "0" * 40), "--into", str(into)), 3, "the hub does not have it")
    stack = write_stack(tmp_path, COMMIT)
    whole = hub.files["model.safetensors"]
    hub.listed["model.safetensors"] = whole[:-1] + b"?"
    one_line(fetch(hub, stack, "--into", str(into)), 1, "model.safetensors not what the hub lists")
    hub.listed.clear()
    (tmp_path / "evil.json").write_text("{}")
    hub.files["../evil.json"] = b"{} "
    one_line(fetch(hub, stack, "--into", str(into)), 1, "the hub lists a file outside the model: ../evil.json")
    assert (tmp_path / "evil.json").read_text() == "{}"
    del hub.files["../evil.json"]
    del hub.files["model.safetensors"]
    one_line(fetch(hub, stack, "--into", str(tmp_path / "other")), 2, "only safetensors is fetched")


def test_a_gated_draft_wants_a_token_that_is_never_shown(hub: Hub, tmp_path: Path) -> None:
    hub.token = "hf_secret"
    stack, into = write_stack(tmp_path, COMMIT), str(tmp_path / "draft")
    one_line(fetch(hub, stack, "--into", into), 3, "HF_TOKEN is not set (accept its terms on the hub")
    refused = fetch(hub, stack, "--into", into, token="hf_other")
    one_line(refused, 3, "the token given is refused")
    assert "hf_other" not in refused.stderr
    (tmp_path / "token").write_text("hf_secret\n")
    assert fetch(hub, stack, "--into", into, HF_TOKEN_FILE=str(tmp_path / "token")).returncode == 0


@pytest.mark.parametrize("revision", [None, "main"])
def test_an_unpinned_draft_is_not_fetched_and_its_commit_can_be_asked(
    hub: Hub, tmp_path: Path, revision: str | None
) -> None:
    stack, into = write_stack(tmp_path, revision), tmp_path / "draft"
    one_line(fetch(hub, stack, "--into", str(into)), 2, "speculative.draft_revision: tiny/eagle3 is not pinned")
    assert hub.asked == [] and not into.exists()
    asked = fetch(hub, stack, "--into", str(into), "-n")
    assert f"{revision or 'its main branch'} is now draft_revision: {COMMIT}" in asked.stdout, asked.stderr


def test_an_unpinned_draft_that_is_there_is_judged_and_said_to_be_unpinned(hub: Hub, tmp_path: Path) -> None:
    stack, into = write_stack(tmp_path, None), tiny_draft(tmp_path / "draft")
    taken = fetch(hub, stack, "--into", str(into))
    assert taken.returncode == 0 and "not pinned" in taken.stderr and "compared with nothing" in taken.stderr
    (into / "model.safetensors").unlink()
    one_line(fetch(hub, stack, "--into", str(into)), 1, str(into))


@pytest.mark.parametrize("revision", ["4d01dfe", COMMIT.upper(), f"{COMMIT}\n", "v1.0", COMMIT + "0"])
def test_only_a_whole_commit_pins(revision: str) -> None:
    fields = {"k": 3, "draft": REPO, "draft_revision": revision}
    assert "is no commit" in Speculative.model_validate(fields).unpinned
    assert Speculative.model_validate({**fields, "draft_revision": COMMIT}).unpinned == ""


def test_the_caller_s_own_draft_is_looked_at_and_never_written(hub: Hub, tmp_path: Path) -> None:
    own = tiny_draft(tmp_path / "own")
    before = {path.name: path.read_bytes() for path in own.iterdir()}
    stack = write_stack(tmp_path, COMMIT)
    done = fetch(hub, stack, "--into", str(own), K25_DRAFT_GIVEN="yes")
    assert done.returncode == 0 and hub.asked == []
    assert before == {path.name: path.read_bytes() for path in own.iterdir()}
    one_line(fetch(hub, stack, "--into", str(tmp_path / "no"), K25_DRAFT_GIVEN="yes"), 2, "K25_DRAFT")


def test_the_engine_is_told_the_commit_where_it_fetches_itself(tmp_path: Path) -> None:
    stack = write_stack(tmp_path, COMMIT)
    words = [*PROGRAM, "stack", "render", str(stack), "--profile", "hub", "--model", "/m"]
    assert f'"revision":"{COMMIT}"' in subprocess.run(words, text=True, capture_output=True, timeout=60).stdout
    stack = write_stack(tmp_path, "main")
    told = subprocess.run(words, text=True, capture_output=True, timeout=60).stderr
    assert "warning: profile hub: the draft tiny/eagle3 is not pinned: 'main' is no commit (write the 40 hex" in told


def test_a_revision_of_what_is_on_no_hub_is_refused(tmp_path: Path) -> None:
    stack = write_stack(tmp_path, COMMIT)
    stack.write_text(stack.read_text().replace(REPO, "own"))
    with pytest.raises(StackError, match=r"comes from no hub; write draft_revision: null"):
        load_stack(stack)
