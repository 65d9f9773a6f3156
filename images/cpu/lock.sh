#!/bin/sh
# Resolve images/cpu/requirements.lock anew (needs uv and the CPU build of torch within its reach, as `make lock` does).
set -eu
cd "$(dirname "$0")"
constraint=$(mktemp)
trap 'rm -f "$constraint"' EXIT
printf 'torch==2.13.0+cpu\n' >"$constraint"
uv pip compile requirements.in --universal --generate-hashes --python-version 3.11 --constraint "$constraint" \
  --no-emit-package torch --no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec \
  --no-emit-package triton --no-header --no-annotate --quiet --output-file requirements.lock "$@"
