#!/bin/sh
# Resolve images/own/*.lock anew (needs uv): the base dependencies of k25stack, and what builds its wheel.
set -eu
cd "$(dirname "$0")"
set -- --universal --generate-hashes --python-version 3.11 --no-header --no-annotate --quiet "$@"
uv pip compile ../../pyproject.toml --output-file requirements.lock "$@"
uv pip compile build.in --output-file build.lock "$@"
