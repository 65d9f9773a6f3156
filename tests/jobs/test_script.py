"""The script of a job, run by a real bash in a plain directory tree: what it refuses, how, and what it starts.

``nvidia-smi`` and ``k25stack-watch`` are programs on PATH: the first prints what the real one prints for eight cards,
the second prints what it was given.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k25stack.host.nccl_env import kinds, levels
from k25stack.jobs import Ground, Job
from k25stack.jobs.render import job_files

# nvidia-smi --query-gpu=index,memory.free,memory.total,driver_version --format=csv,noheader,nounits
CARDS = "".join(f"{index}, 97251, 97887, 580.95.05\n" for index in range(8))
HARD = ["it's", 'a "b"', "$HOME", "`id`", "back\\slash", "new\nline", "-x", "", "*", "ünï", "a,b"]


def weights(path: Path, size: int = 64) -> None:
    header = json.dumps({"t": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))


class Tree:
    """A place with everything that a job of eight cards needs."""

    def __init__(self, root: Path) -> None:
        self.root, self.bin = root, root / "bin"
        self.model, self.lease = root / "models/target", root / "lock/gpu.lease"
        for directory in (self.bin, self.model, self.lease.parent, root / "job", root / "cache"):
            directory.mkdir(parents=True)
        self.program("nvidia-smi", f"cat <<'END'\n{CARDS}END\n")
        self.program("k25stack-watch", 'exec python3 -c "import json, os, sys; '
                     'print(json.dumps([sys.argv[1:], dict(os.environ)]))" "$@"')  # fmt: skip
        (self.model / "config.json").write_text("{}")
        for name in ("a", "b"):
            weights(self.model / f"{name}.safetensors")
        index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
        (self.model / "model.safetensors.index.json").write_text(json.dumps(index))
        self.nccl = root / "nccl.env"
        self.nccl.write_text("# profile: decode\nNCCL_PROTO=LL\nexport NCCL_IB_DISABLE='1'\n\n")
        self.ground = Ground(
            gpu_free_mib=88473,
            min_driver="580.65.06",
            cuda="13.0",
            models=(str(self.model),),
            lease=str(self.lease),
            nccl_file=str(self.nccl),
            nccl_names=tuple(sorted(kinds())),
            nccl_levels=levels(),
            jit=str(root / "cache/jit/0123456789ab"),
            jit_env={"TRITON_CACHE_DIR": "triton"},
        )
        self.job = Job("run", "serve", "key", ("engine", "--a", *HARD), root / "log", gpus=8, shm_bytes=1, policy={},
                       ground=self.ground, image="r/i@sha256:" + "0123456789ab" + "0" * 52)  # fmt: skip

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.bin / name).chmod(0o755)

    def run(self, job: Job | None = None, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        for name, text in job_files(job or self.job).items():
            (self.root / "job" / name).write_text(text)
        clean = {"PATH": f"{self.bin}:{os.environ['PATH']}", "LANG": "C.UTF-8", **(env or {})}
        return subprocess.run(
            ["/bin/bash", str(self.root / "job/run.sh")], env=clean, capture_output=True, text=True, timeout=60
        )

    def started(self, job: Job | None = None, env: dict[str, str] | None = None) -> tuple[list[str], dict[str, Any]]:
        done = self.run(job, env)
        assert done.returncode == 0, done.stderr
        words, variables = json.loads(done.stdout)
        return words, variables

    def faults(self, job: Job | None = None, env: dict[str, str] | None = None) -> list[str]:
        done = self.run(job, env)
        assert (done.returncode, done.stdout) == (3, ""), done.stdout + done.stderr
        lines = done.stderr.splitlines()
        assert lines[-1].startswith("error: serve of run: not started")
        return [line.removeprefix("error: ") for line in lines[:-1] if line.startswith("error: ")]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_on_good_ground_the_supervisor_gets_every_word_as_it_was(tree: Tree) -> None:
    words, _ = tree.started()
    assert words == ["--policy", str(tree.root / "job/policy.json"), "--", *tree.job.argv]


def test_without_a_policy_the_program_starts_itself(tree: Tree) -> None:
    job = replace(tree.job, policy=None, argv=("printf", "%s|", *HARD))
    assert tree.run(job).stdout == "|".join(HARD) + "|"


def test_order_of_the_environment_is_file_then_job_then_container(tree: Tree) -> None:
    job = replace(tree.job, env={"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring", "ODD": HARD[5]})
    _, env = tree.started(job, env={"NCCL_ALGO": "Tree"})
    assert (env["NCCL_PROTO"], env["NCCL_IB_DISABLE"], env["NCCL_ALGO"], env["ODD"]) == ("Simple", "1", "Tree", HARD[5])


def test_a_host_without_nccl_file_is_fine_and_said(tree: Tree) -> None:
    tree.nccl.unlink()
    assert "no " + str(tree.nccl) in tree.run().stderr


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("NCCL_P2P_LEVLE=SYS", "NCCL_P2P_LEVLE is no NCCL variable"),
        ("PATH=/evil", "PATH is no NCCL variable"),
        ("NCCL PROTO", "no KEY=VALUE: NCCL PROTO"),
        ("NCCL_P2P_LEVEL=sys", "sys is none of LOC NVL"),
    ],
)
def test_a_bad_line_of_the_nccl_file_is_named(tree: Tree, line: str, says: str) -> None:
    tree.nccl.write_text(f"NCCL_PROTO=LL\n{line}\n")
    (fault,) = tree.faults()
    assert says in fault and (":2: " in fault or fault.startswith("NCCL_P2P_LEVEL"))


@pytest.mark.parametrize(
    ("smi", "says"),
    [
        (CARDS.replace("7, 97251, 97887, 580.95.05\n", ""), ["GPU: 7 cards are visible, 8 are needed"]),
        (CARDS.replace("3, 97251", "3, 20110"), ["GPU 3: 20110 of 97887 MiB are free, 88473 are needed"]),
        (CARDS.replace("580.95.05", "570.86.15"),
         [f"GPU {index}: driver 570.86.15 is older than 580.65.06, which CUDA 13.0 of this" for index in range(8)]),
        ("No devices were found\n", ["GPU: 0 cards are visible, 8 are needed"]),
    ],
)  # fmt: skip
def test_cards_that_are_not_as_needed_are_named(tree: Tree, smi: str, says: list[str]) -> None:
    tree.program("nvidia-smi", f"cat <<'END'\n{smi}END\n")
    found = tree.faults()
    assert len(found) == len(says) and all(fault.startswith(start) for fault, start in zip(found, says, strict=True))


def test_a_driver_that_does_not_answer_is_quoted(tree: Tree) -> None:
    tree.program("nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    assert tree.faults()[0].startswith("GPU: nvidia-smi: Failed to initialize NVML: Driver/library version mismatch (")


def test_no_nvidia_smi_means_no_cards_were_given(tree: Tree) -> None:
    (tree.bin / "nvidia-smi").unlink()
    assert tree.faults()[0].startswith("GPU: nvidia-smi is not here")


@pytest.fixture
def held(tree: Tree) -> Iterator[Path]:
    record = {
        "pid": 12,
        "user": "ann",
        "host": "box",
        "since": "2026-11-29 12:00:00",
        "who": "run big-1",
        "purpose": "the loop",
    }
    tree.lease.write_text(json.dumps(record))
    with tree.lease.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield tree.lease


def test_a_lease_that_is_held_names_its_holder(tree: Tree, held: Path) -> None:
    (fault,) = tree.faults()
    assert "taken by run big-1 (pid 12 of ann on box since 2026-11-29 12:00:00), the loop" in fault


def test_a_lease_that_is_free_is_free_whatever_its_record_says(tree: Tree) -> None:
    tree.lease.write_text('{"pid": 12}')
    tree.started()


def test_a_lease_directory_that_is_not_mounted_is_a_fault(tree: Tree) -> None:
    shutil.rmtree(tree.lease.parent)
    assert "not mounted" in tree.faults()[0]


def spoil_short(model: Path) -> None:
    (model / "b.safetensors").write_bytes((model / "b.safetensors").read_bytes()[:-1])


def spoil_header(model: Path) -> None:
    (model / "b.safetensors").write_bytes(b"\xff" * 100)


def spoil_link(model: Path) -> None:
    (model / "b.safetensors").unlink()
    (model / "b.safetensors").symlink_to("../blobs/none")


def spoil_index(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text("[]")


def listed(model: Path, **facts: int) -> None:
    """The list that a verified download leaves, with one file of it as ``facts`` say."""
    seen = (model / "config.json").stat()
    files = {"config.json": {"size": seen.st_size, "mtime_ns": seen.st_mtime_ns, **facts}}
    (model / "k25stack-files.json").write_text(json.dumps({"repo": "a/b", "revision": "0" * 40, "files": files}))


def spoil_size(model: Path) -> None:
    listed(model, size=99)


def spoil_time(model: Path) -> None:
    listed(model, mtime_ns=1)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda model: (model / "b.safetensors").unlink(), "b.safetensors: missing"),
        (lambda model: (model / "config.json").unlink(), "config.json: missing"),
        (lambda model: shutil.rmtree(model), "no such directory"),
        (spoil_short, "belong there"),
        (spoil_header, "no safetensors header"),
        (spoil_link, "a link to ../blobs/none, which is not here"),
        (spoil_index, "no weight index"),
        (spoil_size, "config.json: 2 bytes, 99 belong there"),
        (spoil_time, "config.json: altered since it was verified"),
    ],
)
def test_a_model_that_is_not_whole_is_named(tree: Tree, spoil: Any, says: str) -> None:
    spoil(tree.model)
    (fault,) = tree.faults()
    assert says in fault and str(tree.model) in fault


def test_a_model_as_it_was_verified_is_whole(tree: Tree) -> None:
    listed(tree.model)
    tree.started()


def test_a_model_of_one_file_needs_no_index(tree: Tree) -> None:
    (tree.model / "model.safetensors.index.json").unlink()
    tree.started()


def test_small_shared_memory_is_a_fault(tree: Tree) -> None:
    (fault,) = tree.faults(replace(tree.job, shm_bytes=1 << 60))
    assert fault.startswith("/dev/shm: ") and "shm_size" in fault


def test_kernels_of_other_images_are_left_alone(tree: Tree) -> None:
    other = tree.root / "cache/jit/ffffffffffff"
    other.mkdir(parents=True)
    (other / "kernel").write_text("old")
    _, env = tree.started()
    own = tree.root / "cache/jit/0123456789ab"
    assert env["TRITON_CACHE_DIR"] == str(own / "triton")
    assert (own / "image").read_text().strip() == tree.job.image and (other / "kernel").read_text() == "old"
    assert "kernels of 1 other images" in tree.run().stderr


def test_a_cache_that_cannot_be_written_is_a_fault(tree: Tree) -> None:
    (tree.root / "cache/jit").write_text("a file")
    assert "cannot be written" in tree.faults()[0]


def test_a_port_that_is_taken_is_a_fault(tree: Tree) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        (fault,) = tree.faults(replace(tree.job, ports=(port,)))
    assert fault.startswith(f"port {port}: Address already in use")


def test_all_faults_are_told_at_once(tree: Tree, held: Path) -> None:
    tree.program("nvidia-smi", "exit 9")
    shutil.rmtree(tree.model)
    assert len(tree.faults(replace(tree.job, shm_bytes=1 << 60))) == 4


def test_an_image_needs_bash_coreutils_and_python_and_no_more(tree: Tree) -> None:
    names = ["bash", "basename", "cat", "df", "dirname", "head", "mkdir", "mv", "sort", "tail", "timeout"]
    image = tree.root / "image"
    image.mkdir()
    for name in names:
        (image / name).symlink_to(f"/usr/bin/{name}")
    tree.program("python3", f'exec {sys.executable} "$@"')
    path = f"{tree.bin}:{image}"
    assert tree.started(env={"PATH": path})[0][-len(tree.job.argv) :] == [*tree.job.argv]
    (tree.bin / "k25stack-watch").unlink()
    (tree.bin / "python3").unlink()
    assert [fault.split(" (")[0] for fault in tree.faults(env={"PATH": path})] == [
        "image: it has no python3",
        "image: it has no k25stack-watch",
    ]


def test_every_fault_is_one_line_with_a_remedy(tree: Tree, held: Path) -> None:
    for fault in tree.faults(replace(tree.job, shm_bytes=1 << 60, ports=(1, 2))):
        where, what = fault.split(": ", 1)
        assert where and what.endswith(")") and "(" in what


def test_shell_words_survive_bash(tree: Tree) -> None:
    job = replace(tree.job, ground=None, policy=None, gpus=0, shm_bytes=0, argv=("printf", "%s\\0", *HARD))
    done = tree.run(job)
    assert done.stdout.split("\0")[:-1] == HARD
