"""A document as Markdown.  Text from outside cannot start markup: special characters are escaped."""

from __future__ import annotations

import re

from k25stack.report.blocks import Block, Bullets, Commands, Document, Table, Text

SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")


def escaped(text: str) -> str:
    """One line of plain text."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def render(document: Document) -> str:
    lines = [f"# {escaped(document.title)}", "", escaped(document.lead), ""]
    for section in document.sections:
        lines += [f"## {escaped(section.title)}", ""]
        for block in section.blocks:
            lines += [*_block(block), ""]
    return "\n".join(lines).rstrip() + "\n"


def _block(block: Block) -> list[str]:
    if isinstance(block, Text):
        return [escaped(block.text)]
    if isinstance(block, Bullets):
        return [f"- {escaped(item)}" for item in block.items]
    if isinstance(block, Commands):
        return [
            line for command, purpose in block.items for line in (f"{escaped(purpose)}:", "", f"    {command}", "")
        ][:-1]
    return _table(block)


def _table(block: Table) -> list[str]:
    rows = [block.header, tuple("---" for _ in block.header), *block.rows]
    lines = ["| " + " | ".join(cell if cell == "---" else escaped(cell) for cell in row) + " |" for row in rows]
    return [*lines, "", escaped(block.caption)] if block.caption else lines
