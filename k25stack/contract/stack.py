"""Checks of a stack file: it loads, its pins pin, and every profile's launch line holds against its engine and card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from k25stack.contract.finding import Check, Result, Verdict
from k25stack.errors import StackError, UsageError

if TYPE_CHECKING:
    from k25stack.stack.model import Stack
    from k25stack.stack.serving import Profile

CONTEXT_PARALLEL = ("attn-cp-size", "attention-context-parallel-size")  # divides the heads' cards once more
MADE = "/run/{}"  # stands for a directory that a run makes


def check_stack(path: Path, profile: str = "", gpu: str = "", nccl: str = "") -> Result:
    """Judge a stack file, or one profile of it, for its own card or for ``gpu``.

    Raises UsageError when there is no such file, profile or card.
    """
    from k25stack.contract.launch import gpu_name, require_version
    from k25stack.stack import load_stack

    if not path.is_file():
        raise UsageError("no such stack file", where=str(path), remedy="k25stack stack new makes one")
    try:
        stack = load_stack(path)
    except StackError as error:
        found = Check("S1", "file", Verdict.FAIL, f"{error.where}: {error.what}", {}, error.remedy)
        return Result(str(path), "stack", (found,))
    require_version(nccl, "--nccl")
    card = gpu_name(gpu or stack.host.compute_capability or "")
    checks = [Check("S1", "file", Verdict.PASS, "loads", {"name": stack.name})]
    chosen = {profile: stack.profile(profile)} if profile else stack.serving.profiles
    checks.extend(pins(stack, chosen))
    for name, one in chosen.items():
        checks.extend(heads(stack, name, one))
        checks.extend(profile_checks(stack, name, one, card, nccl))
    return Result(str(path), "stack", tuple(checks))


def pins(stack: Stack, profiles: Mapping[str, Profile]) -> Iterator[Check]:
    """S3: does a commit decide what a hub gives for the target and for the drafts of these profiles?"""
    from k25stack.model.hub import is_commit
    from k25stack.stack.serving import how_to_pin

    source = "a branch or tag can be moved, a commit cannot"
    hub = stack.target.source
    if hub.kind == "hub":
        pinned = is_commit(hub.revision)
        message = f"the target {hub.repo} is {'pinned' if pinned else 'not pinned'}"
        fix = "" if pinned else "write a commit as target.source.revision; `k25stack stack fetch STACK -n` asks the hub"
        verdict = Verdict.PASS if pinned else Verdict.WARN
        yield Check("S3", "file", verdict, message, {"revision": hub.revision}, fix, source)
    for name, profile in profiles.items():
        speculative = profile.speculative
        if speculative is None or not speculative.hub_draft:
            continue
        evidence = {"draft": speculative.hub_draft, "draft_revision": speculative.draft_revision}
        if speculative.unpinned:
            yield Check("S3", name, Verdict.WARN, speculative.unpinned, evidence, how_to_pin(name), source)
        else:
            yield Check("S3", name, Verdict.PASS, f"the draft {speculative.hub_draft} is pinned", evidence, "", source)


def heads(stack: Stack, name: str, profile: Profile) -> Iterator[Check]:
    """S4: the cards share the attention heads evenly; the engines stop while they load where they cannot."""
    from k25stack.engines.degrees import degrees

    count, cards = stack.target.shape.heads, degrees(profile, profile.argv).attention
    if count % cards and not any(option in profile.argv for option in CONTEXT_PARALLEL):
        message = f"{count} attention heads do not divide by {cards} cards"
        fit = max(fewer for fewer in range(1, cards) if count % fewer == 0)
        fix = f"tensor_parallel: {fit * (profile.tensor_parallel // cards)}"
        source = "sglang srt/models/deepseek_v2.py (assert), vllm config/model.py verify_with_parallel_config"
        yield Check("S4", name, Verdict.FAIL, message, {"heads": count, "cards": cards}, fix, source)


def profile_checks(stack: Stack, name: str, profile: Profile, gpu: str, nccl: str) -> Iterator[Check]:
    """S2 for a profile that cannot be rendered, else the checks of its launch line."""
    from k25stack import engines
    from k25stack.contract.launch import check_launch
    from k25stack.contract.launch_line import Launch
    from k25stack.engines.command import read_command
    from k25stack.engines.launch import draft_name, launch_of, model_name

    engine = engines.get(profile.engine)
    label = f"{profile.engine}@{profile.version}"
    if profile.engine == "reference":
        yield Check("S2", name, Verdict.PASS, "the engine of this package takes typed keys only", {"engine": label})
        return
    try:
        start = launch_of(
            stack,
            profile,
            model=None if model_name(stack) else MADE.format("target"),
            draft=None if draft_name(profile) else MADE.format("draft"),
        )
        argv, env = engine.argv(profile, start), engine.env(profile, start)
    except UsageError as error:
        yield Check("S2", name, Verdict.FAIL, error.what, {"engine": label}, error.remedy)
        return
    measured = name in stack.bench_profiles()
    launch = Launch(
        read_command(argv),
        profile.engine,
        profile.version,
        gpu=gpu,
        group=name,
        eagle3=True if profile.speculative else None,
        mla=stack.target.shape.mla is not None,
        requests=max(stack.bench.concurrency) if measured else 0,
        nccl=nccl,
        env=env,
    )
    yield from check_launch(launch)
