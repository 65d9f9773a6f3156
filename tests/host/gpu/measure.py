"""Everything live on a machine with cards, in under five minutes: ``python3 tests/host/gpu/measure.py OUT``.

For a Python with torch (CUDA), typer and PyYAML; nothing is installed and nothing outside OUT and a temporary directory
is written.  OUT gets check.json, live.json, sweep.json, hang.json, nccl.env, log.txt and recording.tar.gz (masked).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

FILE_BYTES = 3 << 30  # to read: more than a drive's own cache holds


def command(out: Path, place: Path, name: str, *words: str, limit_s: int) -> None:
    """Run k25stack; its data goes to OUT/NAME.json, what it says to log.txt and the terminal."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "K25_STATE_DIR": str(place / "state"), "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    with (out / "log.txt").open("a") as log:
        print(f"== k25stack {' '.join(words)}", file=log, flush=True)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "k25stack.cli.main", *words],
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                timeout=limit_s,
                check=False,
            )
            text, code = done.stdout, str(done.returncode)
        except subprocess.TimeoutExpired as late:
            text, code = late.stdout or b"", f"no end after {limit_s} s"
        print(f"== exit {code} after {time.monotonic() - began:.1f} s", file=log, flush=True)
    (out / f"{name}.json").write_bytes(text)
    print(f"{name}: exit {code} after {time.monotonic() - began:.1f} s", flush=True)


def hang(out: Path) -> None:
    """A rank that never joins is a verdict, and the cards work afterwards."""
    from k25stack.host.live.session import Place, Session

    found = {}
    with Session(Place()) as session:
        sizes = [8, 1 << 20]
        for name, more in (("before", {}), ("hang", {"starts": [0]}), ("after", {})):
            answer = session.ask("allreduce", 15 if more else 60, cards=[0, 1], sizes=sizes, **more)
            found[name] = {"code": answer.code, "seconds": round(answer.seconds, 1), "lines": answer.lines}
            print(f"{name}: code {answer.code} after {answer.seconds:.1f} s", flush=True)
    (out / "hang.json").write_text(json.dumps(found, indent=1))


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="k25-gpu-") as text:
        place = Path(text)
        model = place / "model"
        model.mkdir()
        block = os.urandom(64 << 20)
        with (model / "model-00001-of-00001.safetensors").open("wb") as file:
            for _ in range(FILE_BYTES // len(block)):
                file.write(block)
            os.fsync(file.fileno())
        command(out, place, "check", "check", "host", "--json", limit_s=60)
        words = ("check", "host", "--live", "--soak", "60s", "--limit", "60", "--model-dir", str(model))
        command(out, place, "live", *words, "--record", str(place / "recording"), "--json", limit_s=200)
        if (place / "recording").is_dir():
            with tarfile.open(out / "recording.tar.gz", "w:gz") as archive:
                archive.add(place / "recording", "recording")
        words = ("host", "nccl", "sweep", "--budget", "60s", "-y", "-o", str(out / "nccl.env"))
        command(out, place, "sweep", *words, "--json", limit_s=120)
        hang(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
