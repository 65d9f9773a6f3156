"""What ``check host --live`` measures on this machine, as readings that the live judges take.

The caller holds the GPU lease and hands down what others may see of it (``Held``).  Nothing here waits for ever: every
part has its limit, and one that hangs leaves a reading that says so.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from k25stack.errors import HostError
from k25stack.host.live.family import FINE, TIMEOUT, UNABLE
from k25stack.host.live.session import Answer, Place, Session, environment, pairs_and_all
from k25stack.host.nccl_env import parse_env
from k25stack.host.parse.values import plural
from k25stack.host.places import (
    LIVE_CDI,
    LIVE_DCGM,
    LIVE_NCCL,
    LIVE_NCCL_VERSION,
    LIVE_P2P,
    LIVE_READ,
    LIVE_SOAK,
    NCCL_FILE,
)
from k25stack.host.profile import Profile
from k25stack.host.seen import Reading, Seen, Unseen

SIZES = tuple(8 * 4**step for step in range(14))  # bytes: 8 B to 512 MiB
GB = 10**9
READ_BYTES, READ_S = 16 * GB, 20.0
DCGM = ("dcgmi", "diag", "-r", "2", "-j")
DCGM_S, CDI_S, PROBE_S = 1200.0, 60.0, 60.0


def silent(line: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Held:
    """What the holder of the lease hands down."""

    note: Callable[[str], None] = silent  # tells others how far it is
    descriptors: tuple[int, ...] = ()  # children keep the lease while they live


@dataclass(frozen=True)
class Wanted:
    """What to measure, and with what."""

    place: Place = field(default_factory=Place)
    model_dir: str = ""  # instead of the profile's
    soak_s: float = 0.0
    limit_s: float = 120.0  # of one all-reduce of some cards, all sizes together
    sizes: tuple[int, ...] = SIZES
    backend: str = "nccl"


def expected(profile: Profile, wanted: Wanted) -> Profile:
    """The profile with the directory that is really read, so that its speed is judged."""
    if not wanted.model_dir:
        return profile
    directory = Path(wanted.model_dir)
    size = sum(path.stat().st_size for path in directory.iterdir() if path.is_file()) if directory.is_dir() else 0
    return replace(profile, model_dir=wanted.model_dir, model_gb=profile.model_gb or max(1, round(size / GB)))


def plan(profile: Profile, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """(part, what it does) in order."""
    if profile.model_dir and profile.model_gb:
        yield (
            "disk",
            f"read up to {READ_BYTES / GB:.0f} GB or {READ_S:.0f} s of {profile.model_dir}, past the page cache",
        )
    if profile.gpus:
        yield "probe", f"cards and NCCL of {wanted.place.told()}"
    if profile.gpus > 1:
        for cards in pairs_and_all(range(profile.gpus)):
            shown = ", ".join(map(str, cards))
            yield "allreduce", f"all-reduce of cards {shown}: {len(wanted.sizes)} sizes, at most {wanted.limit_s:.0f} s"
        yield "p2p", f"copy and compare {profile.gpus * (profile.gpus - 1)} directions"
    if profile.gpus and profile.containers and container_image(profile, wanted):
        yield "cdi", " ".join(_cdi(container_image(profile, wanted)))
    if profile.gpus and shutil.which(DCGM[0]):
        yield "dcgm", " ".join(DCGM)
    if profile.gpus and wanted.soak_s:
        yield "soak", f"load on all cards for {wanted.soak_s:.0f} s"


def container_image(profile: Profile, wanted: Wanted) -> str:
    return wanted.place.image or next(iter(profile.images), "")


def measure(seen: Seen, profile: Profile, wanted: Wanted, held: Held, told: Callable[[str], None] = silent) -> Seen:
    """All that was read and what is measured now; what cannot be measured leaves a reading that says why."""
    parts = [part for part, _ in plan(profile, wanted)]
    found: dict[str, Reading] = {}

    def say(line: str) -> None:
        held.note(line)
        told(line)

    with Session(wanted.place, held.descriptors) as session:
        if "disk" in parts:
            say(f"disk: {profile.model_dir}")
            found[LIVE_READ.place] = _disk(profile, held)
        if "probe" in parts:
            try:
                _cards(session, seen, profile, wanted, parts, say, found)
            except HostError as error:
                say(f"{error}")
                _lacking(error.what, parts, found)
        if "cdi" in parts:
            say("a container with all cards")
            found[LIVE_CDI.place] = _command(_cdi(container_image(profile, wanted)), CDI_S)
        if "dcgm" in parts:
            say("DCGM diagnostic, some minutes")
            found[LIVE_DCGM.place] = _command(DCGM, DCGM_S)
    return Seen({**seen.readings, **found}, seen.absent)


def _disk(profile: Profile, held: Held) -> Reading:
    """In a Python of our own: a container may not see the directory."""
    with Session(Place(sys.executable), held.descriptors) as session:
        answer = session.ask("disk", READ_S + 30, directory=profile.model_dir, bytes=READ_BYTES, seconds=READ_S)
    return Reading(answer.text, answer.code)


NEED_TORCH = {"allreduce": LIVE_NCCL, "p2p": LIVE_P2P, "soak": LIVE_SOAK}


def _lacking(why: str, parts: list[str], found: dict[str, Reading]) -> None:
    """Readings of the parts that could not be measured."""
    for part, source in NEED_TORCH.items():
        if part in parts:
            found.setdefault(source.place, Reading(f"{why}\n", UNABLE))


def _cards(
    session: Session,
    seen: Seen,
    profile: Profile,
    wanted: Wanted,
    parts: list[str],
    say: Callable[[str], None],
    found: dict[str, Reading],
) -> None:
    """The parts that need torch and cards, into ``found``."""
    say(f"cards as {wanted.place.told()} sees them")
    probe = session.ask("probe", PROBE_S)
    facts = _facts(probe)
    seeing = facts.get("cards", 0)
    if wanted.backend == "nccl" and seeing < profile.gpus:
        why = probe.why() if probe.code != FINE else f"torch of {wanted.place.told()} sees {plural(seeing, 'card')}"
        _lacking(why, parts, found)
        return
    cards = list(range(profile.gpus))
    if version := facts.get("nccl"):
        found[LIVE_NCCL_VERSION.place] = Reading(f"NCCL {version} in {wanted.place.told()}\n")
    if "allreduce" in parts:
        found[LIVE_NCCL.place] = allreduces(session, cards, wanted, file_env(seen), say)
    if "p2p" in parts:
        say("copies between all pairs")
        answer = session.ask("p2p", wanted.limit_s, cards=cards)
        found[LIVE_P2P.place] = Reading(answer.text, answer.code)
    if "soak" in parts:
        from k25stack.host.soak import soak

        record = soak(session, cards, wanted.soak_s, say)
        found[LIVE_SOAK.place] = Reading(json.dumps(record, indent=1) + "\n")


def allreduces(
    session: Session, cards: list[int], wanted: Wanted, env: Mapping[str, str], say: Callable[[str], None] = silent
) -> Reading:
    """Two cards, then all: the text of all parts; it ends with the first that hangs or fails."""
    text = "".join(f"# {name}={value}\n" for name, value in sorted(env.items()))
    for group in pairs_and_all(cards):
        say(f"all-reduce of cards {', '.join(map(str, group))}")
        answer = session.ask(
            "allreduce", wanted.limit_s, cards=group, sizes=list(wanted.sizes), env=dict(env), backend=wanted.backend
        )
        text += answer.text
        if answer.code != FINE:
            return Reading(text, answer.code)
    return Reading(text)


def file_env(seen: Seen) -> dict[str, str]:
    """NCCL's variables of /etc/k25stack/nccl.env, with which servers run.  A file that is no such file gives none."""
    text = seen.text(NCCL_FILE)
    try:
        return environment(parse_env(text, str(NCCL_FILE))) if text else {}
    except Unseen:
        return {}


def _facts(probe: Answer) -> dict[str, Any]:
    line = next((line for line in probe.lines if line.startswith("{")), "{}")
    found: dict[str, Any] = json.loads(line)
    return found


def _cdi(image: str) -> tuple[str, ...]:
    return (
        *("docker", "run", "--rm", "--pull=never", "--device", "nvidia.com/gpu=all"),
        *("--entrypoint", "nvidia-smi", image, "-L"),
    )


def _command(argv: tuple[str, ...], limit_s: float) -> Reading:
    """The output of a command; its errors too, as they say why."""
    from k25stack.proc import run

    try:
        done = run(argv, timeout_s=limit_s, check=False)
    except HostError as error:
        return Reading(f"{error.what}\n", TIMEOUT if "no end" in error.what else 127)
    return Reading(done.stdout or done.stderr, done.returncode if done.returncode >= 0 else 128 - done.returncode)
