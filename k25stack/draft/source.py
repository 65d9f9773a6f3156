"""The tensors of a draft directory of any format, under their portable names, to be read piece by piece (no torch).

A pickle is read with torch's ``weights_only``, which builds tensors and nothing else; engines are never given one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from k25stack.draft.names import portable_name
from k25stack.draft.weightfile import WeightFile, open_weights
from k25stack.errors import DamageError, HostError, K25Error, UsageError
from k25stack.model.tensorfile import Part, TensorInfo

PICKLED = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
EMBEDDING = "embed_tokens.weight"
LENT_EMBEDDING = re.compile(r"^(language_model\.)?(model\.)?embed_tokens\.weight$")  # in a target's files
# The target's own tensors and computed ones: what a trainer may save beside the draft without their being its part.
NOT_ITS_OWN = re.compile(r"(^|\.)(rotary_emb\.inv_freq|verifier_norm\.weight|verifier_lm_head\.weight)$")
OLD_NORMS = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, and how to copy it."""

    file: WeightFile
    name: str  # as it is spelled there

    @property
    def info(self) -> TensorInfo:
        return self.file.tensors[self.name]

    def part(self, name: str) -> Part:
        """The same bits under another name, read while they are written."""
        one = self.file.part(self.name)
        return Part(name, one.dtype, one.shape, one.pieces)

    def same_bits(self, other: Stored) -> bool:
        """True when both hold the same values, read a piece at a time."""
        pieces = zip_longest(self.part("").pieces, other.part("").pieces)
        return self.info.shape == other.info.shape and all(left == right for left, right in pieces)


@dataclass(frozen=True)
class Source:
    """What a directory's weight files hold."""

    files: tuple[WeightFile, ...]
    tensors: Mapping[str, Stored]  # portable name -> where
    embedding: Stored | None = None
    left_out: tuple[str, ...] = field(default=())  # names that are no part of a draft


def spelled(name: str) -> str:
    """The portable name of a tensor in any known spelling."""
    short = portable_name(name.removeprefix("draft_model."))
    for old, new in OLD_NORMS.items():
        short = short.replace(old, new)
    return short


def read_source(directory: Path) -> Source:
    """Collect the tensors of ``*.safetensors``.

    Raises UsageError when there is none, DamageError for a damaged file or one tensor under two names.
    """
    files = open_weights(directory)
    if not files:
        pickles = sorted(path.name for pattern in PICKLED for path in directory.glob(pattern))
        remedy = f"{pickles[0]} is a pickle: convert it with --pickle" if pickles else "give a draft directory"
        raise UsageError("no *.safetensors file", where=str(directory), remedy=remedy)
    return collect(files, str(directory))


def collect(files: list[WeightFile], where: str) -> Source:
    tensors: dict[str, Stored] = {}
    embedding, left_out = None, []
    for file in files:
        for name in file.tensors:
            portable = spelled(name)
            if portable == EMBEDDING:
                embedding = Stored(file, name)
            elif NOT_ITS_OWN.search(name):
                left_out.append(name)
            elif portable in tensors:
                raise DamageError(f"{name} and {tensors[portable].name} are one tensor", where=where,
                                  remedy="export the draft anew")  # fmt: skip
            else:
                tensors[portable] = Stored(file, name)
    return Source(tuple(files), tensors, embedding, tuple(left_out))


def unpickled(directory: Path, scratch: Path) -> Iterator[Path]:
    """Rewrite each pickle of ``directory`` as safetensors below ``scratch``; yields the new files.

    Raises UsageError when there is none, DamageError when one holds anything but tensors, HostError without torch.
    """
    pickles = sorted({path for pattern in PICKLED for path in directory.glob(pattern)})
    if not pickles:
        raise UsageError("no pickle (*.bin, *.pt)", where=str(directory), remedy="leave --pickle out")
    try:
        from k25stack.draft.pickles import rewrite
    except ImportError as error:
        raise HostError(f"reading a pickle needs torch ({error})", remedy="pip install 'k25stack[train]'") from None
    for path in pickles:
        out = scratch / f"{path.stem}.safetensors"
        rewrite(path, out)
        yield out


def check_tensors(source: Source, wanted: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raise K25Error unless the source has exactly the tensors of ``wanted`` (t2d may be missing), in their shapes."""
    names = set(source.tensors)
    for name in sorted(set(wanted) - names - {"t2d"}):
        raise problem(name, where)
    for name in sorted(names - set(wanted)):
        raise DamageError(f"{source.tensors[name].name} is no tensor of this draft", where=where,
                          remedy="is config.json the one that it was trained with?")  # fmt: skip
    for name in sorted(names):
        found = source.tensors[name].info.shape
        if found != wanted[name]:
            raise DamageError(f"{source.tensors[name].name} is {list(found)}, the config says {list(wanted[name])}",
                              where=where, remedy="is config.json the one that it was trained with?")  # fmt: skip


def problem(name: str, where: str) -> K25Error:
    """Why a draft cannot be converted without this tensor."""
    if name == "lm_head.weight":
        return UsageError("it ships no lm_head.weight: it borrows the target's", where=where,
                          remedy="export it with its head")  # fmt: skip
    if name == "d2t":
        return UsageError("it ships no d2t: which tokens its rows mean is not known", where=where,
                          remedy="export it with its vocabulary map")  # fmt: skip
    return DamageError(f"tensor {name} is missing", where=where, remedy="export the draft anew")
