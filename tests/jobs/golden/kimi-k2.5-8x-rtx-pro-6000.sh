##### sglang-nccl
#!/usr/bin/env bash
# sglang-nccl: rendered by k25stack from a stack file; change that file, not this one.
# It proves its ground first: every fault is one line that says where, what, and what to do.  Then it starts the program.
set -uo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
faults=0
fault() { # WHERE WHAT REMEDY
  printf 'error: %s: %s (%s)\n' "$1" "$2" "$3" >&2
  faults=$((faults + 1))
}
note() { printf 'ground: %s\n' "$*" >&2; }

# --- NCCL: the host's file lies under the job's own environment
nccl_names=...
job_names=' NCCL_PROTO NCCL_ALGO NCCL_P2P_LEVEL '
nccl_file=/etc/k25stack/nccl.env
merge_nccl() {
  local line name value number=0 kept=''
  if [ ! -e "$nccl_file" ]; then
    note "no $nccl_file: NCCL takes what the job says and its own choice"
    return
  fi
  if [ ! -r "$nccl_file" ]; then
    fault "$nccl_file" 'cannot be read' 'make it readable for all: chmod 644'
    return
  fi
  while IFS= read -r line || [ -n "$line" ]; do
    number=$((number + 1))
    line=${line%$'\r'}
    if [[ $line =~ ^[[:space:]]*(#.*)?$ ]]; then continue; fi
    if ! [[ $line =~ ^[[:space:]]*(export[[:space:]]+)?([A-Za-z_][A-Za-z0-9_]*)[[:space:]]*=(.*)$ ]]; then
      fault "$nccl_file:$number" "no KEY=VALUE: ${line:0:60}" 'write it anew: k25stack host nccl advise'
      continue
    fi
    name=${BASH_REMATCH[2]} value=${BASH_REMATCH[3]}
    value=${value#\"} value=${value%\"} value=${value#\'} value=${value%\'}
    if [[ $nccl_names != *" $name "* ]]; then
      fault "$nccl_file:$number" "$name is no NCCL variable" 'take the line out: NCCL would pass over it without a word'
    elif [[ $job_names != *" $name "* ]]; then
      export "$name=$value"
      kept+=" $name=$value"
    fi
  done <"$nccl_file"
  [ -z "$kept" ] || note "NCCL from $nccl_file:$kept"
}
merge_nccl

# --- environment; what the container was given by name goes first
give() { [ -v "$1" ] || export "$1=$2"; }
give NCCL_PROTO LL
give NCCL_ALGO Ring
give NCCL_P2P_LEVEL SYS
nccl_levels=' LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS '
if [ -v NCCL_P2P_LEVEL ] && [[ $nccl_levels != *" $NCCL_P2P_LEVEL "* ]]; then
  fault NCCL_P2P_LEVEL "$NCCL_P2P_LEVEL is none of$nccl_levels" 'NCCL would pass over it without a word: write one of these'
fi

# --- cards and driver
check_cards() {
  local listed index free total driver rest cards=0 found=
  if ! command -v nvidia-smi >/dev/null; then
    fault GPU 'nvidia-smi is not here: the container was given no cards' 'k25stack check host tells whether toolkit and CDI are in place'
    return
  fi
  if ! listed=$(timeout 60 nvidia-smi --query-gpu=index,memory.free,memory.total,driver_version --format=csv,noheader,nounits 2>&1); then
    fault GPU "nvidia-smi: ${listed%%$'\n'*}" 'k25stack check host names the fault'
    return
  fi
  while IFS=, read -r index free total driver rest; do
    index=${index// /} free=${free// /} total=${total// /} driver=${driver// /}
    if ! [[ $index =~ ^[0-9]+$ ]]; then continue; fi
    cards=$((cards + 1)) found=$driver
    if [[ $free =~ ^[0-9]+$ ]] && [ "$free" -lt 88473 ]; then
      fault "GPU $index" "$free of $total MiB are free, 88473 are needed" 'another program holds memory there: k25stack status, nvidia-smi on the host'
    fi
    if [ "$(printf '%s\n' "$driver" 580 | sort -V | head -n 1)" != 580 ]; then
      fault "GPU $index" "driver $driver is older than "580", which CUDA "13.0" of this image needs" 'install a newer driver on the host, then restart it'
    fi
  done <<<"$listed"
  if [ "$cards" -lt 8 ]; then
    fault GPU "$cards cards are visible, 8 are needed" 'a card fell off the bus, or the container was given fewer: k25stack check host'
  else
    note "$cards cards, driver $found"
  fi
}
check_cards

# --- shared memory
shm=$(df --output=size -B1 /dev/shm 2>/dev/null | tail -n 1)
shm=${shm// /}
if ! [[ $shm =~ ^[0-9]+$ ]] || [ "$shm" -lt 34359738368 ]; then
  fault /dev/shm "$((${shm:-0} / 1048576)) MiB, 32768 are needed" 'start the container with shm_size 32768m'
fi

# --- compiled kernels: one directory per image, those of other images are left alone and never read
jit=/cache/jit/06e4f2ed21af
if [[ ${K25_IMAGE_KEY:-} =~ ^[0-9a-f]{12}$ ]]; then jit=${jit%/*}/$K25_IMAGE_KEY; fi # what the image says of itself
if ! mkdir -p -- "$jit" 2>/dev/null || [ ! -w "$jit" ]; then
  fault "$jit" 'cannot be written' 'the cache volume belongs to somebody else: remove it, it is only a cache'
else
  printf '%s\n' lmsysorg/sglang:v0.5.20@sha256:06e4f2ed21afde4ff513cda65070124e727ba23ccaeff7712b8c40e1097d611f >"$jit/image.part" && mv -f -- "$jit/image.part" "$jit/image"
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
inspect(json.loads('{"lease": "/run/lock/k25stack/gpu.lease", "models": ["/models/target"], "configs": [], "ports": [30000, 8099]}'))
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
  printf 'error: %s of %s: not started, %s faults above\n' sglang-nccl kimi-k2.5-8x-rtx-pro-6000 "$faults" >&2
  exit 3
fi

argv=(
  python3
  -m
  sglang.launch_server
  --model-path
  /models/target
  --served-model-name
  moonshotai/Kimi-K2.5
  --host
  0.0.0.0
  --port
  30000
  --tp-size
  8
  --context-length
  32768
  --max-running-requests
  128
  --enable-metrics
  --trust-remote-code
  --attention-backend
  triton
  --disable-custom-all-reduce
  --mem-fraction-static
  0.84
  --cuda-graph-max-bs-decode
  128
  --reasoning-parser
  kimi_k2
  --tool-call-parser
  kimi_k2
)
exec k25stack-watch --policy "$here/policy.json" -- "${argv[@]}"
##### vllm-baseline
-# sglang-nccl: rendered by k25stack from a stack file; change that file, not this one.
+# vllm-baseline: rendered by k25stack from a stack file; change that file, not this one.
-job_names=' NCCL_PROTO NCCL_ALGO NCCL_P2P_LEVEL '
+job_names='  '
-give NCCL_PROTO LL
-give NCCL_ALGO Ring
-give NCCL_P2P_LEVEL SYS
-jit=/cache/jit/06e4f2ed21af
+jit=/cache/jit/c1c9f6fd5c10
-  printf '%s\n' lmsysorg/sglang:v0.5.20@sha256:06e4f2ed21afde4ff513cda65070124e727ba23ccaeff7712b8c40e1097d611f >"$jit/image.part" && mv -f -- "$jit/image.part" "$jit/image"
+  printf '%s\n' vllm/vllm-openai:v0.31.0@sha256:c1c9f6fd5c109ba7f0546a59f5b2f15fb87f64c77782e90a27b648b42a8e67c3 >"$jit/image.part" && mv -f -- "$jit/image.part" "$jit/image"
-  printf 'error: %s of %s: not started, %s faults above\n' sglang-nccl kimi-k2.5-8x-rtx-pro-6000 "$faults" >&2
+  printf 'error: %s of %s: not started, %s faults above\n' vllm-baseline kimi-k2.5-8x-rtx-pro-6000 "$faults" >&2
-  python3
-  -m
-  sglang.launch_server
-  --model-path
+  vllm
+  serve
-  --tp-size
+  --tensor-parallel-size
-  --context-length
+  --max-model-len
-  --max-running-requests
+  --max-num-seqs
-  --enable-metrics
-  --attention-backend
-  triton
+  --mm-encoder-tp-mode
+  data
-  --mem-fraction-static
-  0.84
-  --cuda-graph-max-bs-decode
-  128
+  --enable-auto-tool-choice
##### sglang-eager
-# sglang-nccl: rendered by k25stack from a stack file; change that file, not this one.
+# sglang-eager: rendered by k25stack from a stack file; change that file, not this one.
-job_names=' NCCL_PROTO NCCL_ALGO NCCL_P2P_LEVEL '
+job_names='  '
-give NCCL_PROTO LL
-give NCCL_ALGO Ring
-give NCCL_P2P_LEVEL SYS
-  printf 'error: %s of %s: not started, %s faults above\n' sglang-nccl kimi-k2.5-8x-rtx-pro-6000 "$faults" >&2
+  printf 'error: %s of %s: not started, %s faults above\n' sglang-eager kimi-k2.5-8x-rtx-pro-6000 "$faults" >&2
-  --cuda-graph-max-bs-decode
-  128
+  --cuda-graph-backend-decode
+  disabled
+  --cuda-graph-backend-prefill
+  disabled
##### sglang-graphs
-# sglang-nccl: rendered by k25stack from a stack file; change that file, not this one.
+# sglang-graphs: rendered by k25stack from a stack file; change that file, not this one.
-job_names=' NCCL_PROTO NCCL_ALGO NCCL_P2P_LEVEL '
+job_names='  '
-give NCCL_PROTO LL
-give NCCL_ALGO Ring
-give NCCL_P2P_LEVEL SYS
-  printf 'error: %s of %s: not started, %s faults above\n' sglang-nccl kimi-k2.5-8x-rtx-pro-6000 "$faults" >&2
+  printf 'error: %s of %s: not started, %s faults above\n' sglang-graphs kimi-k2.5-8x-rtx-pro-6000 "$faults" >&2
##### sglang-eagle3-aq
-# sglang-nccl: rendered by k25stack from a stack file; change that file, not this one.
+# sglang-eagle3-aq: rendered by k25stack from a stack file; change that file, not this one.
-inspect(json.loads('{"lease": "/run/lock/k25stack/gpu.lease", "models": ["/models/target"], "configs": [], "ports": [30000, 8099]}'))
+inspect(json.loads('{"lease": "/run/lock/k25stack/gpu.lease", "models": ["/models/target", "/models/draft"], "configs": [], "ports": [30000, 8099]}'))
-  printf 'error: %s of %s: not started, %s faults above\n' sglang-nccl kimi-k2.5-8x-rtx-pro-6000 "$faults" >&2
+  printf 'error: %s of %s: not started, %s faults above\n' sglang-eagle3-aq kimi-k2.5-8x-rtx-pro-6000 "$faults" >&2
+  --speculative-algorithm
+  EAGLE3
+  --speculative-draft-model-path
+  /models/draft
+  --speculative-num-steps
+  3
+  --speculative-eagle-topk
+  1
+  --speculative-num-draft-tokens
+  4
+  --speculative-draft-attention-backend
+  triton
##### sglang-eagle3-own
-# sglang-nccl: rendered by k25stack from a stack file; change that file, not this one.
+# sglang-eagle3-own: rendered by k25stack from a stack file; change that file, not this one.
-inspect(json.loads('{"lease": "/run/lock/k25stack/gpu.lease", "models": ["/models/target"], "configs": [], "ports": [30000, 8099]}'))
+inspect(json.loads('{"lease": "/run/lock/k25stack/gpu.lease", "models": ["/models/target", "/models/draft"], "configs": [], "ports": [30000, 8099]}'))
-  printf 'error: %s of %s: not started, %s faults above\n' sglang-nccl kimi-k2.5-8x-rtx-pro-6000 "$faults" >&2
+  printf 'error: %s of %s: not started, %s faults above\n' sglang-eagle3-own kimi-k2.5-8x-rtx-pro-6000 "$faults" >&2
+  --speculative-algorithm
+  EAGLE3
+  --speculative-draft-model-path
+  /models/draft
+  --speculative-num-steps
+  3
+  --speculative-eagle-topk
+  1
+  --speculative-num-draft-tokens
+  4
+  --speculative-draft-attention-backend
+  triton
