"""Apply ``/patches/*.patch`` to the engine's package: ``python3 patches.py IMAGE PACKAGE`` (standard library only).

A patch is a unified diff with a header of its own::

    Image: sglang
    Upstream: https://github.com/OWNER/REPO/pull/N
    Sha256: hash of everything from the first line that begins with "--- "

Paths are those of the package (``a/sglang/srt/...``).  Lines must match exactly, without fuzz: a base that has moved
fails the build, and so does a base that holds the change already, with the advice to delete the patch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from pathlib import Path

HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


class Unfit(Exception):
    """The patch cannot be applied; the text says why and what to do."""


def read(text: str) -> tuple[dict[str, str], str]:
    """Header and diff.  Raises Unfit when the header is not whole or the diff is not the one it speaks of."""
    head, mark, body = text.partition("\n--- ")
    body = mark.lstrip("\n") + body
    header = dict(re.findall(r"(?m)^(Image|Upstream|Sha256): *(\S+)$", head + "\n"))
    missing = [key for key in ("Image", "Upstream", "Sha256") if key not in header]
    if missing or not body:
        raise Unfit(f"no {', '.join(missing) or 'diff'} in it (images/patches/README.md)")
    if (found := hashlib.sha256(body.encode()).hexdigest()) != header["Sha256"]:
        raise Unfit(f"the diff has sha256 {found}, the header says {header['Sha256']} (correct one of them)")
    return header, body


def hunks(body: str) -> dict[str, list[tuple[int, list[str], list[str]]]]:
    """File -> (first line in the old file, old lines, new lines) of each hunk."""
    files: dict[str, list[tuple[int, list[str], list[str]]]] = {}
    path = ""
    for line in body.splitlines():
        if line.startswith("--- "):
            path = ""
        elif line.startswith("+++ ") and not path:
            path = line[4:].split("\t")[0].partition("/")[2]
            files[path] = []
        elif found := HUNK.match(line):
            files[path].append((int(found[1]), [], []))
        elif path and files[path] and line[:1] in (" ", "-", "+", ""):
            _, old, new = files[path][-1]
            if line[:1] != "+":
                old.append(line[1:])
            if line[:1] != "-":
                new.append(line[1:])
    return files


def changed(lines: list[str], changes: list[tuple[int, list[str], list[str]]], where: str) -> list[str]:
    """The lines with all hunks of one file applied.  Raises Unfit."""
    result, shift = list(lines), 0
    obsolete = 0
    for first, old, new in changes:
        at = max(first - 1, 0) + shift
        if result[at : at + len(old)] == old:
            result[at : at + len(old)] = new
            shift += len(new) - len(old)
        elif _holds(result, new):
            obsolete += 1
        else:
            raise Unfit(f"does not apply to {where} at line {first} (make it anew for this base)")
    if obsolete == len(changes):
        raise Unfit(f"obsolete: {where} of this base holds the change already (delete the patch)")
    if obsolete:
        raise Unfit(f"{where} of this base holds {obsolete} of its {len(changes)} hunks already (make it anew)")
    return result


def _holds(lines: list[str], part: list[str]) -> bool:
    return any(lines[at : at + len(part)] == part for at in range(len(lines) - len(part) + 1))


def apply(patch: Path, image: str, package: str) -> bool:
    """Apply one patch; False when it is another image's.  Raises Unfit; then no file was changed."""
    header, body = read(patch.read_text(encoding="utf-8"))
    if header["Image"] != image:
        return False
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise Unfit(f"no package {package} in this base")
    root, done = Path(spec.origin).parent.parent, {}
    for name, changes in hunks(body).items():
        path = root / name
        if not path.is_file():
            raise Unfit(f"no file {name} in this base (make it anew for this base)")
        text = path.read_text(encoding="utf-8")
        done[path] = "\n".join(changed(text.split("\n"), changes, name))
    for path, text in done.items():
        path.write_text(text, encoding="utf-8")
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()
    print(f"applied {patch.name} ({header['Upstream']})")
    return True


def main(image: str, package: str, patches: Path) -> int:
    for patch in sorted(patches.glob("*.patch")):
        try:
            apply(patch, image, package)
        except Unfit as error:
            print(f"error: images/patches/{patch.name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path("/patches")))
