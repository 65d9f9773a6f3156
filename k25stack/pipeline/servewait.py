"""Wait for a server that comes up in containers: its phases, how long the rest will take, or why it will not come."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.errors import HostError
from k25stack.files import write_text
from k25stack.pipeline.composectl import Compose, key_for
from k25stack.pipeline.progress import Display, clock

LOOK_S = 1.0
ANSWER_S = 5.0
FAULTS_ABOVE = re.compile(r": not started, \d+ faults? above")  # the last line of templates/script.sh.j2
PREPARE = "prepare"
GIVEN_UP = "k25stack-watch: given up"


@dataclass(frozen=True)
class Door:
    """The proxy from outside: its address, and what opens it."""

    url: str
    certificate: Path
    user: str
    operator: str

    def get(self, path: str, key: str = "") -> tuple[int, str]:
        """(status, body); status 0 when nobody answers."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {key}"} if key else {})
        tls = ssl.create_default_context(cafile=str(self.certificate))
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))
        try:
            with opener.open(request, timeout=ANSWER_S) as reply:
                return reply.status, reply.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")
        except OSError as error:
            return 0, str(error)

    def status(self) -> dict[str, Any]:
        """The supervisor's own words; empty while it does not answer."""
        code, text = self.get("/status", self.operator)
        try:
            found = json.loads(text) if code == 200 else {}
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def env(self) -> dict[str, str]:
        """What makes this room's clients ask through the door as an operator."""
        return {"K25_API_KEY": self.operator, "K25_CA_FILE": str(self.certificate)}


def door_of(compose: Compose, port: int) -> Door:
    """Read keys and certificate out of the proxy.  The certificate is kept beside the compose file, keys are not.

    Raises HostError while the proxy is not up.
    """
    certificate = compose.directory / "tls.crt"
    write_text(certificate, compose.secret("tls.crt"))
    keys = compose.secret("api-keys")
    return Door(f"https://127.0.0.1:{port}", certificate, key_for(keys, "user"), key_for(keys, "operator"))


def wait_ready(
    compose: Compose, profile: str, port: int, ready_s: float, starting: subprocess.Popen[bytes], log: Path
) -> Door:
    """Follow the start until the supervisor calls the engine ready.  Raises HostError that says what stopped it."""
    display, begun = Display(), time.monotonic()
    prepared = begun  # a download may take hours, and `ready_s` is the engine's
    door: Door | None = None
    while True:
        elapsed = time.monotonic() - begun
        started = starting.poll() == 0  # until then the one that answers may be the old one
        phase, door = _look(compose, profile, port, door)
        if phase.startswith(PREPARE):
            prepared = time.monotonic()
        if phase == "ready" and door is not None and started:
            display.line(f"{profile}: ready after {clock(elapsed)}")
            return door
        failed = _failed(compose, profile, starting, log)
        if failed is not None:
            raise failed
        if time.monotonic() - prepared > ready_s:
            raise HostError(f"not ready after {ready_s:.0f} s ({phase})", where=profile,
                            remedy=f"docker compose logs {profile}, or serving.ready_s")  # fmt: skip
        display.show(profile, {"phase": phase, "done": elapsed, "total": 0.0, "unit": "s"}, elapsed)
        time.sleep(LOOK_S)


def preparing(profile: str) -> tuple[str, str]:
    """The services that get target and draft: neither counts against the time that an engine has."""
    return PREPARE, f"{PREPARE}-{profile}"


def _look(compose: Compose, profile: str, port: int, door: Door | None) -> tuple[str, Door | None]:
    """(phase in words, door once the proxy is up)."""
    found = compose.containers()
    for service in preparing(profile):
        if found.get(service, {}).get("State") == "running":
            told = compose.tail(service, 1)
            return f"{PREPARE}: {told[-1]}" if told else PREPARE, door
    if door is None and found.get("proxy", {}).get("State") == "running":
        try:
            door = door_of(compose, port)
        except HostError:  # it is making its certificate
            return "starting the proxy", None
    if found.get(profile, {}).get("State") != "running" or door is None:
        return "starting containers", door
    return phase_of(door.status()), door


def phase_of(status: dict[str, Any]) -> str:
    """The supervisor's status in words, with the time that the rest will take where it knows."""
    if not status:
        return "starting the supervisor"
    if status.get("ready"):
        return "ready"
    load = status.get("load") or {}
    left = load.get("left_s")
    rest = f", about {clock(left)} left" if isinstance(left, int | float) else ""
    text = load.get("phase") or status.get("text") or ""
    return f"{status.get('state', 'starting')}{': ' if text else ''}{text}{rest}"


def _gone(compose: Compose, row: dict[str, Any]) -> bool:
    """It ended with an error.  The supervisor restarts its engine itself: a restart by Docker means that it gave up."""
    if row.get("State") in ("exited", "dead"):
        return row.get("ExitCode") not in (0, None)
    return row.get("State") == "restarting" or (bool(row) and compose.restarts(str(row["ID"])) > 0)


def complaint(lines: list[str]) -> str:
    """What a container says of its end: its first fault, with its remedy, and how many others it found."""
    said = [line for line in lines if line.startswith("error:") or GIVEN_UP in line]
    faults = [line for line in dict.fromkeys(said) if not FAULTS_ABOVE.search(line)]  # a restart tells them again
    if not faults:
        return (said or lines or [""])[-1].removeprefix("error: ")
    if GIVEN_UP in said[-1]:
        return said[-1]
    more = f"; and {len(faults) - 1} more" if len(faults) > 1 else ""
    return faults[0].removeprefix("error: ") + more


def _failed(compose: Compose, profile: str, starting: subprocess.Popen[bytes], log: Path) -> HostError | None:
    """Why the server will not come; None while it may."""
    if starting.poll() is None:
        return None
    found = compose.containers()
    for service in ("ground", *preparing(profile), "proxy", profile):
        row = found.get(service, {})
        fell = row.get("State") == "restarting" if service == "proxy" else _gone(compose, row)
        if fell:
            what = complaint(compose.tail(service, 60)) or f"exit {row.get('ExitCode')}"
            return HostError(f"it did not start: {what}", where=service, remedy=f"log: docker logs {row.get('Name')}")
    if starting.returncode != 0:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return HostError(f"docker compose: {lines[-1] if lines else 'no output'}", where=profile, remedy=f"log: {log}")
    return None
