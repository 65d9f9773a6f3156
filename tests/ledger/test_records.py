"""A record is whole or absent, whoever dies and whatever the clock does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k25stack.errors import DamageError, UsageError
from k25stack.ledger import append, append_all, read, read_file
from k25stack.ledger import records as module

PAYLOADS = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


def quiet(message: str) -> None:
    raise AssertionError(f"unexpected warning: {message}")


@settings(max_examples=40, deadline=None)
@given(payloads=st.lists(PAYLOADS, max_size=5))
def test_what_is_appended_is_read_back_in_order(
    payloads: list[dict[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "run.jsonl"
    for payload in payloads:
        append(path, "note", payload)
    found = read(path.parent, quiet)
    assert [record.data for record in found] == payloads
    assert [record.seq for record in found] == list(range(len(payloads)))
    assert all(record.writer == "run" for record in found)


def test_an_absent_ledger_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path / "nothing") == []


def test_writers_are_merged_by_time_writer_seq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for time, writer in (("3", "b"), ("1", "a"), ("2", "b"), ("3", "a")):
        monkeypatch.setattr(module, "now", lambda time=time: time)
        append(tmp_path / f"{writer}.jsonl", "note", {"at": time})
    merged = [(record.time, record.writer, record.seq) for record in read(tmp_path)]
    # b's second record came when the clock had gone back: its time is held, its own order stands
    assert merged == [("1", "a", 0), ("3", "a", 1), ("3", "b", 0), ("3", "b", 1)]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_tear_anywhere_in_the_last_line_loses_that_record_only(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "run.jsonl"
    for number in range(3):
        append(path, "note", {"number": number, "text": "é" * number})
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    cut = data.draw(st.integers(last, len(whole) - 1))
    path.write_bytes(whole[:cut])
    warnings: list[str] = []
    assert [record.data["number"] for record in read_file(path, warnings.append)] == [0, 1]
    assert len(warnings) == (1 if cut > last else 0)
    assert all(str(path) in warning and "torn" in warning for warning in warnings)
    append(path, "note", {"number": 3})
    found = read_file(path, quiet)
    assert [(record.seq, record.data["number"]) for record in found] == [(0, 0), (1, 1), (2, 3)]


def test_damage_elsewhere_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for number in range(3):
        append(path, "note", {"number": number})
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1][:20]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(DamageError, match=r"run\.jsonl:2: not a ledger record"):
        read(tmp_path)


def test_several_records_are_added_together_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    append(path, "note", {})
    append_all(path, [("walk", {"doc_id": "a"}), ("walk", {"doc_id": "b"}), ("step.end", {"step": "train"})])
    assert [(record.seq, record.kind) for record in read(tmp_path)] == [
        (0, "note"), (1, "walk"), (2, "walk"), (3, "step.end")]  # fmt: skip
    before = path.read_bytes()
    with pytest.raises(UsageError, match="not JSON"):
        append_all(path, [("walk", {"doc_id": "c"}), ("walk", {"doc_id": {1}})])
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    append(path, "note", {})
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "schema": 2}) + "\n")
    with pytest.raises(DamageError, match="schema 2"):
        read(tmp_path)


def test_what_is_not_json_or_has_no_kind_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    append(path, "note", {})
    before = path.read_bytes()
    with pytest.raises(UsageError, match="not JSON"):
        append(path, "note", {"x": float("nan")})
    with pytest.raises(UsageError, match="unknown record kind 'gossip'"):
        append(path, "gossip", {})
    assert path.read_bytes() == before


def test_lines_longer_than_the_read_window_are_found(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for length in (10, 5 * module.TAIL, 3 * module.TAIL, 1):
        append(path, "note", {"text": "x" * length})
    assert [record.seq for record in read_file(path, quiet)] == [0, 1, 2, 3]


def test_concurrent_writers_of_one_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    code = (
        "from pathlib import Path\nfrom k25stack.ledger import append\n"
        f"for n in range(40): append(Path({str(path)!r}), 'note', {{'n': n}})"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert [record.seq for record in read_file(path, quiet)] == list(range(120))


def test_a_killed_writer_leaves_a_readable_ledger(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    code = (
        "from pathlib import Path\nfrom k25stack.ledger import append\n"
        f"while True: append(Path({str(path)!r}), 'note', {{'text': 'x' * 2000}}); print(flush=True)"
    )
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        for _ in range(3):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        found = read(tmp_path, warn=lambda message: None)
        assert [record.seq for record in found] == list(range(len(found)))
    assert len(read(tmp_path, warn=lambda message: None)) >= 15


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        path = tmp_path / "run.jsonl"
        with pytest.raises(OSError, match="No space left"):
            for _ in range(100):
                append(path, "note", {"text": "x" * 5000})
        found = read(tmp_path, quiet)
        assert len(found) > 5
        (tmp_path / "run.jsonl").rename(tmp_path / "other.jsonl")
        assert [record.seq for record in read(tmp_path, quiet)] == list(range(len(found)))
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
