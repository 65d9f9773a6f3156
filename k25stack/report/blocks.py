"""The document as plain values, so that Markdown and HTML say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Bullets:
    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Commands:
    """Commands to type, each with what it is for."""

    items: tuple[tuple[str, str], ...]


Block: TypeAlias = Text | Bullets | Table | Commands


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    title: str
    lead: str
    sections: tuple[Section, ...]


def table(rows: Sequence[Sequence[str]], caption: str = "") -> Table:
    """The first row is the header."""
    return Table(tuple(rows[0]), tuple(tuple(row) for row in rows[1:]), caption)


def listed(items: Sequence[str], none: str) -> Block:
    """Bullets, or one line saying that there are none."""
    return Bullets(tuple(items)) if items else Text(none)
