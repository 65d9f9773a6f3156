"""Which PCI devices are NVIDIA cards: from sysfs where it was read, else from lspci, else from nvidia-smi."""

from __future__ import annotations

from k25stack.host.parse import lspci, smi
from k25stack.host.places import LSPCI, PCI_CLASS, PCI_VENDOR, SMI
from k25stack.host.seen import Seen, Unseen

NVIDIA = "0x10de"
DISPLAY = ("0x0300", "0x0302", "0x0380")


def on_bus(seen: Seen) -> list[str] | None:
    """Addresses (0000:61:00.0) of the cards on the PCI bus; None when it was not read.  Raises Unseen for garbage."""
    if seen.reading(LSPCI) is None and not any(PCI_VENDOR.pattern.fullmatch(place) for place in seen.readings):
        return None
    try:
        return _sysfs(seen)
    except Unseen:
        return [device.address for device in lspci.cards(lspci.parse(seen.need(LSPCI)))]


def addresses(seen: Seen) -> list[str]:
    """Addresses of the cards from the bus or the driver.  Raises Unseen when neither tells."""
    found = on_bus(seen)
    return [gpu_address(gpu.bus) for gpu in smi.parse(seen.need(SMI)).gpus] if found is None else found


def gpu_address(bus: str) -> str:
    """00000000:61:00.0, as nvidia-smi writes it, -> 0000:61:00.0, as the kernel does."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _sysfs(seen: Seen) -> list[str]:
    vendors, classes = seen.group(PCI_VENDOR), seen.group(PCI_CLASS)
    if not all(text.strip().startswith("0x") for text in (*vendors.values(), *classes.values())):
        raise Unseen(f"{PCI_VENDOR}: no PCI ids in it")
    found = []
    for place, vendor in sorted(vendors.items()):
        device = place.split("/")[-2]
        kind = classes.get(f"sys/bus/pci/devices/{device}/class", "")
        if vendor.strip() == NVIDIA and kind.startswith(DISPLAY):
            found.append(device)
    return found
