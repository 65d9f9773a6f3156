"""Convert a draft between the formats of trainers and engines, bit by bit (no torch but for pickles).

Tensors are copied a piece at a time, whatever their size, and never changed: only names, config and the record differ.
The output directory appears whole or not at all and is never the source.  What another format could only say by
changing the mathematics is refused with the reason.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from k25stack.draft.directory import replacing_directory
from k25stack.draft.formats import WRITABLE, Hints, Told, read_config
from k25stack.draft.mathematics import Mathematics
from k25stack.draft.origin import new_record, origin, proposed, recorded_family, verifier_architectures, verifier_name
from k25stack.draft.provenance import CONFIG, PROVENANCE, WEIGHTS, file_records
from k25stack.draft.source import (
    EMBEDDING,
    LENT_EMBEDDING,
    Source,
    Stored,
    check_tensors,
    collect,
    read_source,
    unpickled,
)
from k25stack.draft.spellings import TORCH_NAMES, Wanted, carried, name_in, write_config
from k25stack.draft.target import TargetFacts, read_object
from k25stack.draft.vocab import maps, vocab_hash
from k25stack.draft.weightfile import WeightFile, bool_part, in_order, open_weights
from k25stack.errors import DamageError, UsageError
from k25stack.files import write_json
from k25stack.model.tensorfile import Part, write_tensors


@dataclass(frozen=True)
class Request:
    """What is asked of a conversion; None where the source itself must say it."""

    to: str
    format: str | None = None  # of the source
    target: Path | None = None  # model directory or config.json
    layers: tuple[int, ...] | None = None  # canonical
    window: int | None = None  # that will be served
    pickle: bool = False  # read *.bin and *.pt
    replace: bool = False  # an earlier draft at the output's place


@dataclass(frozen=True)
class Plan:
    """A conversion that can be done: everything is checked, nothing is written."""

    told: Told
    function: Mathematics
    config: dict[str, Any]
    parts: list[Part]
    record: dict[str, Any]
    notes: list[str]
    files: tuple[WeightFile, ...]  # of the source

    def summary(self, to: str) -> dict[str, Any]:
        return {
            "from": self.told.format,
            "to": to,
            "layers": self.record["canonical_layers"],
            "tensors": len(self.parts),
            "bytes": sum(part.bytes for part in self.parts),
            "notes": self.notes,
        }


def convert(source: Path, out: Path, request: Request, dry: bool = False) -> dict[str, Any]:
    """Convert ``source`` to ``out``; returns what was done (or, ``dry``, what would be).

    Raises UsageError for what cannot be converted, with the reason, and DamageError for a damaged source.
    """
    refuse_place(source, out, request)
    with ExitStack() as stack:
        files = None
        if request.pickle:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="k25-draft-", dir=out.parent)))
            files = list(unpickled(source, scratch))
        plan = make_plan(source, request, files)
        summary = plan.summary(request.to)
        if dry:
            return summary
        with replacing_directory(out) as part:
            write_json(part / CONFIG, plan.config)
            written = write_tensors(part / WEIGHTS, in_order(plan.parts), {"format": "pt"})
            record = {**plan.record, "converted": origin(plan.told, plan.files)}
            write_json(part / PROVENANCE, {**record, "files": file_records(part, written)})
    return summary


def refuse_place(source: Path, out: Path, request: Request) -> None:
    """Raise UsageError for a wrong format, a missing source, or an output that would touch the source or others."""
    if request.to not in WRITABLE:
        raise UsageError(
            f"cannot write the format {request.to!r}", where="--to", remedy=f"one of {', '.join(WRITABLE)}"
        )
    if not source.is_dir():
        raise UsageError("no such directory", where=str(source), remedy="give a draft directory")
    here, there = source.resolve(), out.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise UsageError("the output may not be the source, nor lie in it or around it", where=str(out),
                         remedy="choose another directory")  # fmt: skip
    if out.exists() and not request.replace and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(
            "it exists already", where=str(out), remedy="choose another, or -y to replace an earlier draft"
        )
    if not out.parent.is_dir():
        raise UsageError("no such directory", where=str(out.parent), remedy="make it first")


def make_plan(source: Path, request: Request, files: list[Path] | None = None) -> Plan:
    """Read and check everything; see `convert` for what it raises."""
    where = str(source / CONFIG)
    config = read_object(source / CONFIG)
    record = read_object(source / PROVENANCE) if (source / PROVENANCE).is_file() else None
    target = TargetFacts.read(request.target) if request.target else None
    family = target.family if target else recorded_family(record)
    hints = Hints(request.format, request.layers, family, target.layers if target else None)
    told = read_config(config, record, where, hints)
    if told.layers is None:
        raise UsageError("nobody says which layers its states come from", where=where,
                         remedy="give --layers (canonical ids) or --target for the default")  # fmt: skip
    function = fit(told.function, target, where)
    held = read_source(source) if files is None else collect([WeightFile.open(path) for path in files], str(source))
    held, full_map = without_identity_map(held, function)
    check_tensors(held, function.tensors(), str(source))
    notes = [f"{name} is the target's or computed: left out" for name in held.left_out]
    notes += ["d2t and t2d of a full vocabulary say nothing: left out"] if full_map else []
    parts = [one.part(name_in(request.to, name)) for name, one in held.tensors.items()]
    ids_hash, built = vocabulary(held, function)
    parts += [built] if built else []
    parts += embedding(held, request, notes)
    wanted = Wanted(
        to=request.to,
        layers=told.layers,
        family=family,
        dtype=held.tensors["fc.weight"].info.dtype,
        k=proposed(config, record),
        verifier=verifier_name(config, record, request.target),
        verifier_architectures=verifier_architectures(config, request.target),
        served_window=request.window,
        trained_embedding=held.embedding is not None and bool(config.get("embed_requires_grad")),
    )
    if wanted.dtype not in TORCH_NAMES:
        raise UsageError(f"weights are {wanted.dtype}", where=str(source), remedy="quantised drafts are not converted")
    written = write_config(function, wanted, {**carried(config), **target_tokens(target)})
    told_record = new_record(record, told, request.to, wanted.verifier, family, ids_hash)
    if function.window is not None and request.to in ("portable", "sglang"):
        notes.append(f"serve it in SGLang with --speculative-draft-window-size {function.window}")
    return Plan(told, function, written, parts, told_record, notes, held.files)


def fit(function: Mathematics, target: TargetFacts | None, where: str) -> Mathematics:
    """Raise UsageError for another target's draft; let the position limit cover the target's context."""
    if target is None:
        return function
    spec = function.spec
    if (spec.hidden, spec.target_vocab) != (target.hidden, target.vocab):
        raise UsageError(f"width {spec.hidden} and vocabulary {spec.target_vocab}, the target has {target.hidden} and "
                         f"{target.vocab}", where=where, remedy="give the target that it was trained for")  # fmt: skip
    return function.with_context(target.context)


def target_tokens(target: TargetFacts | None) -> dict[str, Any]:
    """Token ids as the package step writes them; nothing without a target, or what it does not say."""
    if target is None:
        return {}
    ids = list(target.eos_ids)
    said = {"bos_token_id": target.bos_id, "eos_token_id": ids[0] if len(ids) == 1 else ids or None}
    return {name: value for name, value in said.items() if value is not None}


def without_identity_map(held: Source, function: Mathematics) -> tuple[Source, bool]:
    """Leave out d2t and t2d of a draft over the whole vocabulary (SpecForge always saves them).

    Raises DamageError when such a map is not the identity.
    """
    if not function.spec.full_vocab or not {"d2t", "t2d"} & set(held.tensors):
        return held, False
    one = held.tensors.get("d2t")
    if one is not None and any(one.file.int64(one.name)):
        raise DamageError(
            "d2t moves ids of a full vocabulary", where=str(one.file.path), remedy="export the draft anew"
        )
    rest = {name: stored for name, stored in held.tensors.items() if name not in ("d2t", "t2d")}
    return replace(held, tensors=rest), True


def vocabulary(held: Source, function: Mathematics) -> tuple[str, Part | None]:
    """(name of the vocabulary, t2d to write where the source has none).

    Raises DamageError when d2t does not hold the differences of rising target ids that t2d marks.
    """
    spec = function.spec
    if spec.full_vocab:
        return vocab_hash(range(spec.target_vocab)), None
    stored = held.tensors["d2t"]
    d2t = stored.file.int64(stored.name)
    ids = [value + index for index, value in enumerate(d2t)]
    where = f"{stored.file.path}: {stored.name}"
    if any(b <= a for a, b in pairwise(ids)) or ids[0] < 0 or ids[-1] >= spec.target_vocab:
        raise DamageError("it does not hold differences of rising target ids (the ids themselves are trap T5)",
                          where=where, remedy="write d2t[i] = target id - i")  # fmt: skip
    marked = maps(ids, spec.target_vocab)[1]
    mask = held.tensors.get("t2d")
    if mask is None:
        return vocab_hash(ids), bool_part("t2d", marked)
    if mask.file.bool(mask.name) != marked:
        raise DamageError("d2t and t2d name different target ids", where=where, remedy="export the draft anew")
    return vocab_hash(ids), None


def embedding(held: Source, request: Request, notes: list[str]) -> list[Part]:
    """The draft's own embedding where the format ships one; SGLang always lends the target's.

    Raises UsageError when the target's weights are there and it is another one.
    """
    if held.embedding is None:
        return []
    if request.to in ("speculators", "specforge", "vllm"):
        return [held.embedding.part(EMBEDDING)]
    lent = target_embedding(request.target)
    if lent is None or lent.info.dtype != held.embedding.info.dtype:
        notes.append("embed_tokens is taken for the target's: left out, not compared")
    elif lent.same_bits(held.embedding):
        notes.append("embed_tokens is the target's: left out")
    else:
        raise UsageError("its embed_tokens is not the target's, which SGLang always lends", where=f"--to {request.to}",
                         remedy="give the target that it was trained for, or serve with vLLM (--to vllm)")  # fmt: skip
    return []


def target_embedding(target: Path | None) -> Stored | None:
    """The target's embedding where its weights are beside its config."""
    try:
        files = open_weights(target) if target is not None and target.is_dir() else []
    except DamageError:  # a config and an index without their weights are enough of a target here
        return None
    return next((Stored(file, name) for file in files for name in file.tensors if LENT_EMBEDDING.search(name)), None)
