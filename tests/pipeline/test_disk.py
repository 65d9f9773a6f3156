"""A full or read-only disk: one line, nothing half-written, and the same result once there is space."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from k25stack.errors import HostError
from k25stack.ledger import read

from .conftest import Loop

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")

Mount = Callable[[str], None]


@pytest.fixture
def mount(loop: Loop) -> Iterator[Mount]:
    """Put the working directory on a small tmpfs; again with other options to change it."""
    loop.root.mkdir()

    def mount(options: str) -> None:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(loop.root)]).returncode:
            pytest.skip("mounting is not allowed here")

    yield mount
    while subprocess.run(["umount", "-l", str(loop.root)], stderr=subprocess.DEVNULL).returncode == 0:
        continue


def test_a_full_disk_is_one_line_and_nothing_is_half_written(loop: Loop, mount: Mount) -> None:
    mount("size=1m")
    command = loop.command(blob_bytes=3_000_000)
    _, said = command.communicate()
    assert command.returncode == 3
    (error,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: numbers: ") and "No space left on device" in error and "Traceback" not in said
    assert not list(loop.workspace.artefacts.glob("*")) and not list(loop.workspace.work.glob("*/out/blob*"))
    read(loop.workspace.run("small-1").ledger, lambda warning: pytest.fail(warning))
    for path in loop.root.rglob("*.json"):
        json.loads(path.read_text())
    mount("remount,size=64m")
    outcome = loop.run(blob_bytes=3_000_000)
    assert loop.made(outcome) == ["numbers", "total", "after", "bench"]
    assert outcome.results["numbers"].result()["written_parts"] == 0  # the parts of the first try were kept


def test_a_disk_without_a_single_free_block_is_one_line_too(loop: Loop, mount: Mount) -> None:
    mount("size=1m")
    loop.run()
    with pytest.raises(OSError, match="No space left"):
        (loop.root / "fill").write_bytes(b"x" * 2_000_000)
    command = loop.command(factor=2)
    _, said = command.communicate()
    assert command.returncode == 3
    assert said.splitlines()[-1].startswith("error: ") and "No space left" in said and "Traceback" not in said
    (loop.root / "fill").unlink()
    assert loop.run(factor=2).results["after"].result()["total"] == 2 * sum(range(40)) + 5


def test_a_read_only_run_directory_is_named(loop: Loop, mount: Mount) -> None:
    mount("size=8m")
    first = loop.run()
    mount("remount,ro")
    assert all(decision.state == "cached" for decision in loop.plan().values())  # looking needs no writing
    with pytest.raises(OSError, match="Read-only file system") as caught:
        loop.run()
    assert str(loop.root) in str(caught.value.filename)
    mount("remount,rw")
    assert loop.run().results["total"].content == first.results["total"].content


def test_too_small_a_disk_is_refused_before_the_start(loop: Loop, mount: Mount) -> None:
    mount("size=4m")
    with pytest.raises(HostError, match=r"needs about 1\.0 GB of disk and 0\.0 GB are free"):
        loop.run(estimate_gb=1.0)
