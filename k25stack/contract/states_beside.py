"""D10: two extractions of the same text, as of two runs, two versions or two engines (torch inside the functions).

A draft learns one engine's states and is served another's when an upgrade, another kernel or another dequantisation
comes between.  Cosine by token and layer is what the field compares; the bits tell whether an engine repeats itself.
Tolerance: 0.999, what the INT4 kernels of one checkpoint keep among each other; its rows are the median ones, since a
router that turns at a tie moves single tokens further.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack.contract.finding import Check, Verdict
from k25stack.errors import K25Error
from k25stack.states.manifest import Manifest, StatesMeta

if TYPE_CHECKING:
    from torch import Tensor

GROUP = "shards"
SAME = 0.999  # median cosine from which two states are the same but for rounding
ROWS = 4096  # that are compared
ORIGIN = ("engine", "engine_version", "target_revision", "dtype", "tp")


def compare(directory: Path, other: Path) -> Iterator[Check]:
    """One result for the rows that both directories hold."""
    try:
        one, two = Manifest.read(directory).meta, Manifest.read(other).meta
        shaped = {name: [getattr(meta, name) for meta in (one, two)] for name in ("hidden", "layers", "last_norm")}
        if unequal := [name for name, (mine, its) in shaped.items() if mine != its]:
            message = f"not comparable: {' and '.join(unequal)} differ"
            yield Check("D10", GROUP, Verdict.FAIL, message, shaped, "extract both alike")
            return
        found, rows = in_common(directory, other)
    except ImportError:
        fix = "pip install 'k25stack[train]'"
        yield Check("D10", GROUP, Verdict.UNKNOWN, "not compared: there is no torch", {}, fix)
        return
    except K25Error as error:
        yield Check("D10", GROUP, Verdict.UNKNOWN, f"not compared: {error}", {}, error.remedy)
        return
    if not found:
        message = "not compared: no document of the same name and tokens in both"
        yield Check("D10", GROUP, Verdict.UNKNOWN, message, {"other": str(other)}, "extract the same samples twice")
        return
    yield verdict(one, two, {"other": str(other), "rows": rows, **found})


def verdict(one: StatesMeta, two: StatesMeta, evidence: dict[str, Any]) -> Check:
    """Equal bits, the same but for rounding, or other states."""
    apart = {name: [getattr(meta, name) for meta in (one, two)] for name in ORIGIN}
    apart = {name: pair for name, pair in apart.items() if pair[0] != pair[1]}
    evidence |= {"differs": apart, "tolerance": SAME}
    low = [name for name, value in evidence["cosine"].items() if not value >= SAME]  # NaN is none
    if low:
        named = ", ".join(f"{name} {evidence['cosine'][name]:.4f}" for name in low)
        message = f"other states for the same text: median cosine {named}"
        fix = "train a draft on states of the engine and version that serves it"
        return Check("D10", GROUP, Verdict.FAIL, message, evidence, fix)
    if evidence["equal_bits"] == 1.0:
        return Check("D10", GROUP, Verdict.PASS, "the same states to the bit", evidence)
    message = f"the same states but for rounding: {evidence['equal_bits']:.1%} of the rows are equal to the bit"
    if apart:
        return Check("D10", GROUP, Verdict.PASS, message, evidence)
    fix = "batches of other shapes do this; for equal bits extract one document at a time, with deterministic kernels"
    return Check("D10", GROUP, Verdict.WARN, f"two runs are not deterministic: {message}", evidence, fix)


def in_common(directory: Path, other: Path) -> tuple[dict[str, Any], int]:
    """(figures, rows) over documents of equal name and tokens, spread over the directory; ({}, 0): there are none."""
    import torch

    from k25stack.states.reader import open_states

    mine, its = open_states(directory), open_states(other)
    there = {(ref.doc_id, ref.turn): ref for ref in its.refs()}
    pairs = [(ref, there[ref.doc_id, ref.turn]) for ref in mine.refs() if (ref.doc_id, ref.turn) in there]
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    rows = 0
    for pair in pairs[:: max(1, sum(len(ref) for ref, _ in pairs) // ROWS)]:
        place, twin = (ref.beginning(ROWS) for ref in pair)
        left, right = mine.load(place), its.load(twin)
        if not torch.equal(left.token_ids, right.token_ids):
            continue
        states = [torch.cat([document.aux, document.last], 1) for document in (left, right)]
        equal = (states[0] == states[1]).all(1) & (left.argmax == right.argmax)
        parts.append((cosines(states[0], states[1], mine.meta.hidden), equal, left.argmax == right.argmax))
        rows += len(left)
    if not rows:
        return {}, 0
    cosine, equal, argmax = (torch.cat(column) for column in zip(*parts, strict=True))
    names = [*(f"layer {layer}" for layer in mine.meta.layers), "last"]
    low = cosine.quantile(0.01, 0)
    return {
        "cosine": dict(zip(names, (round(value, 6) for value in cosine.median(0).values.tolist()), strict=True)),
        "cosine_of_the_worst_hundredth": dict(zip(names, (round(value, 6) for value in low.tolist()), strict=True)),
        "equal_bits": round(float(equal.float().mean()), 6),
        "equal_argmax": round(float(argmax.float().mean()), 6),
    }, rows


def cosines(left: Tensor, right: Tensor, hidden: int) -> Tensor:
    """[T, 4H] beside [T, 4H] -> cosine of every row's four states [T, 4]."""
    import torch.nn.functional as F

    one, other = (states.float().view(len(states), 4, hidden) for states in (left, right))
    return F.cosine_similarity(one, other, dim=-1)
