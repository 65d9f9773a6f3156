"""The three kinds of steps, as values.

* *artefact*: makes files that are kept under a key and never made twice,
* *service*: runs while another step needs it and is never kept,
* *measurement*: looks at the machine; results are added, never replaced, and the key also holds the host.

A step is data: building one starts nothing and touches no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["artefact", "measurement"]

# Variables that decide where downloads come from.  They are passed on by name: no value is kept or hashed.
PIP = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE", "PIP_CERT", "PIP_TRUSTED_HOST")
PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
HUB = ("HF_HOME", "HF_ENDPOINT", "HF_TOKEN", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
NETWORK = PIP + PROXY + HUB


@dataclass(frozen=True)
class Estimate:
    """What a step is thought to take before it has ever run here."""

    seconds: float = 0.0
    disk_gb: float = 0.0
    memory_gb: float = 0.0


@dataclass(frozen=True)
class Input:
    """Outputs of an earlier step: all of them, or the file or directory ``path`` below them."""

    step: str
    path: str = ""


@dataclass(frozen=True)
class Fact:
    """Outputs that the ledger repeats: each element of ``file`` (or of its list ``field``) as a record of ``kind``."""

    kind: str
    file: str
    field: str = ""


@dataclass(frozen=True)
class Service:
    """A server that a measurement needs.  ``argv`` may hold ``{python}``, ``{port}``, ``{threads}`` and
    ``{inputs.NAME}``; the placeholders, not the values, enter the measurement's key.
    """

    name: str
    argv: tuple[str, ...]
    health: str
    inputs: Mapping[str, Input] = field(default_factory=dict)
    rooms: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    ready_s: float = 300.0
    url_variable: str = "K25_BENCH_URL"


@dataclass(frozen=True)
class Step:
    """``params``, ``env``, ``rooms`` (code), ``packages`` (versions), ``image``, ``inputs`` and ``files`` (contents)
    decide the result and make the key.  ``local`` (settings such as cache directories) and ``pass_env`` do not.

    ``files`` are files of the user: the program finds them among its inputs, and a parameter that reads
    ``{files.NAME}`` is replaced by the path (``{models}`` by the directory of downloads and conversions).
    ``volatile`` are patterns of outputs that are no content: a redo that changes only these changes nothing.
    """

    name: str
    module: str
    params: Mapping[str, Any]
    kind: Kind = "artefact"
    inputs: Mapping[str, Input] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    rooms: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    local: Mapping[str, Any] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    gpus: int = 0
    service: Service | None = None
    volatile: tuple[str, ...] = ("result.json",)
    facts: tuple[Fact, ...] = ()
    estimate: Estimate = Estimate()
    setup: bool = False
    blocked: str = ""  # why this version cannot make it: a plan says so, a run that needs it is refused

    @property
    def argv(self) -> tuple[str, ...]:
        return ("{python}", "-m", self.module, "{spec}")

    def all_inputs(self) -> dict[str, Input]:
        """Inputs of the step and of its service (under ``service.NAME``)."""
        served = self.service.inputs if self.service else {}
        return {**self.inputs, **{f"service.{name}": ref for name, ref in served.items()}}


def needed(steps: list[Step], wanted: list[str]) -> list[Step]:
    """The wanted steps and everything they read, in the order of ``steps``."""
    by_name = {step.name: step for step in steps}
    keep: set[str] = set()
    queue = list(wanted)
    while queue:
        name = queue.pop()
        if name not in keep:
            keep.add(name)
            queue.extend(ref.step for ref in by_name[name].all_inputs().values())
    return [step for step in steps if step.name in keep]
