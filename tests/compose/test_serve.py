"""`k25stack serve` for real: containers, proxy and supervisor around a paced engine that starts in a moment."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compose.serve_twin import ROOT, STACK, Twin, fake_image, free_port, plain_compose

ABSENT = f"k25stack/cpu@sha256:{'0' * 64}"
pytestmark = [pytest.mark.twins, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def images(docker_twin: Any, our_images: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = tmp_path_factory.mktemp("fake")
    return {name: fake_image(docker_twin.docker, place, name, step) for name, step in (("fast", 2), ("slow", 60))}


@pytest.fixture(scope="module")
def twin(
    docker_twin: Any, images: dict[str, str], tiny_target_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Twin]:
    root = tmp_path_factory.mktemp("workspace")
    shutil.copytree(tiny_target_dir, root / "target")
    (root / "target" / "model.safetensors").chmod(0o644)
    (root / "target" / "target.json").unlink()  # it names another origin than this stack's
    found = Twin(
        root, {**docker_twin.env, "K25_STATE_DIR": str(root / "lease"), "K25_PROMETHEUS_PORT": str(free_port())}
    )
    yield found
    found.k25("stop", "server", str(STACK), "-y", check=False)


def given(twin: Twin, image: str) -> list[str]:
    return ["vllm-baseline", "--target", "target", "--image", image]


def test_a_dry_run_starts_nothing(twin: Twin, images: dict[str, str]) -> None:
    done = twin.serve(*given(twin, images["fast"]), "-n")
    assert "vllm-baseline" in done.stderr
    assert twin.left() == {"containers": [], "networks": [], "volumes": []}


def test_every_profile_is_a_valid_compose_file(twin: Twin) -> None:
    for file in ("compose.yaml", "compose.cpu.yaml"):
        words = ["compose", "-f", str(ROOT / "compose" / file), "-f", str(ROOT / "compose" / "monitoring.yaml")]
        profiles = twin.docker(*words, "config", "--profiles").split()
        for profile in profiles:
            found = twin.docker(*words, "--profile", profile, "config", "--services").split()
            asked = {"prometheus-ground", f"prepare-{profile}"}  # the second where a hub has the profile's draft
            assert {"proxy", "prepare", "ground", profile, "prometheus"} == set(found) - asked


def test_plain_compose_up_serves_from_a_clean_clone(twin: Twin, images: dict[str, str], tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "compose", clone / "compose")
    for name in ("target", "draft"):
        shutil.copytree(twin.root / "target", clone / "state" / "serve" / name)
    env = {
        **twin.env,
        "K25_IMAGE": images["fast"],
        "K25_PORT": str(twin.port),
        "K25_LEASE_DIR": str(tmp_path / "lease"),
    }
    plain = Twin(twin.root, env, twin.port)
    try:
        plain_compose(plain, clone / "compose", "up", "--detach")
        (twin.directory).mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + 120
        certificate = ""
        while True:
            if not certificate:
                certificate = plain_compose(
                    plain, clone / "compose", "exec", "-T", "proxy", "cat", "/run/k25stack/secrets/tls.crt"
                )
                (twin.directory / "tls.crt").write_text(certificate)
            if twin.curl("/ready")[0] == 200:
                break
            assert time.monotonic() < until
            time.sleep(0.5)
        keys = plain_compose(plain, clone / "compose", "exec", "-T", "proxy", "cat", "/run/k25stack/secrets/api-keys")
        ask = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "stream": True}
        assert twin.curl("/v1/chat/completions", keys.split()[2], ask)[0] == 200
        services = plain_compose(plain, clone / "compose", "ps", "--services").split()
        assert set(services) == {"proxy", "vllm-own"}
    finally:
        plain_compose(plain, clone / "compose", "down", "--volumes", "--timeout", "20")
    assert twin.left() == {"containers": [], "networks": [], "volumes": []}


def test_bad_input_stops_before_anything_starts(twin: Twin, images: dict[str, str], tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(twin.root / "target", torn)
    weights = torn / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    closed = tmp_path / "closed"
    shutil.copytree(twin.root / "target", closed)
    (closed / "model.safetensors").chmod(0o600)
    good = given(twin, images["fast"])
    cases: list[tuple[list[str], int, str]] = [
        (["nope"], 2, "no profile 'nope'"),
        (["own"], 2, "runs in this package"),
        (["vllm-baseline", "--target", "target", "--image", "k25stack/nobody:local"], 3, "k25stack stack build nobody"),
        (["vllm-baseline", "--target", "target", "--image", ABSENT], 3, f"docker pull {ABSENT}"),
        (["vllm-baseline", "--target", str(tmp_path), "--image", images["fast"]], 2, "no config.json"),
        (["vllm-baseline", "--target", str(torn), "--image", images["fast"]], 1, "model.safetensors"),
        (["vllm-baseline", "--target", str(closed), "--image", images["fast"]], 3, "chmod -R a+rX"),
        (["vllm-own", "--image", images["fast"]], 2, "run the loop first"),
    ]
    for argv, code, said in cases:
        done = twin.serve(*argv, check=False)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
        assert done.stderr.strip().startswith("error: ") and "Traceback" not in done.stderr
    for port, more in ((twin.port, []), (int(twin.env["K25_PROMETHEUS_PORT"]), ["--monitoring"])):
        with socket.create_server(("127.0.0.1", port)):
            done = twin.serve(*good, *more, check=False)
            assert (done.returncode, f"port {port}" in done.stderr) == (3, True), done.stderr
    lease = twin.root / "lease" / "gpu.lease"
    with lease.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = twin.serve(*good, check=False)
        assert (done.returncode, "lease of this host" in done.stderr) == (3, True), done.stderr
    lease.unlink()
    assert twin.left() == {"containers": [], "networks": [], "volumes": []}


def test_keys_that_are_none_stop_the_start_at_once(twin: Twin, images: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "api-keys").write_text("ann user short\n")
    for place in (tmp_path, *tmp_path.parents):
        if place.is_relative_to(twin.root.parent):
            place.chmod(0o777)
    keyed = Twin(twin.root, {**twin.env, "K25_SECRETS": str(tmp_path)}, twin.port)
    done = keyed.serve(*given(twin, images["fast"]), check=False)
    assert done.returncode == 3 and "api-keys:1: the key is shorter than 32 characters" in done.stderr, done.stderr
    keyed.k25("stop", "server", str(STACK), "-y")
    assert twin.left() == {"containers": [], "networks": [], "volumes": []}


def test_a_killed_serve_is_taken_up_by_the_next(twin: Twin, images: dict[str, str]) -> None:
    words = ["serve", str(STACK), *given(twin, images["fast"]), "--port", str(twin.port), "-y"]
    command = subprocess.Popen(
        [sys.executable, "-m", "k25stack.cli.main", *words], cwd=twin.root, env={**os.environ, **twin.env},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not (twin.directory / "current.json").exists():
        assert command.poll() is None
        time.sleep(0.01)
    command.kill()
    command.wait()
    twin.k25(*words)
    assert twin.curl("/ready")[0] == 200
    assert len(json.loads((twin.directory / "good.json").read_text())) == 1


def test_it_serves_behind_the_proxy(twin: Twin, images: dict[str, str]) -> None:
    begun = time.monotonic()
    done = twin.serve(*given(twin, images["fast"]), "--monitoring")
    first = time.monotonic() - begun
    assert "curl --cacert" in done.stdout and twin.key() not in done.stdout
    ask = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "stream": True}
    assert twin.curl("/v1/chat/completions", body=ask)[0] == 401
    assert twin.curl("/generate", twin.key(), ask)[0] == 404
    status, text = twin.curl("/v1/chat/completions", twin.key(), ask)
    assert status == 200 and text.rstrip().endswith("[DONE]")
    assert json.loads(twin.curl("/status", twin.key("operator"))[1])["ready"] is True
    begun = time.monotonic()
    twin.serve(*given(twin, images["fast"]), "--monitoring")
    second = time.monotonic() - begun
    print(f"first serve {first:.1f} s, second {second:.1f} s")
    assert second < max(20.0, first)  # the machine may be busy


def test_containers_are_closed(twin: Twin) -> None:
    for service in ("vllm-baseline", "proxy", "prometheus"):
        name = f"k25stack-cpu-{service}-1"
        found = json.loads(twin.docker("inspect", name))[0]
        host = found["HostConfig"]
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and not host["Privileged"]
        assert "no-new-privileges:true" in host["SecurityOpt"]
        assert found["Config"]["User"] == "10001:10001"
        published = [port for ports in (host["PortBindings"] or {}).values() for port in ports]
        assert all(port["HostIp"] == "127.0.0.1" for port in published)
        assert bool(published) == (service != "vllm-baseline")
        assert host["LogConfig"]["Type"] == "local"
        assert not any(word in json.dumps(found["Config"]["Env"]) for word in (twin.key(), "HF_TOKEN"))
    routes = twin.docker("exec", "k25stack-cpu-vllm-baseline-1", "cat", "/proc/net/route")
    assert not any(line.split()[1] == "00000000" for line in routes.splitlines()[1:]), "the engine has a way out"


def test_a_second_engine_is_refused_by_the_lease(twin: Twin) -> None:
    env = {**twin.env, "K25_IMAGE": twin.current()["image"], "K25_TARGET": str(twin.root / "target"),
           "K25_DRAFT": str(twin.root / "target"), "K25_LEASE_DIR": str(twin.root / "lease")}  # fmt: skip
    other = Twin(twin.root, env)
    compose = [
        "compose",
        "--project-directory",
        str(twin.directory),
        "-p",
        "k25stack-cpu",
        "-f",
        str(twin.directory / "compose.cpu.yaml"),
    ]
    other.docker(*compose, "--profile", "vllm-random", "up", "--detach", "--no-deps", "vllm-random")
    try:
        until = time.monotonic() + 60
        while "serve vllm-baseline" not in (log := other.docker(*compose, "logs", "vllm-random")):
            assert time.monotonic() < until, log
            time.sleep(0.5)
        assert "lease" in log
    finally:
        other.docker(*compose, "rm", "--stop", "--force", "vllm-random")
    assert twin.curl("/ready")[0] == 200


def test_prometheus_scrapes_engine_and_supervisor(twin: Twin) -> None:
    port = int(twin.env["K25_PROMETHEUS_PORT"])
    until = time.monotonic() + 90
    while True:
        up = {row["metric"]["job"]: row["value"][1] for row in twin.prometheus(port, "up")}
        ready = twin.prometheus(port, "k25:ready")
        tokens = twin.prometheus(port, "k25:generated_tokens:rate1m")  # needs two scrapes and one evaluation
        if up.get("engine") == up.get("watch") == "1" and ready and ready[0]["value"][1] == "1" and tokens:
            break
        assert time.monotonic() < until, (up, ready, tokens)
        time.sleep(1)
    assert tokens[0]["metric"]["engine"] == "vllm"


def test_a_slower_candidate_is_put_back(twin: Twin, images: dict[str, str]) -> None:
    before = twin.current()
    done = twin.k25("serve", "promote", str(STACK), "--target", "target", "--image", images["slow"], "-y", check=False)
    assert done.returncode == 1, done.stderr
    assert "against it: C=1" in done.stdout
    after = twin.current()
    assert (after["image_id"], after["profile"]) == (before["image_id"], before["profile"])
    assert twin.curl("/ready")[0] == 200
    assert not (twin.directory / "pending.json").exists()


def test_a_candidate_that_does_not_start_is_put_back(twin: Twin, images: dict[str, str]) -> None:
    before = twin.current()
    twin.docker("tag", "k25stack/proxy:local", "k25-compose-broken:local")
    done = twin.k25(
        "serve", "promote", str(STACK), "--target", "target", "--image", "k25-compose-broken:local", "-y", check=False
    )
    assert done.returncode == 3, done.stderr
    assert "did not start" in done.stderr and "putting back" in done.stderr
    assert twin.current()["image_id"] == before["image_id"]
    assert twin.curl("/ready")[0] == 200


@pytest.mark.parametrize("moment", ["before the old one stops", "while the new one is measured"])
def test_a_killed_promote_leaves_a_way_back(twin: Twin, images: dict[str, str], moment: str) -> None:
    before = twin.current()
    promote = ["serve", "promote", str(STACK), "--target", "target", "--image", images["slow"], "-y"]
    command = subprocess.Popen(
        [sys.executable, "-m", "k25stack.cli.main", *promote], cwd=twin.root, env={**os.environ, **twin.env},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    pending = twin.directory / "pending.json"
    while not pending.exists() or (moment.startswith("while") and twin.current()["image_id"] == before["image_id"]):
        assert command.poll() is None
        time.sleep(0.01)
    command.kill()
    command.wait()
    refused = twin.k25(*promote, check=False)
    assert (refused.returncode, "an earlier change was broken off" in refused.stderr) == (2, True), refused.stderr
    twin.k25("serve", "rollback", str(STACK), "-y")
    assert (twin.current()["image_id"], pending.exists()) == (before["image_id"], False)
    assert twin.curl("/ready")[0] == 200


def test_promote_and_rollback(twin: Twin, images: dict[str, str], docker_twin: Any, tmp_path: Path) -> None:
    before = twin.current()
    quick = fake_image(docker_twin.docker, tmp_path, "quick", 1)
    twin.k25("serve", "promote", str(STACK), "--target", "target", "--image", quick, "-y")
    assert twin.current()["image_id"] != before["image_id"]
    twin.k25("serve", "rollback", str(STACK), "-y")
    assert twin.current()["image_id"] == before["image_id"]
    assert twin.curl("/ready")[0] == 200


def test_stop_leaves_nothing(twin: Twin) -> None:
    twin.k25("stop", "server", str(STACK), "-y")
    assert twin.left() == {"containers": [], "networks": [], "volumes": []}
    assert not (twin.directory / "tls.crt").exists() and not (twin.directory / "current.json").exists()
    done = twin.k25("serve", "key", str(STACK), check=False)
    assert done.returncode == 2 and "nothing is served" in done.stderr
