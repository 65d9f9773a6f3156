"""Our own images: the ``docker buildx build`` that makes each, and what came of it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from k25stack.errors import HostError, UsageError
from k25stack.proc import run
from k25stack.stack.imagekey import image_content_key
from k25stack.stack.images import CHECKOUT, OWN, read_lock

if TYPE_CHECKING:
    from k25stack.stack.images import ImageLock

STEP = re.compile(r"#\d+ (\[(?!internal)[^]]+\] (?:RUN|COPY) .+|exporting (?:layers|to image)$)")
FIRST = ("ARG IMAGE", "ARG DEBIAN_SNAPSHOT")  # our part of a Dockerfile begins so: the layers from there on are ours
CONTEXT = ("k25stack", "images", "pyproject.toml", "README.md", "LICENSE", "requirements-torch.lock")  # .dockerignore


@dataclass(frozen=True)
class Wanted:
    """How images are built.  Empty means: not given."""

    base: str = ""  # instead of the pinned one
    tag: str = ""  # instead of k25stack/NAME:local
    ca_bundle: str = ""  # certificates that pip shall trust, as a build secret
    pip_conf: str = ""  # pip's configuration, as a build secret
    wheels: str = ""  # a directory of wheels that no index has
    snapshot: str = ""  # moment of Debian's archive, as 20261101T000000Z
    archive: str = ""  # write an OCI archive with the commit's time in every layer, then load it
    no_cache: bool = False
    containerd: bool = False  # Docker keeps images in containerd's store: layers are then packed six times faster


@dataclass(frozen=True)
class Built:
    tag: str
    digest: str  # of the manifest that was written
    layers: tuple[tuple[str, str], ...]  # (size, instruction) of our layers, the first one first
    key: str  # K25_IMAGE_KEY in it: kernels that are compiled at run time are kept by it


def machine() -> Wanted:
    """What this machine's own settings say about certificates and packages; nothing on most machines."""

    def file(*names: str) -> str:
        found = (os.environ.get(name, "") for name in names)
        return next((path for path in found if path and Path(path).is_file()), "")

    links = os.environ.get("PIP_FIND_LINKS", "")
    wheels = links if links and Path(links).is_dir() else ""
    return Wanted(ca_bundle=file("PIP_CERT", "SSL_CERT_FILE"), pip_conf=file("PIP_CONFIG_FILE"), wheels=wheels)


def build_argv(
    lock: ImageLock, name: str, wanted: Wanted, revision: str, metadata: str = "", key: str = ""
) -> list[str]:
    """The command that builds one image; ``key`` is what ``content_key`` says.

    Raises UsageError for an unknown name, and for a base without a digest.
    """
    build = lock.build(name)
    pin = lock.pin(build.base)
    given = {
        "BASE_IMAGE": wanted.base or pin.pinned,
        "BASE_NAME": wanted.base or pin.ref,
        "BASE_DIGEST": "" if wanted.base else pin.digest,
        "IMAGE": name,
        "ENGINE": build.engine or pin.engine,
        "ENGINE_VERSION": build.version or pin.version,
        "CUDA": pin.cuda,
        "MIN_DRIVER": pin.min_driver,
        "REVISION": revision,
        "DEBIAN_SNAPSHOT": wanted.snapshot,
        "KEY": key,
    }
    tag = wanted.tag or OWN.format(name)
    argv = [
        "docker",
        "buildx",
        "build",
        "--progress",
        "plain",
        "--provenance=false",
        "--file",
        build.file,
        "--tag",
        tag,
    ]
    for key, value in given.items():
        if value:
            argv += ["--build-arg", f"{key}={value}"]
    for secret, path in (("ca", wanted.ca_bundle), ("pip", wanted.pip_conf)):
        if path:
            argv += ["--secret", f"id={secret},src={path}"]
    if wanted.wheels:
        argv += ["--build-context", f"wheels={wanted.wheels}"]
    if wanted.no_cache:
        argv.append("--no-cache")
    if metadata:
        argv += ["--metadata-file", metadata]
    output = "type=docker"
    if wanted.archive:
        output = f"type=oci,dest={wanted.archive},rewrite-timestamp=true"
    elif wanted.containerd:
        output = f"type=image,name={tag},unpack=true,oci-mediatypes=true,compression=zstd,compression-level=1"
    return [*argv, "--output", output, "."]


def content_key(lock: ImageLock, name: str, wanted: Wanted, root: Path = CHECKOUT) -> str:
    """The key of what decides the image (``K25_IMAGE_KEY`` in it).  Raises UsageError as ``build_argv`` does."""
    build = lock.build(name)
    pin = lock.pin(build.base)
    base = _content_of(wanted.base) if wanted.base else pin.pinned.rpartition("@")[2]
    arguments = {"ENGINE": build.engine or pin.engine or "", "DEBIAN_SNAPSHOT": wanted.snapshot}
    return image_content_key(root, build.file, name, base, arguments)


def _content_of(image: str) -> str:
    """Digest of an image that is named by it, id of one that Docker has here, else the name."""
    if "@" in image or shutil.which("docker") is None:
        return image.rpartition("@")[2]
    done = run(["docker", "image", "inspect", "--format", "{{.Id}}", image], timeout_s=60, check=False)
    return done.stdout.strip() if done.returncode == 0 else image


def source(root: Path = CHECKOUT) -> tuple[str, int]:
    """Commit of a checkout (``-changed`` when files that go into images differ from it) and its time (Unix seconds).

    ``SOURCE_DATE_EPOCH`` decides the time where it is set; without git the commit is unknown and the time 0.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not (root / ".git").exists():
        return "unknown", int(epoch or 0)
    git = ["git", "-C", str(root)]
    commit, when = run([*git, "log", "-1", "--format=%H %ct"], timeout_s=20).stdout.split()
    changed = run([*git, "status", "--porcelain", "--", *CONTEXT], timeout_s=60).stdout.strip()
    return commit + ("-changed" if changed else ""), int(epoch or when)


def build(name: str, wanted: Wanted, say: Callable[[str], None], root: Path = CHECKOUT) -> Built:
    """Build one image from a checkout into Docker's store and look at its layers.

    Raises HostError with the line that failed; UsageError as ``build_argv`` does.
    """
    lock = read_lock(root / "images" / "lock.yaml")
    revision, epoch = source(root)
    with tempfile.TemporaryDirectory() as scratch:
        metadata = Path(scratch) / "metadata.json"
        key = content_key(lock, name, wanted, root)
        argv = build_argv(lock, name, replace(wanted, containerd=_containerd()), revision, str(metadata), key)
        _follow(argv, {"SOURCE_DATE_EPOCH": str(epoch)} if wanted.archive else {}, say, root)
        told = json.loads(metadata.read_text(encoding="utf-8"))
    if wanted.archive:
        run(["docker", "load", "--quiet", "--input", wanted.archive], timeout_s=1800)
    tag = wanted.tag or OWN.format(name)
    return Built(tag, str(told.get("containerimage.digest", "")), layers(tag), key)


def _containerd() -> bool:
    done = run(["docker", "info", "--format", "{{.DriverStatus}}"], timeout_s=60, check=False,
               remedy="install Docker Engine with buildx: docs/images.md")  # fmt: skip
    return "io.containerd.snapshotter" in done.stdout


def layers(tag: str) -> tuple[tuple[str, str], ...]:
    """Sizes and instructions of the layers that lie on the base, the first one first; empty ones left out."""
    done = run(["docker", "history", "--no-trunc", "--format", "{{.Size}}\t{{.CreatedBy}}", tag], timeout_s=60)
    lines = [line.split("\t", 1) for line in reversed(done.stdout.splitlines())]
    first = next((index for index, (_, instruction) in enumerate(lines) if instruction.startswith(FIRST)), 0)
    return tuple((size, _shown(instruction)) for size, instruction in lines[first:] if size != "0B")


def _shown(instruction: str) -> str:
    """An instruction without the shell and the argument values that buildkit notes."""
    text = re.sub(r"^RUN (\|\d+ .*?)?/bin/sh -c ", "RUN ", instruction.removesuffix("# buildkit").strip())
    return re.sub(r"--mount=\S+\s+", "", text)


def _follow(argv: Sequence[str], env: dict[str, str], say: Callable[[str], None], root: Path) -> None:
    """Run the build in the checkout and tell each step as it begins."""
    try:
        child = subprocess.Popen(
            list(argv), cwd=root, env={**os.environ, **env}, stdin=subprocess.DEVNULL, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except FileNotFoundError:
        raise HostError("no such program: docker", remedy="install Docker Engine with buildx: docs/images.md") from None
    assert child.stdout is not None
    lines: list[str] = []
    told: set[str] = set()
    for line in child.stdout:
        lines = [*lines[-199:], line.rstrip()]
        found = STEP.match(line)
        if found and found[1] not in told:
            told.add(found[1])
            say(re.sub(r"--mount=\S+\s+", "", found[1]))
    if child.wait() != 0:
        what, remedy = explain(lines)
        raise HostError(what, where=shlex.join([*argv[:3], argv[argv.index("--tag") + 1]]), remedy=remedy)


KNOWN = (
    (r"no space left on device", "free some there: docker builder prune, docker image prune"),
    (r"CERTIFICATE_VERIFY_FAILED", "give the certificates of this network: --ca-bundle FILE"),
    (r"failed to resolve source metadata|pull access denied|failed to do request", "look at the base's pin: stack pin"),
    (r"Cannot connect to the Docker daemon", "start it: systemctl start docker"),
    (r"rewrite-timestamp|OCI exporter is not supported", "turn on Docker's containerd image store"),
    (r"unknown (command|flag)|is not a docker command", "install docker-buildx"),
)  # fmt: skip


def explain(lines: Sequence[str]) -> tuple[str, str]:
    """What went wrong in a build, from its log: our scripts' own error line if there is one, else the last one."""
    text = "\n".join(lines)
    own = re.findall(r"^#\d+ [\d.]+ error: (.+)$", text, re.MULTILINE)
    last = re.findall(r"^(?:ERROR|error): (.+)$", text, re.MULTILINE)
    what = (own or last or list(lines[-1:]) or ["no output"])[-1]
    known = next((remedy for pattern, remedy in KNOWN if re.search(pattern, text)), "")
    return what, "" if own and what.endswith(")") else known


def require_checkout() -> None:
    """Raises UsageError where there is nothing to build from."""
    if not (CHECKOUT / "images").is_dir() or not (CHECKOUT / "pyproject.toml").is_file():
        raise UsageError("images are built from a checkout", where=str(CHECKOUT), remedy="clone the repository")
