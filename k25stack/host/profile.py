"""What a host is meant to be: expected values as data (profiles/*.yaml), one file per kind of host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from k25stack.errors import UsageError

PROFILES = Path(__file__).parent / "profiles"


@dataclass(frozen=True)
class Profile:
    """Expected values of one kind of host.  Field names are the keys of the YAML file."""

    name: str
    about: str
    # cards; gpus: 0 means that no check of cards, driver or links applies
    gpus: int
    gpu_names: tuple[str, ...] = ()  # regular expressions, one must match the whole product name
    gpu_memory_mib: int = 0  # of one card, at least
    compute_cap: str = ""
    pcie_gen: int = 0
    pcie_width: int = 16
    power_w: tuple[int, int] = (0, 0)  # lowest and highest power limit that is in order
    power_set_w: int = 0  # what the repair of power.cap sets; 0: the card's own default
    ecc: Literal["Enabled", "Disabled", "either"] = "either"
    # how cards reach each other
    link: Literal["none", "pcie", "nvlink"] = "none"
    custom_all_reduce: bool = False  # the engine's own all-reduce over PCIe is used, which needs forced P2P
    virtual: bool = False  # a virtual machine: bridges, IOMMU and power belong to somebody else
    # software
    driver_min: str = ""
    driver_open: bool = True
    cuda: str = ""  # newest CUDA of the images
    toolkit_min: str = "1.17.8"
    nccl_min: str = "2.28"
    nccl_env: Literal["required", "optional"] = "optional"
    kernel_min: str = "6.1"
    systems: tuple[str, ...] = ()  # "ubuntu 24.04" as in os-release
    containers: bool = True  # served from containers: Docker checks apply
    cdi: bool = True
    docker_min: str = "25.0"
    compose_min: str = "2.24"
    # memory
    swap: Literal["forbidden", "allowed"] = "forbidden"
    memory_gib: int = 0
    shm_gib: int = 16
    thp: tuple[str, ...] = ("madvise",)
    nofile: int = 65536
    # storage, GB as 10^9 bytes
    model_dir: str = ""
    model_gb: int = 0  # 0: no model is expected on this host
    image_dir: str = "/var/lib/docker"
    image_gb: int = 100
    cache_dir: str = ""
    output_dir: str = ""
    output_gb: int = 0
    read_gb_s: float = 2.0
    nvme_count: int = 0
    # network
    api_ports: tuple[int, ...] = (30000, 8000)
    proxy: str = ""  # expected proxy of the Docker daemon
    # what the live measurements must reach
    busbw_gb_s: float = 0.0  # all-reduce, largest size
    p2p_gb_s: float = 0.0  # one pair
    p2p_us: float = 0.0
    # judging
    xid_window_h: float = 2.0  # older Xids of this boot only warn; 0: the whole boot counts
    images: Mapping[str, str] = field(default_factory=dict)  # repository:tag -> sha256:...; from a stack file
    skip: Mapping[str, str] = field(default_factory=dict)  # check id -> why it does not apply here

    @property
    def p2p(self) -> bool:
        """Cards talk to each other over PCIe."""
        return self.link == "pcie" and self.gpus > 1

    def directories(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("model_dir", "image_dir", "cache_dir", "output_dir")}

    def matches(self, products: list[str]) -> bool:
        """True for a host with exactly these cards."""
        return len(products) == self.gpus > 0 and all(self.is_model(name) for name in products)

    def is_model(self, product: str) -> bool:
        return any(re.fullmatch(pattern, product) for pattern in self.gpu_names)


def profile_names() -> list[str]:
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def load_profile(name: str) -> Profile:
    """A shipped profile by name, a profile file, or the profile that a stack file names (with its images).

    Raises UsageError that says what is wrong with the name or the file.
    """
    if name.endswith((".yaml", ".yml")):
        return _load_path(Path(name))
    if name not in profile_names():
        near = _nearest(name, profile_names())
        remedy = f"did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"no host profile {name!r}", where="--profile", remedy=remedy + f"known: {', '.join(profile_names())}"
        )
    return _shipped(name)


@cache
def _shipped(name: str) -> Profile:
    return _from_keys(_keys(PROFILES / f"{name}.yaml"), f"{name}.yaml")


def _load_path(path: Path) -> Profile:
    keys = _keys(path)
    if "format" in keys and "host" in keys:
        return _of_stack(path)
    return _from_keys(keys, str(path))


def _of_stack(path: Path) -> Profile:
    from k25stack.stack.load import load_stack

    stack = load_stack(path)
    images = {image.ref: image.digest for image in stack.images.values()}
    return replace(load_profile(stack.host.profile), images=images)


def _keys(path: Path) -> dict[str, Any]:
    """The keys of a profile file on top of the profile that it ``extends``."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}", where=str(path), remedy="give another --profile"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"no YAML: {first}", where=str(path), remedy="mend the file") from None
    if not isinstance(found, dict):
        raise UsageError("no mapping of keys", where=str(path), remedy="see k25stack/host/profiles for examples")
    parent = found.pop("extends", None)
    if parent is None:
        return found
    base = path.parent / f"{parent}.yaml"
    return {**_keys(base if base.exists() else PROFILES / f"{parent}.yaml"), **found}


def _from_keys(keys: dict[str, Any], where: str) -> Profile:
    hints = get_type_hints(Profile)
    values: dict[str, Any] = {}
    for key, value in keys.items():
        if key not in hints:
            near = _nearest(str(key), list(hints))
            remedy = f"did you mean {near[0]}?" if near else "see k25stack/host/profile.py for the keys"
            raise UsageError(f"unknown key {key!r}", where=where, remedy=remedy)
        values[key] = _typed(hints[key], value, f"{where}: {key}")
    missing = [f.name for f in fields(Profile) if f.default is MISSING and f.default_factory is MISSING]
    if lacking := [name for name in missing if name not in values]:
        raise UsageError(f"{', '.join(lacking)} must be given", where=where, remedy="add it")
    return Profile(**values)


def _nearest(word: str, known: list[str]) -> list[str]:
    import difflib

    return difflib.get_close_matches(word, known, n=1)


def _typed(hint: Any, value: Any, where: str) -> Any:
    """``value`` as a field of type ``hint``; lists become tuples.  Raises UsageError."""
    origin = get_origin(hint)
    if origin is Literal:
        if value in get_args(hint):
            return value
        raise UsageError(f"{value!r} is none of {', '.join(map(str, get_args(hint)))}", where=where, remedy="mend it")
    if origin is tuple:
        item = get_args(hint)[0]
        if isinstance(value, list):
            return tuple(_typed(item, one, where) for one in value)
        raise UsageError(f"{value!r} is no list", where=where, remedy="write [a, b]")
    if origin is not None:  # a mapping
        if isinstance(value, dict):
            return {str(key): str(text) for key, text in value.items()}
        raise UsageError(f"{value!r} is no mapping", where=where, remedy="write {key: value}")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is hint:
        return value
    raise UsageError(f"{value!r} is no {hint.__name__}", where=where, remedy="text needs quotes, numbers none")
