"""Step program: hidden states of every sample into shards (``python -m k25stack.reference.extract SPEC.json``).

Params ``{"layers": [three canonical ids], "dtype": "bfloat16" | "float8_e4m3fn", "shard_bytes", "packed_tokens",
"mode": "prefill" | "recorded"}``; inputs ``target`` and ``samples`` (the output of `generate`, or a samples file).

Out: shards and ``manifest.json`` (see `states`).  Shards are planned from the samples, so each is a unit of work: what
an earlier try left intact is kept, and a torn one is made again alone with the same bytes.

``prefill`` computes the states in one forward over the whole text, documents packed without padding.  ``recorded``
takes those that were kept while generating; documents without a recording, or whose recording is damaged, are
prefilled.  Where `exact.shape_exact` holds the two give the same bits, elsewhere they differ by batch-shape noise; a
few documents are always computed both ways and compared (``recorded_against_prefill``).

``argmax`` is -1 at every row whose next token is no response token: nothing reads these, and the head over the whole
vocabulary is a quarter of the work.  One child process of one thread per compute thread; the result does not depend on
their number.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from k25stack.errors import ContractError, UsageError
from k25stack.files import canonical_json
from k25stack.reference.chunks import target_revision
from k25stack.reference.config import TargetConfig
from k25stack.reference.parts import read_index
from k25stack.reference.pool import Factory, run_tasks
from k25stack.reference.shard_worker import ShardSetup, distance
from k25stack.states.manifest import ShardPlan, StatesMeta, bytes_per_token, plan_shards
from k25stack.states.writer import ShardWriter
from k25stack.train.samples import Sample, read_samples
from k25stack.worker import Progress, Spec, log, run_worker

MODES = ("prefill", "recorded")
COMPARED = 4  # recorded documents that are prefilled as well, to compare
RECORDED_ERROR = 0.1  # relative; batch-shape noise in bf16 is 0.001 to 0.03, another layer or token is about 1


def extract(spec: Spec) -> dict[str, Any]:
    """Make every planned shard that is not there yet; returns counts and rates."""
    begun = time.monotonic()
    params, target = spec.params, spec.inputs["target"]
    mode = params.get("mode", "prefill")
    if mode not in MODES:
        raise UsageError(f"mode is {mode!r}", where="extract", remedy=f"one of {', '.join(MODES)}")
    samples = read_samples(spec.inputs["samples"])
    config = TargetConfig.read(target)
    check_samples(samples, target, config)
    meta = describe(samples, params, config)
    plans = plan_shards(samples, meta, int(params["shard_bytes"]))
    writer = ShardWriter(spec.out, meta)
    missing = list(writer.missing(plans))
    done, total = sum(plan.tokens for plan in plans if plan not in missing), sum(plan.tokens for plan in plans)
    if done:
        log(f"{len(plans) - len(missing)} of {len(plans)} shards are there from an earlier try")
    progress = Progress(spec.out)

    def tick(count: int) -> None:
        nonlocal done
        done += count
        progress.update("extract", done, total, "tokens")

    tick(0)
    recorded = recorded_directory(spec.inputs["samples"]) if mode == "recorded" else None
    setup = ShardSetup(target, spec.out, meta, tuple(samples), int(params["packed_tokens"]), recorded)
    copied = recorded is not None and all_recorded(samples, recorded, meta)
    prefilled = 0

    def then(plan: ShardPlan, count: int) -> list[ShardPlan]:
        nonlocal prefilled
        prefilled += count
        return []

    factory = Factory("k25stack.reference.shard_worker", "make_worker", setup)
    # Copying needs no second process.
    run_tasks(factory, missing, processes=1 if copied else max(1, spec.threads), then=then, progress=tick)
    manifest = writer.finish(plans)
    compared = (
        compare(spec.out, samples, target, meta) if recorded is not None and prefilled < manifest.tokens else None
    )
    seconds = time.monotonic() - begun
    made = sum(plan.tokens for plan in missing)
    return {
        "seconds": seconds,
        "mode": mode,
        "documents": len(samples),
        "tokens": manifest.tokens,
        "response_tokens": sum(len(sample.response_ids) for sample in samples),
        "shards": len(plans),
        "bytes": manifest.bytes,
        "bytes_per_token": bytes_per_token(meta.hidden, meta.dtype),
        "tokens_prefilled": prefilled,
        "tok_s": made / seconds if made else None,
        "recorded_against_prefill": compared,
    }


def check_samples(samples: Sequence[Sample], target: Path, config: TargetConfig) -> None:
    """Raises UsageError when the samples are not of this target, or a document does not fit into its context."""
    revision = target_revision(target)
    for sample in samples:
        if sample.target_revision != revision:
            what = f"made by target revision {sample.target_revision[:12]}, this target is {revision[:12]}"
            raise UsageError(what, where=f"sample {sample.name}", remedy="regenerate with this target")
        if sample.tokens > config.context:
            what = f"{sample.tokens} tokens exceed the target's context of {config.context}"
            raise UsageError(what, where=f"sample {sample.name}", remedy="leave the document out")
        if max(*sample.prompt_ids, *sample.response_ids) >= config.vocab:
            raise UsageError(f"a token id is not below {config.vocab}", where=f"sample {sample.name}")
    hashes = {sample.template_hash for sample in samples}
    if len(hashes) != 1:
        raise UsageError(f"samples of {len(hashes)} chat templates", where="samples", remedy="regenerate them together")


def describe(samples: Sequence[Sample], params: dict[str, Any], config: TargetConfig) -> StatesMeta:
    """What the shards say about themselves.  Raises UsageError for layers or a type that cannot be.

    The decode mode is that of the held-out samples if there are any, since figures are reported on these; else the
    most frequent one.
    """
    layers = tuple(params["layers"])
    if list(layers) != sorted(set(layers)) or not all(0 <= layer <= config.layers for layer in layers):
        raise UsageError(f"layers {list(layers)}", where="extract", remedy=f"ascending ids within 0..{config.layers}")
    reported = [sample for sample in samples if sample.split == "held_out"] or samples
    modes = Counter(canonical_json(sample.decode) for sample in reported)
    decode = next(s.decode for s in reported if canonical_json(s.decode) == modes.most_common(1)[0][0])
    return StatesMeta(
        engine=samples[0].engine,
        engine_version=samples[0].engine_version,
        layers=layers,
        hidden=config.hidden,
        template_hash=samples[0].template_hash,
        target_revision=samples[0].target_revision,
        dtype=params.get("dtype", "bfloat16"),
        decode=decode,
    )


def all_recorded(samples: Sequence[Sample], recorded: Path, meta: StatesMeta) -> bool:
    """True when every sample has a recording of these layers, intact or not."""
    layers, parts = read_index(recorded)
    names = {name for part in parts for name in part.documents}
    return layers == meta.layers and all(sample.name in names for sample in samples)


def compare(out: Path, samples: Sequence[Sample], target: Path, meta: StatesMeta) -> dict[str, Any]:
    """Prefill a few documents and compare them with what is in the shards.

    Raises ContractError when they differ by more than the shape of a batch can explain.
    """
    found = distance(out, [sample.name for sample in samples[:: -(-len(samples) // COMPARED)]], target)
    worst = max(found["relative_error"])
    if not worst < RECORDED_ERROR:
        what = f"recorded states differ from prefilled ones by {worst:.1%} (layers {[*meta.layers, 'last']})"
        remedy = "extract with mode prefill; this should not happen, please report it"
        raise ContractError(what, where=str(out), remedy=remedy)
    return found


def recorded_directory(samples: Path) -> Path:
    """Where `generate` left its recordings: beside the samples."""
    return samples if samples.is_dir() else samples.parent


if __name__ == "__main__":
    sys.exit(run_worker(extract))
