"""A short command does no work that it has no use for, and what is left out makes no difference."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main

from k25stack.cli.main import VERBS, main
from k25stack.cli.start import narrowed

ROOT = Path(__file__).resolve().parents[2]
STACK = str(ROOT / "stacks/kimi-k2.5-8x-rtx-pro-6000.yaml")


def _apps() -> dict[str, typer.Typer]:
    found = {name: getattr(import_module(f"k25stack.cli.{it.module}"), it.attribute) for name, it in VERBS.items()}
    return {name: app for name, app in found.items() if isinstance(app, typer.Typer)}


def _python(program: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", program, *words], text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("verb", list(_apps()))
def test_a_command_built_alone_is_the_command_built_with_its_sisters(verb: str) -> None:
    app = _apps()[verb]
    whole: Any = typer.main.get_command(app)

    def told(group: Any, name: str) -> str:
        with group.make_context("k25stack", [name, "x"], resilient_parsing=True) as parent:
            command = group.commands[name]
            with command.make_context(name, [], parent=parent, resilient_parsing=True) as context:
                return str(command.get_help(context))

    for name in getattr(whole, "commands", {}):
        narrow = narrowed(app, [name, "--help"])
        if narrow is not None:
            group = typer.main.get_group(narrow)
            assert told(group, name) == told(whole, name)
    assert narrowed(app, []) is None
    assert narrowed(app, ["--help"]) is None
    assert narrowed(app, ["no-command"]) is None


def test_a_misspelt_command_is_told_the_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stack", "rendr", "x"]) == 2
    assert "render" in capsys.readouterr().err
    assert main(["stack", "--help"]) == 0
    assert {"render", "build", "show", "plan"} <= set(capsys.readouterr().out.split())


def test_a_render_loads_nothing_that_it_does_not_use() -> None:
    program = (
        "import sys; from k25stack.cli.main import main; code = main(sys.argv[1:])\n"
        "print('loaded', [name for name in ('importlib.metadata', 'asyncio', 'torch', 'numpy', 'aiohttp')"
        " if name in sys.modules]); sys.exit(code)"
    )
    for form in ("script", "sbatch"):
        words = ["stack", "render", STACK, "--to", form, "--model", "/m", "--draft", "/d", "--job-dir", "/j"]
        assert _python(program, *words).splitlines()[-1] == "loaded []"


def test_no_plugin_is_looked_for_and_the_rest_of_pydantics_loader_is_its_own() -> None:
    said = _python(
        "from k25stack.cli import start; start.prepare()\n"
        "import pydantic, sys; pydantic.create_model('M', x=(int, 1))()\n"
        "from pydantic.plugin import _loader; print(list(_loader.get_plugins()), 'importlib.metadata' in sys.modules)\n"
        "print(_loader.PYDANTIC_ENTRY_POINT_GROUP, hasattr(_loader, 'nothing'))"
    )
    assert said.split("\n")[:2] == ["[] False", "pydantic False"]


def test_a_loader_that_is_there_already_is_left_alone() -> None:
    said = _python(
        "import pydantic.plugin._loader as real; from k25stack.cli import start; start.prepare()\n"
        "import sys; print(sys.modules['pydantic.plugin._loader'] is real)"
    )
    assert said == "True\n"
