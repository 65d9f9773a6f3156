"""``nvidia-smi -q -x``: the XML of three generations (DTD v11, v12, v13) as one shape.

What differs between them: throttle reasons (``clocks_throttle_reasons`` in v11, ``clocks_event_reasons`` later), power
(``power_readings``, later ``gpu_power_readings`` with other names inside), uncorrectable ECC counters, the recovery
action (v13) against a reset status (v12), and temperatures as limits or as a margin.  Values that say "not available"
in one of the known ways read as None; values of a card that has been lost make the whole card ``lost``.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from k25stack.host.parse.values import number
from k25stack.host.seen import Unseen

WHAT = "nvidia-smi -q -x"
LARGEST = 32 << 20  # characters; a host of 16 cards prints about 2 MB
NOT_AVAILABLE = frozenset(
    {
        "",
        "N/A",
        "[N/A]",
        "Not Supported",
        "[Not Supported]",
        "Requested functionality has been deprecated",
        "[Requested functionality has been deprecated]",
        "Not Found",
    }
)
LOST = re.compile(r"\[?(GPU is lost|Unknown Error|ERR!|GPU requires reset|GPU has fallen off the bus)\.?\]?")
SKIPPED = frozenset({"supported_clocks", "accounted_processes", "processes", "mig_devices"})


@dataclass(frozen=True)
class Process:
    pid: int
    kind: str  # C: compute, G: graphics, C+G
    name: str
    used_mib: float | None


@dataclass(frozen=True)
class Gpu:
    index: int
    bus: str  # 00000000:61:00.0
    values: Mapping[str, str]  # path below <gpu> -> text
    processes: tuple[Process, ...] | None  # None: not told

    def raw(self, *paths: str) -> str | None:
        """The text of the first path that this generation has."""
        return next((self.values[path] for path in paths if path in self.values), None)

    def get(self, *paths: str) -> str | None:
        """The first of the paths that holds a value; None when none does (absent, N/A, deprecated)."""
        found = (self.values.get(path) for path in paths)
        return next((text for text in found if text is not None and text not in NOT_AVAILABLE), None)

    def number(self, unit: str, *paths: str) -> float | None:
        return number(self.get(*paths), unit)

    def under(self, *prefixes: str) -> Iterator[tuple[str, str]]:
        """(last name, text) of everything below the prefixes."""
        for path, text in self.values.items():
            if path.startswith(prefixes):
                yield path.rpartition("/")[2], text

    @property
    def lost(self) -> bool:
        return any(LOST.fullmatch(text) for text in self.values.values())

    @property
    def name(self) -> str | None:
        return self.get("product_name")

    def __str__(self) -> str:
        return f"GPU {self.index}"


@dataclass(frozen=True)
class Smi:
    driver: str | None
    cuda: str | None
    attached: int | None
    gpus: tuple[Gpu, ...]
    generation: str  # "v13"
    remarks: tuple[str, ...]  # lines printed before or after the XML

    def numbers(self, unit: str, *paths: str) -> list[float]:
        """One number per card.  Raises Unseen when a card does not tell."""
        found = []
        for gpu in self.gpus:
            value = gpu.number(unit, *paths)
            if value is None:
                raise Unseen(f"{WHAT}: {gpu} tells no {paths[0]} ({gpu.raw(*paths) or 'absent'})")
            found.append(value)
        return found

    def texts(self, *paths: str) -> list[str]:
        """One text per card, "N/A" where a card says so.  Raises Unseen when a card does not tell at all."""
        found = []
        for gpu in self.gpus:
            raw = gpu.raw(*paths)
            if raw is None:
                raise Unseen(f"{WHAT}: {gpu} tells no {paths[0]}")
            found.append(gpu.get(*paths) or "N/A")
        return found


@lru_cache(maxsize=4)
def parse(text: str) -> Smi:
    """Raises Unseen unless the text holds one whole document with at least one card."""
    start, end = text.find("<?xml"), text.rfind("</nvidia_smi_log>")
    if start < 0 or end < start:
        raise Unseen(f"{WHAT}: " + ("cut short or no XML" if start >= 0 else f"no XML ({first_line(text)})"))
    body = text[start : end + len("</nvidia_smi_log>")]
    if len(body) > LARGEST or "<!ENTITY" in body:
        raise Unseen(f"{WHAT}: this is not what nvidia-smi prints")
    try:
        root = ElementTree.fromstring(body)
    except (ElementTree.ParseError, ValueError) as error:
        raise Unseen(f"{WHAT}: damaged XML ({error})") from None
    cards = tuple(_gpu(index, element) for index, element in enumerate(root.findall("gpu")))
    if root.tag != "nvidia_smi_log" or not cards:
        raise Unseen(f"{WHAT}: no card in it")
    attached = number(root.findtext("attached_gpus"))
    around = (text[:start] + "\n" + text[end + len("</nvidia_smi_log>") :]).splitlines()
    generation = re.search(r"nvsmi_device_(v\d+)\.dtd", body[:400])
    return Smi(
        _told(root.findtext("driver_version")),
        _told(root.findtext("cuda_version")),
        None if attached is None else int(attached),
        cards,
        generation.group(1) if generation else "",
        tuple(line.strip() for line in around if line.strip()),
    )


def first_line(text: str) -> str:
    return next((line.strip()[:120] for line in text.splitlines() if line.strip()), "empty")


def _told(text: str | None) -> str | None:
    return None if text is None or text.strip() in NOT_AVAILABLE else text.strip()


def _gpu(index: int, element: ElementTree.Element) -> Gpu:
    values = dict(_flat(element, ""))
    bus = element.get("id") or values.get("pci/pci_bus_id") or ""
    return Gpu(index, bus.strip(), values, _processes(element.find("processes")))


def _flat(element: ElementTree.Element, prefix: str) -> Iterator[tuple[str, str]]:
    for child in element:
        if child.tag in SKIPPED:
            continue
        path = f"{prefix}{child.tag}"
        if len(child):
            yield from _flat(child, path + "/")
        else:
            yield path, (child.text or "").strip()


def _processes(element: ElementTree.Element | None) -> tuple[Process, ...] | None:
    if element is None or (not len(element) and (element.text or "").strip() in NOT_AVAILABLE - {""}):
        return None
    found = []
    for info in element.findall("process_info"):
        pid = number(info.findtext("pid"))
        if pid is not None:
            used = number(info.findtext("used_memory"), "MiB")
            found.append(
                Process(int(pid), info.findtext("type") or "", (info.findtext("process_name") or "").strip(), used)
            )
    return tuple(found)
