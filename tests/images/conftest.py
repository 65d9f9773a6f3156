"""Twins of the image tests: Debian's registry on the loopback interface, an engine in small, a tree that stays."""

from __future__ import annotations

import gzip
import os
import shutil
import socket
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from docker_twin import HOME, DockerTwin

from k25stack.stack.build import CONTEXT, Built, Wanted, build, machine
from k25stack.stack.images import CHECKOUT

EPOCH = 1_700_000_000
MARK = "k25-images-secret-mark"  # in everything that is handed to a build as a secret
STUB = "k25-images/stub:1"
SEALED = ("--rm", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
          "--network", "none")  # fmt: skip


def sealed(twin: DockerTwin, image: str, *words: str, check: bool = True) -> str:
    """What a command in a container of the image says, run as compose runs our services."""
    done = twin.docker("run", *SEALED, image, *words, check=check)
    return done.stdout + ("" if check else done.stderr)


def blobs(archive: Path) -> Iterator[bytes]:
    """The files of an OCI archive; layers unpacked."""
    with tarfile.open(archive) as files:
        for member in files:
            if member.isfile():
                file = files.extractfile(member)
                assert file is not None
                content = file.read()
                yield gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what images are made of: nothing changes it between two builds."""
    place = tmp_path_factory.mktemp("tree")
    for name in (*CONTEXT, ".dockerignore"):
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, place / name)
    return place


@pytest.fixture(scope="session")
def stub(docker_twin: DockerTwin) -> str:
    folder = Path(__file__).with_name("stub")
    docker_twin.docker(
        "buildx", "build", "--quiet", "--provenance=false", "--tag", STUB, "--output", "type=docker",
        "--build-arg", f"BASE_IMAGE={docker_twin.base}",
        "--build-context", f"common={CHECKOUT / 'images/common'}", str(folder), timeout_s=600,
    )  # fmt: skip
    return STUB


@pytest.fixture(scope="session")
def wanted(stub: str, tmp_path_factory: pytest.TempPathFactory) -> Wanted:
    """How the tests build: this machine's certificates and pip settings, each with a mark to look for."""
    place = tmp_path_factory.mktemp("secrets")
    found = machine()
    authorities = Path(found.ca_bundle or "/etc/ssl/certs/ca-certificates.crt")
    (place / "ca.crt").write_text(f"{MARK}\n{authorities.read_text()}")
    settings = Path(found.pip_conf).read_text() if found.pip_conf else ""
    (place / "pip.conf").write_text(f"# {MARK}\n{settings}")
    return replace(found, base=stub, ca_bundle=str(place / "ca.crt"), pip_conf=str(place / "pip.conf"))


@pytest.fixture(scope="session")
def engine(wanted: Wanted, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, Path]:
    """Our image on the small engine, and the archive that it was loaded from."""
    archive = tmp_path_factory.mktemp("archive") / "engine.tar"
    os.environ["SOURCE_DATE_EPOCH"] = str(EPOCH)
    asked = replace(wanted, tag="k25-images/sglang:test", archive=str(archive))
    return build("sglang", asked, print, tree), archive


@pytest.fixture(scope="session")
def registry(docker_twin: DockerTwin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``127.0.0.1:PORT`` of a running registry."""
    program = HOME / "registry/usr/bin/docker-registry"
    place = tmp_path_factory.mktemp("registry")
    if not program.exists():
        subprocess.run(["apt-get", "download", "-qq", "docker-registry"], cwd=place, check=True, timeout=120)
        subprocess.run(["dpkg", "-x", str(next(place.glob("*.deb"))), str(HOME / "registry")], check=True, timeout=60)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    (place / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {place}/data}}}}\n"
        f"http: {{addr: '{address}'}}\n"
    )
    with (place / "log").open("w") as log:
        server = subprocess.Popen([str(program), "serve", str(place / "config.yml")], stdout=log, stderr=log)
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"http://{address}/v2/", timeout=1).close()
                break
            except urllib.error.URLError:
                assert server.poll() is None, (place / "log").read_text()
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait(10)
