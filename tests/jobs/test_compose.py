"""A rendered service under a real ``docker compose``: in the container the script proves its ground and sees its cards.

The engine has eight false cards.  ``nvidia-smi`` here lists what the container was given, in the real one's words.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from k25stack.jobs import Ground, Job, Mount
from k25stack.jobs.docker import image_id
from k25stack.jobs.render import job_files, service
from k25stack.jobs.serving import CACHE, LEASE_DIR, MODEL

from .engines import TINY, Engine, mounts

pytestmark = pytest.mark.twins
SMI = """#!/bin/bash
nodes=(/dev/nvidia[0-9])
[ -e "${nodes[0]}" ] || IFS=, read -ra nodes <<<"${NVIDIA_VISIBLE_DEVICES:-}"
for index in "${!nodes[@]}"; do echo "$index, 97251, 97887, 580.95.05"; done
"""
WATCH = """#!/bin/bash
printf '%s\\n' "$@" "$NCCL_PROTO" "$TRITON_CACHE_DIR" "${NVIDIA_VISIBLE_DEVICES:-none}" /dev/nvidia*
"""


class Place:
    """The host's side of a service with eight cards."""

    def __init__(self, root: Path, engine: Engine, image: str) -> None:
        self.root, self.engine = root, engine
        for name in ("job", "model", "cache", "lease", "bin"):
            (root / name).mkdir()
        for name, text in (("nvidia-smi", SMI), ("k25stack-watch", WATCH)):
            (root / "bin" / name).write_text(text)
            (root / "bin" / name).chmod(0o755)
        (root / "model/config.json").write_text("{}")
        (root / "nccl.env").write_text("NCCL_PROTO=LL\n")
        here = [Mount(str(root / "job"), "/etc/k25stack/job"), Mount(str(root / "model"), MODEL)]
        here += [Mount(str(root / "cache"), CACHE, writable=True), Mount(str(root / "lease"), LEASE_DIR, writable=True)]
        here += [Mount(str(root / "nccl.env"), "/etc/k25stack/nccl.env"), Mount(str(root / "bin"), "/opt/bin")]
        ground = Ground(
            gpu_free_mib=88473, min_driver="580.65.06", configs=(MODEL,), lease=f"{LEASE_DIR}/gpu.lease",
            nccl_file="/etc/k25stack/nccl.env", nccl_names=("NCCL_PROTO",), jit=f"{CACHE}/jit/0123456789ab",
            jit_env={"TRITON_CACHE_DIR": "triton"},
        )  # fmt: skip
        words = ("engine", "it's $HOME", "a,b")
        self.job = Job(
            "run", "serve", "key", words, root / "log", image=image, gpus=8, shm_bytes=1 << 26,
            mounts=(*here, *mounts()), user="0:0", policy={}, ground=ground, ports=(30000,),
            env={"PATH": f"/opt/bin:{sys.base_prefix}/bin:/usr/bin"},
        )  # fmt: skip

    def up(self, job: Job) -> subprocess.CompletedProcess[str]:
        for name, text in job_files(job).items():
            (self.root / "job" / name).write_text(text)
        mapping = {**service(job), "restart": "no", "network_mode": "none"}
        file = self.root / "compose.yaml"
        file.write_text(yaml.safe_dump({"name": "k25-jobs", "services": {"serve": mapping}}))
        words = [
            "docker",
            "compose",
            "--ansi",
            "never",
            "-f",
            str(file),
            "up",
            "--no-log-prefix",
            "--exit-code-from",
            "serve",
        ]
        env = {**os.environ, "DOCKER_HOST": self.engine.socket}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)
        down = ["docker", "compose", "-f", str(file), "down", "-v", "-t", "1"]
        subprocess.run(down, env=env, capture_output=True, timeout=120, check=False)
        return done


@pytest.fixture
def place(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("DOCKER_HOST", engine.socket)
    return Place(tmp_path, engine, image_id(TINY))


@pytest.mark.parametrize("request_by", ["nvidia", "cdi"])
def test_a_service_gets_its_cards_and_starts_what_was_asked(place: Place, request_by: str) -> None:
    done = place.up(replace(place.job, gpu_request=request_by))  # type: ignore[arg-type]
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.replace("\x1b[2K", "").splitlines()  # compose clears its lines
    assert "ground: 8 cards, driver 580.95.05" in done.stderr
    for line in ("engine", "it's $HOME", "a,b", "LL", f"{CACHE}/jit/0123456789ab/triton"):
        assert line in lines
    assert ("/dev/nvidia7" in lines) == (request_by == "cdi")
    assert ("0,1,2,3,4,5,6,7" in lines) == (request_by == "nvidia")


def test_a_service_on_bad_ground_ends_before_its_engine(place: Place) -> None:
    (place.root / "model/config.json").unlink()
    done = place.up(replace(place.job, gpu_request="cdi", shm_bytes=1 << 26, env={**place.job.env, "NCCL_PROTO": "LL"}))
    assert done.returncode == 3
    said = done.stdout + done.stderr
    assert f"error: {MODEL}/config.json: missing (get it again: docker compose up -d" in said
    assert "not started, 1 faults above" in said and "it's $HOME" not in said


def test_the_mapping_is_what_compose_itself_reads(place: Place) -> None:
    file = place.root / "compose.yaml"
    file.write_text(yaml.safe_dump({"name": "k25-jobs", "services": {"serve": service(place.job)}}))
    words = ["docker", "compose", "-f", str(file), "config", "--format", "json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    read = json.loads(done.stdout)["services"]["serve"]
    assert read["entrypoint"] == ["bash", "/etc/k25stack/job/run.sh"] and read["read_only"] is True
    assert read["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 8
    assert read["environment"]["PATH"].startswith("/opt/bin:")
