"""The loop: what a stack file means as steps.

::

    target -> prompts -> regenerate -> extract -> train -> package -> check -> bench-own
       \\                     \\-> vocab ---/          control ---------------> bench-random
        \\-------------------------------------------------------------------> bench-baseline

Each step names the rooms and packages that decide its result.  A test compares them with what the program imports.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack.pipeline import estimates
from k25stack.pipeline.backends import choose, in_containers
from k25stack.pipeline.benchmarks import bench_steps
from k25stack.pipeline.runner import Request
from k25stack.pipeline.step import NETWORK, Fact, Input, Step

if TYPE_CHECKING:
    from k25stack.stack.data import PromptSource
    from k25stack.stack.model import Stack

TENSORS = ("safetensors", "torch")
SAMPLES = "train/samples.py"  # the format of prompts and samples; the rest of that room is the trainer
MEMORY = "train/memory.py"


def request_for(
    path: Path,
    *,
    name: str | None = None,
    new: bool = False,
    only: Sequence[str] = (),
    again: Sequence[str] = (),
    verify: bool = False,
    backend: str = "",
    image: str = "",
) -> Request:
    """Read a stack file and say what a run of it is.  ``backend`` and ``image`` go before the stack's own.

    Raises StackError.
    """
    from k25stack.stack import load_stack
    from k25stack.stack.dump import dump_stack

    stack = load_stack(path)
    runs_on = choose(stack, backend)
    made = steps(stack)
    return Request(
        stack_name=stack.name,
        steps=in_containers(made, stack, image) if runs_on == "docker" else made,
        resolved=dump_stack(stack),
        stack=stack.model_dump(mode="json"),
        references=[{**row.model_dump(mode="json"), "comparable": row.comparable} for row in stack.reference_results],
        name=name,
        new=new,
        only=only,
        again=again,
        verify=verify,
        threads=stack.host.threads,
        cards=stack.host.gpus,
        backend=runs_on,
    )


def steps(stack: Stack) -> list[Step]:
    """All steps of the loop, each after what it reads; what this version cannot run says why (``blocked``)."""
    guess = estimates.of(stack)
    made = [target(stack), prompts(stack), regenerate(stack), extract(stack), vocab(stack), train(stack)]
    made += [package(stack, random=False), package(stack, random=True), check(stack), *bench_steps(stack)]
    return [_with(step, guess.get(step.name)) for step in made]


def _with(step: Step, guess: Any) -> Step:
    from dataclasses import replace

    return step if guess is None else replace(step, estimate=guess)


def _blocked(stack: Stack, section: str, engine: str) -> str:
    """Why a step that computes with the target cannot run here; empty when it can."""
    if stack.target.source.kind == "dummy":
        return "target.source is dummy: there are no weights outside the engine"
    if engine == "reference":
        return ""
    return f"{section}.engine is {engine}: in this version the loop itself computes with the reference engine only"


def target(stack: Stack) -> Step:
    source, files = stack.target.source.model_dump(mode="json"), {}
    if stack.target.source.kind == "dir":
        files = {"directory": Path(stack.target.source.path)}
        source["path"] = "{files.directory}"
    return Step(
        "target",
        "k25stack.model.target",
        {"source": source, "dtype": stack.target.dtype, "name": stack.target.name},
        files=files,
        rooms=("model",),
        packages=("gguf", "numpy") if source["kind"] == "wheel-gguf" else (),
        local={"cache": "{models}"},
        pass_env=NETWORK,
        setup=True,
        blocked=_blocked(stack, "target", "reference"),
    )


def prompts(stack: Stack) -> Step:
    data = stack.data
    files = {source.name: Path(source.path) for source in data.sources if source.path}
    decode = data.decode.model_dump(mode="json")
    return Step(
        "prompts",
        "k25stack.train.corpus",
        {
            "seed": data.seed,
            "sources": [_source(source) for source in data.sources],
            "context": stack.target.context,
            "max_new_tokens": data.decode.max_new_tokens,
            "decode": decode,
        },
        inputs={"target": Input("target")},
        files=files,
        rooms=("model", "train/corpus.py", "train/sources.py", SAMPLES),
        packages=("jinja2", "tokenizers", *(("datasets",) if files else ())),
        local={"cache": "{models}"},
        pass_env=NETWORK,
    )


def _source(source: PromptSource) -> dict[str, Any]:
    """The parameters of a source; a file of the user counts by content, not by path."""
    return {name: value for name, value in source.model_dump(mode="json").items() if name != "path"}


def regenerate(stack: Stack) -> Step:
    data, recording = stack.data, stack.extraction.mode == "generate"
    return Step(
        "regenerate",
        "k25stack.reference.generate",
        {
            "decode": data.decode.model_dump(mode="json"),
            "sampled": data.sampled.model_dump(mode="json") if data.sampled else None,
            "seed": data.seed,
            "slots": data.slots,
            "chunk_docs": data.chunk_docs,
            "context": stack.target.context,
            "record": {"layers": list(stack.extraction.layers)} if recording else None,
        },
        inputs={"target": Input("target"), "prompts": Input("prompts")},
        rooms=("model", "reference", SAMPLES, MEMORY),
        packages=("jinja2", "numpy", "tokenizers", *TENSORS),
        local={"processes": data.processes},  # the answers do not depend on their number
        volatile=("result.json",) if recording else ("result.json", "parts/*"),
        blocked=_blocked(stack, "data", data.engine),
    )


def extract(stack: Stack) -> Step:
    extraction = stack.extraction
    return Step(
        "extract",
        "k25stack.reference.extract",
        {
            "layers": list(extraction.layers),
            "dtype": extraction.dtype,
            "shard_bytes": extraction.shard_bytes,
            "packed_tokens": extraction.packed_tokens,
            "mode": "recorded" if extraction.mode == "generate" else "prefill",
        },
        inputs={"target": Input("target"), "samples": Input("regenerate")},
        rooms=("model", "reference", "states", SAMPLES, MEMORY),
        packages=("jinja2", "numpy", "tokenizers", *TENSORS),
        blocked=_blocked(stack, "extraction", extraction.engine),
    )


def vocab(stack: Stack) -> Step:
    return Step(
        "vocab",
        "k25stack.draft.vocab",
        {"size": stack.draft.vocab},
        inputs={"samples": Input("regenerate"), "target": Input("target")},
        rooms=("draft", "model"),
        facts=(Fact("coverage", "coverage.json"),),
    )


def train(stack: Stack) -> Step:
    params = stack.training.model_dump(mode="json")
    local = {name: params.pop(name) for name in ("checkpoint_s", "keep_checkpoints")}
    files = {}
    if params["init"] not in ("scratch", "target"):
        files = {"init": Path(params["init"])}
        params["init"] = "{files.init}"
    params["eval"]["k"] = stack.draft.k
    return Step(
        "train",
        "k25stack.train.main",
        {"spec": stack.draft_spec(), **params},
        inputs={"target": Input("target"), "states": Input("extract"), "vocab": Input("vocab")},
        files=files,
        rooms=("draft", "model", "speculation", "states", "train"),
        packages=TENSORS,
        local=local,
        volatile=("result.json", "epochs.jsonl", "checkpoints/*"),
        facts=(Fact("train.epoch", "epochs.jsonl"), Fact("walk", "walk.jsonl"), Fact("train.end", "result.json")),
    )


def package(stack: Stack, *, random: bool) -> Step:
    inputs = {"vocab": Input("vocab"), "target": Input("target"), "states": Input("extract")}
    return Step(
        "control" if random else "package",
        "k25stack.draft.package",
        {
            "spec": stack.draft_spec(),
            "layers": list(stack.extraction.layers),
            "k": stack.draft.k,
            "random": random,
            "seed": stack.training.seed,
            "target_family": stack.target.family,
        },
        inputs=inputs if random else {"train": Input("train"), **inputs},
        rooms=("draft", "model"),
        packages=TENSORS,
    )


def check(stack: Stack) -> Step:
    return Step(
        "check",
        "k25stack.contract.main",
        {"engines": list(stack.draft.engines), "context": stack.target.context},
        inputs={"draft": Input("package"), "target": Input("target"), "states": Input("extract")},
        rooms=("contract", "draft", "engines/versions.py", "model"),
        facts=(Fact("check", "check.json"),),
    )
