"""``extends``, for a whole file and for a serving profile, on the positioned tree.

A file may extend one other file, named relative to itself; a profile may extend another profile of the merged file.
Mappings are merged key by key, everything else is replaced.  A mapping whose ``kind`` changes is replaced whole, since
its other keys belong to the old kind.  ``null`` for an ``argv`` or ``env`` entry takes an inherited one away.
A profile's ``role`` and ``notes`` speak of that profile alone and are not inherited.
"""

from __future__ import annotations

from pathlib import Path

from k25stack.errors import StackError
from k25stack.stack.tree import Leaf, Mapping, Tree
from k25stack.stack.yamltree import parse

OWN = ("role", "notes")  # of a profile, never inherited


def read(path: Path) -> Mapping:
    """The tree of a file with everything it extends merged in and every profile complete.  Raises StackError."""
    return _complete_profiles(_read_chain(path, []))


def merge(base: Tree, over: Tree) -> Tree:
    """``over`` laid on ``base``; places stay those of the file each value came from."""
    if not isinstance(base, Mapping) or not isinstance(over, Mapping) or _changes_kind(base, over):
        return over
    items, keys = dict(base.items), dict(base.keys)
    for key, value in over.items.items():
        items[key] = merge(items[key], value) if key in items else value
        keys[key] = over.keys[key]
    return Mapping(items, over.place, keys)


def _changes_kind(base: Mapping, over: Mapping) -> bool:
    old, new = base.items.get("kind"), over.items.get("kind")
    return isinstance(old, Leaf) and isinstance(new, Leaf) and old.value != new.value


def _read_chain(path: Path, seen: list[Path]) -> Mapping:
    real = path.resolve()
    tree = parse(path)
    if "extends" not in tree.items:
        return tree
    link = tree.items["extends"]
    if not isinstance(link, Leaf) or not isinstance(link.value, str) or not link.value:
        raise StackError("extends names one stack file", where=str(link.place))
    base = path.parent / link.value
    chain = [*seen, real]
    if base.resolve() in chain:
        names = " -> ".join(p.name for p in [*chain, base.resolve()])
        raise StackError(f"extends goes in a circle: {names}", where=str(link.place))
    if not base.exists():
        raise StackError(f"no file {link.value!r} to extend", where=str(link.place), remedy=f"looked in {path.parent}")
    merged = merge(_read_chain(base, chain), without(tree, "extends"))
    assert isinstance(merged, Mapping)
    return merged


def without(tree: Mapping, *names: str) -> Mapping:
    """The mapping without these keys."""
    items = {key: value for key, value in tree.items.items() if key not in names}
    return Mapping(items, tree.place, {key: tree.keys[key] for key in items})


def replaced(tree: Mapping, name: str, value: Tree) -> Mapping:
    """The mapping with one value changed or added."""
    return Mapping({**tree.items, name: value}, tree.place, {name: value.place, **tree.keys})


def _complete_profiles(tree: Mapping) -> Mapping:
    """Every profile with what it extends merged in, and with the version and image of its engine."""
    serving = tree.items.get("serving")
    profiles = serving.items.get("profiles") if isinstance(serving, Mapping) else None
    if not isinstance(serving, Mapping) or not isinstance(profiles, Mapping):
        return tree  # the validator says what is missing
    done: dict[str, Tree] = {}
    for name in profiles.items:
        flat = _flatten(profiles, name, [])
        done[name] = _with_engine(_drop_nulls(flat), tree.items.get("engines")) if isinstance(flat, Mapping) else flat
    complete = Mapping(done, profiles.place, profiles.keys)
    return replaced(tree, "serving", replaced(serving, "profiles", complete))


def _flatten(profiles: Mapping, name: str, seen: list[str]) -> Tree:
    profile = profiles.items[name]
    if not isinstance(profile, Mapping) or "extends" not in profile.items:
        return profile
    link = profile.items["extends"]
    if not isinstance(link, Leaf) or not isinstance(link.value, str):
        raise StackError("extends names one profile", where=str(link.place))
    chain = [*seen, name]
    if link.value in chain:
        raise StackError(f"extends goes in a circle: {' -> '.join([*chain, link.value])}", where=str(link.place))
    if link.value not in profiles.items:
        there = ", ".join(other for other in profiles.items if other != name)
        raise StackError(f"no profile {link.value!r} to extend", where=str(link.place), remedy=f"there are {there}")
    base = _flatten(profiles, link.value, chain)
    if not isinstance(base, Mapping):
        return base
    if _engine(profile) not in (None, _engine(base)):
        raise StackError(
            f"profile {name!r} extends {link.value!r}, a profile of another engine",
            where=str(link.place),
            remedy="options of one engine mean nothing to another: write the profile out",
        )
    return merge(without(base, *OWN), without(profile, "extends"))


def _engine(profile: Mapping) -> object:
    engine = profile.items.get("engine")
    return engine.value if isinstance(engine, Leaf) else None


def _drop_nulls(profile: Mapping) -> Mapping:
    for name in ("argv", "env"):
        table = profile.items.get(name)
        if isinstance(table, Mapping):
            gone = [key for key, value in table.items.items() if isinstance(value, Leaf) and value.value is None]
            profile = replaced(profile, name, without(table, *gone))
    return profile


def _with_engine(profile: Mapping, engines: Tree | None) -> Mapping:
    """Version and image of the profile's engine where the profile names none."""
    engine = _engine(profile)
    entry = engines.items.get(engine) if isinstance(engines, Mapping) and isinstance(engine, str) else None
    if not isinstance(entry, Mapping):
        return profile
    version, image = entry.items.get("version"), entry.items.get("image")
    if "version" not in profile.items and version is not None:
        profile = replaced(profile, "version", version)
    same = _value(profile.items.get("version")) == _value(version)
    if "image" not in profile.items and image is not None and same:
        profile = replaced(profile, "image", image)
    return profile


def _value(tree: Tree | None) -> object:
    return tree.value if isinstance(tree, Leaf) else None
