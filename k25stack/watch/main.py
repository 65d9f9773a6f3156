"""``k25stack-watch --policy FILE -- ENGINE ARGUMENT...``: the entry process of an engine's container.

``--probe URL`` asks a running supervisor instead: exit 0 when it is ready (for a container's health check).
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from k25stack.errors import K25Error
from k25stack.watch.look import Failed, fetch
from k25stack.watch.policy import load
from k25stack.watch.supervisor import Supervisor

PROBE_S = 4.0
EPILOG = (
    "Exit: 0 stopped in order; 1 given up after too many restarts; 2 wrong policy or arguments; "
    "3 lease held, port taken, program missing; 137 the engine had to be killed when the grace was over."
)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    engine: list[str] = []
    if "--" in words:
        engine = words[words.index("--") + 1 :]
        words = words[: words.index("--")]
    options = _parser().parse_args(words)
    try:
        if options.probe:
            return _probe(options.probe)
        if options.policy is None or not engine:
            _parser().error("--policy FILE and -- ENGINE ARGUMENT... are needed")
        policy = load(options.policy)
        if options.dry_run:
            print(json.dumps({"policy": policy.as_dict(), "argv": engine}, indent=2))
            print(f"would start and watch: {shlex.join(engine)}", file=sys.stderr)
            return 0
        return Supervisor(policy, engine).run()
    except K25Error as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="k25stack-watch",
        usage="%(prog)s [-n] --policy FILE -- ENGINE ARGUMENT...\n       %(prog)s --probe URL",
        description="Start an engine, watch it by its token counters, heal it, drain it.",
        epilog=EPILOG,
    )
    parser.add_argument("--policy", type=Path, metavar="FILE", help="JSON; every key has a default (docs/watch.md)")
    parser.add_argument("-n", "--dry-run", action="store_true", help="print the policy as understood, start nothing")
    parser.add_argument(
        "--probe", metavar="URL", help="ask a supervisor (http://HOST:PORT/ready): 0 ready, 1 not, 3 gone"
    )
    return parser


def _probe(url: str) -> int:
    try:
        status, _, text = fetch(url, PROBE_S)
    except Failed as failed:
        print(failed.look.text, file=sys.stderr)
        return 3
    print(text.decode(errors="replace").strip())
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
