"""``nvidia-smi topo -m`` (how cards are connected) and ``topo -p2p r|w|n`` (whether the driver allows peer access)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from k25stack.host.seen import Unseen

# From near to far; NVLink is written NV<links>.
LINKS = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")
P2P_WORDS: Mapping[str, str] = {
    "OK": "works",
    "CNS": "chipset not supported",
    "GNS": "card not supported",
    "TNS": "topology not supported",
    "NS": "not supported",
    "DR": "disabled by a registry key",
    "U": "unknown",
}


@dataclass(frozen=True)
class Matrix:
    """``cells[i, j]`` for cards i != j; ``cpus`` and ``nodes`` by card where the host tells them."""

    count: int
    cells: Mapping[tuple[int, int], str]
    cpus: Mapping[int, str]
    nodes: Mapping[int, str]

    def classes(self) -> Counter[str]:
        """How many pairs (each counted once) have which link; NV4, NV18 count as NV."""
        return Counter(
            "NV" if cell.startswith("NV") else cell for (row, column), cell in self.cells.items() if row < column
        )

    def farthest(self) -> str:
        return max(self.classes(), key=LINKS.index, default="")

    def pairs(self, *words: str) -> list[tuple[int, int]]:
        return [pair for pair, cell in sorted(self.cells.items()) if cell in words]


def parse_links(text: str) -> Matrix:
    """Raises Unseen unless there is one whole matrix with known link names."""
    return _parse(text, "nvidia-smi topo -m", r"NV\d+|PIX|PXB|PHB|NODE|SYS")


def parse_p2p(text: str, what: str) -> Matrix:
    return _parse(text, what, "|".join(P2P_WORDS))


def _parse(text: str, what: str, words: str) -> Matrix:
    lines = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    header = next((line for line in lines if line and line[0] == "GPU0" and "X" not in line[1:2]), None)
    if header is None:
        raise Unseen(f"{what}: no matrix of cards in it")
    cards = 0
    while cards < len(header) and header[cards] == f"GPU{cards}":
        cards += 1
    others = len([name for name in header[cards:] if re.fullmatch(r"(NIC|mlx\d+_|bond_?|CPU|DLA|VPE)\d+", name)])
    begin = lines.index(header) + 1
    rows = {line[0]: line[1:] for line in lines[begin:] if line and re.fullmatch(r"GPU\d+", line[0])}
    cells: dict[tuple[int, int], str] = {}
    cpus, nodes = {}, {}
    for row in range(cards):
        found = rows.get(f"GPU{row}", [])
        if len(found) < cards + others:
            raise Unseen(f"{what}: the row of GPU{row} is cut short")
        for column, cell in enumerate(found[:cards]):
            if row == column and cell == "X":
                continue
            if row == column or not re.fullmatch(words, cell):
                raise Unseen(f"{what}: {cell!r} between GPU{row} and GPU{column} is no known word")
            cells[row, column] = cell
        rest = found[cards + others :]
        if rest:
            cpus[row] = rest[0]
        if len(rest) > 1:
            nodes[row] = rest[1]
    if len(rows) != cards:
        raise Unseen(f"{what}: {len(rows)} rows for {cards} cards")
    return Matrix(cards, cells, cpus, nodes)
