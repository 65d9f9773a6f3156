#!/bin/sh
# environment.sh PYTHON: make /opt/k25stack, the environment of our own programs, beside the one of the engine.
# The engine's packages stay as their makers chose them: ours are seen by our programs alone (and theirs after ours).
set -eu
. /common/pip-env.sh
engine=$1
home=/opt/k25stack
"$engine" -m venv --without-pip "$home"
"$engine" -m pip --python "$home/bin/python" install --quiet --no-deps --require-hashes --only-binary :all: \
  -r /own/requirements.lock
site=$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
echo "$home/package" >"$site/k25stack.pth"
"$engine" -c 'import sys; print("\n".join(p for p in sys.path if p.endswith(("site-packages", "dist-packages"))))' \
  >"$site/k25stack-engine.pth"
rm -f "$home/bin/activate"* "$home/bin/Activate.ps1"
sh /common/bytecode.sh "$home/bin/python" "$home/lib"
