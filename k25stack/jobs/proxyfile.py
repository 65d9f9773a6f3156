"""The proxy's configuration, rendered: which paths pass, for whom, and how much."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from k25stack.jobs.templates import fill

READ = ("/v1/models",)
ASK = ("/v1/chat/completions", "/v1/completions")
WATCH = ("/status",)  # of the supervisor; what else an operator reads is the engine's
OPERATORS = ("/metrics", "/version", *WATCH)


@dataclass(frozen=True)
class Door:
    """Limits of the proxy, and where it finds the engine.  Sizes in MiB, times in seconds."""

    listen: str = "8443"
    engine_host: str = "engine"
    engine_port: int = 30000
    ready_port: int = 8099
    resolver: str = "127.0.0.11"  # Docker's own name server
    secrets: str = "/run/k25stack/secrets"
    workers: int = 2
    body_mib: int = 32  # a long context, or some pictures
    requests_per_s: int = 50  # of one key
    burst: int = 200
    streams: int = 256  # of one key, open at once
    request_s: int = 3600  # until the first token, and between two
    drain_s: int = 60


def proxy_config(door: Door | None = None) -> str:
    """nginx.conf for ``door``."""
    values: dict[str, Any] = asdict(door or Door())
    paths = {"paths": (*ASK, *READ), "reading": READ, "operator_paths": OPERATORS, "watch_paths": WATCH}
    return fill("proxy.conf.j2", **values, **paths)
