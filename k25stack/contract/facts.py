"""What a draft directory says of itself, gathered without trusting it and without torch.

Nothing here raises for a bad draft: what cannot be read is kept as a problem for the checks to report.  Read are the
JSON files, the safetensors headers and the byte ranges of d2t and t2d; nothing in the directory is executed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k25stack.draft.provenance import CONFIG, PROVENANCE
from k25stack.draft.sizes import sizes_from_config
from k25stack.draft.spec import DraftSpec
from k25stack.draft.target import TargetFacts, read_object
from k25stack.draft.weightfile import WeightFile, open_weights
from k25stack.errors import K25Error
from k25stack.model.tensorfile import TensorInfo

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class DraftFacts:
    """A draft directory as it is; an empty problem means that the part could be read."""

    directory: Path
    config: dict[str, Any] = field(default_factory=dict)
    config_problem: str = ""
    unfilled: tuple[str, ...] | None = None  # config is what vLLM makes of a speculators one; keys that it then lacks
    spec: DraftSpec | None = None
    spec_problem: str = ""
    files: list[WeightFile] = field(default_factory=list)
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    weights_problem: str = ""
    unlisted: list[str] = field(default_factory=list)  # weight files that the index leaves out
    pickles: list[str] = field(default_factory=list)
    d2t: array[int] | None = None
    t2d: bytes | None = None
    map_problem: str = ""
    record: dict[str, Any] | None = None  # k25stack.json; None when there is none
    record_problem: str = ""

    @property
    def architecture(self) -> str:
        """The one declared architecture, or empty."""
        named = self.config.get("architectures")
        return named[0] if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str) else ""

    def find(self, suffix: str) -> str:
        """The name of the tensor called ``suffix`` or ending in it after a dot; empty when there is none."""
        found = [name for name in self.tensors if name == suffix or name.endswith(f".{suffix}")]
        return found[0] if found else ""


@dataclass(frozen=True)
class Question:
    """What the draft is held against; None where the caller does not know."""

    layers: tuple[int, ...] | None = None  # canonical ids that it was trained on
    target: TargetFacts | None = None
    context: int | None = None  # tokens that will be served
    states: Path | None = None  # directory of the hidden states that it was trained on
    deep: bool = False  # read and hash the weights too


def gather(directory: Path) -> DraftFacts:
    """Read what can be read of a draft directory."""
    values: dict[str, Any] = {"directory": directory}
    values["config"], values["config_problem"] = attempt(lambda: read_object(directory / CONFIG), {})
    if not values["config_problem"]:
        sizes = attempt(lambda: sizes_from_config(values["config"], CONFIG), None)
        values["spec"], values["spec_problem"] = sizes
    else:
        values["spec_problem"] = values["config_problem"]
    values["pickles"] = sorted(path.name for pattern in PICKLES for path in directory.glob(pattern))
    files, problem = attempt(lambda: open_weights(directory), [])
    values["weights_problem"] = problem or ("" if files else "no *.safetensors file")
    read = {file.path.name for file in files}
    found = sorted(path.name for path in directory.glob("*.safetensors") if not path.name.startswith("."))
    values["unlisted"] = [name for name in found if files and name not in read]
    values["files"], values["tensors"] = files, {}
    for file in files:
        if twice := sorted(set(file.tensors) & set(values["tensors"])):
            values["weights_problem"] = f"tensor {twice[0]} occurs in two files"
        values["tensors"] |= file.tensors
    if (directory / PROVENANCE).exists():
        values["record"], values["record_problem"] = attempt(lambda: read_object(directory / PROVENANCE), None)
    facts = DraftFacts(**values)
    maps, map_problem = attempt(lambda: read_maps(facts), (None, None))
    return DraftFacts(**{**values, "d2t": maps[0], "t2d": maps[1], "map_problem": map_problem})


def read_maps(facts: DraftFacts) -> tuple[array[int] | None, bytes | None]:
    """Values of d2t and t2d, where the file has them.  Raises DamageError for another type."""
    return read_map(facts, "d2t", WeightFile.int64), read_map(facts, "t2d", WeightFile.bool)


def read_map(facts: DraftFacts, suffix: str, read: Callable[[WeightFile, str], Any]) -> Any:
    name = facts.find(suffix)
    holder = next((file for file in facts.files if name in file.tensors), None)
    return read(holder, name) if holder is not None else None


def attempt(read: Callable[[], Any], otherwise: Any) -> tuple[Any, str]:
    """(value, "") or (otherwise, one line that says what is wrong)."""
    try:
        return read(), ""
    except K25Error as error:
        return otherwise, str(error)
    except OSError as error:
        return otherwise, f"{error.filename or 'file'}: {error.strerror or error}"
