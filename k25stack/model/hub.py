"""A model of a hub at one commit: what files it has, fetching them, and whether every one is what the hub says.

Sizes and hashes come from the hub's own list (sha256 of large files, git's blob hash of small ones) and are kept beside
the model in ``k25stack-files.json``, so that it can be verified again without network.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.errors import DamageError, HostError, UsageError, in_words
from k25stack.files import CHUNK, read_json, sha256_file, write_json

WANTED = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.py")
LIST = "k25stack-files.json"
TARGET = "target.source.revision"
TOKEN_FILES = ("/run/secrets/hf_token",)
READERS = 8  # files hashed at the same time: one NVMe drive is faster than one core's sha256
HTTP_ERRORS = ("HTTPError", "RequestException")  # of httpx and requests: bases of the hub library's own error
NO_NETWORK = "check the network, HF_HUB_OFFLINE and the access token, or copy the model here and use kind dir"
Say = Callable[[str], None]


@dataclass(frozen=True)
class HubFile:
    name: str
    size: int  # bytes
    sha256: str = ""  # of a large file
    blob: str = ""  # git's hash of a small one


@dataclass(frozen=True)
class Listing:
    """What a hub says that a model at one commit is."""

    repo: str
    revision: str
    files: tuple[HubFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def is_commit(revision: str | None) -> bool:
    return revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision) is not None


def require_commit(repo: str, revision: str | None, where: str) -> str:
    """The revision.  Raises UsageError for one that may mean other files tomorrow."""
    if revision is not None and is_commit(revision):
        return revision
    what = f"{repo} is not pinned: " + ("no revision is given" if revision is None else f"{revision!r} is no commit")
    raise UsageError(what, where=where, remedy="write the 40 hex digits of a commit there; "
                     "`k25stack stack fetch STACK -n` asks the hub for its newest one")  # fmt: skip


def newest(repo: str, revision: str | None) -> str:
    """The commit that a branch or tag of the hub means now; None: its main branch.  Raises HostError."""
    with _errors(repo, revision or "its newest commit"):
        from huggingface_hub import HfApi

        return str(HfApi(token=token() or False).model_info(repo, revision=revision).sha)


def listing(repo: str, revision: str | None, where: str = TARGET) -> Listing:
    """Ask the hub.  ``where`` is the key of the stack file that names the revision.

    Raises HostError (no network, no such model, gated and no token), UsageError for an unpinned revision.
    """
    revision = require_commit(repo, revision, where)
    with _errors(repo, revision):
        from huggingface_hub import HfApi

        info = HfApi(token=token() or False).model_info(repo, revision=revision, files_metadata=True)
    files = tuple(sorted(_wanted(info.siblings or []), key=lambda file: file.name))
    if outside := [file.name for file in files if file.name.startswith("/") or ".." in file.name.split("/")]:
        raise DamageError(f"the hub lists a file outside the model: {outside[0]}", where=f"{repo}@{revision}",
                          remedy="do not use this repository")  # fmt: skip
    if str(info.sha) != revision:
        raise DamageError(f"the hub answers with commit {info.sha}", where=f"{repo}@{revision}", remedy="check the pin")
    if not any(file.name.endswith(".safetensors") for file in files):
        raise UsageError("no safetensors file", where=f"{repo}@{revision}", remedy="only safetensors is fetched")
    return Listing(repo, revision, files)


def fetch(repo: str, revision: str | None, directory: Path, say: Say, where: str = TARGET) -> Listing:
    """Make ``directory`` hold the model at this commit, every file verified; costs no network when it does already.

    Raises as `listing` does, HostError for a directory that cannot be written, and DamageError when a file is still not
    what the hub lists after it was fetched again.
    """
    kept = recorded(directory)
    if kept and (kept.repo, kept.revision) == (repo, revision) and not verify(kept, directory, say):
        if _seen(kept, directory) != _times(kept, directory) and os.access(directory, os.W_OK):
            record(kept, directory)  # copied or touched since: the next look need not read it again
        return kept
    found = listing(repo, revision, where)
    _require_writable(directory)
    for again in (False, True):
        download(found, directory)
        if not (bad := verify(found, directory, say)):
            record(found, directory)
            return found
        for name in bad:
            (directory / name).unlink(missing_ok=True)
        if not again:
            say(f"not what the hub lists, fetched again: {', '.join(bad[:4])}")
    raise DamageError(f"{', '.join(bad[:4])} not what the hub lists, even fetched twice", where=str(directory),
                      remedy="look for a cache or proxy on the way that alters files")  # fmt: skip


def code_hashes(found: Listing, directory: Path) -> dict[str, str]:
    """sha256 of every Python file: code that ``trust-remote-code`` will run, for somebody to look at."""
    names = [file.name for file in found.files if file.name.endswith(".py")]
    return {name: sha256_file(directory / name) for name in names}


def download(found: Listing, directory: Path) -> None:
    """Fetch what is missing; a broken-off fetch goes on where it was.  Raises HostError."""
    directory.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HF_HOME", str(directory / ".cache" / "hub"))  # the user's home may be small
    with _errors(found.repo, found.revision):
        from huggingface_hub import snapshot_download

        snapshot_download(
            found.repo, revision=found.revision, local_dir=directory, token=token() or False,
            allow_patterns=[file.name for file in found.files], max_workers=READERS,
        )  # fmt: skip


def verify(found: Listing, directory: Path, say: Say, full: bool = False) -> list[str]:
    """Names of the files that are missing or not what the hub lists.

    A file that was verified and has its size and time of then is not read again unless ``full``.
    """
    seen = {} if full else _seen(found, directory)
    bad: list[str] = []
    done = 0
    with ThreadPoolExecutor(READERS) as readers:
        for file, sound in zip(
            found.files, readers.map(lambda one: _sound(one, directory, seen), found.files), strict=True
        ):
            done += file.size
            if not sound:
                bad.append(file.name)
            elif file.size > 1 << 30:
                say(f"verified {file.name} ({done / 1e9:.0f} of {found.bytes / 1e9:.0f} GB)")
    return bad


def record(found: Listing, directory: Path) -> None:
    """Keep the list and the times of the verified files beside the model."""
    times = _times(found, directory)
    files = {
        file.name: {**{key: value for key, value in vars(file).items() if value and key != "name"},
                    "mtime_ns": times[file.name]}
        for file in found.files
    }  # fmt: skip
    write_json(directory / LIST, {"repo": found.repo, "revision": found.revision, "files": files})


def recorded(directory: Path) -> Listing | None:
    """The list that was kept at the last fetch.  Raises DamageError when it cannot be read."""
    path = directory / LIST
    if not path.is_file():
        return None
    try:
        kept = read_json(path)
        files = tuple(
            HubFile(name, file["size"], file.get("sha256", ""), file.get("blob", ""))
            for name, file in kept["files"].items()
        )
        return Listing(kept["repo"], kept["revision"], files)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamageError(
            f"not a list of files: {in_words(error)}", where=str(path), remedy="delete it and fetch again"
        ) from None


def token() -> str:
    """HF_TOKEN, or the content of the file that HF_TOKEN_FILE or a mounted secret names; empty when there is none.

    Raises HostError for a file that is closed to this user.
    """
    if given := os.environ.get("HF_TOKEN", "").strip():
        return given
    for name in (os.environ.get("HF_TOKEN_FILE", ""), *TOKEN_FILES):
        if name and Path(name).is_file():
            try:
                return Path(name).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                user = os.getuid()
                remedy = f"on the host: chown {user} the file that HF_TOKEN_FILE names"
                raise HostError(
                    f"the hub's token cannot be read by uid {user}: {error}", where=name, remedy=remedy
                ) from None
    return ""


@contextmanager
def _errors(repo: str, revision: str) -> Iterator[None]:
    """The library's errors, and those of the HTTP library below it, as ours."""
    try:
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise HostError("huggingface_hub is not installed", remedy="pip install 'k25stack[train]'") from None
    try:
        yield
    except _network_errors(HfHubHTTPError) as error:
        what, remedy = _why(error)
        raise HostError(f"cannot fetch {repo} at {revision[:12]}: {what}", remedy=remedy) from None


def _network_errors(own: type[Exception]) -> tuple[type[Exception], ...]:
    """OSError, and the general error of whichever HTTP library the hub's is built on."""
    return (OSError, *(kind for kind in own.__mro__ if issubclass(kind, Exception) and kind.__name__ in HTTP_ERRORS))


def _why(error: Exception) -> tuple[str, str]:
    status = getattr(getattr(error, "response", None), "status_code", None)
    names = {kind.__name__ for kind in type(error).__mro__}
    if "GatedRepoError" in names or status in (401, 403):
        what = (
            "it is gated, and the token given is refused"
            if token()
            else "it is gated or private, and HF_TOKEN is not set"
        )
        return what, "accept its terms on the hub, then give HF_TOKEN, or HF_TOKEN_FILE with the file that holds it"
    if "RepositoryNotFoundError" in names or "RevisionNotFoundError" in names or status == 404:
        return "the hub does not have it", "check repository and revision"
    if getattr(error, "errno", None) == errno.ENOSPC:
        return "no space left", "`k25stack stack fetch -n` says how much it needs"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0], NO_NETWORK


def _wanted(siblings: list[Any]) -> Iterator[HubFile]:
    """Weights as safetensors, configuration, tokenizer and code; never a pickle."""
    for item in siblings:
        name = str(item.rfilename)
        if any(fnmatch.fnmatch(name.rpartition("/")[2], pattern) for pattern in WANTED):
            large = item.lfs
            size = int((large.size if large else item.size) or 0)
            yield HubFile(name, size, str(large.sha256) if large else "", "" if large else str(item.blob_id or ""))


def _times(found: Listing, directory: Path) -> dict[str, int]:
    return {file.name: (directory / file.name).stat().st_mtime_ns for file in found.files}


def _require_writable(directory: Path) -> None:
    """Raises HostError with the command that opens the directory to this user."""
    place = directory
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK | os.X_OK):
        user = os.getuid()
        raise HostError(f"closed to uid {user}, who is to fetch into it", where=str(directory),
                        remedy=f"on the host, for the directory mounted there: chown {user} DIR")  # fmt: skip


def _sound(file: HubFile, directory: Path, seen: dict[str, int]) -> bool:
    path = directory / file.name
    try:
        status = path.stat()
    except OSError:
        return False
    if status.st_size != file.size:
        return False
    if seen.get(file.name) == status.st_mtime_ns:
        return True
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with path.open("rb") as content:
        while piece := content.read(CHUNK):
            digest.update(piece)
    return digest.hexdigest() == (file.sha256 or file.blob)


def _seen(found: Listing, directory: Path) -> dict[str, int]:
    """File -> time of its content when it was verified, as long as the same was expected of it."""
    path = directory / LIST
    if recorded(directory) != found:
        return {}
    return {name: file.get("mtime_ns", -1) for name, file in read_json(path)["files"].items()}
