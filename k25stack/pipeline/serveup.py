"""Start, stop, change and take back what is served.

A change is written to ``pending.json`` before the old server stops.  Whatever ends this command in between, the next
``serve rollback`` (or ``serve``) finds what was good.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from k25stack.errors import HostError, K25Error, UsageError
from k25stack.jobs.composefile import containers
from k25stack.pipeline.composectl import keep_image
from k25stack.pipeline.servewait import Door, wait_ready
from k25stack.pipeline.serving import Choice, Site, is_up

SLOWER = 0.95  # a candidate may lose so much speed to noise
BENCH = (1, 4)  # concurrency of the short bench
Say = Callable[[str], None]


def start(site: Site, choice: Choice) -> Door:
    """Bring a proven choice up, another profile of the site down, and wait until it is ready."""
    promised = _text(site.promise)
    choice = replace(site.render(choice), image=keep_image(choice.image), since=time.time())
    compose = site.compose(choice)
    others = [name for name in containers(site.stack) if name != choice.profile]
    if promised != _text(site.promise):
        others.append("prometheus")  # its mount is the old file; what it has measured lies in a volume
    running = compose.containers()
    if leaving := [name for name in others if running.get(name, {}).get("State") in ("running", "restarting")]:
        compose.run("rm", "--stop", "--force", *leaving, timeout_s=600)
    log = site.directory / "up.log"
    starting = compose.start("up", "--detach", "--remove-orphans", log=log)
    site.note("current", choice)
    try:
        door = wait_ready(compose, choice.profile, choice.port, site.stack.serving.ready_s, starting, log)
    except HostError:
        compose.run("stop", choice.profile, timeout_s=300, check=False)  # Docker would go on trying for ever
        raise
    return door


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def serve(site: Site, choice: Choice) -> Door:
    """Start a choice for good: once it is ready it counts as good.  Raises HostError that says why it is not."""
    with site.changing("serve"):
        door = start(site, choice)
        current = site.choice("current")
        assert current is not None
        site.remember(current)
        site.note("pending", None)
    return door


def down(site: Site, volumes: bool = True) -> None:
    """Stop all of it: containers, networks and (with ``volumes``) keys, certificate and caches too."""
    current = site.choice("current") or site.choice("pending")
    choice = current or Choice(site.stack.name, site.stack.serving.default, "none", "/nonexistent", "/nonexistent")
    if not (site.directory / site.compose(choice).file).is_file():
        return
    compose = site.compose(replace(choice, monitoring=(site.directory / "monitoring.yaml").is_file()))
    words = ["--profile", "*", "down", "--remove-orphans", "--timeout", "60", *(["--volumes"] if volumes else [])]
    compose.run(*words, timeout_s=900)
    site.note("current", None)
    for name in ("tls.crt", "up.log", "promise.yml"):
        (site.directory / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class Verdict:
    """How a candidate compares: rows of both, and what speaks against it (empty: it is promoted)."""

    before: list[dict[str, Any]]
    after: list[dict[str, Any]]
    against: list[str]


def promote(site: Site, candidate: Choice, say: Say) -> Verdict:
    """Try a proven candidate in place of what is served; keep it when it is not slower, else put the old one back.

    Raises UsageError when nothing is served or an earlier change was broken off, HostError when the candidate does not
    come up (the old one is back then).
    """
    with site.changing("serve promote"):
        return _promote(site, candidate, say)


def _promote(site: Site, candidate: Choice, say: Say) -> Verdict:
    if (good := site.choice("pending")) is not None:  # else what is up, and may be no good, would be put back later
        raise UsageError(f"an earlier change was broken off; before it was {good.told()}", where=site.stack.name,
                         remedy=f"k25stack serve rollback {site.source}, or serve what is to stay: "
                         f"k25stack serve {site.source} PROFILE")  # fmt: skip
    current = site.choice("current")
    if current is None or not is_up(site, current):
        raise UsageError(
            "nothing is served that could be compared with", where=site.stack.name, remedy="k25stack serve"
        )
    from k25stack.pipeline.servewait import door_of

    door = door_of(site.compose(current), current.port)
    say(f"measuring what is served: {current.told()}")
    before = measure(door, site)
    site.note("pending", current)
    try:
        say(f"trying: {candidate.told()}")
        door = start(site, candidate)
        after = measure(door, site)
        against = worse(before, after)
    except (K25Error, KeyboardInterrupt) as error:
        say(f"the candidate failed: {error or 'interrupted'}; putting back {current.told()}")
        restore(site, current)
        raise
    if against:
        say(f"not promoted; putting back {current.told()}")
        restore(site, current)
    else:
        found = site.choice("current")
        assert found is not None
        site.remember(found)
        site.note("pending", None)
    return Verdict(before, after, against)


def restore(site: Site, choice: Choice) -> Door:
    """Serve an earlier choice again, as it was: its image, draft and environment, whatever the stack file says now."""
    door = start(site.as_of(choice), choice)
    site.note("pending", None)
    return door


def rollback(site: Site) -> tuple[Choice, Door]:
    """Serve the last good choice that is not the current one; what a broken-off change left comes first.

    Raises UsageError when there is none.
    """
    with site.changing("serve rollback"):
        return _rollback(site)


def _rollback(site: Site) -> tuple[Choice, Door]:
    current, pending = site.choice("current"), site.choice("pending")
    good = [Choice(**one) for one in site.read("good")]
    earlier = [one for one in good if current is None or not _alike(one, current)]
    chosen = pending or (earlier[-1] if earlier else None)
    if chosen is None:
        raise UsageError(
            "there is no earlier good server", where=site.stack.name, remedy="k25stack serve STACK PROFILE"
        )
    site.note("pending", chosen)  # a second try of a rollback that was killed goes to the same one
    return chosen, restore(site, chosen)


def _alike(one: Choice, other: Choice) -> bool:
    return all(
        getattr(one, name) == getattr(other, name) for name in ("profile", "image_id", "target", "draft", "env", "port")
    )


def measure(door: Door, site: Site) -> list[dict[str, Any]]:
    """The short bench through the proxy: rows by concurrency."""
    from k25stack.bench import ondemand

    with environment(door.env()):
        name = ondemand.detect(door.url)
        protocol = ondemand.protocol_for(name, True, BENCH, 1, None, False)
        return ondemand.measure_url(door.url, protocol, ondemand.prompts_for(None), lambda *_: None, None)


def worse(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """What speaks against the candidate: rejected rows, or less throughput than noise explains."""
    found = [f"C={row['concurrency']}: its row was rejected" for row in after if not row["accepted"]]
    speeds = {row["concurrency"]: _median(row) for row in before if row["accepted"]}
    for row in after:
        old, new = speeds.get(row["concurrency"]), _median(row)
        if old and new and new < SLOWER * old:
            found.append(f"C={row['concurrency']}: {new:.1f} tok/s, {old:.1f} before")
    return found


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables of this process for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _median(row: Mapping[str, Any]) -> float | None:
    """Throughput of a row, tok/s; None when it has none."""
    figure = row.get("throughput_tok_s")
    return float(figure["median"]) if figure else None
