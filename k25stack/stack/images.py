"""``images/lock.yaml``: the one source of image pins, what our own images are built from, and how a stack gets a pin.

A stack names an image; the pin's fields are merged into it before it is validated, so that the resolved stack holds the
digest that decided the run.  An image that a stack describes itself is left alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError, model_validator

from k25stack.errors import StackError, UsageError
from k25stack.stack.base import Count, Digest, Name, Section, Text, Version, problem
from k25stack.stack.explain import explain
from k25stack.stack.host import Dotted, Image
from k25stack.stack.tree import Leaf, Mapping, plain
from k25stack.stack.yamltree import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k25stack.stack.tree import Place, Tree

CHECKOUT = Path(__file__).resolve().parents[2]
LOCK = CHECKOUT / "images" / "lock.yaml"
OWN = "k25stack/{}:local"  # name of an image that is built here


class Pin(Section):
    """Somebody else's image."""

    ref: Text  # repository:tag
    digest: Digest | None  # null: never resolved; refused where it would be used
    kind: Literal["index", "manifest"] = "index"
    engine: Literal["sglang", "vllm"] | None = None
    version: Version | None = None  # of the engine
    cuda: Dotted | None = None
    min_driver: Dotted | None = None
    sources: Count
    resolved: bool
    notes: str = ""

    @property
    def repository(self) -> str:
        """Without the tag: what a digest is pulled from."""
        return split_ref(self.ref)[0]

    @property
    def pinned(self) -> str:
        """``repository:tag@digest``.  Raises UsageError while there is no digest."""
        if self.digest is None:
            raise UsageError("no digest yet: its tag may mean another image tomorrow", where=self.ref,
                             remedy="k25stack stack pin")  # fmt: skip
        return f"{self.ref}@{self.digest}"

    def image(self) -> dict[str, Any]:
        """The fields that a stack's image has."""
        return {name: getattr(self, name) for name in Image.model_fields}


class Build(Section):
    """One of our own images."""

    base: Name  # under images
    file: Text  # the Dockerfile, from the top of the checkout
    engine: Literal["sglang", "vllm"] | None = None  # that it brings itself; else the base's
    version: Version | None = None


class ImageLock(Section):
    format: Literal[1]  # of this file
    images: dict[Name, Pin]
    builds: dict[Name, Build] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _bases_exist(self) -> ImageLock:
        for name, build in self.builds.items():
            if build.base not in self.images:
                raise problem(f"no image {build.base!r} under images", "builds", name, "base")
        for name, pin in self.images.items():
            if pin.resolved and pin.digest is None:
                raise problem("resolved without a digest", "images", name, "resolved")
        return self

    def pin(self, name: str) -> Pin:
        """Raises UsageError with the names there are."""
        if name not in self.images:
            raise UsageError(
                f"no image {name!r}", where="images/lock.yaml", remedy=f"there are {', '.join(self.images)}"
            )
        return self.images[name]

    def build(self, name: str) -> Build:
        """Raises UsageError with the names there are."""
        if name not in self.builds:
            raise UsageError(f"no image of ours is called {name!r}", where="images/lock.yaml: builds",
                             remedy=f"there are {', '.join(self.builds)}")  # fmt: skip
        return self.builds[name]


def read_lock(path: Path = LOCK) -> ImageLock:
    """Read and validate the pins.  Raises StackError with file, line and column."""
    if not path.is_file():
        remedy = "run from a checkout, or describe the image under images in the stack file"
        raise StackError("no such file: the image pins", where=str(path), remedy=remedy)
    tree = parse(path)
    try:
        return ImageLock.model_validate_json(json.dumps(plain(tree)))
    except ValidationError as error:
        raise explain(error, tree, ImageLock) from None


def with_pins(tree: Mapping, path: Path = LOCK) -> Mapping:
    """The stack's tree with the pins of all images that it names and does not describe itself.

    Raises StackError for one that has no digest, at the line that names it.  A name that is in neither place is left to
    the validator.
    """
    own = tree.items.get("images")
    described = own.items if isinstance(own, Mapping) else {}
    wanted = {name: place for name, place in _named(tree) if name not in described}
    if not wanted or not path.is_file():
        return tree
    lock = read_lock(path)
    added: dict[str, Tree] = {}
    for name, place in wanted.items():
        if name not in lock.images:
            continue
        if lock.images[name].digest is None:
            raise StackError(f"image {name!r} has no digest: its tag may mean another image tomorrow",
                             where=str(place), remedy=f"pin it: k25stack stack pin {name}")  # fmt: skip
        leaves: dict[str, Tree] = {key: Leaf(value, place) for key, value in lock.images[name].image().items()}
        added[name] = Mapping(leaves, place, dict.fromkeys(leaves, place))
    if not added:
        return tree
    keys = own.keys if isinstance(own, Mapping) else {}
    where = own.place if own is not None else tree.place
    images = Mapping({**described, **added}, where, {**keys, **{name: wanted[name] for name in added}})
    return Mapping({**tree.items, "images": images}, tree.place, {**tree.keys, "images": where})


def _named(tree: Mapping) -> Iterator[tuple[str, Place]]:
    """Image names that engines, profiles and steps give, and where."""
    host = tree.items.get("host")
    steps = host.items.get("step_images") if isinstance(host, Mapping) else None
    for name in steps.items.values() if isinstance(steps, Mapping) else ():
        if isinstance(name, Leaf) and isinstance(name.value, str):
            yield name.value, name.place
    serving = tree.items.get("serving")
    for section in (tree.items.get("engines"), serving.items.get("profiles") if isinstance(serving, Mapping) else None):
        for part in section.items.values() if isinstance(section, Mapping) else ():
            leaf = part.items.get("image") if isinstance(part, Mapping) else None
            if isinstance(leaf, Leaf) and isinstance(leaf.value, str):
                yield leaf.value, leaf.place


def split_ref(ref: str) -> tuple[str, str]:
    """Repository and tag; ``latest`` when there is none.  A port is no tag."""
    repository, colon, tag = ref.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (ref, "latest")


def rewrite(text: str, name: str, values: dict[str, str]) -> str:
    """The lock's text with some values of one image changed; comments and everything else stay as they are.

    ``values`` are already spelt as YAML.  Every key must stand on a line of its own below ``  NAME:``.
    """
    lines = text.splitlines(keepends=True)
    start = next(index for index, line in enumerate(lines) if re.match(rf"  {re.escape(name)}:\s*(#.*)?$", line))
    left = dict(values)
    for index in range(start + 1, len(lines)):
        if re.match(r" {0,2}\S", lines[index]) and not lines[index].lstrip().startswith("#"):
            break
        found = re.match(r"(    (\w+):\s*)(\S+)(.*\n?)$", lines[index])
        if found and found[2] in left:
            lines[index] = f"{found[1]}{left.pop(found[2])}{found[4]}"
    if left:
        raise UsageError(f"images.{name}: {', '.join(left)} not on a line of its own", where="images/lock.yaml",
                         remedy="write one key a line")  # fmt: skip
    return "".join(lines)
