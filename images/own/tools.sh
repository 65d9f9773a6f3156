#!/bin/sh
# tools.sh PYTHON: the locked build backend in /tmp/tools.
set -eu
. /common/pip-env.sh
"$1" -m venv --without-pip /tmp/tools
"$1" -m pip --python /tmp/tools/bin/python install --quiet --no-deps --require-hashes --only-binary :all: -r /own/build.lock
