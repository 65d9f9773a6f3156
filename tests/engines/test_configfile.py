"""``--config FILE``: judged and imported as if its options stood in the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from k25stack.engines.catalogue import catalogue
from k25stack.engines.command import read_command
from k25stack.engines.configfile import Expanded, expanded
from k25stack.engines.imported import import_command
from k25stack.engines.scan import scan


def put(words: list[str], engine: str = "sglang", version: str = "0.5.20") -> Expanded:
    known = catalogue(engine, version)
    assert known is not None
    return expanded(known, words)


def test_the_lines_own_options_come_later_and_so_win(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("model-path: /m\ntp-size: 4\ndisable-radix-cache: true\nskip-server-warmup: false\n"
                    "cuda-graph-bs-decode: [1, 2]\njson-model-override-args: {a: 1}\n")  # fmt: skip
    found = put(["--tp-size", "8", "--config", str(file)])
    assert found.words == ("--model-path", "/m", "--tp-size", "4", "--disable-radix-cache", "--cuda-graph-bs-decode",
                           "1", "2", "--json-model-override-args", '{"a": 1}', "--tp-size", "8")  # fmt: skip
    known = catalogue("sglang", "0.5.20")
    assert known is not None
    line = scan(known, found.words)
    tp = line.last("--tp-size")
    assert (line.refusals, tp and tp.value) == ([], 8)


def test_vllm_keeps_its_model_in_front(tmp_path: Path) -> None:
    file = tmp_path / "serve.yml"
    file.write_text("max_num_seqs: 8\nenable-prefix-caching: false\nspeculative-config:\n  method: eagle3\n")
    found = put(["/m", "--config", str(file), "-tp", "8"], "vllm", "0.31.0")
    assert found.words == ("/m", "--max_num_seqs", "8", "--no-enable-prefix-caching", "--speculative-config",
                           '{"method": "eagle3"}', "-tp", "8")  # fmt: skip
    assert put(["--config", str(file)], "vllm", "0.31.0").words[:2] == ("--max_num_seqs", "8")


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["--config={file}"], True),
        (["--config", "{file}", "--config", "{file}"], True),
        (["--config", "{place}/serve.json"], True),
        (["--config", "{place}/elsewhere.yaml"], False),
        (["--config", "{place}"], True),
        (["--config", "{list}"], True),
        (["--config", "{bad}"], True),
        (["--config", "{bomb}"], True),
    ],
)
def test_a_file_that_decides_nothing_is_named(tmp_path: Path, words: list[str], refused: bool) -> None:
    texts = {"file": "tp-size: 8\n", "list": "- a\n", "bad": "a: [\n", "bomb": "a: &a [x, x]\nb: [*a, *a]\n"}
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    places = {name: str(tmp_path / f"{name}.yaml") for name in texts} | {"place": str(tmp_path)}
    line = [word.format(**places) for word in words]
    found = put(line)
    assert found.problem and found.remedy and "\n" not in found.problem
    assert (found.refused, found.words) == (refused, tuple(line))


def test_a_line_without_a_file_is_left_alone() -> None:
    for words in ([], ["--tp-size", "8"], ["--config"]):
        assert put(words) == Expanded(tuple(words))


def test_an_import_holds_what_the_file_sets(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("tp-size: 8\nmax-running-requests: 64\n")
    found = import_command(read_command(["sglang", "serve", "/m", "--config", str(file)]), version="0.5.20")
    assert (found.profile["tensor_parallel"], found.profile["max_running"], found.unmapped) == (8, 64, [])
    lost = import_command(read_command(["sglang", "serve", "/m", "--config", "/nowhere.yaml"]), version="0.5.20")
    assert any("not at hand" in line for line in lost.unmapped)
