"""One measurement per profile, each with its own server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from k25stack.pipeline.step import Fact, Input, Service, Step

if TYPE_CHECKING:
    from k25stack.stack.model import Stack
    from k25stack.stack.serving import Profile

MADE = {"own": "package", "random": "control"}  # drafts that a step makes
PORT = 61917  # stands for the port in the engine's command line until a free one is known
SERVER_ROOMS = ("draft", "engines", "model", "reference", "speculation")
CLIENT_ROOMS = ("bench", "draft", "engines", "model", "reference", "speculation")


def bench_steps(stack: Stack) -> list[Step]:
    """Baselines first: the others compare their outputs with them."""
    names = sorted(stack.bench_profiles(), key=lambda name: _baseline_of(stack, name) is not None)
    return [_bench(stack, name) for name in names]


def _bench(stack: Stack, name: str) -> Step:
    profile, baseline = stack.serving.profiles[name], _baseline_of(stack, name)
    inputs = {"samples": Input("regenerate")}
    if baseline is not None:
        inputs |= {"baseline": Input(f"bench-{baseline}"), "target": Input("target")}
    if profile.speculative is not None and profile.speculative.draft == "own":
        inputs["walk"] = Input("train", "walk.jsonl")  # the prediction, document by document
    return Step(
        f"bench-{name}",
        "k25stack.bench.main",
        _params(stack, name, profile),
        kind="measurement",
        inputs=inputs,
        rooms=CLIENT_ROOMS,
        packages=("aiohttp", "numpy", "safetensors", "torch"),
        gpus=stack.host.gpus,
        service=_service(stack, name, profile),
        # timings are never the same: of a measurement only the outputs are content for those who compare with them
        volatile=("result.json", "rows.json", "*row.json", "*requests.jsonl"),
        facts=(Fact("bench.row", "rows.json", "rows"),),
    )


def _baseline_of(stack: Stack, name: str) -> str | None:
    """The benchmarked profile without a draft that this profile's greedy outputs must equal; None for itself."""
    profile = stack.serving.profiles[name]
    if profile.speculative is None or stack.data.decode.temperature > 0:
        return None
    plain = [other for other in stack.bench_profiles() if stack.serving.profiles[other].role == "baseline"]
    wanted = profile.compare_to or next(iter(plain), None)
    known = wanted in stack.bench_profiles() and stack.serving.profiles[str(wanted)].speculative is None
    return wanted if known else None


def _params(stack: Stack, name: str, profile: Profile) -> dict[str, Any]:
    bench = stack.bench.of(name).model_dump(mode="json", exclude={"profiles", "overrides"})
    speculative = profile.speculative
    return {
        **bench,
        "profile": name,
        "engine": profile.engine,
        "engine_version": profile.version,
        "role": profile.role,
        "draft": speculative.draft if speculative else None,
        "k": speculative.k if speculative else None,
    }


def _service(stack: Stack, name: str, profile: Profile) -> Service:
    from k25stack import engines
    from k25stack.engines.launch import launch_of

    inputs = {"target": Input("target")}
    draft = None
    if profile.speculative is not None and profile.speculative.draft in MADE:
        inputs["draft"] = Input(MADE[profile.speculative.draft])
        draft = "{inputs.draft}"
    launch = launch_of(stack, profile, model="{inputs.target}", draft=draft, host="127.0.0.1", port=PORT)
    engine = engines.get(profile.engine)
    words = engine.argv(profile, launch)
    own = profile.engine == "reference"
    return Service(
        name,
        tuple("{python}" if word == sys.executable else word.replace(str(PORT), "{port}") for word in words),
        engine.health_path,
        inputs=inputs,
        rooms=SERVER_ROOMS if own else ("engines",),
        packages=("aiohttp", "jinja2", "numpy", "safetensors", "tokenizers", "torch") if own else (),
        env=engine.env(profile, launch),
        image=_image(stack, profile),
        ready_s=float(stack.serving.ready_s),
    )


def _image(stack: Stack, profile: Profile) -> str | None:
    if profile.image is None:
        return None
    image = stack.images[profile.image]
    return f"{image.ref.partition(':')[0]}@{image.digest}"
