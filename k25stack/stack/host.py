"""The machine, the container images and the engine versions that a stack is meant for."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from k25stack.stack.base import Count, Digest, Name, Positive, Section, Text, Version

EngineName: TypeAlias = Literal["reference", "sglang", "vllm"]
Dotted: TypeAlias = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)*$")]


StepKind: TypeAlias = Literal["artefact", "measurement", "service"]


class Host(Section):
    profile: Name  # the host profile the playbooks and checks use
    gpus: Count  # cards one server uses; 0: CPU only
    gpu: Text | None = None  # product name as the driver prints it
    compute_capability: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]$")] | None = None
    gpu_memory_gib: Positive | None = None  # of one card
    link: Literal["none", "pcie", "nvlink"] = "none"  # between the cards
    swap: Literal["forbidden", "allowed"] = "forbidden"  # forbidden: the host check fails while swap is on
    threads: Positive = 2  # compute threads of CPU steps
    disk_free_gib: Count = 0  # what a run needs; the plan compares
    backend: Literal["process", "docker"] = "process"  # who runs the steps of a run
    step_images: dict[StepKind, Name] = Field(default_factory=dict)  # of the docker backend, by kind; names of images
    gpu_request: Literal["nvidia", "cdi"] = "nvidia"  # how a container asks for its cards


class Image(Section):
    """A container image.  The digest decides; the tag is for people.  images/lock.yaml gives it unless written here."""

    ref: Text  # repository:tag
    digest: Digest
    kind: Literal["index", "manifest"] = "index"  # index: for several platforms
    cuda: Dotted | None = None  # version inside, as 13.0
    min_driver: Dotted | None = None  # oldest NVIDIA driver that runs it, as 580
    sources: Count  # independent public places that write this digest
    resolved: bool  # this project has itself resolved the tag to the digest
    notes: str = ""


class EngineVersion(Section):
    """The version that profiles of this engine mean, and the image that holds it (none: it runs in this package)."""

    version: Version
    image: Name | None = None
