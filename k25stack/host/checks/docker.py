"""Docker, its access to the cards, and containers that a careless reload would hurt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from k25stack.host.check import FAIL, WARN, Judgement, bad, cards_in_containers, check, in_containers, ok
from k25stack.host.checks.driver import loaded
from k25stack.host.parse.values import at_least, json_lines, json_object, listed, plural, version
from k25stack.host.places import (
    CDI_ETC,
    CDI_RUN,
    COMPOSE,
    CONTAINERS,
    DEV_CHAR,
    DOCKER_INFO,
    DOCKER_VERSION,
    DRIVER,
    IMAGES,
    SMI,
)
from k25stack.host.profile import Profile
from k25stack.host.seen import NOT_FOUND, Seen, Unseen

OLDEST_BUILDKIT = "23.0"  # older daemons cannot build our images
DRIVERS = ("overlay2", "overlayfs")


def containers(seen: Seen) -> list[dict[str, Any]] | None:
    """The running containers; None when they were not listed.  Raises Unseen for garbage."""
    text = seen.text(CONTAINERS)
    return None if text is None else json_lines(text, str(CONTAINERS))


def with_cards(found: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [one for one in found if one.get("requests") or one.get("runtime") == "nvidia"]


@check(
    "docker.version",
    "docker",
    severity=FAIL,
    sources=(DOCKER_VERSION,),
    applies=in_containers,
    fix="install Docker Engine 25 or newer and start it (playbook role docker)",
    source="Docker Engine release notes: CDI and healthcheck start_interval need 25, heredocs 23",
)
def docker_version(seen: Seen, profile: Profile) -> Judgement:
    reading = seen.reading(DOCKER_VERSION)
    if reading is not None and reading.rc == NOT_FOUND:
        return bad("Docker is not installed")
    if reading is not None and reading.text.strip() == "json":
        return bad("a client older than 23: it does not know --format json")
    text = reading.text if reading is not None and reading.text.lstrip().startswith("{") else seen.need(DOCKER_VERSION)
    server = json_object(text.splitlines()[0] if "\n" in text.strip() else text, str(DOCKER_VERSION)).get("Server")
    if server is None and reading is not None and reading.rc:
        return bad("the Docker daemon does not answer", fix="systemctl start docker; journalctl -u docker")
    found = str(server.get("Version", "")) if isinstance(server, dict) else ""
    number = version(found)
    if number is None:
        raise Unseen(f"{DOCKER_VERSION}: no version of the server in it")
    if not at_least(number, profile.docker_min):
        mild = at_least(number, OLDEST_BUILDKIT) and not profile.cdi
        return bad(
            f"Docker {found}, needed {profile.docker_min} or newer", severity=WARN if mild else None, server=found
        )
    return ok(f"Docker {found}", server=found)


def _info(seen: Seen) -> dict[str, Any]:
    found = json_object(seen.need(DOCKER_INFO), str(DOCKER_INFO))
    if "ServerVersion" not in found and "Driver" not in found:
        raise Unseen(f"{DOCKER_INFO}: nothing of the daemon in it")
    return found


@check(
    "docker.runtime",
    "docker",
    severity=FAIL,
    sources=(DOCKER_INFO,),
    applies=cards_in_containers,
    fix="nvidia-ctk runtime configure --runtime=docker (or features.cdi in daemon.json), restart Docker "
    "when no server runs",
    source="NVIDIA Container Toolkit documentation; Docker CDI documentation",
)
def runtime(seen: Seen, profile: Profile) -> Judgement:
    info = _info(seen)
    runtimes = info.get("Runtimes")
    has_runtime = isinstance(runtimes, dict) and "nvidia" in runtimes
    directories = info.get("CDISpecDirs")
    has_cdi = isinstance(directories, list) and bool(directories)
    figures: dict[str, Any] = {
        "runtime": has_runtime,
        "cdi": has_cdi,
        "storage": info.get("Driver"),
        "cgroup": info.get("CgroupVersion"),
    }
    if not has_runtime and not has_cdi:
        return bad("neither an nvidia runtime nor CDI: containers get no card", **figures)
    if info.get("Driver") not in DRIVERS:
        return bad(f"storage driver {info.get('Driver')}", fix="use overlay2 on xfs or ext4", **figures)
    if str(info.get("CgroupVersion")) != "2":
        return bad(
            f"control groups of version {info.get('CgroupVersion')}",
            severity=WARN,
            fix="boot with cgroup v2",
            **figures,
        )
    way = " and ".join(name for name, there in (("nvidia runtime", has_runtime), ("CDI", has_cdi)) if there)
    return ok(f"{way}, {info.get('Driver')}, cgroup v2", **figures)


@check(
    "docker.compose",
    "docker",
    severity=FAIL,
    sources=(COMPOSE,),
    applies=in_containers,
    fix="install the compose plugin 2.24 or newer (docker-compose-plugin)",
    source="Docker Compose release notes: !reset needs 2.24",
)
def compose(seen: Seen, profile: Profile) -> Judgement:
    reading = seen.reading(COMPOSE)
    if (
        reading is not None
        and reading.rc not in (0, 124)
        and re.search(r"not a docker command|unknown|not found", reading.text)
    ):
        return bad("the compose plugin is not installed")
    found = seen.need(COMPOSE).strip()
    number = version(found)
    if number is None or len(number) < 2:
        raise Unseen(f"{COMPOSE}: {found[:60]!r} is no version")
    if not at_least(number, profile.compose_min):
        return bad(f"compose {found}, needed {profile.compose_min} or newer", version=found)
    return ok(f"compose {found}", version=found)


@check(
    "cdi.spec",
    "docker",
    severity=FAIL,
    sources=(CDI_ETC, CDI_RUN, DRIVER, SMI),
    applies=lambda p: cards_in_containers(p) and p.cdi,
    fix="systemctl restart nvidia-cdi-refresh (or nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml)",
    repair=lambda seen, profile: [("nvidia-ctk", "cdi", "generate", "--output=/var/run/cdi/nvidia.yaml")],
    source="NVIDIA/nvidia-container-toolkit#450, #856 (a spec of the old driver stops every container)",
)
def cdi(seen: Seen, profile: Profile) -> Judgement:
    files = {**_group(seen, CDI_ETC), **_group(seen, CDI_RUN)}
    if not files and not (seen.lacks(CDI_ETC) or seen.lacks(CDI_RUN)):
        raise Unseen(f"{CDI_RUN}: not collected")
    specs = {place: text for place, text in files.items() if re.search(r'kind"?: *"?nvidia\.com/gpu"?', text)}
    if not specs:
        return bad("no CDI specification of nvidia.com/gpu in /etc/cdi and /var/run/cdi")
    kernel = loaded(seen)
    for place, text in sorted(specs.items()):
        names = set(re.findall(r'^ {0,8}(?:- )?"?name"?: *"?([\w:.-]+)"?,?\s*$', text, re.MULTILINE))
        numbers = {name for name in names if name.isdigit()}
        versions = set(re.findall(r"\.so\.(\d{3,4}\.\d+(?:\.\d+)?)\b", text))
        figures: dict[str, Any] = {"file": f"/{place}", "devices": sorted(names)[:20], "libraries": sorted(versions)}
        if kernel and versions and versions != {kernel}:
            return bad(f"/{place} names libraries of driver {listed(sorted(versions))}, loaded is {kernel}", **figures)
        if len(numbers) != profile.gpus or "all" not in names:
            return bad(f"/{place} describes {plural(len(numbers), 'card')}, expected {profile.gpus} and all", **figures)
    if kernel is None and seen.reading(DRIVER) is not None:
        raise Unseen(f"{DRIVER}: no version in it")
    return ok(f"{profile.gpus} devices and all in {listed('/' + place for place in specs)}", driver=kernel)


def _group(seen: Seen, source: Any) -> dict[str, str]:
    try:
        return seen.group(source)
    except Unseen:
        return {}


@check(
    "devchar",
    "docker",
    severity=WARN,
    sources=(DEV_CHAR,),
    applies=cards_in_containers,
    fix="nvidia-ctk system create-dev-char-symlinks --create-all",
    repair=lambda seen, profile: [("nvidia-ctk", "system", "create-dev-char-symlinks", "--create-all")],
    source="NVIDIA/nvidia-container-toolkit#48 (containers lose their cards)",
)
def device_links(seen: Seen, profile: Profile) -> Judgement:
    names = seen.names(DEV_CHAR)
    if odd := [name for name in names if not re.fullmatch(r"/dev/char/195:\d+", name)]:
        raise Unseen(f"{DEV_CHAR}: {odd[0]!r}")
    minors = {int(name.rpartition(":")[2]) for name in names} & set(range(profile.gpus))
    if len(minors) < profile.gpus:
        return bad(f"/dev/char has links for {len(minors)} of {plural(profile.gpus, 'card')}", links=len(minors))
    return ok(f"/dev/char has links for all {profile.gpus} cards", links=len(minors))


@check(
    "reload.risk",
    "docker",
    severity=WARN,
    sources=(DOCKER_INFO, CONTAINERS, DEV_CHAR),
    applies=cards_in_containers,
    fix="do not reload systemd or upgrade units while these run; use CDI, or cgroupfs, or create the "
    "/dev/char links (devchar)",
    source="NVIDIA/nvidia-container-toolkit#48, #251, #1227; NVIDIA/nvidia-docker#1671",
)
def reload_risk(seen: Seen, profile: Profile) -> Judgement:
    info = _info(seen)
    running = containers(seen)
    if running is None:
        seen.need(CONTAINERS)
    legacy = [
        str(one.get("name", "?")).lstrip("/")
        for one in with_cards(running or [])
        if one.get("runtime") == "nvidia"
        or any(isinstance(ask, dict) and ask.get("Driver") != "cdi" for ask in one.get("requests") or [])
    ]
    linked = seen.reading(DEV_CHAR) is not None and len(seen.names(DEV_CHAR)) >= profile.gpus
    if info.get("CgroupDriver") == "systemd" and legacy and not linked:
        return bad(f"systemctl daemon-reload would take the cards from {listed(legacy)}", containers=legacy)
    if info.get("CgroupDriver") not in ("systemd", "cgroupfs"):
        raise Unseen(f"{DOCKER_INFO}: no CgroupDriver in it")
    return ok("a reload of systemd takes no card away", containers=len(with_cards(running or [])))


@check(
    "image.digest",
    "docker",
    severity=FAIL,
    sources=(IMAGES,),
    applies=lambda p: p.containers and bool(p.images),
    fix="pull by digest: docker pull REPOSITORY@sha256:... (k25stack stack fetch)",
    source="Docker documentation: a tag can move, a digest cannot",
)
def image_digest(seen: Seen, profile: Profile) -> Judgement:
    rows = json_lines(seen.need(IMAGES), str(IMAGES))
    local = {(str(row.get("Repository")), str(row.get("Digest"))) for row in rows}
    tags = {f"{row.get('Repository')}:{row.get('Tag')}": str(row.get("Digest")) for row in rows}
    wrong: list[str] = []
    missing: list[str] = []
    for ref, digest in profile.images.items():
        if (ref.rpartition(":")[0], digest) in local:
            continue
        (wrong if ref in tags else missing).append(ref)
    if wrong:
        return bad(f"another content under the tag: {listed(wrong)}", wrong=wrong, found=[tags[ref] for ref in wrong])
    if missing:
        return bad(f"not on this host: {listed(missing)}", severity=WARN, missing=missing)
    return ok(f"{plural(len(profile.images), 'image')} by digest", images=list(profile.images))
