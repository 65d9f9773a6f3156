#!/bin/sh
# bytecode.sh PYTHON DIRECTORY: compile everything below DIRECTORY now, since a read-only root cannot do it later.
# Unchecked hashes instead of times, one process and a fixed hash seed: two builds write the same bytes.
set -eu
find "$2" -depth -name __pycache__ -exec rm -rf {} +
PYTHONHASHSEED=0 "$1" -m compileall -q -f --invalidation-mode unchecked-hash "$2" >/tmp/bytecode.log 2>&1 || {
  # files that are no Python (templates, code of other versions) stay as they are
  tail -n 1 /tmp/bytecode.log
}
rm -f /tmp/bytecode.log
