"""The other ranks of a training run; started by rank 0, not by hand."""

from __future__ import annotations

import sys

from k25stack.errors import K25Error
from k25stack.train.main import join
from k25stack.train.parallel import LeaderGone, joined


def main(arguments: list[str]) -> int:
    try:
        join(*joined(arguments))
    except (KeyboardInterrupt, BrokenPipeError, LeaderGone):
        return 130  # rank 0 tells why
    except K25Error as error:
        print(f"rank {arguments[0]}: error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
