"""The real vLLM engine (CPU build) with the demo's draft, served as `make up` does: what it answers and accepts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k25stack.contract.url import UrlQuestion, check_url
from k25stack.pipeline.serveup import environment
from k25stack.pipeline.serving import Site, made_by_run
from k25stack.pipeline.workspace import Workspace
from k25stack.stack import load_stack
from tests.compose.serve_twin import CPU_IMAGE, ROOT, STACK, Twin, free_port

pytestmark = [pytest.mark.twins, pytest.mark.timeout(2700)]
KINDS = 7
ROUNDS = 300  # of an accept length here; the demo measures thousands


def workspaces(base: Path) -> Iterator[Path]:
    """Where the demo may have run: what the environment names, this checkout, the demo test of this session."""
    if given := os.environ.get("K25_DEMO"):
        yield Path(given)
    yield ROOT
    yield from sorted(path.parents[2] for path in base.glob("*/runs/smollm2-cpu-*/summary.json"))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a finished demo of this version."""
    stack = load_stack(STACK)
    for place in workspaces(tmp_path_factory.getbasetemp()):
        if made_by_run(Site(Workspace(place), stack, str(STACK)), "target", "package", "control"):
            return place
    pytest.skip("no finished demo at hand: make demo, or run tests/demo in the same session")


@pytest.fixture(scope="module")
def twin(docker_twin: Any, our_images: None, demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twin]:
    root = tmp_path_factory.mktemp("engine")
    (root / "state").mkdir()
    (root / "runs").symlink_to(demo / "runs")
    (root / "state" / "artefacts").symlink_to(demo / "state" / "artefacts")
    env = {**docker_twin.env, "K25_STATE_DIR": str(root / "lease"), "K25_PROMETHEUS_PORT": str(free_port())}
    found = Twin(root, env)
    yield found
    found.k25("stop", "server", str(STACK), "-y", check=False)


def up(twin: Twin, profile: str) -> float:
    """Serve a profile; returns the seconds it took."""
    begun = time.monotonic()
    twin.serve(profile, "--image", CPU_IMAGE, "--monitoring")
    return time.monotonic() - begun


def judged(twin: Twin, question: UrlQuestion) -> dict[str, list[Any]]:
    """Checks of the running server by id."""
    door = {"K25_API_KEY": twin.key("operator"), "K25_CA_FILE": str(twin.directory / "tls.crt")}
    with environment(door):
        result = check_url(twin.url, question)
    found: dict[str, list[Any]] = {}
    for check in result.checks:
        found.setdefault(check.id, []).append(check)
    return found


def accept_length(checks: dict[str, list[Any]]) -> float:
    return float(checks["U3"][0].evidence["accept_length"])


def recorded(twin: Twin, port: int, name: str) -> float:
    """A series that Prometheus records, as soon as it has evaluated its rule."""
    until = time.monotonic() + 60
    while not (seen := twin.prometheus(port, name)) or seen[0]["value"][1] == "NaN":
        assert time.monotonic() < until, name
        time.sleep(1)
    return float(seen[0]["value"][1])


def kinds_pass(checks: dict[str, list[Any]]) -> None:
    wrong = [check.message for check in checks["U10"] if check.verdict != "pass"]
    assert len(checks["U10"]) == KINDS and wrong == []


def test_the_demo_s_draft_on_the_real_engine(twin: Twin) -> None:
    seconds = {"random": up(twin, "vllm-random")}
    control = accept_length(judged(twin, UrlQuestion(rounds=ROUNDS, seconds=90)))

    seconds["own"] = up(twin, "vllm-own")
    draft = Path(twin.current()["draft"])
    ask = {
        "model": "SmolLM2-135M-Instruct",
        "messages": [{"role": "user", "content": "Name a river."}],
        "max_tokens": 24,
    }
    assert twin.curl("/v1/chat/completions", body=ask)[0] == 401
    assert twin.curl("/tokenize", twin.key(), ask)[0] == 404
    status, text = twin.curl("/v1/chat/completions", twin.key(), ask)
    assert status == 200 and json.loads(text)["choices"][0]["message"]["content"]
    status, text = twin.curl("/v1/chat/completions", twin.key(), {**ask, "stream": True})
    assert status == 200 and text.rstrip().endswith("data: [DONE]") and text.count("data: ") > 5
    checks = judged(twin, UrlQuestion(draft=draft, rounds=ROUNDS, seconds=120, kinds=True))
    own = accept_length(checks)
    kinds_pass(checks)
    assert control <= 1.05
    assert own >= 1.3 and own > control + 0.25

    port = int(twin.env["K25_PROMETHEUS_PORT"])
    served = recorded(twin, port, "k25:accept_length:5m")
    promised = json.loads((draft / "k25stack.json").read_text())["predicted"]["interval"]
    assert recorded(twin, port, "k25:promised_accept_length:low") == pytest.approx(promised[0], abs=1e-3)

    seconds["baseline"] = up(twin, "vllm-baseline")
    checks = judged(twin, UrlQuestion(seconds=30, kinds=True))
    assert checks["U2"][0].verdict == "pass" and "without a draft" in checks["U2"][0].message
    kinds_pass(checks)

    twin.k25("stop", "server", str(STACK), "-y")
    assert twin.left() == {"containers": [], "networks": [], "volumes": []}
    told = {name: round(value, 1) for name, value in seconds.items()}
    print(f"accept length {own:.3f}, random control {control:.3f}, served {served:.3f}, starts {told} s")
