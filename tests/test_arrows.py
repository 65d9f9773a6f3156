"""Imports point down the list of rooms; light rooms load without heavy packages; no file grows out of hand."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "k25stack"
ROOMS = [
    "cli", "pipeline", "contract", "jobs", "bench", "reference", "engines", "train", "states", "draft", "speculation",
    "host", "model", "watch", "report", "ledger", "stack",
]  # fmt: skip
UTILITIES = {"errors", "files", "locks", "proc", "worker"}
HEAVY = {"torch", "numpy", "transformers", "safetensors", "datasets", "gguf", "tokenizers"}
LATE = {"pydantic", "yaml", "aiohttp", "typer", "jinja2"}
LIGHT = [
    "k25stack", "k25stack.cli.main", "k25stack.pipeline.runner", "k25stack.pipeline.loop", "k25stack.pipeline.status",
    "k25stack.jobs", "k25stack.contract", "k25stack.bench", "k25stack.engines", "k25stack.states", "k25stack.draft",
    "k25stack.speculation", "k25stack.model", "k25stack.report", "k25stack.ledger", "k25stack.stack", "k25stack.train",
    "k25stack.watch.main",
]  # fmt: skip
SOURCES = sorted(path for path in PACKAGE.rglob("*.py"))


def names(node: ast.AST) -> Iterator[str]:
    """Modules that are imported anywhere below ``node``, inside functions and for type checking too."""
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "k25stack" and len(parts) > 1 else None


def crossings(path: Path) -> Iterator[str]:
    """Imports of ``path`` that point up, or nowhere."""
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for name in names(ast.parse(path.read_text())):
        other = room_of(name)
        if other is None or other == own or other in UTILITIES | {"__version__"}:
            continue
        if other not in ROOMS:
            yield f"{path.relative_to(ROOT)}: {name} is in no room"
        elif own in UTILITIES or (own in ROOMS and ROOMS.index(own) >= ROOMS.index(other)):
            yield f"{path.relative_to(ROOT)}: {own} imports {name}, which is above it"


def test_imports_point_down() -> None:
    assert sorted({line for path in SOURCES for line in crossings(path)}) == []


@pytest.mark.parametrize("module", LIGHT)
def test_light_rooms_load_without_heavy_packages(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    allowed = {"typer"} if module == "k25stack.cli.main" else set()
    assert not loaded & (HEAVY | LATE - allowed)


@pytest.mark.parametrize("room", ["ledger", "jobs", "report", "speculation", "watch"])
def test_standard_library_rooms(room: str) -> None:
    allowed = sys.stdlib_module_names | {"k25stack"}
    if room == "jobs":
        allowed |= {"docker", "jinja2", "requests", "yaml"}  # of rendering and of the Docker backend, loaded late
    for path in sorted((PACKAGE / room).rglob("*.py")):
        for name in names(ast.parse(path.read_text())):
            assert name.split(".")[0] in allowed, f"{path}: {name} is not in the standard library"


def test_the_keeper_needs_little() -> None:
    """It runs beside every program: standard library, atomic files, process identity, its own room."""
    code = "import sys, k25stack.jobs.shim; print(*sorted(n for n in sys.modules if n.startswith('k25stack')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    rooms = {name.split(".")[1] for name in done.stdout.split() if "." in name}
    assert rooms <= {"jobs", "errors", "files", "proc"}


def test_no_file_is_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > 400} == {}
