"""A step program for tests: writes ``parts`` files of numbers, one after the other, then joins them.

It goes on with the whole parts that it finds.  Params: parts, factor, pause_s (between parts), fail (an error line),
gate (a file that must exist before part 2 is written, so that a test can act in between).
"""

import sys
import time
from pathlib import Path
from typing import Any

from k25stack.errors import HostError
from k25stack.files import canonical_json, read_json, replacing, sha256_text, write_json, write_text
from k25stack.worker import Progress, Spec, log, run_worker


def whole(path: Path) -> bool:
    try:
        part = read_json(path)
        return bool(part["hash"] == sha256_text(canonical_json(part["numbers"])))
    except (OSError, ValueError, KeyError):
        return False


def program(spec: Spec) -> dict[str, Any]:
    params, progress = spec.params, Progress(spec.out, every_s=0.0)
    written = 0
    if params.get("fail"):
        raise HostError(params["fail"], where="numbers", remedy="do something else")
    for index in range(params["parts"]):
        progress.update("numbers", index, params["parts"], "parts")
        path = spec.out / "parts" / f"part-{index:03}.json"
        if not whole(path):
            while index == 2 and params.get("gate") and not Path(params["gate"]).exists():
                time.sleep(0.01)
            numbers = [params["factor"] * (10 * index + n) for n in range(10)]
            write_json(path, {"numbers": numbers, "hash": sha256_text(canonical_json(numbers))})
            written += 1
            log(f"part {index}")
            time.sleep(params.get("pause_s", 0.0))
    if params.get("blob_bytes"):
        with replacing(spec.out / "blob") as part:
            part.write_bytes(b"x" * params["blob_bytes"])
    parts = sorted((spec.out / "parts").glob("part-*.json"))
    write_text(spec.out / "numbers.txt", "".join(f"{n}\n" for path in parts for n in read_json(path)["numbers"]))
    return {"written_parts": written}


if __name__ == "__main__":
    sys.exit(run_worker(program))
