"""The rendered proxy as a real nginx on this host, before a fake engine."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from k25stack.jobs.proxyfile import Door, proxy_config

START = Path(__file__).resolve().parents[2] / "templates" / "proxy.start.sh"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Proxy:
    """A running proxy; ``keys`` by name."""

    url: str
    directory: Path
    process: subprocess.Popen[str]

    @property
    def keys(self) -> dict[str, str]:
        lines = (self.directory / "secrets" / "api-keys").read_text().splitlines()
        return {name: key for name, _, key in (line.split() for line in lines)}

    @property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.directory / "secrets" / "tls.crt"))

    def ask(
        self, path: str, key: str | None = None, body: bytes | None = None, method: str | None = None
    ) -> tuple[int, str]:
        """(status, body) of one request."""
        request = urllib.request.Request(self.url + path, data=body, method=method)
        if key is not None:
            request.add_header("Authorization", f"Bearer {key}")
        if body is not None:
            request.add_header("Content-Type", "application/json")
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self.tls)
        )
        try:
            with opener.open(request, timeout=20) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=20)


def prepare(directory: Path, engine_port: int, ready_port: int = 9, **door: object) -> tuple[dict[str, str], int]:
    """Configuration and environment of a start; the caller runs ``start.sh``."""
    port = free_port()
    (directory / "secrets").mkdir(parents=True, exist_ok=True)
    values: dict[str, object] = {
        "listen": f"127.0.0.1:{port}", "engine_host": "127.0.0.1", "engine_port": engine_port,
        "ready_port": ready_port, "secrets": str(directory / "secrets"), "workers": 1,
    }  # fmt: skip
    text = proxy_config(Door(**{**values, **door}))  # type: ignore[arg-type]
    for word in ("nginx.pid", "body", "proxied", "fastcgi", "uwsgi", "scgi", "who.map", "operators.map"):
        text = text.replace(f"/tmp/{word}", str(directory / word))
    (directory / "nginx.conf").write_text(text)
    places = {"SECRETS": directory / "secrets", "CONFIG": directory / "nginx.conf", "WORK": directory}
    return {**os.environ, **{name: str(place) for name, place in places.items()}}, port


def start(directory: Path, engine_port: int, ready_port: int = 9, **door: object) -> Proxy:
    env, port = prepare(directory, engine_port, ready_port, **door)
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(["sh", str(START)], env=env, text=True, stdout=log, stderr=log)
    proxy = Proxy(f"https://127.0.0.1:{port}", directory, process)
    begun = time.monotonic()
    while True:
        try:  # the test of the configuration opens the port for a moment too: only an answer tells
            proxy.ask("/")
            return proxy
        except OSError:
            if process.poll() is not None or time.monotonic() - begun > 20:
                raise AssertionError((directory / "log").read_text()) from None
            time.sleep(0.02)
