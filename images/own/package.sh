#!/bin/sh
# package.sh PYTHON: build this checkout's wheel (nothing is asked of a network for it) and put it into
# /opt/k25stack/package.  /src holds the checkout, /tmp/tools the locked build backend.
set -eu
. /common/pip-env.sh
home=/opt/k25stack
"$1" -m pip --python /tmp/tools/bin/python wheel --quiet --no-deps --no-build-isolation --no-index -w /tmp/wheels /src
"$1" -m pip --python "$home/bin/python" install --quiet --no-deps --no-index --target "$home/package" /tmp/wheels/*.whl
mkdir "$home/package/images"
cp /src/images/lock.yaml "$home/package/images/" # where the package looks for it: beside itself, as in a checkout
sh /common/bytecode.sh "$home/bin/python" "$home/package"
