"""Write one draft directory that SGLang and vLLM both load unmodified (torch).

Step program: ``python -m k25stack.draft.package SPEC.json`` with params
{spec, layers: canonical ids, k, random: bool, seed, target_family}, inputs {target, vocab, states?, train?}.
Writes config.json, model.safetensors (portable names, bfloat16, the same bytes for the same content) and
k25stack.json.  ``random`` writes untrained weights: the control whose acceptance must be nothing.

The directory is made under another name and renamed, so an engine never sees a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from k25stack.draft.config import config_json
from k25stack.draft.directory import replacing_directory, sweep
from k25stack.draft.model import random_tensor
from k25stack.draft.provenance import CONFIG, PROVENANCE, WEIGHTS, file_records, provenance, states_meta
from k25stack.draft.remap import target_ids
from k25stack.draft.spec import MAPS, DraftSpec
from k25stack.draft.target import TargetFacts, layer_family, read_object
from k25stack.draft.vocab import vocab_hash
from k25stack.draft.weightfile import WeightFile, in_order
from k25stack.draft.weights import raw_bytes, require_shapes
from k25stack.errors import DamageError, UsageError
from k25stack.files import write_json
from k25stack.model.tensorfile import Part, write_tensors
from k25stack.worker import Progress, Spec, log, run_worker


def bfloat16_part(name: str, shape: tuple[int, ...], load: Callable[[], Tensor]) -> Part:
    """A weight that is made or read only when its turn to be written comes.  DamageError when it is not finite."""

    def pieces() -> Iterator[memoryview]:
        tensor = load()
        if not bool(torch.isfinite(tensor).all()):
            raise DamageError(f"tensor {name} holds NaN or infinity", where="trained weights", remedy="train again")
        yield raw_bytes(tensor.to(torch.bfloat16))

    return Part(name, "BF16", shape, pieces())


def random_parts(spec: DraftSpec, seed: int) -> list[Part]:
    """The weights of ``DraftModel(spec).init_random(seed)``, made one at a time."""

    def one(name: str, shape: tuple[int, ...]) -> Part:
        return bfloat16_part(name, shape, lambda: random_tensor(seed, name, shape))

    return [one(name, shape) for name, shape in spec.weights().items()]


def trained_parts(spec: DraftSpec, file: WeightFile) -> list[Part]:
    """The weights of a training step's file, read one at a time.  DamageError when they do not fit ``spec``."""
    shapes = {name: info.shape for name, info in file.tensors.items() if name not in MAPS}
    require_shapes({**shapes, **map_shapes(spec)}, spec, str(file.path))

    def read(name: str) -> Tensor:
        with safe_open(file.path, framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
            return tensor

    def one(name: str, shape: tuple[int, ...]) -> Part:
        return bfloat16_part(name, shape, lambda: read(name))

    return [one(name, shape) for name, shape in spec.weights().items()]


def map_shapes(spec: DraftSpec) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in spec.tensors().items() if name in MAPS}


def map_parts(spec: DraftSpec, vocab: WeightFile) -> list[Part]:
    """d2t and t2d as they stand in ``vocab``; none for a draft over the whole vocabulary."""
    for name, shape in map_shapes(spec).items():
        if name not in vocab.tensors or vocab.tensors[name].shape != shape:
            raise UsageError(f"{name} is not {shape}", where=str(vocab.path), remedy="make spec and vocabulary agree")
    return [vocab.part(name) for name in map_shapes(spec)]


def write_draft(out: Path, config: Mapping[str, Any], parts: list[Part], record: Mapping[str, Any]) -> dict[str, Any]:
    """Write the directory whole or not at all; returns the complete provenance record."""
    with replacing_directory(out) as part:
        write_json(part / CONFIG, dict(config))
        written = write_tensors(part / WEIGHTS, in_order(parts), {"format": "pt"})
        complete = {**record, "files": file_records(part, written)}
        write_json(part / PROVENANCE, complete)
    return complete


def program(spec: Spec) -> dict[str, Any]:
    params, inputs = spec.params, spec.inputs
    progress = Progress(spec.out)
    sweep(spec.out)
    target = TargetFacts.read(inputs["target"])
    family = params.get("target_family") or target.family
    if layer_family(family) != target.family:
        raise UsageError(f"target_family is {family}, the target is of {target.family}", where=str(inputs["target"]))
    draft, layers = DraftSpec.from_dict(params["spec"]), [int(layer) for layer in params["layers"]]
    meta = states_meta(inputs.get("states"))
    if meta and list(meta.get("layers", [])) != layers:
        raise UsageError(
            f"layers {layers}, the states hold {meta.get('layers')}",
            where=str(inputs["states"]),
            remedy="extract and package with the same canonical layers",
        )
    random, train = bool(params.get("random")), inputs.get("train")
    vocab = WeightFile.open(inputs["vocab"] / "vocab.safetensors")
    if random:
        weights, train = random_parts(draft, int(params["seed"])), None
    elif train is None:
        raise UsageError("no trained weights", where="inputs.train", remedy="train first, or set random")
    else:
        trained = WeightFile.open(train / "best.safetensors")
        weights = trained_parts(draft, trained)
        # A draft that kept a foreign vocabulary ships that one, not the vocabulary step's.
        vocab = trained if "d2t" in trained.tensors else vocab
    parts = [*weights, *map_parts(draft, vocab)]
    described = inputs["target"] / "target.json"
    record = provenance(
        draft,
        target,
        layers,
        int(params["k"]),
        random=random,
        target_record=read_object(described) if described.is_file() else {},
        meta=meta,
        coverage=read_object(inputs["vocab"] / "coverage.json"),
        ids_hash=vocab_hash(target_ids(vocab, draft.draft_vocab)),
        train=train,
    )
    progress.update("write", 0, 1, "draft")
    complete = write_draft(spec.out, config_json(draft, target, layers), parts, record)
    progress.update("write", 1, 1, "draft")
    size = complete["files"][WEIGHTS]["bytes"]
    log(f"{'random control' if random else 'draft'} of {draft.parameters():,} parameters, {size:,} bytes")
    return {
        "parameters": draft.parameters(),
        "bytes": size,
        "random": random,
        "sha256": complete["files"][WEIGHTS]["sha256"],
        "predicted": complete["predicted"],
    }


if __name__ == "__main__":
    raise SystemExit(run_worker(program))
