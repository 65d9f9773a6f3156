"""``k25stack.json``: where a draft comes from and what it is expected to do (no torch).

::

    {"schema": 1, "random": false, "canonical_layers": [2, 15, 27], "k": 3, "spec": {...},
     "target": {"name", "revision", "family", "context"}, "engine": {"name", "version"},
     "template_hash", "decode": {...}, "training": {...}, "coverage": {...},
     "predicted": {"accept_length", "interval", "survival_uniform", "rounds", "verify_rule"},
     "vocab_hash", "tokenizer_sha256",
     "files": {"model.safetensors": {"bytes", "sha256", "head_sha256"}, "config.json": {"bytes", "sha256"}}}

What is not known is null, never left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from k25stack.draft.spec import DraftSpec
from k25stack.draft.target import TargetFacts, read_object
from k25stack.draft.weightfile import WeightFile
from k25stack.errors import UsageError
from k25stack.files import read_json, sha256_file
from k25stack.model.tensorfile import Written

PROVENANCE = "k25stack.json"
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
SHARES = ("of", "overall", "by_split", "by_domain")
TIMINGS = ("seconds", "tok_s", "peak_rss_gb", "processes", "threads")
PREDICTED = ("accept_length", "interval", "survival_uniform", "rounds", "verify_rule")


def file_records(directory: Path, weights: Written) -> dict[str, dict[str, Any]]:
    """Size and hashes of the two files that an engine reads."""
    config = directory / CONFIG
    return {
        WEIGHTS: {
            "bytes": weights.bytes,
            "sha256": weights.sha256,
            "head_sha256": WeightFile.open(directory / WEIGHTS).head_sha256(),
        },
        CONFIG: {"bytes": config.stat().st_size, "sha256": sha256_file(config)},
    }


def states_meta(states: Path | None) -> dict[str, Any]:
    """The ``meta`` object of a states manifest; empty without states."""
    if states is None:
        return {}
    manifest = states / "manifest.json"
    meta = read_object(manifest).get("meta")
    if not isinstance(meta, dict):
        raise UsageError("it has no meta object", where=str(manifest), remedy="extract the states again")
    return meta


def training_record(train: Path | None) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """(training figures, prediction) from a training step's result.json; (None, None) without training."""
    if train is None or not (train / "result.json").is_file():
        return None, None
    result = without_timings(read_json(train / "result.json"))
    raw = result.pop("predicted", None)
    return result, {name: raw.get(name) for name in PREDICTED} if isinstance(raw, Mapping) else None


def without_timings(value: Any) -> Any:
    """The same figures without those that differ from run to run: the same weights have the same record."""
    if isinstance(value, dict):
        return {name: without_timings(inner) for name, inner in value.items() if name not in TIMINGS}
    return value


def provenance(
    spec: DraftSpec,
    target: TargetFacts,
    layers: Sequence[int],
    k: int,
    *,
    random: bool,
    target_record: Mapping[str, Any],
    meta: Mapping[str, Any],
    coverage: Mapping[str, Any],
    ids_hash: str,
    train: Path | None,
) -> dict[str, Any]:
    """Everything of k25stack.json but ``files``, which is known once they are written.

    ``coverage`` is the vocabulary step's report; it counts only if ``ids_hash`` names the vocabulary it is about.
    """
    training, predicted = training_record(train)
    if coverage.get("vocab_hash") == ids_hash:
        shares = {name: coverage.get(name) for name in SHARES}
    else:
        shares = {**dict.fromkeys(SHARES), "by_split": (training or {}).get("coverage")}
    return {
        "schema": 1,
        "random": random,
        "canonical_layers": list(layers),
        "k": k,
        "spec": spec.as_dict(),
        "target": {
            "name": target_record.get("name"),
            "revision": target_record.get("revision") or meta.get("target_revision"),
            "family": target.family,
            "context": target.context,
        },
        "engine": {"name": meta.get("engine"), "version": meta.get("engine_version")},
        "template_hash": meta.get("template_hash"),
        "decode": meta.get("decode"),
        "training": training,
        "coverage": shares,
        "predicted": predicted,
        "vocab_hash": ids_hash,
        "tokenizer_sha256": coverage.get("tokenizer_sha256"),
    }
