"""/ready, /status and /metrics of the supervisor itself."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from k25stack.errors import HostError
from k25stack.watch.cause import CAUSES
from k25stack.watch.look import MISSES
from k25stack.watch.policy import Ready

PREFIX = "k25watch_"
STATES = ("starting", "ready", "healing", "backoff", "down", "draining", "ending")
Status = dict[str, Any]
IDLE_S = 60.0  # it is never shut down, so it need not wake up to see that


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    status: Callable[[], Status]

    def server_bind(self) -> None:
        """Without the look-up of the host's full name, which waits for a name server that may not be there."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    timeout = 5.0  # of somebody who connects and says nothing
    server: _Server

    def do_GET(self) -> None:
        status = self.server.status()
        if self.path == "/ready":
            line = "ready" if status["ready"] else f"{status['state']}: {status['text']}".rstrip(": ")
            self._answer(200 if status["ready"] else 503, "text/plain", line + "\n")
        elif self.path == "/status":
            self._answer(200, "application/json", json.dumps(status) + "\n")
        elif self.path == "/metrics":
            self._answer(200, "text/plain; version=0.0.4", metrics(status))
        else:
            self._answer(404, "text/plain", "one of /ready, /status, /metrics\n")

    do_HEAD = do_GET

    def _answer(self, code: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """The log is the engine's."""


def serve(place: Ready, status: Callable[[], Status]) -> _Server:
    """Answer on ``place`` from now on, in threads.  Raises HostError when the port is not to be had."""
    try:
        server = _Server((place.host, place.port), _Handler)
    except OSError as error:
        where = f"{place.host}:{place.port}"
        raise HostError(f"the ready port cannot be opened: {error.strerror}", where=where,
                        remedy="stop whoever listens there, or set ready.port") from None  # fmt: skip
    server.status = status
    threading.Thread(target=server.serve_forever, args=(IDLE_S,), name="page", daemon=True).start()
    return server


def metrics(status: Status) -> str:
    """Few series: states, restarts and misses by cause, load phases, age of the last good look."""
    lines = [f"# TYPE {PREFIX}ready gauge", f"{PREFIX}ready {int(status['ready'])}", f"# TYPE {PREFIX}state gauge"]
    lines += [f'{PREFIX}state{{state="{name}"}} {int(status["state"] == name)}' for name in STATES]
    for name, label, known, values in (
        ("restarts_total", "cause", (*CAUSES, *MISSES), status["restarts"]),
        ("misses_total", "kind", MISSES, status["misses"]),
    ):
        counts = dict.fromkeys(known, 0) | values  # from zero on: a rate needs a sample before the first event
        lines.append(f"# TYPE {PREFIX}{name} counter")
        lines += [f'{PREFIX}{name}{{{label}="{key}"}} {count}' for key, count in counts.items()]
    lines.append(f"# TYPE {PREFIX}load_seconds gauge")
    lines += [f'{PREFIX}load_seconds{{phase="{name}"}} {value}' for name, value in status["load"]["seconds"].items()]
    lines += [f"# TYPE {PREFIX}misses_in_a_row gauge", f"{PREFIX}misses_in_a_row {status['row']}"]
    if status["look_age_s"] is not None:
        lines += [f"# TYPE {PREFIX}look_age_seconds gauge", f"{PREFIX}look_age_seconds {status['look_age_s']}"]
    return "\n".join(lines) + "\n"
