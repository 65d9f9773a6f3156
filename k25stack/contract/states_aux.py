"""D2, second part: do the three blocks of ``aux`` hold the layers that are recorded (torch inside the functions)?

A record cannot say that an extractor permuted its blocks, took the next layer or lost a row; the numbers can:

* Among themselves.  A state resembles the last one of its own token the more, the deeper it is taken, and that of the
  token before or after it far less.  Likeness: the correlation over rows, mean of all dimensions.
* With a target that the reference engine runs.  Some rows are computed again, and every block is held against the
  stream at the input of each layer: the nearest one must be the recorded one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack.contract.finding import Check, Verdict
from k25stack.errors import DamageError, HostError, K25Error
from k25stack.states.tokens import Text

if TYPE_CHECKING:
    from torch import Tensor

    from k25stack.reference.target import Target
    from k25stack.states.document import Document
    from k25stack.states.manifest import StatesMeta

GROUP = "shards"
ROWS = 2048  # rows whose likeness is looked at, and documents that they come from
DOCUMENTS = 64
FEWEST = 64  # different tokens under which a likeness means nothing: of one token over and over all rows are alike
# Likeness by which two blocks must stand the wrong way round to be told so.  SmolLM2's layers 1 to 30 rise but for
# 0.006 from 64 rows on, and stay 0.04 above the neighbouring rows.
APART = 0.05
AGAIN = 512  # rows that are computed again
NEARER = 1.5  # times by which another layer must be nearer than the recorded one
FAR = 0.5  # relative distance beyond which a block is no state of this target
MEMORY = 3  # times the weights that must be free, before a target is run


def contents(
    directory: Path, texts: Sequence[Text], meta: StatesMeta, target: Path | None, depth: int | None
) -> Iterator[Check]:
    """At most one result; none where torch is missing or the rows are too few to tell.

    ``depth``: layers of the target, None where it is not known.
    """
    try:
        documents = some(directory, texts)
    except ImportError:
        return
    inner = [document for document in documents if len(document) > 2]  # each row with one on either side
    if not inner:
        return
    layers = meta.layers
    evidence: dict[str, Any] = {"layers": list(layers), "rows": sum(map(len, documents))}
    problem = equal(inner, may_be_last=meta.last_norm == "pre" and depth in (None, layers[-1]))
    telling = len({token for document in inner for token in document.token_ids.tolist()}) >= FEWEST
    if not problem and telling:
        problem = among_themselves(inner, evidence)
    if not problem and target is not None:
        try:
            problem = beside_target(documents, layers, running(target), evidence)
        except K25Error as error:
            evidence["not_run"] = str(error)
    if problem:
        fix = "extract again; look at the order in which the extractor joins the layers"
        yield Check("D2", GROUP, Verdict.FAIL, problem, evidence, fix)
    elif telling or "distance" in evidence:
        beside = "the layers of this target" if "distance" in evidence else "rising, each of its own token"
        yield Check("D2", GROUP, Verdict.PASS, f"the three states are {beside}", evidence)


def some(directory: Path, texts: Sequence[Text]) -> list[Document]:
    """Documents spread over ``texts``, of about ``ROWS`` rows in all and one at least; of long ones the beginning."""
    from k25stack.states.reader import open_states

    states = open_states(directory)
    refs = {(ref.shard, ref.begin): ref for ref in states.refs()}
    found: list[Document] = []
    for text in texts[:: max(1, len(texts) // DOCUMENTS)]:
        if sum(map(len, found)) >= ROWS:
            break
        found.append(states.load(refs[text.shard, text.begin].beginning(ROWS)))
    return found


def equal(documents: Sequence[Document], may_be_last: bool) -> str:
    """What is wrong with the blocks to the bit; empty when nothing is.

    ``may_be_last``: the deepest layer may be the target's whole depth, whose state ``last`` is before the norm.
    """
    import torch

    blocks = torch.cat([document.aux for document in documents]).chunk(3, -1)
    if empty := [place for place, block in enumerate(blocks) if not block.any()]:
        return f"block {empty[0]} of aux holds zeros alone"
    if same := [pair for pair in combinations(range(3), 2) if torch.equal(*(blocks[place] for place in pair))]:
        return f"blocks {same[0][0]} and {same[0][1]} of aux hold the same states"
    if not may_be_last and torch.equal(blocks[2], torch.cat([document.last for document in documents])):
        return "block 2 of aux holds the last state, which no engine hands to a draft"
    return ""


def among_themselves(documents: Sequence[Document], evidence: dict[str, Any]) -> str:
    """What is wrong with the blocks beside ``last``; empty when nothing is."""
    import torch

    blocks = torch.cat([document.aux[1:-1] for document in documents]).float().chunk(3, -1)
    last, before, after = (
        torch.cat([document.last[rows] for document in documents]).float()
        for rows in (slice(1, -1), slice(0, -2), slice(2, None))
    )
    depth = [likeness(block, last) for block in blocks]
    beside = [max(likeness(block, before), likeness(block, after)) for block in blocks]
    evidence["likeness_to_last"] = [round(value, 3) for value in depth]
    evidence["to_last_of_the_next_row"] = [round(value, 3) for value in beside]
    if max(beside) > max(depth) + APART:
        return "aux is shifted by a row against last: each row must hold the states of one token"
    if any(deeper < shallower - APART for shallower, deeper in pairwise(depth)):
        return "the blocks of aux are not in rising order: engines join them by depth (trap T7)"
    return ""


def likeness(left: Tensor, right: Tensor) -> float:
    """Correlation of [N, H] with [N, H] over the rows, mean of the dimensions."""
    one, other = ((rows - rows.mean(0)) / rows.std(0, correction=0).clamp_min(1e-9) for rows in (left, right))
    return float((one * other).mean())


def beside_target(
    documents: Sequence[Document], layers: Sequence[int], target: Target, evidence: dict[str, Any]
) -> str:
    """Which layer's input each block is nearest to; says so when that is not the recorded one."""
    import torch

    every = range(target.config.layers + 1)
    bounds = [bound for document in documents for bound in document.token_ids.aminmax()]
    if not all(0 <= bound < target.config.vocab for bound in bounds):
        raise DamageError("tokens that are none of the target")  # D1 says which
    stored, made, left = [], [], AGAIN
    for document in documents:
        rows = min(len(document), left)
        out = target.prefill_packed(document.token_ids[:rows], torch.tensor([0, rows]), every)
        made.append(out.aux)
        stored.append(document.aux[:rows])
        left -= rows
        if not left:
            break
    blocks, streams = torch.cat(stored).float().chunk(3, -1), torch.cat(made).float().chunk(len(every), -1)
    found, distance = [], []
    for layer, block in zip(layers, blocks, strict=True):
        away = [float(((block - stream).norm(dim=-1) / stream.norm(dim=-1)).median()) for stream in streams]
        nearest = min(every, key=away.__getitem__)
        recorded = away[layer]
        found.append(layer if recorded <= NEARER * away[nearest] else nearest)
        distance.append(min(recorded, away[found[-1]]))
    evidence |= {"nearest_layers": found, "distance": [round(value, 4) for value in distance]}
    if max(distance) > FAR:
        return f"block {distance.index(max(distance))} of aux is no state of this target at any layer"
    if found != list(layers):
        return f"recorded as layers {list(layers)}, the states are those of {found} (traps T6, T7)"
    return ""


def running(directory: Path) -> Target:
    """The target, ready to run.  Raises a K25Error when the reference engine or this machine cannot run it."""
    from k25stack.draft.weights import weight_files
    from k25stack.host.parse.kernel import meminfo
    from k25stack.reference.target import Target

    if not directory.is_dir():
        raise HostError("a config alone cannot be run", where=str(directory), remedy="give the model's directory")
    size = sum(file.header.bytes for file in weight_files(directory))
    free = 1024 * meminfo(Path("/proc/meminfo").read_text()).get("MemAvailable", 0)
    if MEMORY * size > free:
        what = f"weights of {size / 1e9:.1f} GB need {MEMORY * size / 1e9:.1f} GB of memory, {free / 1e9:.1f} are free"
        raise HostError(what, where=str(directory), remedy="run it on a larger machine")
    return Target.load(directory)
