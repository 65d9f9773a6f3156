"""Is the driver the right one, whole, loaded and held in place?"""

from __future__ import annotations

import re

from k25stack.host.check import FAIL, WARN, Judgement, bad, cards, check, ok
from k25stack.host.known import bad_version
from k25stack.host.parse import smi
from k25stack.host.parse.kernel import modules
from k25stack.host.parse.values import at_least, keyed_lines, line_with, listed, version
from k25stack.host.places import (
    BUILT,
    DKMS,
    DRIVER,
    KERNELS,
    MODINFO,
    MODULES,
    NOUVEAU_OFF,
    PACKAGES,
    SECURE_BOOT,
    SMI,
    UNAME,
    UPGRADES,
)
from k25stack.host.profile import Profile
from k25stack.host.seen import Seen, Unseen

NO_DRIVER = re.compile(r"couldn't communicate with the NVIDIA driver|Driver/library version mismatch")
PARTS = re.compile(
    r"(nvidia-(driver|dkms|kernel|open|headless|utils|compute-utils|firmware)|libnvidia-(compute|cfg|ml)|cuda-drivers)"
    r"|nvidia-container-toolkit|libnvidia-container|linux-(image|modules-nvidia)-"
)


def loaded(seen: Seen) -> str | None:
    """Version of the kernel module, or None when its file does not say one."""
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", seen.text(DRIVER) or "")
    return found.group(1) if found else None


@check(
    "driver.version",
    "driver",
    severity=FAIL,
    sources=(SMI, DRIVER),
    applies=cards,
    fix="install one driver branch >= 580 for CUDA 13 (playbook role nvidia), then reboot",
    source="NVIDIA CUDA 13 release notes (r580 and newer); SGLang install documentation",
)
def driver_version(seen: Seen, profile: Profile) -> Judgement:
    reading = seen.reading(SMI)
    if reading is not None and (broken := line_with(NO_DRIVER, reading.text)):
        kernel = loaded(seen)
        return bad(
            broken,
            kernel=kernel,
            fix="reboot: the loaded module is not that of the installed libraries",
        )
    found = smi.parse(seen.need(SMI)).driver
    number = version(found)
    if found is None or number is None:
        raise Unseen(f"nvidia-smi -q -x: driver version {found!r}")
    kernel = loaded(seen)
    if kernel is None and seen.reading(DRIVER) is not None:
        raise Unseen(f"{DRIVER}: no version in it")
    if kernel is not None and kernel != found:
        return bad(f"libraries {found}, loaded module {kernel}: a reboot is due", library=found, kernel=kernel)
    if not at_least(number, profile.driver_min):
        return bad(f"driver {found}, needed {profile.driver_min} or newer", library=found, kernel=kernel)
    return ok(f"driver {found}", library=found, kernel=kernel)


@check(
    "driver.known",
    "driver",
    severity=WARN,
    sources=(SMI,),
    applies=cards,
    fix="use another driver version",
    source="k25stack/host/known.yaml (each entry names its source)",
)
def driver_known(seen: Seen, profile: Profile) -> Judgement:
    found = smi.parse(seen.need(SMI))
    if version(found.driver) is None:
        raise Unseen(f"nvidia-smi -q -x: driver version {found.driver!r}")
    if entry := bad_version("driver", found.driver or "", found.gpus[0].name or ""):
        return bad(f"driver {found.driver}: {entry.problem} ({entry.source})", fix=entry.fix, driver=found.driver)
    return ok(f"nothing known against driver {found.driver}", driver=found.driver)


@check(
    "driver.open",
    "driver",
    severity=FAIL,
    sources=(DRIVER, MODINFO),
    applies=lambda p: p.gpus > 0 and p.driver_open,
    fix="install the open kernel modules (nvidia-driver-580-open or nvidia-kernel-open-dkms), then reboot",
    source="metal-stack/metal-images#399; NVIDIA open kernel modules: Blackwell has no proprietary flavour",
)
def driver_open(seen: Seen, profile: Profile) -> Judgement:
    text, info = seen.text(DRIVER), seen.text(MODINFO)
    if text is not None:
        if "Open Kernel Module" in text and loaded(seen):
            return ok(f"open kernel module {loaded(seen)} is loaded")
        if "Kernel Module" in text and loaded(seen):
            return bad(f"the proprietary kernel module {loaded(seen)} is loaded")
        raise Unseen(f"{DRIVER}: no kernel module in it")
    licence = keyed_lines(info or "", ":").get("license", "")
    if licence == "Dual MIT/GPL":
        return ok("the installed module is the open one", license=licence)
    if licence:
        return bad(f"the installed module has the licence {licence}: it is the proprietary one", license=licence)
    seen.need(DRIVER)
    raise Unseen(f"{MODINFO}: no licence in it")


@check(
    "driver.gsp",
    "driver",
    severity=FAIL,
    sources=(SMI,),
    applies=cards,
    fix="reinstall the driver's firmware package (nvidia-firmware-*, firmware-nvidia-gsp), then reboot",
    source="NVIDIA open kernel modules README: they need the GSP firmware of the same version",
)
def gsp(seen: Seen, profile: Profile) -> Judgement:
    found = smi.parse(seen.need(SMI))
    versions = found.texts("gsp_firmware_version")
    if version(found.driver) is None:
        raise Unseen(f"nvidia-smi -q -x: driver version {found.driver!r}")
    if other := sorted(set(versions) - {found.driver}):
        return bad(f"GSP firmware {listed(other)} with driver {found.driver}", gsp=versions, driver=found.driver)
    return ok(f"GSP firmware {found.driver}", gsp=versions)


@check(
    "nouveau",
    "driver",
    severity=FAIL,
    sources=(MODULES, NOUVEAU_OFF),
    applies=cards,
    fix="blacklist nouveau in /etc/modprobe.d, update-initramfs -u, reboot",
    source="NVIDIA driver installation guide",
)
def nouveau(seen: Seen, profile: Profile) -> Judgement:
    names = modules(seen.need(MODULES))
    if "nouveau" in names:
        return bad("nouveau is loaded")
    blacklist = seen.text(NOUVEAU_OFF)
    if blacklist is not None and not blacklist.strip():
        return bad("nouveau is not loaded, but nothing keeps it away at the next boot", severity=WARN)
    if blacklist is not None and not re.search(r"blacklist\s+nouveau", blacklist):
        raise Unseen("modprobe.d: this is no blacklist")
    return ok("nouveau is not loaded" + (" and blacklisted" if blacklist else ""))


@check(
    "kmod.loaded",
    "driver",
    severity=FAIL,
    sources=(MODULES,),
    applies=cards,
    fix="modprobe nvidia nvidia_uvm; see dmesg when that fails",
    repair=lambda seen, profile: [("modprobe", "nvidia"), ("modprobe", "nvidia_uvm")],
    source="NVIDIA driver installation guide; CUDA needs nvidia_uvm",
)
def modules_loaded(seen: Seen, profile: Profile) -> Judgement:
    names = modules(seen.need(MODULES))
    if missing := sorted({"nvidia", "nvidia_uvm"} - names):
        return bad(f"not loaded: {listed(missing)}", missing=missing)
    return ok("nvidia and nvidia_uvm are loaded")


@check(
    "dkms.pending",
    "driver",
    severity=WARN,
    sources=(DKMS, UNAME, BUILT, KERNELS),
    applies=cards,
    fix="install the headers of that kernel, then dkms autoinstall: otherwise the next boot has no driver",
    source="DKMS manual; deepops nvidia driver role",
)
def dkms(seen: Seen, profile: Profile) -> Judgement:
    running = kernel_name(seen)
    built = {path.split("/")[3] for path in seen.names(BUILT)} if seen.reading(BUILT) else set()
    reading = seen.reading(DKMS)
    if reading is None and not built:
        seen.need(DKMS)
    for line in (reading.text if reading and reading.rc == 0 else "").splitlines():
        found = re.match(r"nvidia[\w-]*[/,]\s*([\w.-]+),\s*([\w.+-]+),\s*\w+:\s*(.*)", line.strip())
        if not found and line.strip() and not re.match(r"[\w-]+[/,]\s*[\w.~+-]+.*:\s*\w+", line.strip()):
            raise Unseen(f"{DKMS}: an odd line: {line.strip()}")
        if found and found.group(3).startswith("installed"):
            built.add(found.group(2))
    if not built:
        raise Unseen("no nvidia module was found for any kernel, neither by DKMS nor below /lib/modules")
    newest = newest_kernel(seen) or running
    if missing := sorted({running, newest} - built):
        return bad(
            f"no nvidia module for kernel {listed(missing)}", built=sorted(built), running=running, newest=newest
        )
    return ok("a module is built for the running and the newest kernel", running=running, newest=newest)


@check(
    "secureboot",
    "driver",
    severity=WARN,
    sources=(SECURE_BOOT, MODINFO),
    applies=cards,
    fix="enrol the key that signs the module (mokutil --import), or switch Secure Boot off",
    source="Ubuntu and Debian documentation on signed kernel modules",
)
def secure_boot(seen: Seen, profile: Profile) -> Judgement:
    reading = seen.reading(SECURE_BOOT)
    text = reading.text if reading else seen.need(SECURE_BOOT)
    if "SecureBoot disabled" in text or "EFI variables are not supported" in text:
        return ok("Secure Boot is off")
    if "SecureBoot enabled" not in text:
        seen.need(SECURE_BOOT)
        raise Unseen(f"{SECURE_BOOT}: {smi.first_line(text)}")
    signer = keyed_lines(seen.text(MODINFO) or "", ":").get("signer", "")
    if not signer:
        return bad("Secure Boot is on and the module bears no signature that is known here")
    return ok(f"Secure Boot is on, the module is signed by {signer}", signer=signer)


def _unheld(seen: Seen, profile: Profile) -> tuple[list[str], list[str]]:
    """(packages of driver, toolkit and kernel; those that are not held: dpkg shows held ones as hi)."""
    rows = [line.split() for line in seen.need(PACKAGES).splitlines() if line.strip()]
    if not rows or any(len(row) < 2 for row in rows):
        raise Unseen(f"{PACKAGES}: this is no list of packages")
    meta = ("linux-generic", "linux-image-generic", "linux-image-amd64")
    parts = [row[1].split(":")[0] for row in rows if row[0] in ("ii", "hi") and (PARTS.match(row[1]) or row[1] in meta)]
    held = {row[1].split(":")[0] for row in rows if row[0] == "hi"}
    return parts, [name for name in parts if name not in held]


@check(
    "driver.hold",
    "driver",
    severity=WARN,
    sources=(PACKAGES, UPGRADES),
    applies=cards,
    fix="apt-mark hold the named packages and put them on the blacklist of unattended-upgrades (playbook role nvidia)",
    repair=lambda seen, profile: [("apt-mark", "hold", *_unheld(seen, profile)[1])],
    source="NVIDIA-SMI 'driver/library version mismatch' after unattended upgrades; deepops nvidia role",
)
def driver_hold(seen: Seen, profile: Profile) -> Judgement:
    parts, unheld = _unheld(seen, profile)
    if not any(name.startswith(("nvidia", "libnvidia", "cuda-drivers")) for name in parts):
        raise Unseen("no package of the driver is installed: it came another way, and nothing here can hold it")
    if unheld:
        return bad(f"not held: {listed(unheld)}", unheld=unheld)
    upgrades = seen.text(UPGRADES) or ""
    blacklist = "Package-Blacklist" in upgrades and re.search(r'Package-Blacklist::? "[^"]*nvidia', upgrades)
    aside = "" if blacklist or not upgrades.strip() else "; unattended-upgrades has no entry for them on its blacklist"
    return ok(f"{len(parts)} packages of driver, toolkit and kernel are held{aside}", packages=sorted(parts))


def kernel_name(seen: Seen) -> str:
    """The running kernel.  Raises Unseen."""
    found = seen.need(UNAME).strip()
    if not re.fullmatch(r"\d+\.\d+[\w.+~-]*", found):
        raise Unseen(f"{UNAME}: {found!r} is no kernel version")
    return found


def newest_kernel(seen: Seen) -> str | None:
    """The newest installed kernel by its version numbers; None when none is listed."""
    names = [path.split("/")[3] for path in (seen.names(KERNELS) if seen.reading(KERNELS) else [])]
    ranked = [(_rank(name), name) for name in names if re.match(r"\d", name)]
    return max(ranked)[1] if ranked else None


def _rank(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", name)[:6])
