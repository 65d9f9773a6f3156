"""A serving profile as a job: what its container sees, what it must find there, and who watches it.

Inside the container everything has one place (see ``docs/jobs.md``); where it comes from on the host is `Places`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k25stack.errors import ContractError, UsageError
from k25stack.jobs.images import image_key, pinned
from k25stack.jobs.job import GPU_LIMITS, GpuRequest, Ground, Health, Job, Mount
from k25stack.jobs.render import HOME, READY_PORT, STOP_MARGIN_S

if TYPE_CHECKING:
    from k25stack.stack.model import Stack
    from k25stack.stack.serving import Profile

MODEL = "/models/target"
DRAFT = "/models/draft"
CACHE = "/cache"
RUNS = "/runs"
NCCL_FILE = "/etc/k25stack/nccl.env"
LEASE_DIR = "/run/lock/k25stack"
USER = "10001:10001"
FREE_SHARE = 0.9  # of a card: driver and context take a few hundred MiB, another server takes far more
SHM_PER_CARD = 4 << 30  # NCCL's segments and the engine's own; eight cards fail with less than 32 GiB
SHM_CPU = 1 << 30
# Everything that compiles at run time keeps its results below one directory per image.
JIT_ENV = {
    "XDG_CACHE_HOME": "xdg",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",  # SGLang's own kernels; below HOME they could not be loaded: /tmp is noexec
    "SGLANG_DG_CACHE_DIR": "deep_gemm",
    "SGLANG_CACHE_DIR": "sglang",
    "CUDA_CACHE_PATH": "cuda",
}


@dataclass(frozen=True)
class Places:
    """Where things are on the host.  Texts, so that compose variables (``${MODEL_DIR:?}``) may stand in them."""

    model: str
    draft: str = ""  # empty when the profile has none
    cache: str = "cache"  # a named volume, or a directory
    runs: str = "runs"
    job: str = "./job"  # where the job files are
    nccl: str = NCCL_FILE  # empty: no file
    lease: str = LEASE_DIR  # empty: no lease
    image: str = ""  # instead of the stack's: one that was built here
    port: int = 0  # of the engine; 0: the stack's
    gpu_request: GpuRequest = "nvidia"
    user: str = USER


def serving_job(stack: Stack, profile_name: str | None, places: Places) -> Job:
    """The job that serves a profile (the default one for None).

    Raises UsageError for a profile without image, somebody else's image without digest or a missing draft, and
    ContractError for an NCCL setting that NCCL would pass over or die of.
    """
    from k25stack import engines
    from k25stack.engines.launch import launch_of

    name = profile_name or stack.serving.default
    profile = stack.profile(name)
    speculates = profile.speculative is not None
    if speculates and not places.draft:
        raise UsageError("no place of the draft is given", where=name, remedy="--draft DIRECTORY")
    launch = launch_of(stack, profile, model=MODEL, draft=DRAFT if speculates else None, host="0.0.0.0",
                       port=places.port or None)  # fmt: skip
    engine = engines.get(profile.engine)
    env = engine.env(profile, launch)
    refuse_nccl(env, name)
    argv = engine.argv(profile, launch)
    cards = profile.tensor_parallel if stack.host.gpus else 0
    image, kernels = _image(stack, profile, name, places)
    return Job(
        run=stack.name,
        step=name,
        key=kernels,
        argv=("python3" if argv[0] == sys.executable else argv[0], *argv[1:]),
        log=Path(RUNS) / f"{name}.log",
        env=env,
        image=image,
        mounts=tuple(_mounts(places, speculates, cards)),
        gpus=cards,
        gpu_request=places.gpu_request,
        ulimits=GPU_LIMITS if cards else {},
        ports=(launch.port, READY_PORT),
        shm_bytes=cards * SHM_PER_CARD or SHM_CPU,
        health=Health("/ready", READY_PORT, float(stack.serving.ready_s)),
        user=places.user,
        grace_s=_grace(stack) + STOP_MARGIN_S,
        ground=_ground(stack, profile, kernels, places, cards),
        policy=_policy(stack, profile, name, cards, places),
    )


def refuse_nccl(env: Mapping[str, str], where: str) -> None:
    """Raises ContractError naming the first NCCL variable or value that is wrong."""
    from k25stack.host.check import FAIL
    from k25stack.host.nccl_env import faults, kinds

    for fault in faults(env):
        if fault.severity == FAIL or fault.name not in kinds():
            raise ContractError(f"{fault.name} {fault.what}", where=where, remedy="correct it in the profile's env")


def _image(stack: Stack, profile: Profile, name: str, places: Places) -> tuple[str, str]:
    """The image, and the key of the kernels it compiles: those of an image that was built here are its base's."""
    base = stack.images.get(profile.image or "")
    pinned_base = (
        pinned(f"{base.ref}@{base.digest}" if base.digest else base.ref, profile.image or name) if base else ""
    )
    if not places.image and not pinned_base:
        raise UsageError(
            "the stack names no image for it", where=name, remedy="give one: --image, or images: in the stack"
        )
    image = pinned(places.image or pinned_base, profile.image or name)
    return image, image_key(pinned_base or f"{image} {profile.engine} {profile.version}")


def _mounts(places: Places, speculates: bool, cards: int) -> list[Mount]:
    mounts = [Mount(places.job, HOME), Mount(places.model, MODEL)]
    if speculates:
        mounts.append(Mount(places.draft, DRAFT))
    mounts += [Mount(places.cache, CACHE, writable=True), Mount(places.runs, RUNS, writable=True)]
    if cards and places.nccl:
        mounts.append(Mount(places.nccl, NCCL_FILE))
    if places.lease:
        mounts.append(Mount(places.lease, LEASE_DIR, writable=True))
    return mounts


def _ground(stack: Stack, profile: Profile, kernels: str, places: Places, cards: int) -> Ground:
    from k25stack.host.nccl_env import kinds, levels

    made_by_engine = stack.target.source.kind == "dummy"
    facts = stack.images.get(profile.image or "")
    draft = (DRAFT,) if profile.speculative else ()
    memory_mib = (stack.host.gpu_memory_gib or 0) * 1024
    return Ground(
        gpu_free_mib=int(memory_mib * FREE_SHARE) if cards else 0,
        min_driver=str(getattr(facts, "min_driver", None) or "") if cards else "",
        cuda=str(getattr(facts, "cuda", None) or "") if cards else "",
        models=draft if made_by_engine else (MODEL, *draft),
        configs=(MODEL,) if made_by_engine else (),
        lease=f"{LEASE_DIR}/gpu.lease" if places.lease else "",
        nccl_file=NCCL_FILE if cards and places.nccl else "",
        nccl_names=tuple(sorted(kinds())) if cards and places.nccl else (),
        nccl_levels=levels() if cards else (),
        jit=f"{CACHE}/jit/{kernels}",
        jit_env=JIT_ENV,
    )


def _grace(stack: Stack) -> float:
    """Seconds in which requests that run may end."""
    return 120.0 if stack.host.gpus else 20.0


def _policy(stack: Stack, profile: Profile, name: str, cards: int, places: Places) -> Mapping[str, Any]:
    from k25stack.engines.supervise import policy
    from k25stack.watch.policy import Holder, Ready

    wordless = stack.target.source.kind == "dummy"  # no tokenizer: a request with text would fail
    made = policy(
        profile.engine,
        stack.target.name,
        places.port or stack.serving.port,
        ready=Ready("0.0.0.0", READY_PORT),
        history=Path(RUNS) / "watch" / f"{name}.jsonl",
        lease=Path(LEASE_DIR) / "gpu.lease" if places.lease else None,
        holder=Holder(f"serve {name}", stack.name, cards),
        ready_s=float(stack.serving.ready_s),
        grace_s=_grace(stack),
    )
    return (replace(made, warm=()) if wordless else made).as_dict()
