"""Lines of a server's log that say what its API does not (standard library only)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.contract.finding import Check, Verdict
from k25stack.engines.info import clean_text
from k25stack.errors import HostError, UsageError
from k25stack.speculation.verdicts import convert_old_accept_rate

GROUP = "log"
LONGEST_LINE = 1 << 16  # characters


@dataclass(frozen=True)
class Marker:
    """A text that an engine logs when something goes wrong in silence."""

    text: str
    trap: str
    verdict: Verdict
    meaning: str
    fix: str
    source: str


MARKERS = (
    Marker(
        "skipping unexpected weight",
        "T2",
        Verdict.FAIL,
        "the MLA draft class drops a tensor that it does not know",
        "k25stack check DRAFT_DIR names it; convert the draft",
        "sglang kimi_k25_eagle3.py",
    ),
    Marker(
        "Max running requests is reset to 48",
        "T9",
        Verdict.WARN,
        "speculation without --max-running-requests: more than 48 requests wait",
        "set --max-running-requests",
        "sglang speculative_hook.py",
    ),
    Marker(
        "is adjusted to speculative_num_steps + 1",
        "",
        Verdict.WARN,
        "the number of draft tokens was rewritten: with topk 1 it is steps + 1",
        "set --speculative-num-draft-tokens to steps + 1",
        "sglang speculative_hook.py",
    ),
    Marker(
        "Using Eagle3 auxiliary layers from model",
        "T6",
        Verdict.WARN,
        "no layer list was read: the target's default layers are captured",
        "write the list at the top level of the draft's config",
        "vllm gpu_model_runner.py, vllm PR #50170",
    ),
)
OLD_RATE = re.compile(r"accept len: (\d+(?:\.\d+)?), accept rate: (\d+(?:\.\d+)?)")


def check_log(path: Path, draft_tokens: int | None = None) -> Iterator[Check]:
    """U8: the markers; U9: accept rates of the old definition.

    ``draft_tokens`` is the verified row, k + 1.  Raises HostError when the file cannot be read.
    """
    lines = read(path)
    found = {marker: line for marker in MARKERS if (line := first(lines, marker.text)) is not None}
    for marker, line in found.items():
        name = f"{marker.trap}: " if marker.trap else ""
        evidence = {"line": clean_text(line.strip())[:300]}
        yield Check("U8", GROUP, marker.verdict, name + marker.meaning, evidence, marker.fix, marker.source)
    if not found:
        yield Check("U8", GROUP, Verdict.PASS, "no known marker in the log", {"markers": [m.text for m in MARKERS]})
    yield from old_rates(lines, draft_tokens)


def read(path: Path) -> list[str]:
    """The lines of a log that anything here looks at.  Raises HostError when it cannot be read."""
    wanted = (*(marker.text for marker in MARKERS), "accept rate: ")
    if path.exists() and not path.is_file():
        raise HostError("no file", where=str(path), remedy="give the server's log file")
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = iter(lambda: file.readline(LONGEST_LINE), "")
            return [line for line in lines if any(text in line for text in wanted)]
    except OSError as error:
        raise HostError(error.strerror or str(error), where=str(path), remedy="give the server's log file") from None


def first(lines: Iterable[str], text: str) -> str | None:
    return next((line for line in lines if text in line), None)


def old_rates(lines: Iterable[str], draft_tokens: int | None) -> Iterator[Check]:
    """Recognise accept rates that still divide by the verified row, and say what they mean.

    Both definitions are on one line with the length, so the line itself shows which one it is.
    """
    pairs = [(float(match[1]), float(match[2])) for line in lines if (match := OLD_RATE.search(line))]
    pairs = [pair for pair in pairs if pair[0] >= 1]  # 0.00 is printed where nothing was verified
    if not pairs:
        return
    rows = [draft_tokens] if draft_tokens and draft_tokens > 1 else list(range(2, 18))
    kind: dict[str, Any] = {}
    for row in rows:
        old = all(abs(rate - length / row) <= 0.011 for length, rate in pairs)
        new = all(abs(rate - (length - 1) / (row - 1)) <= 0.011 for length, rate in pairs)
        if old and not new:
            kind = {"definition": "accept length / draft tokens (before sglang PR #23530)", "draft_tokens": row}
            break
        if new:
            return
    if not kind:
        return
    length, rate = pairs[-1]
    try:
        converted = convert_old_accept_rate(rate, kind["draft_tokens"])
    except UsageError:
        return  # rounded too far to be one of the old definition
    evidence = {**kind, "printed": rate, "accept_length": length, "accept_rate": round(converted.accept_rate, 4)}
    message = (
        f"the printed accept rate {rate:.2f} is of the old definition: {converted.accept_rate:.2f} of the proposed "
    )
    message += f"tokens are accepted, accept length {converted.accept_length:.2f}"
    yield Check("U9", GROUP, Verdict.WARN, message, evidence, "compare accept lengths, never rates across versions",
                "sgl-project/sglang #23530")  # fmt: skip
