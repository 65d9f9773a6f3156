"""L20 to L22: backends that the card has no kernels for, precision, and batches without a graph."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack import engines
from k25stack.contract.finding import Check, Verdict
from k25stack.files import read_json

if TYPE_CHECKING:
    from k25stack.contract.launch_line import Launch

LOW = ("fp8", "fp4", "int8", "int4", "nvfp4", "mxfp", "turboquant")


@cache
def tables() -> Any:
    return read_json(Path(engines.__file__).parent / "backends.json")


def backends(launch: Launch) -> Iterator[Check]:
    """L20: what is known to crash on this card, and what alone is known to work for latent attention."""
    if not launch.gpu:
        return
    bad = False
    for row in tables()["rows"]:
        if row["engine"] != launch.engine or launch.gpu in row["runs_on"]:
            continue
        for option in row["options"]:
            given = launch.line.last(f"--{option}")
            if given is None or str(given.value).lower() != row["value"].lower():
                continue
            bad = True
            message = f"backend without kernels for {launch.gpu}: --{option} {given.value}: {row['says']}"
            evidence = {"gpu": launch.gpu, "runs_on": row["runs_on"]}
            yield launch.finding("L20", Verdict.FAIL, message, evidence, _instead(launch, option), row["source"])
    if bad:
        return
    works = [row for row in tables()["works"] if (row["engine"], row["gpu"]) == (launch.engine, launch.gpu)]
    chosen = launch.facts.get("attention")
    for row in works if launch.mla and chosen else []:
        if str(chosen).lower() != row["backend"].lower():
            message = (
                f"--attention-backend {chosen}: only {row['backend']} is known to work for this target's attention"
            )
            yield launch.finding("L20", Verdict.WARN, message, {"gpu": launch.gpu}, f"write {row['backend']}",
                                 row["source"])  # fmt: skip
            return
    message = f"no backend that is known to fail on {launch.gpu}"
    yield launch.finding("L20", Verdict.PASS, message, {"attention": chosen or "the engine's choice"}, "", "")


def _instead(launch: Launch, option: str) -> str:
    if option == "flashinfer-allreduce-fusion-backend":
        return "leave it out"
    if "moe" in option:
        return f"write --{option} marlin, or leave it out"
    works = [row for row in tables()["works"] if (row["engine"], row["gpu"]) == (launch.engine, launch.gpu)]
    return f"write --{option} {works[0]['backend']}" if works else f"leave --{option} to the engine"


def precision(launch: Launch) -> Iterator[Check]:
    """L21: weights or cache below the published precision, in a profile whose name does not say so."""
    for key in ("kv_dtype", "draft_kv_dtype", "quantization"):
        value = str(launch.facts.get(key) or "")
        low = next((kind for kind in LOW if kind in value), "")
        if not low or value == "compressed-tensors" or low in launch.group.lower():
            continue
        name = launch.facts.spell(key)
        message = f"precision lowered without saying so: {name} {value}"
        fix = f"leave it out, or put {low} into the profile's name"
        source = "local-inference-lab/rtx6kpro models/kimi-k25.md: 16 tok/s with an fp8 cache on INT4 weights in SGLang"
        yield launch.finding("L21", Verdict.WARN, message, {name: value}, fix, source)


def graphs(launch: Launch) -> Iterator[Check]:
    """L22: a graph for every batch that may run."""
    largest, running = launch.facts.get("graph_batch"), launch.facts.get("max_running")
    sizes = launch.facts.get("graph_batches")
    if isinstance(sizes, list) and sizes and all(type(size) is int for size in sizes):
        largest = max(sizes)  # the engine takes the list's largest, whatever else is said
    if launch.facts.get("graph_off"):
        return
    if launch.engine != "sglang" or type(largest) is not int or type(running) is not int or largest >= running:
        return
    name = launch.facts.spell("graph_batch")
    message = f"batches without a graph: those of {largest + 1} to {running} run slower"
    evidence = {name: largest, launch.facts.spell("max_running"): running}
    yield launch.finding("L22", Verdict.WARN, message, evidence, f"write {name} {running}",
                         "sglang srt/arg_groups/cuda_graph_hook.py")  # fmt: skip


RULES = (backends, precision, graphs)
