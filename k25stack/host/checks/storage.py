"""Disks: room for the model and images, speed, health; and whether the model is there whole."""

from __future__ import annotations

import re

from k25stack.host.check import FAIL, WARN, Judgement, bad, check, ok, unknown
from k25stack.host.parse.kernel import Mount, mount_of, mounts
from k25stack.host.parse.values import integer, json_lines, json_object, listed, plural, real
from k25stack.host.places import (
    DISK_IMAGE,
    DISK_MODEL,
    DISK_OUTPUT,
    DISKS,
    LIVE_READ,
    MODEL_FILES,
    MODEL_INDEX,
    MOUNTS,
    NVME,
    NVME_LOGS,
    ROTATIONAL,
)
from k25stack.host.profile import Profile
from k25stack.host.seen import ABSENT, Seen, Unseen
from k25stack.host.sources import Source

GB = 10**9
SPARE = 1.2  # room beside the model: a new revision arrives before the old one goes
LOCAL = frozenset({"ext4", "xfs", "btrfs", "zfs", "overlay", "overlayfs"})
REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "glusterfs", "ceph"})


def has_model(profile: Profile) -> bool:
    return profile.model_gb > 0 and bool(profile.model_dir)


def free_gb(seen: Seen, source: Source, path: str) -> tuple[float, str]:
    """(free GB, device) of the file system that holds ``path``.  Raises Unseen."""
    text = seen.text(source) if source is not DISKS else None
    if text is not None:
        device, free, _ = _disks(text)[-1]
        return free, device
    holding = [row for row in _disks(seen.need(DISKS)) if path == row[2] or path.startswith(row[2].rstrip("/") + "/")]
    if not holding:
        raise Unseen(f"{DISKS}: no file system holds {path}")
    device, free, _ = max(holding, key=lambda row: len(row[2]))
    return free, device


def _disks(text: str) -> list[tuple[str, float, str]]:
    """(device, free GB, mount point) by line of ``df -P -k``; the header may be in any language.  Raises Unseen."""
    lines = [line for line in text.splitlines() if line.strip()]
    found = []
    for line in lines[1:]:
        match = re.fullmatch(r"(\S+)\s+(\d+|-)\s+(\d+|-)\s+(-?\d+|-)\s+(\d+%|-)\s+(/.*)", line)
        if not match:
            raise Unseen(f"df -P -k: an odd line: {line}")
        if match.group(4) != "-":
            found.append((match.group(1), int(match.group(4)) * 1024 / GB, match.group(6)))
    if not found:
        raise Unseen("df -P -k: no file system in it")
    return found


@check(
    "disk.space",
    "storage",
    severity=FAIL,
    sources=(DISK_MODEL, DISK_IMAGE, DISK_OUTPUT, DISKS),
    fix="free space or move the directory to a larger disk (docker system df; old revisions; k25stack run --gc)",
    source="Kimi-K2.5 INT4: 595 GB; lmsysorg/sglang images: 20 to 39 GB each (sgl-project/sglang PR #13861)",
)
def space(seen: Seen, profile: Profile) -> Judgement:
    wanted: list[tuple[str, str, Source, float]] = []
    if has_model(profile):
        wanted.append(("model", profile.model_dir, DISK_MODEL, profile.model_gb * SPARE - _present_gb(seen, profile)))
    if profile.containers and profile.image_dir:
        wanted.append(("images", profile.image_dir, DISK_IMAGE, profile.image_gb))
    if profile.output_dir and profile.output_gb:
        wanted.append(("outputs", profile.output_dir, DISK_OUTPUT, profile.output_gb))
    if not wanted:
        root = free_gb(seen, DISKS, "/")[0]
        if root < 1:
            return bad(f"{root:.1f} GB free on /", free_gb=round(root, 1))
        return ok(f"{root:.0f} GB free", free_gb=round(root))
    found = {name: free_gb(seen, source.resolve(profile), path) for name, path, source, _ in wanted}
    figures = {name: round(free) for name, (free, _) in found.items()}
    short = [
        f"{name} {path}: {found[name][0]:.0f} GB free, needed {need:.0f}"
        for name, path, _, need in wanted
        if found[name][0] < need
    ]
    by_device: dict[str, float] = {}
    for name, _, _, need in wanted:
        by_device[found[name][1]] = by_device.get(found[name][1], 0) + max(need, 0)
    short += (
        []
        if short
        else [
            f"{device}: {plural(len(wanted), 'directory')} together need {need:.0f} GB"
            for device, need in by_device.items()
            if need > max(free for free, disk in found.values() if disk == device)
        ]
    )
    if short:
        return bad(listed(short), free_gb=figures)
    return ok(", ".join(f"{name} {free} GB free" for name, free in figures.items()), free_gb=figures)


def _present_gb(seen: Seen, profile: Profile) -> float:
    """What of the model is there already."""
    return sum(sizes(seen.text(MODEL_FILES.resolve(profile)) or "").values()) / GB


@check(
    "disk.speed",
    "storage",
    severity=WARN,
    sources=(LIVE_READ, DISK_MODEL, DISKS, ROTATIONAL),
    applies=has_model,
    fix="put the model on local NVMe: at 2 GB/s it loads in 5 minutes",
    source="600 GB / 2 GB/s = 5 min; measured with k25stack check host --live",
)
def speed(seen: Seen, profile: Profile) -> Judgement:
    if (live := seen.text(LIVE_READ)) is not None:
        record = json_object(live, str(LIVE_READ))
        read, seconds = real(record.get("bytes")), real(record.get("seconds"))
        if not read or not seconds or seconds <= 0 or read < 0:
            raise Unseen(f"{LIVE_READ}: no bytes and seconds in it")
        rate = read / seconds / GB
        if record.get("direct") is False:
            return unknown(
                f"{rate:.1f} GB/s, which may be the page cache's: the file system takes no direct reads",
                severity=WARN,
                gb_s=rate,
            )
        load_s = profile.model_gb / rate
        told = f"{rate:.1f} GB/s: the model loads in " + (
            f"{load_s / 60:.0f} min" if load_s >= 120 else f"{load_s:.0f} s"
        )
        return ok(told, gb_s=rate) if rate >= profile.read_gb_s else bad(told, gb_s=rate)
    _, device = free_gb(seen, DISK_MODEL.resolve(profile), profile.model_dir)
    disk = re.sub(r"(?<=\d)p\d+$|(?<=[a-z])\d+$", "", device.rpartition("/")[2])
    turning = {place.split("/")[2]: text.strip() for place, text in seen.group(ROTATIONAL).items()}
    if turning.get(disk) not in ("0", "1"):
        return unknown(f"what kind of disk {device} is cannot be told: measure with --live", severity=WARN)
    if turning[disk] == "1":
        return bad(f"the model lies on a spinning disk ({disk})", disk=disk)
    if disk.startswith("nvme"):
        return ok(f"the model lies on NVMe ({disk}); its speed is measured with --live", disk=disk)
    return bad(
        f"the model lies on {disk}, which is no NVMe: most such disks read less than {profile.read_gb_s:g} GB/s",
        disk=disk,
    )


@check(
    "nvme",
    "storage",
    severity=WARN,
    sources=(NVME, NVME_LOGS),
    applies=lambda p: p.nvme_count > 0,
    fix="exchange drives that are worn or warn; a missing one: reseat it",
    source="NVM Express SMART log; azurehpc-health-checks check_nvme_count",
)
def nvme(seen: Seen, profile: Profile) -> Judgement:
    drives = json_object(seen.need(NVME), str(NVME)).get("Devices")
    if not isinstance(drives, list):
        raise Unseen(f"{NVME}: no Devices in it")
    if len(drives) < profile.nvme_count:
        return bad(f"{plural(len(drives), 'NVMe drive')}, expected {profile.nvme_count}", drives=len(drives))
    worn = []
    logs = json_lines(seen.need(NVME_LOGS), str(NVME_LOGS))
    for entry in logs:
        log = entry.get("log")
        if not isinstance(log, dict) or integer(log.get("critical_warning")) is None:
            raise Unseen(f"{NVME_LOGS}: no SMART log of {entry.get('device')}")
        used = integer(log.get("percent_used", log.get("percentage_used")))
        if log["critical_warning"]:
            worn.append(f"{entry.get('device')} warns ({log['critical_warning']})")
        elif used is None or used >= 90:
            worn.append(f"{entry.get('device')} is worn ({used} %)")
    if worn:
        return bad(listed(worn), drives=len(drives))
    if len(logs) < profile.nvme_count:
        raise Unseen(f"{NVME_LOGS}: {len(logs)} of {len(drives)} drives")
    return ok(f"{plural(len(drives), 'NVMe drive')}, none worn", drives=len(drives))


@check(
    "fs.type",
    "storage",
    severity=WARN,
    sources=(MOUNTS,),
    applies=lambda p: bool(p.model_dir or p.cache_dir or p.containers),
    fix="keep the model, caches and Docker's data on local xfs or ext4; a network share for caches "
    "breaks locks and is slow",
    source="Docker storage driver documentation (overlay2 on xfs or ext4)",
)
def file_system(seen: Seen, profile: Profile) -> Judgement:
    found = mounts(seen.need(MOUNTS))
    places = {"model": profile.model_dir if has_model(profile) else "", "cache": profile.cache_dir}
    places["images"] = profile.image_dir if profile.containers else ""
    kinds: dict[str, str] = {}
    wrong = []
    for name, path in places.items():
        mount: Mount | None = mount_of(path, found) if path else None
        if mount is None:
            continue
        kinds[name] = mount.kind
        if mount.kind in REMOTE and name != "model":
            wrong.append(f"{name} on {mount.kind}")
        elif mount.kind in REMOTE:
            wrong.append(f"model on {mount.kind}: loading takes as long as the network does")
        elif mount.kind not in LOCAL:
            wrong.append(f"{name} on {mount.kind}")
        elif "ro" in mount.options and name != "model":
            wrong.append(f"{name} is mounted read-only")
    if wrong:
        return bad(listed(wrong), kinds=kinds)
    if not kinds:
        raise Unseen(f"{MOUNTS}: no file system for {listed(path for path in places.values() if path)}")
    return ok(", ".join(f"{name} on {kind}" for name, kind in kinds.items()), kinds=kinds)


def sizes(text: str) -> dict[str, int]:
    """Size by name from ``wc -c`` lines."""
    pairs = re.findall(r"^\s*(\d{1,15}) (\S.*)$", text, re.MULTILINE)
    return {name: int(size) for size, name in pairs}


@check(
    "model.files",
    "storage",
    severity=FAIL,
    sources=(MODEL_INDEX, MODEL_FILES),
    applies=has_model,
    fix="k25stack stack fetch STACK --into DIR fetches what is missing and verifies every file",
    source="Hugging Face safetensors index: every shard it names must be there",
)
def model_files(seen: Seen, profile: Profile) -> Judgement:
    index = seen.reading(MODEL_INDEX.resolve(profile))
    if index is not None and index.rc == ABSENT:
        return bad(f"no model in {profile.model_dir}")
    text = seen.need(MODEL_INDEX.resolve(profile))
    total = re.search(r'"total_size": *(\d{1,15})', text)
    shards = re.findall(r'"([^"/]+\.safetensors)"', text)
    if not shards or total is None:
        raise Unseen(f"{MODEL_INDEX}: no shards in it")
    present = sizes(seen.need(MODEL_FILES.resolve(profile)))
    if missing := [name for name in shards if not present.get(name)]:
        return bad(f"{len(missing)} of {len(shards)} shards missing or empty: {listed(missing, 3)}", missing=missing)
    held = sum(present[name] for name in shards)
    if held < int(total.group(1)):
        return bad(f"{held / GB:.1f} GB of {int(total.group(1)) / GB:.1f} GB: a shard is cut short", bytes=held)
    if "config.json" not in present:
        return bad("config.json is missing")
    return ok(
        f"{plural(len(shards), 'shard')}, {held / GB:.1f} GB (sizes; hashes are checked by stack fetch)", bytes=held
    )
