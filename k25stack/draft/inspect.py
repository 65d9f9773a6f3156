"""What a draft directory holds, in figures: tensors, parameters, cache bytes, layers, origin (no torch)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from k25stack.draft.formats import detect, function_of
from k25stack.draft.layerids import IDS_KEY
from k25stack.draft.mathematics import SWITCHES, Mathematics
from k25stack.draft.names import LENT
from k25stack.draft.provenance import CONFIG, PROVENANCE
from k25stack.draft.sizes import sizes_from_config
from k25stack.draft.source import spelled
from k25stack.draft.spec import size
from k25stack.draft.target import read_object
from k25stack.draft.weightfile import open_weights
from k25stack.errors import UsageError

FLOATS = ("BF16", "F16", "F32")
ORIGIN = ("random", "canonical_layers", "k", "target", "engine", "decode", "coverage", "predicted", "vocab_hash")


def inspect_draft(directory: Path) -> dict[str, Any]:
    """Figures of a draft directory.

    Parameters are counted from the file, the embedding from the config.  Raises UsageError when it is no draft,
    DamageError when a file is damaged.
    """
    if not directory.is_dir():
        raise UsageError("no such directory", where=str(directory), remedy="give a draft directory")
    config, where = read_object(directory / CONFIG), str(directory / CONFIG)
    record = read_object(directory / PROVENANCE) if (directory / PROVENANCE).is_file() else None
    try:
        form = detect(config, record, where)
    except UsageError:
        form = "sglang"  # it may also be SpecForge's: the figures are the same
    try:
        function, special = function_of(form, config, where), None
    except UsageError as error:  # figures can be given all the same, if the sizes are there
        function, special = Mathematics(sizes_from_config(config, where)), str(error)
    spec = function.spec
    files = open_weights(directory)
    if not files:
        raise UsageError("no *.safetensors file", where=str(directory), remedy="convert the draft")
    expected = function.tensors()
    found = {name: info for file in files for name, info in file.tensors.items()}
    layers = config.get("num_hidden_layers")
    if layers not in (None, 1) and "fc.weight" not in map(spelled, found):
        raise UsageError(f"a model of {layers} layers, no draft", where=str(directory), remedy="give a draft directory")
    tensors = [
        {
            "name": name,
            "dtype": info.dtype,
            "shape": list(info.shape),
            "bytes": info.end - info.begin,
            "portable": spelled(name) in expected,
        }
        for name, info in found.items()
    ]
    own = sum(size(info.shape) for name, info in found.items() if info.dtype in FLOATS and not LENT.search(name))
    eagle = config.get("eagle_config")
    return {
        "directory": str(directory),
        "architectures": config.get("architectures"),
        "format": form,
        "spec": spec.as_dict(),
        "switches": {name: getattr(function, name) for name in SWITCHES if hasattr(function, name)},
        "window": function.window,
        "special": special,
        "tensors": tensors,
        "bytes": sum(file.header.bytes for file in files),
        "parameters": own,
        "parameters_with_embedding": own + spec.target_vocab * spec.hidden,
        "kv_bytes_per_token": function.kv_bytes_per_token() * (layers if type(layers) is int and layers > 0 else 1),
        "layer_ids": {
            "top_level": config.get(IDS_KEY),
            "nested": eagle.get(IDS_KEY) if isinstance(eagle, dict) else None,
        },
        "origin": origin(directory),
    }


def origin(directory: Path) -> dict[str, Any] | None:
    """The parts of k25stack.json that people ask for; None when there is no such file."""
    file = directory / PROVENANCE
    if not file.is_file():
        return None
    record = read_object(file)
    return {name: record.get(name) for name in ORIGIN}


def table(report: dict[str, Any]) -> Iterator[str]:
    """The report for people."""
    width = max(len(tensor["name"]) for tensor in report["tensors"])
    for tensor in report["tensors"]:
        shape = " x ".join(map(str, tensor["shape"]))
        note = "" if tensor["portable"] else "  (not part of the portable form)"
        yield f"{tensor['name']:{width}}  {tensor['dtype']:5} {shape:>16} {tensor['bytes']:>15,} B{note}"
    on = [name for name, value in report["switches"].items() if value]
    named = report["architectures"]
    told = ", ".join(map(str, named)) if isinstance(named, list) else named
    yield f"format                {report['format']}, {told or 'no architecture'}"
    yield f"switches              {', '.join(on) or 'none on'}; window {report['window'] or 'none (full attention)'}"
    if report["special"]:
        yield f"not convertible       {report['special']}"
    yield f"parameters            {report['parameters']:,}"
    yield f"with the embedding    {report['parameters_with_embedding']:,}"
    yield f"keys and values       {report['kv_bytes_per_token']:,} B per token (2 bytes per value)"
    yield f"weight files          {report['bytes']:,} B"
    ids = report["layer_ids"]
    yield f"layer ids as written  top level {ids['top_level']}, nested {ids['nested']}"
    found = report["origin"]
    if found is None:
        yield "origin                unknown: no k25stack.json"
        return
    for name, value in found.items():
        if value is not None:
            yield f"{name:21} {value}"
