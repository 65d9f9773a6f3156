"""A small loop of real programs, run by the real backend in a throwaway working directory with its own lease."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from k25stack.jobs import ProcessBackend
from k25stack.ledger import Record, read
from k25stack.pipeline.plan import Decision
from k25stack.pipeline.progress import Display
from k25stack.pipeline.runner import Outcome, Runner
from k25stack.pipeline.workspace import Workspace

PROGRAMS = Path(__file__).resolve().parent / "programs"
sys.path.insert(0, str(PROGRAMS))


def until(condition: Callable[[], object], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


class Loop:
    """The small loop in one working directory."""

    def __init__(self, root: Path) -> None:
        self.root = root / "work"
        self.code = root / "code"
        self.workspace = Workspace(self.root)
        self.said = ""
        for room in ("alpha", "beta", "gamma"):
            (self.code / room).mkdir(parents=True)
            (self.code / room / "room.py").write_text(f"# {room}\n")

    def runner(self, **options: Any) -> Runner:
        from k25t_loop import request

        from k25stack.pipeline.key import code_hash

        code_hash.cache_clear()
        self.stream = io.StringIO()
        return Runner(self.workspace, request(str(self.code), **options), Display(self.stream))

    def run(self, **options: Any) -> Outcome:
        runner = self.runner(**options)
        try:
            return runner.run()
        finally:
            self.said = self.stream.getvalue()

    def plan(self, **options: Any) -> dict[str, Decision]:
        return {decision.step.name: decision for decision in self.runner(**options).plan()}

    def made(self, outcome: Outcome) -> list[str]:
        """Names of the steps that were made in this call."""
        ends = [record for record in self.records(outcome.run.name) if record.kind == "step.end"]
        return [str(end.data["step"]) for end in ends[-len(outcome.results) :] if not end.data["cached"]]

    def records(self, name: str = "small-1") -> list[Record]:
        return read(self.workspace.run(name).ledger)

    def command(self, **options: Any) -> subprocess.Popen[str]:
        """The same as a process of its own, which can be killed."""
        path = self.root.parent / f"options-{time.monotonic_ns()}.json"
        path.write_text(json.dumps({"code": str(self.code), **options}))
        return subprocess.Popen(
            [sys.executable, str(PROGRAMS / "k25t_run.py"), str(self.root), str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(PROGRAMS)},
        )

    def backend(self) -> ProcessBackend:
        return ProcessBackend(self.workspace.jobs)

    def keeper(self, step: str, run: str = "small-1") -> int | None:
        handle = self.backend().find(run, step)
        roots = self.backend().roots(handle) if handle else []
        return roots[0] if roots else None

    def program(self, step: str, run: str = "small-1") -> int | None:
        """Pid of a step's program."""
        path = self.workspace.jobs / run / step / "pid.json"
        try:
            child = json.loads(path.read_text())["child"]
        except (OSError, ValueError):
            return None
        return None if child is None else int(child)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A working directory in which the loop has run once, undisturbed, and the contents that came out."""
    loop = Loop(tmp_path_factory.mktemp("finished"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("K25_STATE_DIR", str(loop.root.parent / "lease"))
        patch.setenv("PYTHONPATH", str(PROGRAMS))
        outcome = loop.run()
    return {"root": loop.root, "contents": {name: kept.content for name, kept in outcome.results.items()}}


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    """A loop that has not run yet."""
    monkeypatch.setenv("K25_STATE_DIR", str(tmp_path / "lease"))
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS))
    loop = Loop(tmp_path)
    yield loop
    for run in loop.workspace.jobs.glob("*"):
        for handle in loop.backend().jobs(run.name):
            loop.backend().stop(handle, 0.1)


@pytest.fixture
def done(loop: Loop, finished: dict[str, Any]) -> Loop:
    """A loop that has run once (a copy: same files, other inodes)."""
    shutil.copytree(finished["root"], loop.root)
    return loop
