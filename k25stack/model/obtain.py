"""A stack's target on disk: fetch it from wherever it comes, or see whether a directory is it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k25stack.errors import DamageError, UsageError
from k25stack.files import read_json
from k25stack.model import hub
from k25stack.model.target import prepare
from k25stack.model.verify import verify_target
from k25stack.model.wheels import MODELS
from k25stack.worker import Spec


@dataclass(frozen=True)
class Obtained:
    directory: Path
    files: int
    bytes: int
    how: str  # what was verified
    code: Mapping[str, str] = field(default_factory=dict)  # Python file -> sha256


def place(source: Mapping[str, Any]) -> Path:
    """Where a target is kept unless somebody says otherwise."""
    if source["kind"] == "hub":
        return MODELS / "hub" / str(source["repo"]).replace("/", "--") / str(source.get("revision"))
    return Path(source["path"]) if source["kind"] == "dir" else MODELS / "targets" / str(source.get("sha256", ""))


def hub_draft(repo: str, revision: str | None) -> dict[str, Any]:
    """The source of a draft that a hub has, as `obtain` and `inspect` take it."""
    return {"kind": "hub", "repo": repo, "revision": revision, "key": "speculative.draft_revision"}


def obtain(source: Mapping[str, Any], name: str, into: Path, say: hub.Say) -> Obtained:
    """Make ``into`` the target or draft.  Raises HostError, UsageError or DamageError with the fix."""
    if source["kind"] == "dummy":
        raise UsageError("the engine makes this target's weights itself", where=name, remedy="nothing is to be fetched")
    if source["kind"] == "hub":
        hub.fetch(str(source["repo"]), source.get("revision"), into, say, source.get("key", hub.TARGET))
    elif source["kind"] != "dir":
        into.mkdir(parents=True, exist_ok=True)
        prepare(Spec({"source": dict(source), "name": name}, {}, into, threads=1))
    return inspect(source, into, say)


def inspect(source: Mapping[str, Any], directory: Path, say: hub.Say, full: bool = False) -> Obtained:
    """Is ``directory`` this target or draft, whole and unaltered?  Needs no network.

    A model of a hub is compared with the list that was kept when it was fetched; ``full`` reads files again that have
    not changed in size and time since.  Raises UsageError or DamageError that names the first files.
    """
    if source["kind"] == "hub":
        hub.require_commit(str(source["repo"]), source.get("revision"), source.get("key", hub.TARGET))
    kept = hub.recorded(directory)
    again = "k25stack stack fetch STACK " + ("--draft PROFILE" if source.get("key") else "--model")
    if kept is None:
        if source["kind"] == "hub":
            raise DamageError(f"no {hub.LIST}: it was never verified", where=str(directory),
                              remedy=f"{again}, with network")  # fmt: skip
        facts = verify_target(directory)
        _same_revision(source, directory)
        return Obtained(directory, facts.tensors, facts.bytes, f"{facts.tensors} tensors as config.json says")
    if source["kind"] == "hub" and (kept.repo, kept.revision) != (source["repo"], source.get("revision")):
        raise DamageError(f"holds {kept.repo}@{kept.revision[:12]}", where=str(directory),
                          remedy=f"the stack wants {source['repo']}@{str(source.get('revision'))[:12]}")  # fmt: skip
    if bad := hub.verify(kept, directory, say, full):
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise DamageError(f"missing or altered: {', '.join(bad[:3])}{more}", where=str(directory),
                          remedy=f"{again} gets these files again")  # fmt: skip
    how = f"{len(kept.files)} files by size and hash"
    return Obtained(directory, len(kept.files), kept.bytes, how, hub.code_hashes(kept, directory))


def _same_revision(source: Mapping[str, Any], directory: Path) -> None:
    note = directory / "target.json"
    found = read_json(note).get("revision") if note.is_file() else None
    if source["kind"] == "wheel-gguf" and found not in (None, source["sha256"]):
        raise DamageError(f"made from another wheel ({str(found)[:12]})", where=str(directory),
                          remedy="make it anew: k25stack run STACK --only target")  # fmt: skip
