#!/usr/bin/env python3
"""Makes the environment in which the engines' own argument parsers can be read, on a machine without a GPU.

    python images/parsers/build.py DIR [sglang==0.5.20 vllm==0.31.0 ...]

DIR/venv holds the small packages of requirements.lock and the CPU build of torch; DIR/<engine>-<version> holds the
Python files of that engine's wheel, which is unpacked, not installed: its kernels are not needed.  Everything is
checked against the hashes in the lock files.  What is there already stays; the folder can be shared (it is locked
while one process builds).  Then:

    DIR/venv/bin/python k25stack/engines/introspect.py sglang 0.5.20 --site DIR/sglang-0.5.20
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.lock"
ENGINES = HERE / "engines.lock"
TORCH = HERE.parents[1] / "requirements-torch.lock"
TORCH_INDEX = os.environ.get("TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu")
WANTED = (".py", "METADATA", ".json", ".jinja")


def pip(python: Path, *words: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words[:3])}: {done.stderr.strip().splitlines()[-1]}")


def environment(root: Path) -> Path:
    """The Python of DIR/venv, made anew when a lock file has changed."""
    venv = root / "venv"
    stamp = venv / ".complete"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + TORCH.read_bytes()).hexdigest()
    python = venv / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    locked = ("install", "--quiet", "--no-deps", "--require-hashes", "-r", str(TORCH))
    try:
        pip(python, *locked)
    except SystemExit:
        pip(python, *locked, "--index-url", TORCH_INDEX)
    pip(python, "install", "--quiet", "--no-deps", "--require-hashes", "-r", str(REQUIREMENTS))
    stamp.write_text(wanted)
    return python


def blocks() -> dict[str, str]:
    """Requirement -> its lines in engines.lock."""
    found = re.findall(r"^(\S+==\S+)( \\\n(?:\s+--hash=\S+(?: \\)?\n?)+)", ENGINES.read_text(), re.MULTILINE)
    return {name: name + hashes for name, hashes in found}


def unpack(root: Path, python: Path, requirement: str) -> None:
    """DIR/<engine>-<version> from the wheel, whole or not at all."""
    name, _, version = requirement.partition("==")
    engine = name.removesuffix("-cpu")
    place = root / f"{engine}-{version}"
    if place.exists():
        return
    with tempfile.TemporaryDirectory(dir=root) as temporary:
        lock, out = Path(temporary) / "lock.txt", Path(temporary) / "out"
        lock.write_text(blocks()[requirement])
        pip(python, "download", "--quiet", "--no-deps", "--require-hashes", "-d", temporary, "-r", str(lock))
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(out, [item for item in archive.namelist() if item.endswith(WANTED)])
        if engine == "vllm":  # it asks for its own version, and takes the platform from it
            info = out / f"vllm-{version}+cpu.dist-info"
            for old in out.glob("*.dist-info"):
                shutil.rmtree(old)
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
        out.rename(place)


def main() -> None:
    root = Path(sys.argv[1]).resolve()
    requirements = sys.argv[2:] or list(blocks())
    if unknown := [name for name in requirements if name not in blocks()]:
        raise SystemExit(f"not in engines.lock: {', '.join(unknown)}")
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = environment(root)
        for requirement in requirements:
            unpack(root, python, requirement)
    print(python)


if __name__ == "__main__":
    main()
