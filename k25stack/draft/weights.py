"""Draft weights in and out of files, and where a new draft's weights come from (torch)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from k25stack.draft.mathematics import spec_from_config
from k25stack.draft.model import DraftModel
from k25stack.draft.names import LENT, portable_name
from k25stack.draft.remap import Remap, remap, target_ids
from k25stack.draft.spec import DraftSpec
from k25stack.draft.target import read_object
from k25stack.draft.weightfile import WeightFile, in_order, open_weights
from k25stack.errors import DamageError, UsageError
from k25stack.model.tensorfile import Part, write_tensors

DTYPE_NAMES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.bool: "BOOL",
}


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor in row-major order."""
    view: memoryview = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return view


def save_portable(path: Path, spec: DraftSpec, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write exactly the tensors of ``spec.tensors()``, floats as bfloat16.  Raises DamageError when one is unfit."""
    require_shapes({name: tuple(tensor.shape) for name, tensor in tensors.items()}, spec, str(path))
    parts = []
    for name, tensor in tensors.items():
        stored = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        parts.append(Part(name, DTYPE_NAMES[stored.dtype], tuple(stored.shape), [raw_bytes(stored)]))
    write_tensors(path, in_order(parts), metadata)


def require_shapes(shapes: Mapping[str, tuple[int, ...]], spec: DraftSpec, where: str) -> None:
    """Raise DamageError unless names and shapes are exactly the spec's."""
    wanted = spec.tensors()
    for name in sorted(set(wanted) | set(shapes)):
        if name not in shapes:
            raise DamageError(f"tensor {name} is missing", where=where)
        if name not in wanted:
            raise DamageError(f"tensor {name} is not part of this draft", where=where)
        if shapes[name] != wanted[name]:
            raise DamageError(f"tensor {name} is {shapes[name]}, the draft needs {wanted[name]}", where=where)


def weight_files(directory: Path) -> list[WeightFile]:
    """A directory's weight files, as its index names them, their headers proven.

    Raises UsageError when there are none, DamageError for a damaged one or a bad index.
    """
    if files := open_weights(directory):
        return files
    raise UsageError("no *.safetensors file", where=str(directory), remedy="pickles (.bin, .pt) are not loaded")


def read_tensors(files: Iterable[WeightFile], wanted: Mapping[str, str]) -> dict[str, Tensor]:
    """Tensors named by the values of ``wanted``, under its keys."""
    found = {}
    for file in files:
        with safe_open(file.path, framework="pt") as opened:
            for name, spelled in wanted.items():
                if spelled in file.tensors:
                    found[name] = opened.get_tensor(spelled)
    return found


def draft_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors of a draft directory under their portable names, without a shipped embedding."""
    files = weight_files(directory)
    spelled = [name for file in files for name in file.tensors if not LENT.search(name)]
    wanted = {portable_name(name): name for name in spelled}
    if len(wanted) != len(spelled):
        raise DamageError("one tensor occurs under two names", where=str(directory), remedy="convert the draft anew")
    return read_tensors(files, wanted)


def load_draft(directory: Path, dtype: torch.dtype = torch.bfloat16) -> DraftModel:
    """A draft directory as a module.

    Raises UsageError when its config describes other mathematics than the module's, DamageError when the tensors do
    not fit the config.
    """
    spec = spec_from_config(read_object(directory / "config.json"), str(directory / "config.json"))
    tensors = draft_tensors(directory)
    if not spec.full_vocab and "t2d" not in tensors and "d2t" in tensors:
        tensors["t2d"] = held_mask(tensors["d2t"], spec.target_vocab)
    return model_from(spec, tensors, str(directory)).to(dtype)


def model_from(spec: DraftSpec, tensors: Mapping[str, Tensor], where: str) -> DraftModel:
    """A module with exactly these tensors, which it may share.  Raises DamageError when they do not fit ``spec``."""
    require_shapes({name: tuple(tensor.shape) for name, tensor in tensors.items()}, spec, where)
    with torch.device("meta"):
        model = DraftModel(spec)
    if spec.full_vocab:
        model.d2t = torch.zeros(spec.draft_vocab, dtype=torch.int64)
        model.t2d = torch.ones(spec.target_vocab, dtype=torch.bool)
    model.load_state_dict(dict(tensors), assign=True)
    return model


def held_mask(d2t: Tensor, vocab: int) -> Tensor:
    """t2d [V] of differences d2t [D]."""
    mask = torch.zeros(vocab, dtype=torch.bool)
    mask[d2t + torch.arange(d2t.shape[0])] = True
    return mask


def init_from_target(model: DraftModel, target: Path, layer: int | None = None) -> list[str]:
    """Copy from a target directory what fits: final norm, head rows of the draft vocabulary (``model.d2t``), and with
    ``layer`` that layer's o_proj, MLP, norm before it, and q/k/v into the state half of the draft's.

    Returns the names filled.  Raises UsageError when the target has no head of the draft's width.
    """
    files = weight_files(target)
    spelled = {name.removeprefix("language_model."): name for file in files for name in file.tensors}
    head = next((spelled[name] for name in ("lm_head.weight", "model.embed_tokens.weight") if name in spelled), "")
    wanted = {"norm.weight": spelled.get("model.norm.weight", ""), "lm_head.weight": head}
    if layer is not None:
        prefix = f"model.layers.{layer}."
        wanted |= {f"midlayer.{part}": spelled.get(prefix + part, "") for part in LAYER_PARTS}
    own, filled = dict(model.named_parameters()), []
    with torch.no_grad():
        for name, found in read_tensors(files, wanted).items():
            if name == "lm_head.weight":
                found = found[model.target_ids()] if found.shape[0] == model.spec.target_vocab else found
            goal: Tensor = own[name]
            if part_of_wide(name):
                goal = goal[:, model.spec.hidden :]  # the state half: [rows, H]
            if goal.shape == found.shape and found.is_floating_point():
                goal.copy_(found)
                filled.append(name)
    if not {"norm.weight", "lm_head.weight"} <= set(filled):
        raise UsageError("no final norm and head of the draft's width", where=str(target), remedy="init from scratch")
    return filled


LAYER_PARTS = (
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "post_attention_layernorm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
)


def part_of_wide(name: str) -> bool:
    """True for the projections that read both halves."""
    return name.rpartition("self_attn.")[2] in {"q_proj.weight", "k_proj.weight", "v_proj.weight"}


def init_from_draft(model: DraftModel, directory: Path, counts: Mapping[int, int] | None = None) -> Remap:
    """Start from a foreign draft: everything but the head must fit; head rows are kept where the target id is shared.

    Rows of ids that the other draft did not have keep their present value (call ``init_from_target`` first).
    Returns the match; ``counts`` (target id -> occurrences) weighs its coverage.
    """
    where = str(directory)
    require_same_mathematics(model.spec, spec_from_config(read_object(directory / "config.json"), where), where)
    tensors = draft_tensors(directory)
    old_head = tensors.pop("lm_head.weight", None)
    if old_head is None:
        raise UsageError("it ships no lm_head.weight", where=where, remedy="choose a draft with its own head")
    rows = match_rows(directory, old_head.shape[0], model.target_ids().tolist(), counts)
    own = dict(model.named_parameters())
    for name in sorted((set(own) | set(tensors)) - {"lm_head.weight", "d2t", "t2d"}):
        if name not in own or name not in tensors or own[name].shape != tensors[name].shape:
            theirs = tuple(tensors[name].shape) if name in tensors else "nothing"
            ours = tuple(own[name].shape) if name in own else "nothing"
            raise UsageError(f"{name}: it has {theirs}, this draft {ours}", where=where, remedy="use its sizes")
    kept = torch.tensor([row for row in rows.rows if row >= 0])
    place = torch.tensor([index for index, row in enumerate(rows.rows) if row >= 0])
    with torch.no_grad():
        for name, parameter in own.items():
            if name != "lm_head.weight":
                parameter.copy_(tensors[name])
        if len(kept):
            own["lm_head.weight"][place] = old_head[kept].to(own["lm_head.weight"].dtype)
    return rows


def require_same_mathematics(ours: DraftSpec, theirs: DraftSpec, where: str) -> None:
    """Raise UsageError when the same weights would compute something else under our spec."""
    for name in ("rope_theta", "rms_eps", "norm_output", "head_dim"):
        own, other = getattr(ours, name), getattr(theirs, name)
        if own != other:
            raise UsageError(f"{name} is {other}, this draft has {own}", where=where, remedy=f"set {name} to {other}")


def match_rows(directory: Path, rows: int, new_ids: Sequence[int], counts: Mapping[int, int] | None) -> Remap:
    files = weight_files(directory)
    holder = next((file for file in files if "d2t" in file.tensors), files[0])
    return remap(target_ids(holder, rows), new_ids, counts)
