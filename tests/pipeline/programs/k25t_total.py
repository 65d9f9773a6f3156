"""A step program for tests: adds up the numbers of its inputs; ``modulo`` makes different inputs give equal outputs."""

import sys
from typing import Any

from k25stack.files import write_json, write_text
from k25stack.worker import Spec, run_worker


def program(spec: Spec) -> dict[str, Any]:
    total = spec.params.get("offset", 0)
    for path in spec.inputs.values():
        file = path / "numbers.txt" if path.is_dir() and (path / "numbers.txt").exists() else path
        if file.is_dir():
            file = file / "total.txt"
        total += sum(int(line) for line in file.read_text().split())
    if spec.params.get("list"):
        total += sum(int(line) for line in open(spec.params["list"]).read().split())  # noqa: SIM115, PTH123
    total %= spec.params.get("modulo", 1 << 60)
    write_text(spec.out / "total.txt", f"{total}\n")
    write_json(spec.out / "facts.json", {"total": total})
    return {"total": total}


if __name__ == "__main__":
    sys.exit(run_worker(program))
