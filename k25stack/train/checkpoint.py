"""Checkpoints: everything a run needs to go on with the same bits, each written whole or not at all.

A file ``checkpoints/step-00000120.safetensors`` holds the fp32 masters, the optimizer's fp32 state and the state of
torch's generator; its metadata holds the cursor (epoch, batch, step), what was measured so far, and the *contract*:
what must be equal for the next step to give the same bits.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from k25stack.draft.weights import DTYPE_NAMES, raw_bytes
from k25stack.errors import DriftError
from k25stack.model.tensorfile import Part, read_header, write_tensors
from k25stack.worker import log

NAME = re.compile(r"step-(\d+)\.safetensors")
RNG = "rng"
# Instructions by which the CPU's matrix products choose their kernels, beyond torch's own class.
MATRIX_FLAGS = ("avx512_bf16", "avx512_fp16", "amx_bf16", "amx_tile", "bf16", "i8mm", "sve")


def isa_class(device: str) -> str:
    """The class of machines that compute the same bits, e.g. ``AVX512+avx512_bf16``."""
    if device != "cpu":
        return f"{torch.cuda.get_device_name(device)} {torch.version.cuda}"
    flags: set[str] = set()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        line = re.search(r"^(?:flags|Features)\s*:(.*)$", info.read_text(), re.MULTILINE)
        flags = set(line.group(1).split()) if line else set()
    return "+".join([torch.backends.cpu.get_cpu_capability(), *(flag for flag in MATRIX_FLAGS if flag in flags)])


def contract(params: Mapping[str, Any], inputs: Mapping[str, str], threads: int, world: int, device: str) -> Contract:
    """What decides the bits of a run on this machine; ``inputs`` are the content hashes of what it reads."""
    return {
        "isa": isa_class(device),
        "threads": threads,
        "processes": world,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "params": dict(params),
        "inputs": dict(inputs),
    }


Contract = dict[str, Any]


@dataclass
class Cursor:
    """Where a run stands.  Everything but the seconds is decided by the contract."""

    epoch: int = 0
    batch: int = 0  # batches done in this epoch
    step: int = 0  # optimizer steps done
    response_tokens: int = 0  # trained on, over all epochs
    train_s: float = 0.0  # spent in training steps and checkpoints
    best: float | None = None  # accept length of the best evaluation
    best_epoch: int = 0
    stale: int = 0  # evaluations since
    epochs: list[dict[str, Any]] = field(default_factory=list)  # one record per evaluation
    measured: dict[str, Any] = field(default_factory=dict)  # sums of the epoch so far
    stopped: str = ""  # why training is over: "epochs", "patience", "budget"; empty while it is not
    inexact: list[str] = field(default_factory=list)  # resumes that could not promise the same bits, and why


def checkpoint_files(directory: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    found = [(int(match[1]), path) for path in directory.glob("step-*") if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def save(directory: Path, state: Mapping[str, Tensor], cursor: Cursor, agreed: Contract, keep: int) -> Path:
    """Write the checkpoint of ``cursor.step`` and remove all but the newest ``keep``."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"step-{cursor.step:08d}.safetensors"
    tensors = {**state, RNG: torch.get_rng_state()}
    types = {**DTYPE_NAMES, torch.uint8: "U8"}
    parts = [Part(name, types[t.dtype], tuple(t.shape), [raw_bytes(t)]) for name, t in tensors.items()]
    text = json.dumps({"cursor": asdict(cursor), "contract": agreed})  # in the order given: records keep theirs
    write_tensors(path, parts, {"state": text})
    for old in checkpoint_files(directory)[:-keep]:
        old.unlink()
    return path


def resume(directory: Path, state: Mapping[str, Tensor], agreed: Contract, inexact: bool) -> Cursor | None:
    """Fill ``state`` from the newest checkpoint and return its cursor; None when there is none.

    Raises DriftError naming what differs when the same bits cannot be promised, unless ``inexact``; what differs is
    then kept in the cursor.  Raises DamageError for a torn file.
    """
    files = checkpoint_files(directory)
    if not files:
        return None
    read_header(files[-1])  # refuses a torn file with one line
    opener: Any = safe_open
    with opener(files[-1], framework="pt") as file:
        raw = json.loads(file.metadata()["state"])
        cursor = Cursor(**raw["cursor"])
        if changes := differences(raw["contract"], json.loads(json.dumps(agreed))):
            if not inexact:
                raise DriftError(
                    f"cannot resume with the same bits: {'; '.join(changes)}",
                    where=str(files[-1]),
                    remedy="restore it, set train.inexact, or remove the checkpoints to start anew",
                )
            cursor.inexact.append("; ".join(changes))
        for name, tensor in state.items():
            tensor.copy_(file.get_tensor(name))
        torch.set_rng_state(file.get_tensor(RNG))
    log(f"resumed at step {cursor.step} (epoch {cursor.epoch}, batch {cursor.batch}) from {files[-1].name}")
    return cursor


def differences(then: Contract, now: Contract, prefix: str = "") -> list[str]:
    """``field was X, is Y`` for every field that is not equal, nested ones by dotted name."""
    found = []
    for name in sorted(set(then) | set(now)):
        old, new = then.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{prefix}{name}.")
        elif old != new:
            found.append(f"{prefix}{name} was {old!r}, is {new!r}")
    return found
