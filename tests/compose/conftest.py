"""The fake engine of the bench tests, and a proxy before it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.conftest import fake_engine  # noqa: F401  (a fixture)
from tests.compose import proxy_twin

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def proxy(fake_engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[proxy_twin.Proxy]:  # type: ignore[no-untyped-def]  # noqa: F811
    if shutil.which("nginx") is None or shutil.which("openssl") is None:
        pytest.skip("no nginx or no openssl here: apt-get install nginx-light openssl")
    url = fake_engine("--accepted", "1,0,2", "--step-ms", "5")
    directory = tmp_path_factory.mktemp("proxy")
    for place in (directory, *directory.parents):  # workers of a master that is root run as nobody
        if place.stat().st_uid == os.getuid() and place != Path("/"):
            place.chmod(place.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    running = proxy_twin.start(directory, int(url.rsplit(":", 1)[1]))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def our_images(docker_twin) -> None:  # type: ignore[no-untyped-def]
    """cpu, proxy and monitoring, built when they are not there yet."""
    missing = [
        name
        for name in ("cpu", "proxy", "monitoring")
        if docker_twin.docker("image", "inspect", f"k25stack/{name}:local", check=False).returncode
    ]
    given = {"--ca-bundle": Path("/etc/ssl/certs/ca-certificates.crt"), "--pip-conf": Path("/etc/pip.conf")}
    words = [word for option, path in given.items() if path.exists() for word in (option, str(path))]
    for name in missing:
        subprocess.run(
            [sys.executable, "-m", "k25stack.cli.main", "stack", "build", name, "--base", docker_twin.base, *words],
            cwd=ROOT, env={**os.environ, **docker_twin.env}, check=True, timeout=1500,
        )  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The engine test serves the draft of the demo, so it comes after the demo test."""
    items.sort(key=lambda item: item.path.name == "test_engine.py" and item.path.parent.name == "compose")
