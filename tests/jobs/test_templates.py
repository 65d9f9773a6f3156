"""Compiled templates that are kept: never out of date, never in the way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from k25stack.errors import K25Error
from k25stack.jobs import templates


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Templates and the place of what is compiled, both in a directory of this test."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "kept"))
    monkeypatch.setattr(templates, "CLONE", tmp_path)
    _anew()
    yield tmp_path
    _anew()


def _anew() -> None:
    """As in another process."""
    templates.directory.cache_clear()
    templates._environment.cache_clear()


def _kept(place: Path) -> list[Path]:
    return sorted((place / "kept").rglob("*.jinja"))


def test_a_changed_template_is_never_taken_from_what_was_kept(place: Path) -> None:
    for text in ("one {{ 1 }}", "two {{ 1 }}"):
        (place / "a.j2").write_text(text)
        for _ in range(2):
            _anew()
            assert templates.fill("a.j2") == text.replace("{{ 1 }}", "1")
            assert len(_kept(place)) == 1


def test_what_is_kept_is_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "a.j2").write_text("{{ 1 }}")
    templates.fill("a.j2")
    _anew()
    environment = templates._environment()
    monkeypatch.setattr(environment, "parse", None)
    monkeypatch.setattr(type(environment), "_parse", None)
    assert templates.fill("a.j2") == "1"


@pytest.mark.parametrize("what", ["", "torn", "other program"])
def test_a_damaged_file_is_compiled_anew(place: Path, what: str) -> None:
    (place / "a.j2").write_text("{{ 1 }}")
    templates.fill("a.j2")
    (file,) = _kept(place)
    whole = file.read_bytes()
    file.write_bytes({"": b"", "torn": whole[: len(whole) // 2], "other program": b"x" * 900}[what])
    _anew()
    assert templates.fill("a.j2") == "1"
    assert file.read_bytes() == whole


def test_other_filters_and_other_versions_are_kept_apart(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import jinja2

    (place / "a.j2").write_text("{{ 1 }}")
    templates.fill("a.j2")
    monkeypatch.setattr(jinja2, "__version__", "0.0")
    _anew()
    templates.fill("a.j2")
    copy = place / "templates.py"
    copy.write_bytes(Path(templates.__file__).read_bytes() + b"# changed\n")
    monkeypatch.setattr(templates, "__file__", str(copy))
    _anew()
    templates.fill("a.j2")
    assert len({file.name for file in _kept(place)}) == 3


def test_where_nothing_can_be_written_nothing_is_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "a.j2").write_text("{{ 1 }}")
    (place / "kept").write_text("a file where the directory belongs")
    assert templates.fill("a.j2") == "1"
    (place / "kept").unlink()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    _anew()
    assert templates.fill("a.j2") == "1"
    assert _kept(place) == []


def test_an_unknown_variable_stays_an_error(place: Path) -> None:
    from jinja2 import UndefinedError

    (place / "a.j2").write_text("{{ nobody }}")
    for _ in range(2):
        _anew()
        with pytest.raises((UndefinedError, K25Error)):
            templates.fill("a.j2")
