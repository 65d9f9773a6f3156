"""One look at the engine over HTTP: what it answered, or in which way it did not (standard library only)."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from k25stack.watch.policy import Policy, Warm

Outcome = Literal["fine", "refused", "saturated", "timeout", "bad"]
MISSES = ("refused", "saturated", "timeout", "bad", "stalled")  # the last one is seen by two looks
PIECE = 1 << 16
LIMIT = 1 << 24  # bytes of an answer that are read
DECLINED = (400, 404, 422, 501)  # statuses that say: not this kind of request


@dataclass(frozen=True)
class Look:
    """``refused``: nobody listens.  ``saturated``: no connection in time (the accept queue is full).
    ``timeout``: connected, but no whole answer in time.  ``bad``: an answer of another kind; ``declined`` when it says
    in order that such a request is not served here.
    """

    outcome: Outcome
    text: str = ""
    running: float | None = None  # None: not counted
    waiting: float = 0.0
    tokens: float = 0.0
    declined: bool = False

    @property
    def busy(self) -> bool:
        return (self.running or 0.0) + self.waiting > 0


class Failed(Exception):
    """No answer; carries the look that says in which way."""

    def __init__(self, outcome: Outcome, text: str) -> None:
        super().__init__(text)
        self.look = Look(outcome, text)


def fetch(url: str, timeout_s: float, body: Mapping[str, Any] | None = None) -> tuple[int, str, bytes]:
    """(status, content type, body) within ``timeout_s`` in all.  Raises Failed; never asks a proxy."""
    parts = urlsplit(url)
    place = f"{parts.hostname}:{parts.port}"
    deadline = time.monotonic() + timeout_s
    link = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        try:
            link.connect()
        except TimeoutError:
            raise Failed("saturated", f"no connection to {place} in {timeout_s:g} s") from None
        data = None if body is None else json.dumps(body)
        headers = {} if data is None else {"Content-Type": "application/json"}
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        link.request("GET" if data is None else "POST", path, data, headers)
        reply = _first(link, deadline)
        return reply.status, reply.headers.get("Content-Type", ""), _read(link, reply, deadline)
    except ConnectionRefusedError:
        raise Failed("refused", f"{place} refused the connection") from None
    except TimeoutError:
        raise Failed("timeout", f"no whole answer of {place}{parts.path} in {timeout_s:g} s") from None
    except (http.client.HTTPException, OSError) as error:
        raise Failed("bad", f"{place}{parts.path}: {type(error).__name__} {error}".rstrip()) from None
    finally:
        link.close()


def _first(link: http.client.HTTPConnection, deadline: float) -> http.client.HTTPResponse:
    _allow(link.sock, deadline)
    return link.getresponse()


def _read(link: http.client.HTTPConnection, reply: http.client.HTTPResponse, deadline: float) -> bytes:
    """The body; the deadline is for all of it, so that a server that trickles does not hold us."""
    pieces: list[bytes] = []
    size = 0
    while size < LIMIT:
        if link.sock is not None:
            _allow(link.sock, deadline)
        elif time.monotonic() > deadline:
            raise TimeoutError
        piece = reply.read1(PIECE)
        if not piece:
            break
        pieces.append(piece)
        size += len(piece)
    if reply.length:  # the connection ended before the announced length
        raise http.client.IncompleteRead(b"", reply.length)
    return b"".join(pieces)


def _allow(sock: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)


class Eye:
    """Looks at one engine as the policy says; the patterns of the metrics are made once."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        counters = policy.counters
        self.running = _pattern(counters.running)
        self.waiting = _pattern(counters.waiting)
        self.tokens = _pattern(counters.tokens)

    def healthy(self, timeout_s: float) -> Look:
        """Does the health address answer 200?"""
        try:
            status, _, _ = fetch(self.policy.health_url, timeout_s)
        except Failed as failed:
            return failed.look
        return Look("fine") if status == 200 else Look("bad", f"{self.policy.health_url} answered {status}")

    def counted(self, timeout_s: float) -> Look:
        """The engine's counters; without a metrics address only its health."""
        url = self.policy.metrics_url
        if url is None:
            return self.healthy(timeout_s)
        try:
            status, _, text = fetch(url, timeout_s)
        except Failed as failed:
            return failed.look
        running = _sum(self.running, text)
        if status != 200 or running is None:
            return Look("bad", f"{url} answered {status}" + ("" if status != 200 else " without the expected metrics"))
        return Look("fine", "", running, _sum(self.waiting, text) or 0.0, _sum(self.tokens, text) or 0.0)

    def warm(self, warm: Warm, timeout_s: float) -> Look:
        """Send a warm request: fine when it was answered in full."""
        try:
            status, kind, text = fetch(warm.url, timeout_s, warm.body)
        except Failed as failed:
            return failed.look
        if status != 200:
            said = text[:200].decode(errors="replace").strip()
            return Look("bad", f"{warm.phase} request answered {status}: {said}", declined=status in DECLINED)
        if not _whole(kind, text):
            return Look("bad", f"the answer to the {warm.phase} request was cut short")
        return Look("fine")


def _whole(kind: str, text: bytes) -> bool:
    if "event-stream" in kind:
        return text.rstrip().endswith(b"data: [DONE]")
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _pattern(names: Iterable[str]) -> re.Pattern[bytes] | None:
    joined = "|".join(re.escape(name) for name in names)
    return re.compile(rf"^(?:{joined})(?:\{{.*\}})?[ \t]+([^ \t\n]+)".encode(), re.MULTILINE) if joined else None


def _sum(pattern: re.Pattern[bytes] | None, text: bytes) -> float | None:
    if pattern is None:
        return None
    try:
        found = [float(value) for value in pattern.findall(text)]
    except ValueError:
        return None
    return sum(found) if found else None


def listens(host: str, port: int) -> bool:
    """Does anybody accept connections there now?"""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True
