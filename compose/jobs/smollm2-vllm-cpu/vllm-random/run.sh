#!/usr/bin/env bash
# vllm-random: rendered by k25stack from a stack file; change that file, not this one.
# It proves its ground first: every fault is one line that says where, what, and what to do.  Then it starts the program.
set -uo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
faults=0
fault() { # WHERE WHAT REMEDY
  printf 'error: %s: %s (%s)\n' "$1" "$2" "$3" >&2
  faults=$((faults + 1))
}
note() { printf 'ground: %s\n' "$*" >&2; }

# --- environment; what the container was given by name goes first
give() { [ -v "$1" ] || export "$1=$2"; }
give VLLM_CPU_KVCACHE_SPACE 1
give TORCH_COMPILE_DISABLE 1
give VLLM_CPU_OMP_THREADS_BIND nobind
give OMP_NUM_THREADS 1

# --- shared memory
shm=$(df --output=size -B1 /dev/shm 2>/dev/null | tail -n 1)
shm=${shm// /}
if ! [[ $shm =~ ^[0-9]+$ ]] || [ "$shm" -lt 1073741824 ]; then
  fault /dev/shm "$((${shm:-0} / 1048576)) MiB, 1024 are needed" 'start the container with shm_size 1024m'
fi

# --- compiled kernels: one directory per image, those of other images are left alone and never read
jit=/cache/jit/c5121120323c
if [[ ${K25_IMAGE_KEY:-} =~ ^[0-9a-f]{12}$ ]]; then jit=${jit%/*}/$K25_IMAGE_KEY; fi # what the image says of itself
if ! mkdir -p -- "$jit" 2>/dev/null || [ ! -w "$jit" ]; then
  fault "$jit" 'cannot be written' 'the cache volume belongs to somebody else: remove it, it is only a cache'
else
  printf '%s\n' k25stack/cpu:local >"$jit/image.part" && mv -f -- "$jit/image.part" "$jit/image"
  others=0
  for other in "${jit%/*}"/*/; do
    [ "${other%/}" = "$jit" ] || [ ! -d "$other" ] || others=$((others + 1))
  done
  [ "$others" -eq 0 ] || note "kernels of $others other images lie beside $jit, not used"
  give XDG_CACHE_HOME "$jit"/xdg
  give TRITON_CACHE_DIR "$jit"/triton
  give TORCHINDUCTOR_CACHE_DIR "$jit"/inductor
  give TORCH_EXTENSIONS_DIR "$jit"/torch_extensions
  give FLASHINFER_WORKSPACE_BASE "$jit"/flashinfer
  give TVM_FFI_CACHE_DIR "$jit"/tvm-ffi
  give SGLANG_DG_CACHE_DIR "$jit"/deep_gemm
  give SGLANG_CACHE_DIR "$jit"/sglang
  give CUDA_CACHE_PATH "$jit"/cuda
fi

# --- lease, model files, ports
if ! command -v python3 >/dev/null; then
  fault image 'it has no python3' 'use one that k25stack stack build makes'
else
  looked=$(python3 -I -S - <<'PYTHON'
"""What the script looks at with Python: lease, model files, ports.  One line per fault: where, what, remedy.

It runs in whatever Python an image has (3.8 and newer) and needs the standard library alone.
"""

import fcntl
import json
import os
import socket
import struct

INDEX = "model.safetensors.index.json"
LIST = "k25stack-files.json"
FETCH = "get it again: docker compose up -d; by hand k25stack stack fetch STACK [--draft PROFILE] --into DIR"


def inspect(asked):
    """Look at all that was asked for and print what is wrong."""
    if asked["lease"]:
        look_at_lease(asked["lease"])
    for directory in asked["models"]:
        look_at_model(directory, weights=True)
    for directory in asked["configs"]:
        look_at_model(directory, weights=False)
    for port in asked["ports"]:
        look_at_port(port)


def fault(where, what, remedy):
    print("\t".join(" ".join(str(part).split()) for part in (where, what, remedy)))


def look_at_lease(path):
    """The lease is free when nobody holds a lock on its file; the record in it names the holder."""
    if not os.path.isdir(os.path.dirname(path)):
        fault(path, "the lease directory is not mounted", "make it on the host and mount it: playbooks/site.yml does")
        return
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    except OSError as error:
        fault(path, error.strerror, "it must be writable for all: chmod 666")
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fault(
            path, "the GPUs are taken by " + holder(os.read(handle, 65536)), "wait for it, or end it: k25stack status"
        )
    finally:
        os.close(handle)


def holder(raw):
    try:
        record = json.loads(raw)
        who = "{} (pid {} of {} on {} since {})".format(
            *(record.get(name, "?") for name in ("who", "pid", "user", "host", "since"))
        )
        return ", ".join([who] + [str(record[name]) for name in ("purpose", "progress") if record.get(name)])
    except (ValueError, AttributeError):
        return "somebody who left no record"


def look_at_model(directory, weights):
    if not os.path.isdir(directory):
        fault(directory, "no such directory", "mount the model there")
        return
    if not whole(os.path.join(directory, "config.json")):
        return
    by_list(directory)
    if weights:
        by_headers(directory)


def whole(path, size=None):
    """True when the file is there, and of this size."""
    if os.path.islink(path) and not os.path.exists(path):
        fault(
            path,
            "a link to " + os.readlink(path) + ", which is not here",
            "mount the directory that holds the files too",
        )
        return False
    if not os.path.isfile(path):
        fault(path, "missing", FETCH)
        return False
    found = os.path.getsize(path)
    if size is not None and found != size:
        fault(path, "{} bytes, {} belong there".format(found, size), FETCH)
        return False
    return True


def by_list(directory):
    """Size and time of every file as they were when it was compared with the hub's list, where that was noted."""
    path = os.path.join(directory, LIST)
    if not os.path.exists(path):
        return
    try:
        with open(path, encoding="utf-8") as file:
            files = json.load(file)["files"]
        for name, facts in sorted(files.items()):
            place = os.path.join(directory, name)
            if whole(place, int(facts["size"])) and facts.get("mtime_ns", -1) != os.stat(place).st_mtime_ns:
                fault(place, "altered since it was verified", FETCH)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fault(path, "no list of files: {!r}".format(error), FETCH)


def by_headers(directory):
    """Every weight file that the index names is there and as long as its own header says."""
    path = os.path.join(directory, INDEX)
    if os.path.exists(path):
        try:
            with open(path, encoding="utf-8") as file:
                names = sorted(set(json.load(file)["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            fault(path, "no weight index: {!r}".format(error), FETCH)
            return
    else:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".safetensors"))
    if not names:
        fault(directory, "no safetensors file", FETCH)
    for name in names:
        file = os.path.join(directory, name)
        if whole(file):
            wanted = length(file)
            if wanted is None:
                fault(file, "no safetensors header", FETCH)
            else:
                whole(file, wanted)


def length(path):
    """Bytes that a safetensors file has by its own header; None when there is none."""
    with open(path, "rb") as file:
        start = file.read(8)
        if len(start) < 8:
            return None
        size = struct.unpack("<Q", start)[0]
        if size > 1 << 28:
            return None
        try:
            header = json.loads(file.read(size))
            ends = [facts["data_offsets"][1] for name, facts in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return None
    return 8 + size + max(ends, default=0)


def look_at_port(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            fault("port {}".format(port), error.strerror, "end what listens there, or choose another serving.port")


inspect(json.loads('{"lease": "/run/lock/k25stack/gpu.lease", "models": ["/models/target", "/models/draft"], "configs": [], "ports": [30000, 8099]}'))
PYTHON
  ) || fault ground "the look at files and ports ended with exit $?" 'the lines above say where'
  while IFS=$'\t' read -r where what remedy; do
    [ -z "$where" ] || fault "$where" "$what" "$remedy"
  done <<<"$looked"
fi

if ! command -v k25stack-watch >/dev/null; then
  fault image 'it has no k25stack-watch' 'use one that k25stack stack build makes'
fi
if [ "$faults" -gt 0 ]; then
  printf 'error: %s of %s: not started, %s faults above\n' vllm-random smollm2-vllm-cpu "$faults" >&2
  exit 3
fi

argv=(
  vllm
  serve
  /models/target
  --served-model-name
  SmolLM2-135M-Instruct
  --host
  0.0.0.0
  --port
  30000
  --tensor-parallel-size
  1
  --max-model-len
  2048
  --max-num-seqs
  16
  --enforce-eager
  --enable-auto-tool-choice
  --tool-call-parser
  hermes
  --speculative-config
  '{"method":"eagle3","model":"/models/draft","num_speculative_tokens":3}'
)
exec k25stack-watch --policy "$here/policy.json" -- "${argv[@]}"
