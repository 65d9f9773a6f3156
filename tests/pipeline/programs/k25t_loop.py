"""A loop of real programs: numbers -> double -> total -> bench (with a server) and a second reader of numbers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from k25stack.pipeline.runner import Request
from k25stack.pipeline.step import Estimate, Fact, Input, Service, Step


def steps(
    parts: int = 4,
    factor: int = 1,
    pause_s: float = 0.0,
    gate: str = "",
    bench_gate: str = "",
    bench_pause_s: float = 0.0,
    modulo: int = 1 << 60,
    fail: str = "",
    times: int = 3,
    blob_bytes: int = 0,
    list_file: str = "",
    estimate_gb: float = 0.0,
    server: Sequence[str] = (),
    env: dict[str, str] | None = None,
) -> list[Step]:
    numbers = Step(
        "numbers",
        "k25t_numbers",
        {"parts": parts, "factor": factor, "fail": fail, "blob_bytes": blob_bytes},
        rooms=("alpha",),
        local={"pause_s": pause_s, "gate": gate},
        setup=True,
        env=env or {},
        estimate=Estimate(1.0, estimate_gb, 0.1),
        volatile=("result.json", "parts/*"),
    )
    total = Step(
        "total",
        "k25t_total",
        {"modulo": modulo, **({"list": "{files.list}"} if list_file else {})},
        inputs={"numbers": Input("numbers", "numbers.txt")},
        files={"list": Path(list_file)} if list_file else {},
        rooms=("beta",),
        packages=("pydantic",),
        facts=(Fact("coverage", "facts.json"),),
    )
    after = Step("after", "k25t_total", {"offset": 5}, inputs={"total": Input("total")}, rooms=("beta", "gamma"))
    service = Service(
        "small",
        ("{python}", "-m", "k25t_server", "--port", "{port}", "--file", "{inputs.total}", *server),
        "/health",
        inputs={"total": Input("after", "total.txt")},
        rooms=("gamma",),
        ready_s=20.0,
    )
    bench = Step(
        "bench",
        "k25t_measure",
        {"times": times},
        kind="measurement",
        rooms=("alpha",),
        service=service,
        local={"gate": bench_gate, "pause_s": bench_pause_s},
        facts=(Fact("bench.row", "rows.json", "rows"),),
        volatile=("*",),
    )
    return [numbers, total, after, bench]


def contained(step: Step, image: str, programs: str) -> Step:
    """The step in a container; ``programs`` lies in the working directory, which the container sees."""
    env = {**step.env, "PYTHONPATH": programs}
    service = step.service and replace(step.service, image=image, env={**step.service.env, "PYTHONPATH": programs})
    return replace(step, image=image, env=env, service=service)


def request(code: str, name: str | None = None, again: Sequence[str] = (), only: Sequence[str] = (), new: bool = False,
            verify: bool = False, backend: str = "", image: str = "", programs: str = "",
            **options: Any) -> Request:  # fmt: skip
    made = steps(**options)
    return Request(
        "small",
        [contained(step, image, programs) for step in made] if image else made,
        resolved="name: small\n",
        stack={"name": "small"},
        name=name,
        again=again,
        only=only,
        new=new,
        verify=verify,
        threads=1,
        backend="docker" if image or backend == "docker" else "process",
        code=Path(code),
    )
