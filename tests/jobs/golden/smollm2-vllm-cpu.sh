##### vllm-own
#!/usr/bin/env bash
# vllm-own: rendered by k25stack from a stack file; change that file, not this one.
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
  printf 'error: %s of %s: not started, %s faults above\n' vllm-own smollm2-vllm-cpu "$faults" >&2
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
##### baseline
-# vllm-own: rendered by k25stack from a stack file; change that file, not this one.
+# baseline: rendered by k25stack from a stack file; change that file, not this one.
-give VLLM_CPU_KVCACHE_SPACE 1
-give TORCH_COMPILE_DISABLE 1
-give VLLM_CPU_OMP_THREADS_BIND nobind
-give OMP_NUM_THREADS 1
+give OMP_NUM_THREADS 2
-jit=/cache/jit/c5121120323c
+jit=/cache/jit/e3e140536381
-inspect(json.loads('{"lease": "/run/lock/k25stack/gpu.lease", "models": ["/models/target", "/models/draft"], "configs": [], "ports": [30000, 8099]}'))
+inspect(json.loads('{"lease": "/run/lock/k25stack/gpu.lease", "models": ["/models/target"], "configs": [], "ports": [30000, 8099]}'))
-  printf 'error: %s of %s: not started, %s faults above\n' vllm-own smollm2-vllm-cpu "$faults" >&2
+  printf 'error: %s of %s: not started, %s faults above\n' baseline smollm2-vllm-cpu "$faults" >&2
-  vllm
-  serve
+  python3
+  -m
+  k25stack.reference.server
+  --target
-  --tensor-parallel-size
-  1
-  --max-model-len
+  --max-len
-  --max-num-seqs
+  --threads
+  2
+  --seed
+  0
+  --slots
-  --enforce-eager
-  --enable-auto-tool-choice
-  --tool-call-parser
-  hermes
-  --speculative-config
-  '{"method":"eagle3","model":"/models/draft","num_speculative_tokens":3}'
##### random
-# vllm-own: rendered by k25stack from a stack file; change that file, not this one.
+# random: rendered by k25stack from a stack file; change that file, not this one.
-give VLLM_CPU_KVCACHE_SPACE 1
-give TORCH_COMPILE_DISABLE 1
-give VLLM_CPU_OMP_THREADS_BIND nobind
-give OMP_NUM_THREADS 1
+give OMP_NUM_THREADS 2
-jit=/cache/jit/c5121120323c
+jit=/cache/jit/e3e140536381
-  printf 'error: %s of %s: not started, %s faults above\n' vllm-own smollm2-vllm-cpu "$faults" >&2
+  printf 'error: %s of %s: not started, %s faults above\n' random smollm2-vllm-cpu "$faults" >&2
-  vllm
-  serve
+  python3
+  -m
+  k25stack.reference.server
+  --target
+  --draft
+  /models/draft
+  --k
+  3
-  --tensor-parallel-size
-  1
-  --max-model-len
+  --max-len
-  --max-num-seqs
+  --threads
+  2
+  --seed
+  0
+  --slots
-  --enforce-eager
-  --enable-auto-tool-choice
-  --tool-call-parser
-  hermes
-  --speculative-config
-  '{"method":"eagle3","model":"/models/draft","num_speculative_tokens":3}'
##### own
-# vllm-own: rendered by k25stack from a stack file; change that file, not this one.
+# own: rendered by k25stack from a stack file; change that file, not this one.
-give VLLM_CPU_KVCACHE_SPACE 1
-give TORCH_COMPILE_DISABLE 1
-give VLLM_CPU_OMP_THREADS_BIND nobind
-give OMP_NUM_THREADS 1
+give OMP_NUM_THREADS 2
-jit=/cache/jit/c5121120323c
+jit=/cache/jit/e3e140536381
-  printf 'error: %s of %s: not started, %s faults above\n' vllm-own smollm2-vllm-cpu "$faults" >&2
+  printf 'error: %s of %s: not started, %s faults above\n' own smollm2-vllm-cpu "$faults" >&2
-  vllm
-  serve
+  python3
+  -m
+  k25stack.reference.server
+  --target
+  --draft
+  /models/draft
+  --k
+  3
-  --tensor-parallel-size
-  1
-  --max-model-len
+  --max-len
-  --max-num-seqs
+  --threads
+  2
+  --seed
+  0
+  --slots
-  --enforce-eager
-  --enable-auto-tool-choice
-  --tool-call-parser
-  hermes
-  --speculative-config
-  '{"method":"eagle3","model":"/models/draft","num_speculative_tokens":3}'
##### vllm-baseline
-# vllm-own: rendered by k25stack from a stack file; change that file, not this one.
+# vllm-baseline: rendered by k25stack from a stack file; change that file, not this one.
-inspect(json.loads('{"lease": "/run/lock/k25stack/gpu.lease", "models": ["/models/target", "/models/draft"], "configs": [], "ports": [30000, 8099]}'))
+inspect(json.loads('{"lease": "/run/lock/k25stack/gpu.lease", "models": ["/models/target"], "configs": [], "ports": [30000, 8099]}'))
-  printf 'error: %s of %s: not started, %s faults above\n' vllm-own smollm2-vllm-cpu "$faults" >&2
+  printf 'error: %s of %s: not started, %s faults above\n' vllm-baseline smollm2-vllm-cpu "$faults" >&2
-  --speculative-config
-  '{"method":"eagle3","model":"/models/draft","num_speculative_tokens":3}'
##### vllm-random
-# vllm-own: rendered by k25stack from a stack file; change that file, not this one.
+# vllm-random: rendered by k25stack from a stack file; change that file, not this one.
-  printf 'error: %s of %s: not started, %s faults above\n' vllm-own smollm2-vllm-cpu "$faults" >&2
+  printf 'error: %s of %s: not started, %s faults above\n' vllm-random smollm2-vllm-cpu "$faults" >&2
