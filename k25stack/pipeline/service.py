"""A server that lives as long as the step that needs it, whatever becomes of this command.

It is started on a free port, waited for, and stopped when the step is over, after a failure and Ctrl-C too.  When this
command is killed, the server goes on while the measurement runs and ends by itself a moment after.
"""

from __future__ import annotations

import http.client
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from k25stack.errors import HostError
from k25stack.jobs import Health, Job
from k25stack.ledger.records import now
from k25stack.pipeline import failure
from k25stack.pipeline.step import Service, Step
from k25stack.pipeline.stepjob import python
from k25stack.pipeline.workshop import Workshop

SUFFIX = ".server"
ORPHAN_S = 20.0
GRACE_S = 15.0
PROBE_S = 2.0


@contextmanager
def serving(
    shop: Workshop, step: Step, key: str, inputs: Mapping[str, str], measuring: str | None
) -> Iterator[tuple[dict[str, str], Callable[[str], None]]]:
    """(environment with the server's address, a function that tells the server who needs it); nothing without service.

    ``measuring`` is a job that already runs: its server is taken over (see ``has_server``).
    """
    service = step.service
    if service is None:
        yield {}, lambda handle: None
        return
    handle = _server(shop, step)
    if handle is not None and measuring is None:
        _end(shop, handle)
        handle = None
    try:
        if handle is None:
            handle = _start(shop, step, service, key, inputs)
            _wait_ready(shop, step, service, key, handle)
        server, port = handle, shop.backend.ports(handle)[0]
        yield (
            {service.url_variable: f"http://127.0.0.1:{port}"},
            lambda job: shop.backend.own(server, [os.getpid(), *shop.backend.roots(job)], [job]),
        )
    finally:
        if (left := _server(shop, step)) is not None:
            _end(shop, left)


def has_server(shop: Workshop, step: Step) -> bool:
    """True when the server that the step needs is running, and for a step that needs none."""
    if step.service is None:
        return True
    handle = _server(shop, step)
    return handle is not None and shop.backend.poll(handle).phase == "running"


def end_idle_servers(shop: Workshop) -> None:
    """Servers whose measurement ended while nobody watched would take the cores from what comes next."""
    for handle in shop.backend.jobs(shop.run.name):
        name = shop.backend.step(handle)
        if name.endswith(SUFFIX):
            measuring = shop.backend.find(shop.run.name, name.removesuffix(SUFFIX))
            if measuring is None or shop.backend.poll(measuring).phase != "running":
                _end(shop, handle)


def _server(shop: Workshop, step: Step) -> str | None:
    return shop.backend.find(shop.run.name, f"{step.name}{SUFFIX}")


def _end(shop: Workshop, handle: str) -> None:
    try:
        shop.backend.stop(handle, GRACE_S)
    except KeyboardInterrupt:
        shop.backend.stop(handle, 0.0)
        raise
    finally:
        shop.backend.forget(handle)


def _start(shop: Workshop, step: Step, service: Service, key: str, inputs: Mapping[str, str]) -> str:
    shop.lease.secure()
    port = free_port()
    places = {"{python}": python(service.image), "{port}": str(port), "{threads}": str(shop.threads)}
    places |= {f"{{inputs.{name}}}": inputs[f"service.{name}"] for name in service.inputs}
    log = shop.run.step(key) / "server.log"
    failure.begin_log(log, service.name, now())
    handle = shop.backend.submit(
        Job(
            run=shop.run.name,
            step=f"{step.name}{SUFFIX}",
            key=key,
            argv=tuple(places.get(word, word) for word in service.argv),
            log=log,
            env={**shop.base_env(), **service.env},
            image=service.image,
            gpus=step.gpus,
            ports=(port,),
            health=Health(service.health, port, service.ready_s),
            orphan_s=ORPHAN_S,
        )
    )
    shop.backend.own(handle, [os.getpid()])
    return handle


def _wait_ready(shop: Workshop, step: Step, service: Service, key: str, handle: str) -> None:
    url = f"http://127.0.0.1:{shop.backend.ports(handle)[0]}{service.health}"
    begun = time.monotonic()
    while not answers(url):
        state = shop.backend.wait(handle, 0.1)
        waited = time.monotonic() - begun
        log = shop.run.step(key) / "server.log"
        if state.phase != "running":
            raise failure.of(f"{step.name} (server {service.name})", state, log, shop.run.workspace.state)
        if waited > service.ready_s:
            raise HostError(
                f"server {service.name} did not answer {service.health} in {service.ready_s:.0f} s",
                where=step.name,
                remedy=f"log: {log}",
            )
        progress = {"phase": f"starting server {service.name}", "done": waited, "total": 0.0, "unit": "s"}
        shop.display.show(step.name, progress, waited)
        shop.sample()


def answers(url: str) -> bool:
    """True when ``url`` answers 200 within two seconds (never through a proxy)."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=PROBE_S) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, http.client.HTTPException, OSError):
        return False


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
