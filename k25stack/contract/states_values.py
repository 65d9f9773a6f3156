"""D1, second part: are the stored values numbers, and the ids tokens of the target (standard library only).

Hashes do not see what was wrong when it was written: an engine that overflowed stores NaN, and training on it ends in
NaN without any error.  Rows are looked at spread over the directory, all of them with ``--deep``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from k25stack.contract.finding import Check, Verdict
from k25stack.model.tensorfile import TensorInfo, read_header
from k25stack.states.manifest import STATE_TYPES, Manifest
from k25stack.states.tokens import Text

GROUP = "shards"
ROWS = 256  # that are looked at; 57 kB each for a target of width 7168
PIECE = 1 << 22


def numbers(directory: Path, manifest: Manifest, deep: bool) -> Iterator[Check]:
    """No NaN and no infinity among the states.  Raises OSError when a shard cannot be read."""
    kind = STATE_TYPES[manifest.meta.dtype][0]
    rows = sum(shard.tokens for shard in manifest.shards)
    every = 1 if deep else max(1, -(-rows // ROWS))
    wrong: list[dict[str, Any]] = []
    for shard in manifest.shards:
        tensors = read_header(directory / shard.file).tensors
        for name in ("aux", "last"):
            place = first_odd(directory / shard.file, tensors[name], kind, every)
            wrong += [{"shard": shard.file, "tensor": name, "row": place}] if place is not None else []
    if wrong:
        message = f"NaN or infinity in {wrong[0]['tensor']} of {wrong[0]['shard']}, row {wrong[0]['row']}"
        fix = "look for an overflow in the engine that made them, then extract again"
        yield Check("D1", GROUP, Verdict.FAIL, message, {"found": wrong[:5]}, fix)
    else:
        seen = "all" if every == 1 else f"every {every}th"
        yield Check("D1", GROUP, Verdict.PASS, f"no NaN, no infinity ({seen} of {rows:,} rows)")


def first_odd(path: Path, info: TensorInfo, kind: str, every: int) -> int | None:
    """The first row that holds a value which is no number, of every ``every``-th one; None when there is none."""
    width = (info.end - info.begin) // info.shape[0] if info.shape[0] else 0
    step = max(1, PIECE // max(1, width)) if every == 1 else 1
    with path.open("rb") as file:
        for row in range(0, info.shape[0], max(step, every)):
            file.seek(info.begin + row * width)
            data = file.read(min(step, info.shape[0] - row) * width)
            if (at := odd_value(data, kind)) is not None:
                return row + at // width
    return None


def odd_value(data: bytes, kind: str) -> int | None:
    """The byte at which the first NaN or infinity of bf16 or fp8 (E4M3) values stands."""
    if kind != "BF16":  # 0x7f and 0xff are its only values that are no numbers
        places = [at for byte in (0x7F, 0xFF) if (at := data.find(byte)) >= 0]
        return min(places, default=None)
    high = data[1::2]
    if not high.count(0x7F) and not high.count(0xFF):
        return None
    return next((2 * at for at, byte in enumerate(high) if byte & 0x7F == 0x7F and data[2 * at] & 0x80), None)


def tokens(texts: Sequence[Text], vocab: int | None) -> Iterator[Check]:
    """Every token and every stored argmax is an id of the target, and a response follows its prompt.

    ``vocab``: the target's size, None when it is not known.  Before a token that is not of the response, argmax may
    also be -1: not asked.
    """
    most = vocab or 1 << 31
    for text in texts:
        if text.supervised[:1] == b"\1" or b"\1\0" in text.supervised:
            message = f"loss_mask of {text.name} is not a prompt and then its response: shifted by a row?"
            yield Check("D1", GROUP, Verdict.FAIL, message, {"document": text.name}, "extract again")
            return
        if (found := _odd_id(text, most)) is None:
            continue
        message = f"{found[0]} of {text.name} holds {found[1]}, no token of " + (f"0..{vocab - 1}" if vocab else "any")
        fix = "give the target that the states come from, or extract again"
        yield Check("D1", GROUP, Verdict.FAIL, message, {"document": text.name, "vocab": vocab}, fix)
        return


def _odd_id(text: Text, most: int) -> tuple[str, int] | None:
    asked = [choice for choice, held in zip(text.argmax, text.supervised[1:], strict=False) if held]
    for name, ids, least in (("token_ids", text.token_ids, 0), ("argmax", text.argmax, -1), ("argmax", asked, 0)):
        for value in (min(ids, default=0), max(ids, default=0)):
            if not least <= value < most:
                return name, value
    return None
