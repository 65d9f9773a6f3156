"""``lspci -vvv``: the bridges above each card, their access control (ACS) and the links' power saving (ASPM)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from k25stack.host.seen import Unseen

WHAT = "lspci -vvv"
TITLE = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2}\.[0-7]) (\S.*?): (\S.*)", re.IGNORECASE)
REDIRECTS = ("SrcValid", "ReqRedir", "CmpltRedir")  # what sends peer traffic up to the root complex


@dataclass(frozen=True)
class Device:
    domain: int
    bus: int
    function: str  # 00.0
    kind: str  # "PCI bridge"
    name: str
    below: tuple[int, int] | None  # of a bridge: first and last bus behind it
    acs: tuple[str, ...] | None  # flags that are on; None: the device has no such control
    denied: bool  # its capabilities were not readable
    aspm: str | None  # "Disabled", "L1 Enabled"

    @property
    def address(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.function}"

    @property
    def is_card(self) -> bool:
        return self.kind in ("3D controller", "VGA compatible controller", "Display controller") and (
            "NVIDIA" in self.name
        )


@lru_cache(maxsize=4)
def parse(text: str) -> tuple[Device, ...]:
    """Raises Unseen when no device is listed."""
    devices = []
    for block in re.split(r"\n(?=\S)", text):
        title = TITLE.match(block)
        if title:
            devices.append(_device(title, block))
    if not devices:
        raise Unseen(f"{WHAT}: no device in it")
    return tuple(devices)


def cards(devices: Sequence[Device]) -> list[Device]:
    return [device for device in devices if device.is_card]


def above(device: Device, devices: Sequence[Device]) -> list[Device]:
    """The bridges between a device and the processor, outermost first."""
    return sorted(
        (
            other
            for other in devices
            if other.below is not None
            and other.domain == device.domain
            and other.below[0] <= device.bus <= other.below[1]
        ),
        key=lambda other: other.below or (0, 0),
    )


def redirects(device: Device) -> list[str]:
    """The ACS flags of a bridge that break or slow traffic between cards."""
    return [flag for flag in REDIRECTS if flag in (device.acs or ())]


def _device(title: re.Match[str], block: str) -> Device:
    domain, bus, function, kind, name = title.groups()
    buses = re.search(r"Bus: primary=\w+, secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})", block, re.IGNORECASE)
    control = re.search(r"ACSCtl:\s*(.*)", block)
    aspm = re.search(r"LnkCtl:\s*ASPM ([^;]*);", block)
    return Device(
        int(domain or "0", 16),
        int(bus, 16),
        function,
        kind.split(" [")[0],
        name,
        (int(buses.group(1), 16), int(buses.group(2), 16)) if buses else None,
        tuple(re.findall(r"(\w+)\+", control.group(1))) if control else None,
        "<access denied>" in block,
        aspm.group(1).strip() if aspm else None,
    )
