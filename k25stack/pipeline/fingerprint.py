"""What makes this machine's measurements its own (no host names, no addresses)."""

from __future__ import annotations

import os
import platform
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from k25stack import __version__


@cache
def host() -> dict[str, Any]:
    """Processor, usable cores, memory and cards: the part of a measurement's key that names the machine."""
    return {
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(_memory_kib() / (1 << 20)),
        "gpus": _gpus(),
    }


def versions(packages: list[str]) -> dict[str, str]:
    """Versions of this project, Python, the kernel and the given packages as they are installed."""
    from k25stack.pipeline.key import package_version

    own = {"k25stack": __version__, "python": sys.version.split()[0], "kernel": platform.release()}
    return {**own, **{name: package_version(name) for name in sorted(set(packages))}}


def installation_s() -> float | None:
    """Seconds that `make env` took to make the environment this runs in; None where it did not make it."""
    try:
        return float((Path(sys.prefix) / ".setup_s").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _cpu_model() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor()


def _memory_kib() -> int:
    found = re.search(r"^MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text(encoding="utf-8"), re.MULTILINE)
    return int(found.group(1)) if found else 0


def _gpus() -> list[str]:
    """Model names as the NVIDIA driver lists them, without starting a program; empty without the driver."""
    names = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        found = re.search(r"^Model:\s*(.+)$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        names.append(found.group(1).strip() if found else "unknown")
    return names
