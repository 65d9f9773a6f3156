"""CUDA and its toolkits: does what the images bring run on this driver?"""

from __future__ import annotations

import re
from typing import Any

from k25stack.host.check import FAIL, WARN, Judgement, bad, cards, cards_in_containers, check, ok, several, unknown
from k25stack.host.known import bad_version
from k25stack.host.parse import smi
from k25stack.host.parse.values import at_least, listed, version
from k25stack.host.places import CUDA_LINKS, CUDA_TARGET, LIVE_NCCL_VERSION, NCCL_LIBS, NVCC, SMI, TOOLKIT
from k25stack.host.profile import Profile
from k25stack.host.seen import NOT_FOUND, Seen, Unseen


@check(
    "cuda.match",
    "software",
    severity=FAIL,
    sources=(SMI,),
    applies=lambda p: p.gpus > 0 and bool(p.cuda),
    fix="a newer driver; or images of an older CUDA; cuda-compat works on data centre cards only",
    source="NVIDIA CUDA compatibility guide; local-inference-lab/rtx6kpro optimization/docker-images.md",
)
def cuda_match(seen: Seen, profile: Profile) -> Judgement:
    found = smi.parse(seen.need(SMI)).cuda
    number = version(found)
    if number is None:
        raise Unseen(f"nvidia-smi -q -x: CUDA version {found!r}")
    if not at_least(number, profile.cuda):
        return bad(f"the driver brings CUDA {found}, the images need {profile.cuda}", driver=found, images=profile.cuda)
    return ok(f"the driver brings CUDA {found}, the images need {profile.cuda}", driver=found, images=profile.cuda)


@check(
    "cuda.path",
    "software",
    severity=WARN,
    sources=(CUDA_LINKS, CUDA_TARGET, NVCC),
    applies=cards,
    fix="keep one toolkit, or point /usr/local/cuda at the one that is meant (update-alternatives --config cuda)",
    source="PyTorch cpp_extension: kernels compiled at run time use CUDA_HOME",
)
def cuda_path(seen: Seen, profile: Profile) -> Judgement:
    names = seen.names(CUDA_LINKS)
    if odd := [name for name in names if not re.fullmatch(r"/usr/local/cuda[\w.-]*", name)]:
        raise Unseen(f"{CUDA_LINKS}: {odd[0]!r} is not below /usr/local/cuda*")
    kits = sorted(name for name in names if re.fullmatch(r"/usr/local/cuda-\d+\.\d+", name))
    reading = seen.reading(NVCC)
    release = re.search(r"release (\d+\.\d+)", reading.text) if reading and reading.rc == 0 else None
    if reading and reading.rc == 0 and not release:
        raise Unseen(f"{NVCC}: no release in it")
    if not names:
        return (
            ok("no toolkit on the host: the images bring theirs")
            if not release
            else bad(f"nvcc {release.group(1)} is not that of /usr/local/cuda", nvcc=release.group(1))
        )
    target = (seen.text(CUDA_TARGET) or "").strip()
    chosen = re.fullmatch(r"/usr/local/cuda-(\d+\.\d+)", target)
    evidence: dict[str, Any] = {"toolkits": kits, "link": target, "nvcc": release.group(1) if release else None}
    if len(kits) > 1 and not chosen:
        return bad(f"{len(kits)} toolkits and /usr/local/cuda names none of them: {listed(kits)}", **evidence)
    if chosen and release and chosen.group(1) != release.group(1):
        return bad(f"nvcc is {release.group(1)}, /usr/local/cuda is {chosen.group(1)}", **evidence)
    if chosen and reading is not None and reading.rc == NOT_FOUND:
        return bad(f"toolkit {chosen.group(1)} is chosen, but nvcc is not on the PATH", **evidence)
    named = chosen or release
    return ok(f"toolkit {named.group(1) if named else 'of the system'}", **evidence)


@check(
    "docker.toolkit",
    "software",
    severity=FAIL,
    sources=(TOOLKIT,),
    applies=cards_in_containers,
    fix="install nvidia-container-toolkit 1.17.8 or newer (playbook role nvidia)",
    source="CVE-2025-23266 and CVE-2025-23359 (NVIDIA security bulletins)",
)
def toolkit(seen: Seen, profile: Profile) -> Judgement:
    reading = seen.reading(TOOLKIT)
    if reading is not None and reading.rc == NOT_FOUND:
        return bad("nvidia-container-toolkit is not installed: containers get no card")
    found = re.search(r"version (\d+\.\d+\.\d+)", seen.need(TOOLKIT))
    number = version(found.group(1)) if found else None
    if found is None or number is None:
        raise Unseen(f"{TOOLKIT}: no version in it")
    if not at_least(number, profile.toolkit_min):
        entry = bad_version("toolkit", found.group(1))
        why = f": {entry.problem}" if entry else ""
        return bad(f"toolkit {found.group(1)}, needed {profile.toolkit_min} or newer{why}", version=found.group(1))
    return ok(f"toolkit {found.group(1)}", version=found.group(1))


@check(
    "nccl.version",
    "software",
    severity=FAIL,
    sources=(LIVE_NCCL_VERSION, NCCL_LIBS),
    applies=several,
    fix="use an image with NCCL 2.28 or newer; nothing on the host overrides it (LD_PRELOAD, LD_LIBRARY_PATH)",
    source="NVIDIA/nccl#2418 (2.26.2: illegal access from 512 KiB on), pytorch/pytorch#174338 (2.29.2 hangs)",
)
def nccl_version(seen: Seen, profile: Profile) -> Judgement:
    told = re.search(r"\b(\d+\.\d+\.\d+)\b", seen.text(LIVE_NCCL_VERSION) or "")
    libraries = [path.rpartition(".so.")[2] for path in (seen.names(NCCL_LIBS) if seen.reading(NCCL_LIBS) else [])]
    found = [told.group(1)] if told else libraries
    if not found:
        return unknown("no NCCL on the host: the image's own is asked with --live", severity=WARN)
    for one in found:
        number = version(one)
        if number is None:
            raise Unseen(f"NCCL library of version {one!r}")
        if entry := bad_version("nccl", one):
            return bad(f"NCCL {one}: {entry.problem} ({entry.source})", fix=entry.fix, found=found)
        if not at_least(number, profile.nccl_min):
            return bad(f"NCCL {one}, needed {profile.nccl_min} or newer", found=found)
    return ok(f"NCCL {listed(found)}", found=found)
