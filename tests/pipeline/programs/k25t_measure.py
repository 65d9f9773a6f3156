"""A measurement for tests: asks the server of K25_BENCH_URL ``times`` times and leaves one row."""

import os
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from k25stack.files import write_json
from k25stack.worker import Progress, Spec, run_worker


def program(spec: Spec) -> dict[str, Any]:
    progress = Progress(spec.out, every_s=0.0)
    params = spec.params
    answers = []
    for index in range(params["times"]):
        progress.update("asking", index, params["times"], "requests")
        while index == 1 and params.get("gate") and not Path(params["gate"]).exists():
            time.sleep(0.01)
        with urllib.request.urlopen(os.environ["K25_BENCH_URL"] + "/total") as reply:
            answers.append(int(reply.read()))
        time.sleep(params.get("pause_s", 0.0))
    write_json(spec.out / "rows.json", {"rows": [{"profile": "own", "answers": answers}]})
    return {"requests": len(answers), "seconds": time.time()}


if __name__ == "__main__":
    sys.exit(run_worker(program))
