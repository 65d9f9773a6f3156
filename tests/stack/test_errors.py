"""Whatever is wrong with a stack file: one line with the place, the fault and the nearest valid name."""

from __future__ import annotations

from pathlib import Path

import pytest

from k25stack.errors import StackError
from k25stack.stack import load_stack
from tests.stack.conftest import STACKS, Spoil


def message(path: Path) -> str:
    with pytest.raises(StackError) as caught:
        load_stack(path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(path))
    assert caught.value.exit_code == 2
    return text.removeprefix(str(path))


def place(base: str, text: str, offset: int = 0) -> str:
    """``:line:column: `` of a piece of text in a shipped file."""
    before = (STACKS / f"{base}.yaml").read_text(encoding="utf-8").split(text)[0]
    return f":{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10)) + offset}: "


CASES = [
    ("steps: 3", "stpes: 3", 0, "training.stpes: unknown key", "did you mean steps?"),
    ("min_rounds: 1500\n  request", "batch_tokens: 5\n  request", 0, "bench.batch_tokens: unknown key",
     "batch_tokens belongs under training"),
    ("max_running: 16", "tpsize: 16", 0, "serving.profiles.baseline.tpsize: unknown key", "there are engine, version"),
    ("steps: 3", "steps: three", 7, "training.steps: should be a whole number, not 'three'", ""),
    ("steps: 3", "steps: '3'", 7, "training.steps: should be a whole number, not '3'", ""),
    ("steps: 3", "steps: true", 7, "training.steps: should be a whole number, not true", ""),
    ("steps: 3", "steps: 0", 7, "training.steps: should be greater than 0, not 0", ""),
    ("loss_decay: 0.8", "loss_decay: high", 12, "training.loss_decay: should be a number, not 'high'", ""),
    ("tied: true", "tied: yes", 6, "target.shape.tied: should be true or false, not 'yes'", ""),
    ("version: 0.1.2", "version: 0.1", 9, "target.source.version: should be text, not 0.1", "put it in quotes"),
    ("family: llama", "family: lama", 8, "target.family: 'lama' is not one of", "did you mean llama?"),
    ("kind: wheel-gguf", "kind: wheel", 6, "target.source.kind: 'wheel' is not one of wheel-gguf", ""),
    ("engine: reference\n      role: baseline", "engine: refrence\n      role: baseline", 8,
     "serving.profiles.baseline.engine: 'refrence' is not one of", "did you mean reference?"),
    ("default: own", "default: mine", 9, "serving.default: no profile 'mine'; there are baseline, random, own", ""),
    ("layers: [10, 20, 29]", "layers: [20, 10, 29]", 8, "extraction.layers: must ascend", ""),
    ("layers: [10, 20, 29]", "layers: [10, 20, 31]", 8, "extraction.layers: 31 is above the 30 layers", ""),
    ("layers: [10, 20, 29]", "layers: 10", 8, "extraction.layers: should be a list, not 10", ""),
    ("layers: [10, 20, 29]", "layers: [10, x, 29]", 13, "extraction.layers.1: should be a whole number, not 'x'", ""),
    ("concurrency: [1, 8]", "concurrency: []", 13, "bench.concurrency: needs at least 1 value", ""),
    ("vocab: 8192", "vocab: 81920", 7, "draft.vocab: 81920 is above the target's vocabulary of 49152", ""),
    ("max_position: 8192", "max_position: 512", 14, "draft.max_position: 512 is below target.context 2048", ""),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "offset", "what", "remedy"), CASES, ids=[case[1] for case in CASES])
def test_the_line_says_where_what_and_what_to_do(
    spoil: Spoil, old: str, new: str, offset: int, what: str, remedy: str
) -> None:
    text = message(spoil(old, new))
    assert text.startswith(place("smollm2-cpu", old, offset) + what)
    assert remedy in text


def test_speculation_needs_an_explicit_batch(spoil: Spoil) -> None:
    text = message(spoil("      max_running: 16\n", ""))
    assert "serving.profiles.random: speculation needs max_running" in text


def test_a_chain_with_other_rows_than_its_steps_is_refused(spoil: Spoil) -> None:
    text = message(spoil("draft_tokens: 4", "draft_tokens: 16", "kimi-k2.5-8x-rtx-pro-6000"))
    assert "a chain of k=3 verifies 4 rows; the engine would rewrite 16" in text


def test_a_draft_row_is_compared_with_a_plain_one(spoil: Spoil) -> None:
    text = message(spoil("role: draft\n      compare_to: baseline", "role: draft\n      compare_to: random"))
    assert "'random' itself uses a draft" in text


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("NCCL_ALGO: Ring", "nccl_algo: Ring", "'nccl_algo' does not match"),
        ("NCCL_ALGO: Ring", "NCCL_ALGO: 5", "should be text, not 5"),
        ("image: vllm-0.31.0}", "image: vllm-0.31}", "no image 'vllm-0.31' under images"),
        (
            "engines:\n  sglang: {",
            "images:\n  own: {ref: a/b:c, digest: sha512:06, sources: 1, resolved: false}\nengines:\n  sglang: {",
            "does not match ^sha256:",
        ),
        ("profile: sglang-eager\n    metric", "profile: sglang-eage\n    metric", "no profile 'sglang-eage'"),
    ],
)
def test_tables_and_links(spoil: Spoil, old: str, new: str, what: str) -> None:
    assert what in message(spoil(old, new, "kimi-k2.5-8x-rtx-pro-6000"))


def test_an_inherited_fault_is_one_problem(spoil: Spoil) -> None:
    text = message(spoil("attention-backend: triton #", "attention-backend: [[1]] #", "kimi-k2.5-8x-rtx-pro-6000"))
    assert "more problem" not in text


def test_several_faults_are_counted_and_the_first_is_shown(spoil: Spoil) -> None:
    text = message(spoil("processes: 2 # two", "processes: two\n  slots2: 5\n  #", "smollm2-cpu"))
    assert "data.processes: should be a whole number, not 'two'; 1 more problem" in text


FILES = {
    "empty": (b"", "the file is empty"),
    "comments": (b"# nothing\n", "the file is empty"),
    "binary": (bytes(range(256)), "not a text file"),
    "nul": (b"a: \x00\n", "not a text file"),
    "list": (b"- 1\n", "a stack file is a mapping of sections"),
    "torn": (b"a: [1\n", "not valid YAML"),
    "tab": (b"a:\n\tb: 1\n", "not valid YAML"),
    "two documents": (b"a: 1\n---\nb: 1\n", "not valid YAML"),
    "twice": (b"a: 1\nb: 2\na: 3\n", "key 'a' stands twice (first at line 1)"),
    "alias": (b"a: &x {b: 1}\nc: *x\n", "anchors and aliases are not used here"),
    "merge key": (b"a:\n  <<: {b: 1}\n", "use extends"),
    "tag": (b"a: !!python/name:os.system x\n", "YAML tag"),
    "key of a list": (b"? [a]\n: 1\n", "a key must be plain text"),
    "deep": (b"[" * 5000, "maximum nesting depth"),
    "rather deep": (b"[" * 30 + b"]" * 30, "nested too deeply"),
    "long": (b"a: 1\n" + b"#" * (1 << 20), "larger than"),
    "other yaml": (b"services: {web: {image: x}}\n", "unknown key"),
}


@pytest.mark.parametrize(("content", "what"), FILES.values(), ids=FILES.keys())
def test_files_that_are_no_stack(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    assert what in message(path)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    assert "no such stack file" in message(tmp_path / "none.yaml")
    assert "a directory" in message(tmp_path)
