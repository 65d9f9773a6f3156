"""Images by digest in Docker's store: fetch them, and see whether what is there is what is pinned."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from k25stack.errors import DamageError, DriftError, HostError
from k25stack.proc import run
from k25stack.stack.images import split_ref

if TYPE_CHECKING:
    from k25stack.stack.host import Image

PULL_S = 4 * 3600.0  # 20 to 40 GB over an ordinary line


def pull_argv(image: Image) -> list[str]:
    """The command that fetches an image by its digest."""
    return ["docker", "pull", "--quiet", f"{split_ref(image.ref)[0]}@{image.digest}"]


def pull(image: Image) -> None:
    """Fetch an image by its digest and verify it.  Raises HostError with the fix, DamageError, DriftError."""
    done = run(pull_argv(image), timeout_s=PULL_S, check=False)
    if done.returncode != 0:
        what, remedy = _why((done.stderr or done.stdout).strip())
        raise HostError(what, where=f"{image.ref}@{image.digest[:19]}", remedy=remedy)
    verify(image)


def verify(image: Image) -> None:
    """Is the pinned image in Docker's store, and does its tag, if it is there too, mean the same?

    Raises HostError when it is not there, DamageError when its digest is another, DriftError when the tag has moved.
    """
    repository, _ = split_ref(image.ref)
    name = f"{repository}@{image.digest}"
    found = _digests(name)
    if found is None:
        raise HostError("not on this machine", where=name, remedy="k25stack stack fetch STACK --images")
    if not any(digest.endswith(image.digest) for digest in found):
        raise DamageError(f"digest mismatch: Docker has {', '.join(found) or 'none'}", where=name,
                          remedy=f"docker image rm {name}, then fetch again")  # fmt: skip
    tagged = _digests(image.ref)
    if tagged is not None and not any(digest.endswith(image.digest) for digest in tagged):
        raise DriftError(f"the tag means another image here: {', '.join(tagged) or 'one without a digest'}",
                         where=image.ref, remedy=f"docker tag {name} {image.ref}")  # fmt: skip


def _digests(name: str) -> list[str] | None:
    """RepoDigests of an image in the store; None when it is not there.  Raises HostError without Docker."""
    form = "{{json .RepoDigests}}"
    done = run(["docker", "image", "inspect", "--format", form, name], timeout_s=60, check=False,
               remedy="install Docker Engine: docs/images.md")  # fmt: skip
    if done.returncode == 0:
        return [str(digest) for digest in json.loads(done.stdout) or []]
    if "No such image" in done.stderr:
        return None
    what, remedy = _why(done.stderr.strip())
    raise HostError(what, where=name, remedy=remedy)


KNOWN = (
    ("no space left", "no space left on the disk of {root}", "free some there, docker image prune; what came stays"),
    ("Cannot connect to the Docker daemon", "Docker does not run", "systemctl start docker"),
    ("manifest unknown", "the registry has no image of this digest", "look at the pin: k25stack stack pin --check"),
    ("not found", "the registry has no image of this digest", "look at the pin: k25stack stack pin --check"),
    ("denied", "the registry wants a login", "docker login"),
    ("unauthorized", "the registry wants a login", "docker login"),
    ("unexpected commit digest", "digest mismatch: another content came", "do not use it; try another network"),
)  # fmt: skip


def data_root() -> str:
    """Where Docker keeps images; words for it when it does not say."""
    done = run(["docker", "info", "--format", "{{.DockerRootDir}}"], timeout_s=60, check=False)
    return done.stdout.strip() or "Docker's data directory"


def _why(text: str) -> tuple[str, str]:
    for sign, what, remedy in KNOWN:
        if sign in text:
            return what.format(root=data_root() if "{root}" in what else ""), remedy
    return (text.splitlines() or ["no output"])[-1], "check the network, then fetch again: what came stays"
