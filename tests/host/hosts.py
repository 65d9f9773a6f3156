"""Recorded hosts for tests, made from compact files: recordings/cases by check, recordings/hosts whole.

A case is ``{expect, says?, base?, profile?}`` and what it changes of its host: ``files``, ``rc`` (exit codes),
``absent`` (known not to exist), ``without`` (not recorded), and the short forms ``smi``, ``topo``, ``p2p``, ``lspci``,
``sysfs`` that are spelled out here.  Everything is written by us; eight cards are one card repeated (derived).
"""

from __future__ import annotations

import copy
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from k25stack.host.profile import Profile, load_profile
from k25stack.host.seen import Reading, Seen

HERE = Path(__file__).parent / "recordings"
DRIVERS = {"v13": ("580.95.05", "13.0"), "v12": ("535.230.02", "12.2"), "v11": ("515.105.01", "11.7")}


def load(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def buses(count: int) -> list[int]:
    """Bus numbers of cards: four behind each of two sockets."""
    return [(0x01 if index < 4 else 0x81) + 0x20 * (index % 4) for index in range(count)]


def smi_xml(
    generation: str = "v13",
    gpus: int = 8,
    every: dict[str, str | None] | None = None,
    one: dict[int, dict[str, str | None]] | None = None,
    driver: str | None = None,
    cuda: str | None = None,
    attached: int | None = None,
    processes: list[dict[str, Any]] | None = None,
    before: str = "",
    cut: float | None = None,
) -> str:
    """``nvidia-smi -q -x`` of several equal cards, with values set (None: taken out) for all or for one of them."""
    template = ElementTree.fromstring((HERE / "smi" / f"{generation}.xml").read_text(encoding="utf-8"))
    root = ElementTree.Element("nvidia_smi_log")
    for tag, value in (
        ("timestamp", "Tue Nov 24 10:00:00 2026"),
        ("driver_version", driver or DRIVERS[generation][0]),
        ("cuda_version", cuda or DRIVERS[generation][1]),
        ("attached_gpus", str(gpus if attached is None else attached)),
    ):
        ElementTree.SubElement(root, tag).text = value
    for index, bus in enumerate(buses(gpus)):
        gpu = copy.deepcopy(template)
        gpu.set("id", f"00000000:{bus:02X}:00.0")
        _set(gpu, "pci/pci_bus_id", gpu.get("id"))
        _set(gpu, "minor_number", str(index))
        _set(gpu, "serial", f"13200000000{index:02d}")
        _set(gpu, "uuid", f"GPU-00000000-0000-4000-8000-0000000000{index:02d}")
        for path, text in {**(every or {}), **(one or {}).get(index, {})}.items():
            _set(gpu, path, text)
        for process in processes or []:
            if process["gpu"] == index:
                info = ElementTree.SubElement(gpu.find("processes"), "process_info")  # type: ignore[arg-type]
                for tag in ("pid", "type", "process_name", "used_memory"):
                    ElementTree.SubElement(info, tag).text = str(process[tag])
        root.append(gpu)
    head = f'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_{generation}.dtd">\n'
    text = before + head + ElementTree.tostring(root, encoding="unicode") + "\n"
    return text if cut is None else text[: int(len(text) * cut)]


def _set(gpu: ElementTree.Element, path: str, value: str | None) -> None:
    parent = gpu
    *above, last = path.split("/")
    for tag in above:
        found = parent.find(tag)
        parent = ElementTree.SubElement(parent, tag) if found is None else found
    element = parent.find(last)
    if value is None:
        if element is not None:
            parent.remove(element)
        return
    if element is None:
        element = ElementTree.SubElement(parent, last)
    for child in list(element):
        element.remove(child)
    element.text = value


def matrix(words: str, gpus: int = 8, affinity: bool = False, one: dict[str, str] | None = None) -> str:
    """``topo -m`` or ``-p2p``: a word for pairs in one half of the cards and one for pairs across ("PHB/SYS")."""
    near, _, far = words.partition("/")
    lines = [
        "\t"
        + "\t".join(f"GPU{column}" for column in range(gpus))
        + ("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID" if affinity else "")
    ]
    for row in range(gpus):
        half = row * 2 // gpus
        cells = [
            " X " if row == column else near if column * 2 // gpus == half else far or near for column in range(gpus)
        ]
        for place, word in (one or {}).items():
            at = [int(part) for part in place.split("-")]
            if at[0] == row:
                cells[at[1]] = word
        tail = f"\t{half * 32}-{half * 32 + 31}\t{half}\t\tN/A" if affinity else ""
        lines.append(f"GPU{row}\t" + "\t".join(cells) + tail)
    return "\n".join(lines) + "\n"


def lspci_text(
    gpus: int = 8, acs: dict[str, str] | None = None, denied: bool = False, aspm: str = "Disabled", switch: bool = False
) -> str:
    """``lspci -vvv``: a root port above each card, with ``switch`` two switch ports between them.

    ``acs`` gives the control flags by kind of bridge ("root", "switch").
    """
    blocks = [
        "00:00.0 Host bridge: Advanced Micro Devices, Inc. [AMD] Turin Root Complex\n\tControl: I/O- Mem+ BusMaster+\n"
    ]
    flags = {"root": "SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-"}
    flags["switch"] = flags["root"]
    flags |= acs or {}
    for index, bus in enumerate(buses(gpus)):
        above = [("root", 0x00, index + 1)] if not switch else [("root", 0x00, index + 1), ("switch", bus - 1, 0)]
        chain = [(kind, number, slot, bus - 1 if switch and kind == "root" else bus) for kind, number, slot in above]
        for kind, number, slot, below in chain:
            caps = (
                "\tCapabilities: <access denied>\n"
                if denied
                else f"\tCapabilities: [2a0 v1] Access Control Services\n\t\tACSCtl:\t{flags[kind]}\n"
            )
            blocks.append(
                f"{number:02x}:{slot:02x}.1 PCI bridge: Vendor Bridge ({kind})\n"
                f"\tBus: primary={number:02x}, secondary={below:02x}, subordinate={bus:02x}, sec-latency=0\n{caps}"
            )
        link = (
            ""
            if denied
            else f"\tCapabilities: [60] Express (v2) Endpoint\n\t\tLnkCtl:\tASPM {aspm}; RCB 64 bytes, CommClk+\n"
        )
        blocks.append(
            f"{bus:02x}:00.0 3D controller: NVIDIA Corporation GB202GL [RTX PRO 6000 Server Edition] (rev a1)\n{link}"
        )
    return "\n".join(blocks)


def sysfs(gpus: int = 8, iommu: str | None = None, nodes: bool = True) -> dict[str, str]:
    """PCI ids below /sys, and with ``iommu`` the type of every group."""
    found = {
        "sys/bus/pci/devices/0000:00:00.0/vendor": "0x1022\n",
        "sys/bus/pci/devices/0000:00:00.0/class": "0x060000\n",
    }
    members = []
    for index, bus in enumerate(buses(gpus)):
        device = f"sys/bus/pci/devices/0000:{bus:02x}:00.0"
        found |= {f"{device}/vendor": "0x10de\n", f"{device}/class": "0x030200\n"}
        if nodes:
            found[f"{device}/numa_node"] = f"{index * 2 // gpus}\n"
        if iommu:
            found[f"sys/kernel/iommu_groups/{index + 10}/type"] = f"{iommu}\n"
            members.append(f"/sys/kernel/iommu_groups/{index + 10}/devices/0000:{bus:02x}:00.0\n")
    if iommu:
        found["cmd/ls_-d__sys_kernel_iommu_groups___devices__"] = "".join(members)
    return found


P2P = {"r": "cmd/nvidia-smi_topo_-p2p_r", "w": "cmd/nvidia-smi_topo_-p2p_w", "n": "cmd/nvidia-smi_topo_-p2p_n"}


def seen_of(case: dict[str, Any]) -> Seen:
    """The readings of a whole host; or of a case: its host with what the case changes.  Made once per case."""
    if id(case) not in _MADE:
        _MADE[id(case)] = (case, _make(case))
    return _MADE[id(case)][1]


_MADE: dict[int, tuple[dict[str, Any], Seen]] = {}  # keeps the case too, so that its id stays its own


def _make(case: dict[str, Any]) -> Seen:
    whole = whole_host(case.get("base", "8x-rtx-pro-6000")) if "expect" in case else {}
    spec = {**whole, **case}
    files: dict[str, str] = {}
    if "smi" in spec:
        files["cmd/nvidia-smi_-q_-x"] = smi_xml(**_keys(spec["smi"]))
    if "topo" in spec:
        files["cmd/nvidia-smi_topo_-m"] = matrix(**_keys(spec["topo"]))
    for word, one in {**whole.get("p2p", {}), **case.get("p2p", {})}.items():
        files[P2P[word]] = matrix(**_keys(one))
    if "lspci" in spec:
        files["cmd/lspci_-vvv"] = lspci_text(**_keys(spec["lspci"]))
    if "sysfs" in spec:
        files |= sysfs(**_keys(spec["sysfs"]))
    files |= whole.get("files", {}) | case.get("files", {})
    codes = {**whole.get("rc", {}), **case.get("rc", {})}
    absent = {*spec.get("absent", []), *whole.get("absent", [])} - case.get("files", {}).keys()
    readings = {place: Reading(files.get(place, ""), codes.get(place, 0)) for place in {**files, **codes}}
    gone = (*case.get("without", []), *absent)
    kept = {
        place: reading for place, reading in readings.items() if not any(fnmatch(place, pattern) for pattern in gone)
    }
    return Seen(kept, frozenset(absent))


def _keys(spec: Any) -> dict[str, Any]:
    if isinstance(spec, str):
        return {"words": spec}
    return {str(key): value for key, value in (spec or {}).items()}


def profile_of(case: dict[str, Any]) -> Profile:
    """The case's profile: a name, or a name with changes."""
    spec = case.get("profile", "8x-rtx-pro-6000")
    if isinstance(spec, str):
        return load_profile(spec)
    changes: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in spec.items() if key != "name"
    }
    return replace(load_profile(spec["name"]), **changes)


@cache
def cases() -> list[tuple[str, str, dict[str, Any]]]:
    """(check id, name of the case, case) of all case files."""
    found = []
    for path in sorted((HERE / "cases").glob("*.yaml")):
        for check, by_name in load(path).items():
            found += [(check, name, case) for name, case in by_name.items()]
    return found


@cache
def whole_host(name: str) -> dict[str, Any]:
    """A whole recorded host, on top of the one it ``extends``."""
    found = load(HERE / "hosts" / f"{name}.yaml")
    parent = whole_host(found["extends"]) if "extends" in found else {}
    merged = {**parent, **found}
    for key in ("files", "rc"):
        merged[key] = {**parent.get(key, {}), **found.get(key, {})}
    merged["files"] = {place: text for place, text in merged["files"].items() if text is not None}
    return merged


def write_host(case: dict[str, Any], directory: Path) -> Path:
    """A recording directory of a case."""
    import json

    seen = seen_of(case)
    for place, reading in seen.readings.items():
        path = directory / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(reading.text, encoding="utf-8")
        if reading.rc:
            path.with_name(path.name + ".rc").write_text(f"{reading.rc}\n", encoding="utf-8")
    index = {"schema": 1, "masked": True, "absent": sorted(seen.absent)}
    (directory / "recording.json").write_text(json.dumps(index), encoding="utf-8")
    return directory
