"""What decides one of our images, as a key that the image carries (``K25_IMAGE_KEY``).

Kernels that are compiled at run time are kept by it, so that two images on one base, of which one has a patch, never
share any.  In the key: the base's content, the Dockerfile, every file that it copies or mounts (wheel locks, scripts,
our package), the patches of this image, the arguments that choose what is installed.  Not in it: labels and times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from k25stack.files import canonical_json, sha256_file, sha256_text

DIGITS = 12
PATCHES = Path("images/patches")
LEFT_OUT = re.compile(r"(^|/)__pycache__(/|$)|\.pyc$|^images/([^/]+/Dockerfile|.*\.md)$")  # as .dockerignore says
BIND = re.compile(r"--mount=(\S+)")


def image_content_key(root: Path, dockerfile: str, image: str, base: str, arguments: Mapping[str, str]) -> str:
    """The first 12 hex digits of a hash over all that decides an image.

    ``base`` names the content of what it is built FROM (a digest, or an image id); ``arguments`` are those build
    arguments that choose what is installed.
    """
    text = (root / dockerfile).read_text(encoding="utf-8")
    files = {path for source in sources(text) for path in _files(root, root / source)}
    decided = {
        "base": base,
        "image": image,
        "arguments": dict(arguments),
        "dockerfile": sha256_text(text),
        "files": {path.relative_to(root).as_posix(): _content(path) for path in files if _counts(root, path, image)},
    }
    return sha256_text(canonical_json(decided))[:DIGITS]


def sources(dockerfile: str) -> Iterator[str]:
    """Paths of the checkout that a Dockerfile copies or mounts; those of its other stages and contexts left out."""
    whole = re.sub(r"(?m)^\s*#.*\n", "", dockerfile).replace("\\\n", " ")
    for line in whole.splitlines():
        instruction, *words = line.split() or [""]
        if instruction == "COPY" and not any(word.startswith("--from=") for word in words):
            yield from [word for word in words if not word.startswith("--")][:-1]
        for mount in BIND.findall(line) if instruction == "RUN" else ():
            options = dict(option.partition("=")[::2] for option in mount.split(","))
            if options.get("type") == "bind" and "from" not in options:
                yield options["source"]


def _files(root: Path, path: Path) -> Iterator[Path]:
    """The files below a path that a build sees."""
    found = sorted(path.rglob("*")) if path.is_dir() else [path]
    return (file for file in found if file.is_file() and not LEFT_OUT.search(file.relative_to(root).as_posix()))


def _counts(root: Path, path: Path, image: str) -> bool:
    """Whether a file matters for this image: a patch of another one does not."""
    if not path.is_relative_to(root / PATCHES) or path.suffix != ".patch":
        return True
    named = re.search(r"(?m)^Image: *(\S+)$", path.read_text(encoding="utf-8", errors="replace").partition("\n--- ")[0])
    return named is None or named[1] == image  # without a name it ends the build


def _content(path: Path) -> str:
    """Hash of a file, and whether it may be executed."""
    return sha256_file(path) + ("x" if path.stat().st_mode & 0o100 else "")
