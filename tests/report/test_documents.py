"""The documents of a hand-made ledger, letter by letter, and what must never be in them."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from k25stack import ledger
from k25stack.errors import UsageError
from k25stack.report import note, stale, table, write
from k25stack.report.markdown import escaped

from .conftest import WALKS, row, standard_records, write_ledger

GOLDEN = Path(__file__).parent / "golden"
EVIL = '<script>alert("x")</script> | `rm` & *bold*'


@pytest.mark.parametrize("name", ["status.md", "report.html", "summary.json"])
def test_golden(run: Path, name: str) -> None:
    """Renew with K25_GOLDEN=write after a wanted change, and read the difference."""
    write(run)
    text = (run / name).read_text()
    if os.environ.get("K25_GOLDEN") == "write":
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


def test_golden_table(run: Path) -> None:
    if os.environ.get("K25_GOLDEN") == "write":
        (GOLDEN / "table.txt").write_text(table(run) + "\n")
    assert table(run) + "\n" == (GOLDEN / "table.txt").read_text()


def test_sections_of_the_status_document(run: Path) -> None:
    write(run)
    titles = re.findall(r"^## (.*)$", (run / "status.md").read_text(), re.MULTILINE)
    assert titles == [
        "Goal and constraints",
        "Discoveries",
        "Benchmarks",
        "Training",
        "Accomplished",
        "Assumptions",
        "Decisions",
        "Next steps",
    ]


class Page(HTMLParser):
    """Tags, addresses and whether every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def evil(records: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """Every text that comes from outside tries to be markup."""
    records[0][1]["stack"]["description"] = EVIL
    records[0][1]["stack"]["name"] = EVIL
    return [
        *records,
        ("note", {"text": EVIL}),
        ("decision", {"text": EVIL}),
        (
            "reference.row",
            {"metric": "single_stream", "value": 1.0, "unit": "tok/s", "origin": EVIL, "confounders": [EVIL]},
        ),
        ("bench.row", row("own", "draft", 1, WALKS[:1], accepted=False, reasons=[EVIL])),
    ]


def test_text_from_outside_stays_text(tmp_path: Path) -> None:
    run = write_ledger(tmp_path / "r", evil(standard_records()))
    write(run)
    page = (run / "report.html").read_text()
    parser = Page()
    parser.feed(page)
    assert parser.open == []
    assert not parser.tags & {"script", "img", "link", "iframe", "a", "form"}
    assert parser.addresses == []
    assert "&lt;script&gt;" in page
    assert "http" not in page
    status = (run / "status.md").read_text()
    assert not re.search(r"(?<!\\)<script", status)
    for line in status.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) >= 3


def test_escaping_keeps_one_line() -> None:
    assert escaped("a\n b|c") == r"a b\|c"


def test_same_ledger_same_documents_and_check_notices_a_change(run: Path) -> None:
    assert stale(run) == ["status.md", "report.html", "summary.json"]
    write(run)
    before = (run / "status.md").read_bytes()
    write(run)
    assert (run / "status.md").read_bytes() == before
    assert stale(run) == []
    note(run, "Something was seen")
    assert stale(run) == ["status.md", "report.html"]
    write(run)
    (run / "summary.json").write_text("{}")
    assert stale(run) == ["summary.json"]


def test_notes_go_to_the_ledger_and_into_the_document(run: Path) -> None:
    note(run, "  A thing is assumed ", kind="assumption")
    note(run, "A thing was shown", kind="assumption", validated_by="demo-2")
    kinds = [(record.kind, record.writer) for record in ledger.read(run / "ledger")][-2:]
    assert kinds == [("assumption", "notes")] * 2
    write(run)
    status = (run / "status.md").read_text()
    assert r"A thing is assumed \[unvalidated\]" in status
    assert r"A thing was shown \[validated by demo-2\]" in status


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [(" ", "note", "the text is empty"), ("x", "bench.row", "unknown kind"), ("x", "note", "no ledger")],
)
def test_bad_notes_are_refused(tmp_path: Path, run: Path, text: str, kind: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        note(tmp_path if says == "no ledger" else run, text, kind)


def test_a_run_that_failed_says_how_to_go_on(tmp_path: Path) -> None:
    records = [
        *standard_records()[:-1],
        ("run.end", {"code": 3, "seconds": 1.0, "peak_rss_gb": 1.0, "error": "disk full"}),
    ]
    run = write_ledger(tmp_path / "demo-1", records)
    write(run)
    status = (run / "status.md").read_text()
    assert "ended with exit code 3: disk full" in status
    assert "    k25stack logs demo-1\n" in status
    assert "    k25stack run runs/demo-1/stack.resolved.yaml --name demo-1\n" in status


def test_every_figure_of_the_table_names_its_definition(run: Path) -> None:
    text = table(run)
    for name in ("1/TPOT", "steady window", "1 + accepted/verify calls", "greedy walk", "accept length / r", "tok/s"):
        assert name in text
