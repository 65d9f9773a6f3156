"""The loop of the shipped CPU stack: every step declares what decides it, and a setting reaches only its step."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k25stack.errors import HostError
from k25stack.pipeline.key import PACKAGE, changed, fields
from k25stack.pipeline.loop import request_for, steps
from k25stack.pipeline.plan import render
from k25stack.pipeline.runner import Runner
from k25stack.pipeline.step import Step, needed
from k25stack.pipeline.workspace import Workspace
from k25stack.stack import load_stack

ROOT = PACKAGE.parent
STACK = ROOT / "stacks" / "smollm2-cpu.yaml"
UTILITIES = {"errors.py", "files.py", "proc.py", "worker.py", "__init__.py"}
# import name -> distribution, for packages that decide results; the rest (hub client, YAML) only move data
DECIDE = {"torch": "torch", "safetensors": "safetensors", "tokenizers": "tokenizers", "jinja2": "jinja2",
          "aiohttp": "aiohttp", "gguf": "gguf", "numpy": "numpy"}  # fmt: skip
NAMED = re.compile(r"^k25stack(\.[a-z_0-9]+)+$")  # modules that are started by name: python -m k25stack...


def file_of(module: str) -> Path | None:
    place = ROOT.joinpath(*module.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def mentioned(tree: ast.AST) -> Iterator[str]:
    """Modules that are imported (not only for type checking) or started by name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and NAMED.match(node.value):
            yield node.value
        yield from mentioned(node)


def closure(module: str) -> tuple[set[str], set[str]]:
    """Files of this package that a module needs (relative to it), and top-level names of other packages."""
    files, others, queue = set(), set(), [module]
    while queue:
        name = queue.pop()
        path = file_of(name)
        if not name.startswith("k25stack"):
            others.add(name.split(".")[0])
        elif path is not None and path.relative_to(PACKAGE).as_posix() not in files:
            files.add(path.relative_to(PACKAGE).as_posix())
            queue += mentioned(ast.parse(path.read_text()))
    return files, others - set(sys.stdlib_module_names)


def loop() -> list[Step]:
    return steps(load_stack(STACK))


def programs() -> list[tuple[Step, list[str]]]:
    found = []
    for step in loop():
        served = [word for word in step.service.argv if NAMED.match(word)] if step.service else []
        found.append((step, [step.module, *served]))
    return found


@pytest.mark.parametrize(("step", "modules"), programs(), ids=lambda value: getattr(value, "name", ""))
def test_a_step_declares_the_code_and_packages_that_it_runs(step: Step, modules: list[str]) -> None:
    rooms = {*step.rooms, *(step.service.rooms if step.service else ())}
    packages = {*step.packages, *(step.service.packages if step.service else ())}
    for module in modules:
        assert file_of(module) is not None, module
        files, others = closure(module)
        hidden = {name for name in files if name not in rooms | UTILITIES and name.split("/")[0] not in rooms}
        assert {name for name in hidden if not name.endswith("/__init__.py")} == set()
        undeclared = {DECIDE[name] for name in others & set(DECIDE)} - packages
        assert undeclared <= ({"jinja2", "tokenizers"} if step.name == "target" else set())  # only checked there


def test_every_declared_room_is_there_and_every_input_comes_before() -> None:
    made: set[str] = set()
    for step in loop():
        for room in (*step.rooms, *(step.service.rooms if step.service else ())):
            assert (PACKAGE / room).exists(), room
        assert {ref.step for ref in step.all_inputs().values()} <= made
        made.add(step.name)
    assert [step.name for step in loop()] == [
        "target", "prompts", "regenerate", "extract", "vocab", "train", "package", "control", "check",
        "bench-baseline", "bench-random", "bench-own"]  # fmt: skip
    assert [step.name for step in needed(loop(), ["vocab"])] == ["target", "prompts", "regenerate", "vocab"]


def edited(tmp_path: Path, *edits: tuple[str, str]) -> list[Step]:
    text = STACK.read_text()
    for old, new in edits:
        assert text.count(old) >= 1, old
        text = text.replace(old, new, 1)
    path = tmp_path / "smollm2-cpu.yaml"
    path.write_text(text)
    return steps(load_stack(path))


def own_fields(step: Step) -> dict[str, Any]:
    return fields(step, {}, {}, {})


VOCAB, SERVER = {"params.spec.draft_vocab"}, {"service.argv"}


@pytest.mark.parametrize(
    ("edit", "touched"),
    [
        (("lr: 0.03", "lr: 0.02"), {"train": {"params.optimizer.lr"}}),
        (("  layers: [10, 20, 29]", "  layers: [2, 15, 27]"),
         {"regenerate": {"params.record.layers"}, "extract": {"params.layers"}, "package": {"params.layers"},
          "control": {"params.layers"}}),
        (("  vocab: 8192", "  vocab: 6144"),
         {"vocab": {"params.size"}, "train": VOCAB, "package": VOCAB, "control": VOCAB}),
        (("max_running: 16", "max_running: 8"),
         {"bench-baseline": SERVER, "bench-random": SERVER, "bench-own": SERVER}),
        (("checkpoint_s: 30", "checkpoint_s: 60"), {}),
        (("disk_free_gib: 8", "disk_free_gib: 9"), {}),
        (("min_accept_length: 1.6", "min_accept_length: 1.5"), {}),
        (("processes: 2", "processes: 1"), {}),
        (("  slots: 112", "  slots: 32"), {"regenerate": {"params.slots"}}),
        (("  mode: generate", "  mode: prefill"), {"regenerate": {"params.record.layers"}, "extract": {"params.mode"}}),
    ],
)  # fmt: skip
def test_a_setting_reaches_the_steps_that_it_decides_and_no_other(
    tmp_path: Path, edit: tuple[str, str], touched: dict[str, set[str]]
) -> None:
    before = {step.name: own_fields(step) for step in loop()}
    after = {step.name: own_fields(step) for step in edited(tmp_path, edit)}
    found = {name: set(changed(before[name], after[name])) for name in before}
    assert {name: names for name, names in found.items() if names} == touched


def test_a_server_is_described_without_port_or_path() -> None:
    own = loop()[-1]
    assert own.service is not None
    assert own.service.argv[:3] == ("{python}", "-m", "k25stack.reference.server")
    assert {"{port}", "{inputs.target}", "{inputs.draft}"} <= set(own.service.argv)
    assert own.service.inputs["draft"].step == "package"
    random = next(step for step in loop() if step.name == "bench-random")
    assert random.service is not None and random.service.inputs["draft"].step == "control"
    assert own.inputs["baseline"].step == "bench-baseline"
    assert not re.search(r"61917|/work|/home|/tmp", str(own_fields(own)))


def test_files_of_the_user_count_by_content(tmp_path: Path) -> None:
    data = tmp_path / "mine.jsonl"
    data.write_text('{"prompt": "hello"}\n')
    source = f"    - {{name: mine, kind: jsonl, path: {data}, held_out: 1}}\n    - name: human-eval"
    prompts = edited(tmp_path, ("    - name: human-eval", source), ("init: scratch", f"init: {tmp_path}"))[1]
    assert prompts.files == {"mine": data}
    assert str(data) not in str(own_fields(prompts))


@pytest.mark.parametrize(
    ("name", "blocked", "why"),
    [
        ("kimi-k2.5-8x-rtx-pro-6000", ["regenerate", "extract"], "data.engine is sglang"),
        ("kimi-k2.5-slice-h200", ["target", "regenerate", "extract"], "target.source is dummy"),
    ],
)
def test_a_stack_for_another_engine_has_a_plan_and_is_refused_when_run(
    tmp_path: Path, name: str, blocked: list[str], why: str
) -> None:
    request = request_for(ROOT / "stacks" / f"{name}.yaml")
    assert [step.name for step in request.steps if step.blocked] == blocked
    runner = Runner(Workspace(tmp_path), request)
    lines = render(runner.plan())
    assert sum("cannot run: " in line for line in lines) == len(blocked) and why in "".join(lines)
    estimates = [decision.estimate for decision in runner.plan()]
    assert all(guess.seconds > 0 and guess.memory_gb > 0 for guess in estimates)
    with pytest.raises(HostError, match=why) as refused:
        runner.run()
    assert "\n" not in str(refused.value) and not (tmp_path / "state" / "artefacts").exists()


def test_estimates_have_the_right_order_of_magnitude() -> None:
    guesses = {step.name: step.estimate for step in loop()}
    assert 0.2 < guesses["target"].disk_gb < 0.4  # 269 MB
    assert 0.4 < guesses["extract"].disk_gb < 2.0
    assert all(guess.seconds > 0 and 0 < guess.memory_gb < 6 for guess in guesses.values())
