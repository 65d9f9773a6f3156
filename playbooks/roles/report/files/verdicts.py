"""Judge a host from what it told, and keep verdicts and facts in its ledger.  Runs on the controller.

``verdicts.py script PROFILE BOUNDARY`` prints the script that reads a host; ``verdicts.py judge`` takes one JSON object
{host, profile, boundary, answer (gzip, base64), state_dir, facts, unseen, reboot, keep} and prints {verdict, lines}.
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
from pathlib import Path
from typing import Any


def script(profile: str, boundary: str) -> str:
    from k25stack.host.collect import LIMIT_S
    from k25stack.host.fleet import sources_for
    from k25stack.host.profile import load_profile
    from k25stack.host.script import build

    return build(sources_for(load_profile(profile)), boundary, LIMIT_S, become=False)


def judge(given: dict[str, Any]) -> dict[str, Any]:
    from k25stack.host.collect import seen_of
    from k25stack.host.fleet import outcome, sources_for
    from k25stack.host.profile import load_profile
    from k25stack.host.script import parse
    from k25stack.ledger.records import append

    profile = load_profile(given["profile"])
    sources = sources_for(profile)
    answer = parse(gzip.decompress(base64.b64decode(given["answer"])), given["boundary"], len(sources))
    result = outcome(seen_of(sources, answer.readings), profile, given["host"]).result
    verdicts = [one["verdict"] for one in result["checks"]]
    counts = {word: verdicts.count(word) for word in ("fail", "unknown", "warn", "pass")}
    if given["keep"]:
        more = {key: given[key] for key in ("facts", "unseen", "reboot")}
        append(Path(given["state_dir"]) / f"{given['host']}.jsonl", "check", {**result, "by": "playbook", **more})
    failed = [f"{one['id']}: {one['message']} ({one['fix']})" for one in result["checks"] if one["verdict"] == "fail"]
    return {"verdict": result["verdict"], "counts": counts, "lines": failed}


def main() -> int:
    try:
        import k25stack.host.script  # noqa: F401
    except ImportError as error:
        print(f"{error}: report_python must be a Python with k25stack", file=sys.stderr)
        return 3
    from k25stack.errors import K25Error

    try:
        if sys.argv[1] == "script":
            print(script(sys.argv[2], sys.argv[3]))
        else:
            print(json.dumps(judge(json.load(sys.stdin))))
    except (K25Error, ValueError, OSError) as error:
        print(str(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
