"""Which image a container may run: by digest, unless we have built it here (standard library only)."""

from __future__ import annotations

import hashlib
import re

from k25stack.errors import UsageError

OWN = ("k25stack/", "local/")  # repositories of images that are built on this machine
DIGEST = re.compile(r"@sha256:([0-9a-f]{64})$")
WHOLE = re.compile(r"sha256:[0-9a-f]{64}")  # an image id: this machine's own content hash


def pinned(image: str, name: str = "NAME") -> str:
    """``image``, if its content is decided.  Raises UsageError for somebody else's image without a digest."""
    if DIGEST.search(image) or WHOLE.fullmatch(image) or image.startswith(OWN):
        return image
    raise UsageError(
        f"image {image or '(none)'} has no digest: its tag may mean another image tomorrow",
        where=name,
        remedy=f"pin it: k25stack stack pin {name}",
    )


def image_key(image: str) -> str:
    """First 12 hex digits of the image's digest; of a hash of its name for an image without one."""
    found = DIGEST.search(image)
    text = found.group(1) if found else image.removeprefix("sha256:")
    return text[:12] if found or WHOLE.fullmatch(image) else hashlib.sha256(image.encode()).hexdigest()[:12]
