"""What a converted draft's record says of where it comes from (no torch)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from k25stack.draft.formats import Told
from k25stack.draft.provenance import CONFIG
from k25stack.draft.target import layer_family, read_object
from k25stack.draft.weightfile import WeightFile
from k25stack.files import sha256_file


def recorded_family(record: Mapping[str, Any] | None) -> str | None:
    target = (record or {}).get("target")
    family = target.get("family") if isinstance(target, Mapping) else None
    return layer_family(family) if isinstance(family, str) else None


def proposed(config: Mapping[str, Any], record: Mapping[str, Any] | None) -> int:
    """Draft tokens per round, for the formats that write it; 3 when nobody says."""
    speculators = config.get("speculators_config")
    methods = speculators.get("proposal_methods") if isinstance(speculators, Mapping) else None
    first = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], Mapping) else {}
    for found in (first.get("speculative_tokens"), (record or {}).get("k")):
        if type(found) is int and found > 0:
            return found
    return 3


def verifier(config: Mapping[str, Any]) -> Mapping[str, Any]:
    speculators = config.get("speculators_config")
    found = speculators.get("verifier") if isinstance(speculators, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def verifier_name(config: Mapping[str, Any], record: Mapping[str, Any] | None, target: Path | None) -> str | None:
    """What names the target: the source's config, its record, or the directory given."""
    recorded = (record or {}).get("target")
    names = [verifier(config).get("name_or_path"), recorded.get("name") if isinstance(recorded, Mapping) else None]
    names.append(str(target) if target is not None else None)
    return next((name for name in names if isinstance(name, str) and name), None)


def verifier_architectures(config: Mapping[str, Any], target: Path | None) -> tuple[str, ...]:
    found = verifier(config).get("architectures")
    if not found and target is not None:
        found = read_object(target / CONFIG if target.is_dir() else target).get("architectures")
    return tuple(item for item in found if isinstance(item, str)) if isinstance(found, list) else ()


def new_record(
    record: Mapping[str, Any] | None,
    told: Told,
    to: str,
    target: str | None,
    family: str | None,
    ids_hash: str,
) -> dict[str, Any]:
    """k25stack.json of the result: the source's own, or what is known of a foreign draft."""
    kept = {name: value for name, value in (record or {}).items() if name not in ("files", "format", "converted")}
    if not kept:
        kept = {
            "schema": 1,
            "random": False,
            "canonical_layers": None,
            "k": proposed(told.config, None),
            "spec": told.function.spec.as_dict(),
            "target": {"name": target, "revision": None, "family": family},
            "engine": None,
            "vocab_hash": ids_hash,
        }
    kept["canonical_layers"] = list(told.layers or ())
    return kept if to == "portable" else {**kept, "format": to}


def origin(told: Told, files: Iterable[WeightFile]) -> dict[str, Any]:
    """Where a converted draft's bits come from."""
    return {"from": told.format, "weights_sha256": {file.path.name: sha256_file(file.path) for file in files}}
