#!/usr/bin/env bash
# sglang-eager: rendered by k25stack from a stack file; change that file, not this one.
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
nccl_names=' NCCL_ALGO NCCL_ALLGATHERV_ENABLE NCCL_ALLOC_P2P_NET_LL_BUFFERS NCCL_BUFFSIZE NCCL_CE_CHUNK_SIZE NCCL_CE_COLL_AG_MULTICAST_THRESHOLD NCCL_CE_INTRA_GPU_MEMCPY_ENABLE NCCL_CFT_ENABLE NCCL_CGA_CLUSTER_SIZE NCCL_CHECK_MODE NCCL_CHECK_POINTERS NCCL_CHUNK_SIZE NCCL_COLLNET_ENABLE NCCL_COLLNET_NODE_THRESHOLD NCCL_COMM_BLOCKING NCCL_COMM_ID NCCL_COMM_SHRINK_SHARE_RESOURCES NCCL_COMM_SPLIT_SHARE_RESOURCES NCCL_CONF_FILE NCCL_CONNECT_ROUND_MAX_PEERS NCCL_CREATE_THREAD_CONTEXT NCCL_CROSS_NIC NCCL_CTA_POLICY NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_DEBUG NCCL_DEBUG_FILE NCCL_DEBUG_SUBSYS NCCL_DEBUG_TIMESTAMP_FORMAT NCCL_DEBUG_TIMESTAMP_LEVELS NCCL_DEV_API_JIT NCCL_DIAGNOSTICS_ECC_THRESHOLD NCCL_DIAGNOSTICS_IB_BW_TIMEOUT NCCL_DISABLE_MEM_MANAGER NCCL_DMABUF_ENABLE NCCL_ELASTIC_BUFFER_REGISTER NCCL_ENABLE_VERSION_CHECK NCCL_ENQUEUE_REARCH_ENABLE NCCL_ENV_PLUGIN NCCL_GDAKI_FORCE_MCST NCCL_GDAKI_USE_RELIABLE_DB NCCL_GDRCOPY_ENABLE NCCL_GDRCOPY_FIFO_ENABLE NCCL_GDRCOPY_FLUSH_ENABLE NCCL_GDRCOPY_SYNC_ENABLE NCCL_GDRCOPY_USE_INTERNAL_DMABUF NCCL_GDR_FLUSH_DISABLE NCCL_GIN_COUNTER_POOL_SIZE NCCL_GIN_ENABLE NCCL_GIN_ERROR_QUERY_SEC NCCL_GIN_EXCLUSIVE_CONTEXTS NCCL_GIN_GDAKI_LAG_AWARE_DISABLE NCCL_GIN_GDAKI_MAX_DEST_RD_ATOMIC NCCL_GIN_GDAKI_MAX_QP_RD_ATOMIC NCCL_GIN_GDAKI_NIC_HANDLER NCCL_GIN_GDAKI_QP_DEPTH NCCL_GIN_IB_OOO_OPT NCCL_GIN_IB_TC NCCL_GIN_NCONNECTIONS NCCL_GIN_NCONTEXTS NCCL_GIN_PLUGIN NCCL_GIN_PLUGIN_REF_COUNT NCCL_GIN_PROXY_NTHREADS NCCL_GIN_PROXY_POLL_BATCH NCCL_GIN_PROXY_QUEUE_SIZE NCCL_GIN_SIGNAL_POOL_SIZE NCCL_GIN_TYPE NCCL_GRAPH_DUMP_FILE NCCL_GRAPH_DUMP_FILE_RANK NCCL_GRAPH_FILE NCCL_GRAPH_HELPER_DISABLE NCCL_GRAPH_MIXING_SUPPORT NCCL_GRAPH_REGISTER NCCL_GRAPH_STREAM_ORDERING NCCL_GROUP_CUDA_STREAM NCCL_HIER_CE_COLL_AG_RAIL_RING_ENABLE NCCL_HIER_CE_COLL_NUM_CTX NCCL_HOSTID NCCL_IBVERBS_LIB NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_ADDR_FAMILY NCCL_IB_ADDR_RANGE NCCL_IB_AR_THRESHOLD NCCL_IB_DATA_DIRECT NCCL_IB_DEVICE_PCI_ORDER NCCL_IB_DISABLE NCCL_IB_ECE_ENABLE NCCL_IB_EVENT_BASED_LB NCCL_IB_EVENT_BASED_LB_REMOTE NCCL_IB_FIFO_TC NCCL_IB_GID_INDEX NCCL_IB_HCA NCCL_IB_MERGE_NICS NCCL_IB_MERGE_VFS NCCL_IB_MQP_RETRY_ALL NCCL_IB_MQP_RETRY_CNT NCCL_IB_MQP_RETRY_SLEEP_MSEC NCCL_IB_OOO_RQ NCCL_IB_PCI_RELAXED_ORDERING NCCL_IB_PKEY NCCL_IB_PKEY_VALUE NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS NCCL_IB_QPS_PER_CONNECTION NCCL_IB_QUERY_PORT_SPEED NCCL_IB_RAIL_POLICY NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME NCCL_IB_RESILIENCY_PORT_FAILOVER NCCL_IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS NCCL_IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY NCCL_IB_RESILIENCY_PORT_RECOVERY NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX NCCL_IB_RESILIENCY_PORT_RECOVERY_START_DELAY NCCL_IB_RETRY_CNT NCCL_IB_RETURN_ASYNC_EVENTS NCCL_IB_ROCE_VERSION_NUM NCCL_IB_ROUTABLE_FLID_GID_INDEX NCCL_IB_SL NCCL_IB_SORT_MERGE_NICS NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_SUBNET_AWARE_ROUTING NCCL_IB_SUBNET_PREFIX_LEN NCCL_IB_TC NCCL_IB_TIMEOUT NCCL_IB_USE_INLINE NCCL_IB_VR_RAILS_PER_SOCKET NCCL_IB_VR_SOCKET_COUNT NCCL_IB_WARN_RAIL_LOCAL NCCL_IB_WQE_LATENCY_REPORT NCCL_IB_WQE_LATENCY_THRESHOLD_NS NCCL_IGNORE_COLLNET_MISMATCH NCCL_IGNORE_CPU_AFFINITY NCCL_IGNORE_DISABLED_P2P NCCL_IGNORE_NET_MISMATCH NCCL_IPC_USE_ABSTRACT_SOCKET NCCL_L1_SHARED_MEMORY_CARVEOUT NCCL_LAUNCH_MODE NCCL_LAUNCH_ORDER_IMPLICIT NCCL_LAUNCH_RACE_FATAL NCCL_LEGACY_CUDA_REGISTER NCCL_LL128_BUFFSIZE NCCL_LL128_C2C NCCL_LL128_NTHREADS NCCL_LL_BUFFSIZE NCCL_LOCAL_REGISTER NCCL_LSA_TEAM_SIZE NCCL_MAX_CTAS NCCL_MAX_NCHANNELS NCCL_MAX_NRINGS NCCL_MAX_P2P_NCHANNELS NCCL_MEM_SYNC_DOMAIN NCCL_MIN_CTAS NCCL_MIN_NCHANNELS NCCL_MIN_NRINGS NCCL_MIN_P2P_NCHANNELS NCCL_MLOPART_RDMA_ENABLE NCCL_MNNVL_CLIQUE_ID NCCL_MNNVL_CROSS_CLIQUE NCCL_MNNVL_ENABLE NCCL_MNNVL_RAIL_PER_HOST NCCL_MNNVL_SCATTER_NETS_ENABLE NCCL_MNNVL_UUID NCCL_MULTI_RANK_GPU_ENABLE NCCL_MULTI_SEGMENT_REGISTER NCCL_NCHANNELS_PER_NET_PEER NCCL_NET NCCL_NETDEVS_POLICY NCCL_NET_DISABLE_INTRA NCCL_NET_FORCE_FLUSH NCCL_NET_FORCE_MERGE NCCL_NET_GDR_C2C NCCL_NET_GDR_LEVEL NCCL_NET_GDR_MLOPART NCCL_NET_GDR_READ NCCL_NET_MERGE_LEVEL NCCL_NET_MERGE_POLICY NCCL_NET_OPTIONAL_RECV_COMPLETION NCCL_NET_OVERHEAD NCCL_NET_PLUGIN NCCL_NET_PLUGIN_REF_COUNT NCCL_NET_SHARED_BUFFERS NCCL_NET_SHARED_COMMS NCCL_NO_CACHE NCCL_NSOCKS_PERTHREAD NCCL_NTHREADS NCCL_NUM_RMA_CTX NCCL_NUM_RMA_INT_CTX NCCL_NVB_DISABLE NCCL_NVB_PRECONNECT NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE NCCL_NVLSTREE_MAX_CHUNKSIZE NCCL_NVLS_CHUNKSIZE NCCL_NVLS_ENABLE NCCL_NVLS_NCHANNELS NCCL_NVLS_UB_SIZE NCCL_NVTX_DISABLE NCCL_OOB_NET_ENABLE NCCL_OOB_NET_IFNAME NCCL_P2P_DIRECT_DISABLE NCCL_P2P_DISABLE NCCL_P2P_EPOCH_ENABLE NCCL_P2P_LEVEL NCCL_P2P_LL_THRESHOLD NCCL_P2P_MAX_PEERS NCCL_P2P_NET_CHUNKSIZE NCCL_P2P_NVL_CHUNKSIZE NCCL_P2P_PCI_CHUNKSIZE NCCL_P2P_PER_CHANNEL_NET_BW NCCL_P2P_PER_CHANNEL_REG_NET_BW NCCL_P2P_PXN_LEVEL NCCL_P2P_READ_ENABLE NCCL_P2P_SCHEDULE_GROUP_SIZE NCCL_P2P_USE_CUDA_MEMCPY NCCL_PARAM_DUMP_ALL NCCL_PAT_ENABLE NCCL_PAT_NDIMS NCCL_PROFILER_PLUGIN NCCL_PROGRESS_APPENDOP_FREQ NCCL_PROGRESS_COUNTERS NCCL_PROGRESS_COUNTER_MONITOR_POLL_MS NCCL_PROGRESS_COUNTER_MONITOR_STALE_MS NCCL_PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC NCCL_PROTO NCCL_PROXY_APPEND_BATCH_SIZE NCCL_PROXY_CPUSET NCCL_PROXY_DUMP_SIGNAL NCCL_PROXY_PROFILE NCCL_PXN_C2C NCCL_PXN_DISABLE NCCL_RAS_ADDR NCCL_RAS_ENABLE NCCL_RAS_TIMEOUT_FACTOR NCCL_REPORT_CONNECT_PROGRESS NCCL_RMA_DISABLE NCCL_RMA_EAGER_INIT NCCL_RMA_IB_WR_BATCHSIZE NCCL_RMA_MULTI_CTX_THRESHOLD NCCL_RMA_PLUGIN NCCL_RMA_PLUGIN_REF_COUNT NCCL_RMA_PROXY_DUMP_SIGNAL NCCL_RMA_PROXY_QUEUE_SIZE NCCL_RUNTIME_CONNECT NCCL_RUN_DIAGNOSTICS NCCL_RUN_RAS_DIAGNOSTICS NCCL_SET_CPU_STACK_SIZE NCCL_SET_STACK_SIZE NCCL_SET_THREAD_NAME NCCL_SHADOW_MEMPOOL_MAX_SIZE NCCL_SHM_DISABLE NCCL_SHM_LOCALITY NCCL_SHM_MEMCPY_MODE NCCL_SHM_USE_CUDA_MEMCPY NCCL_SINGLE_PROC_MEM_REG_ENABLE NCCL_SOCKET_FAMILY NCCL_SOCKET_IFNAME NCCL_SOCKET_INLINE NCCL_SOCKET_MAGIC NCCL_SOCKET_MIN_TASKSIZE NCCL_SOCKET_NTHREADS NCCL_SOCKET_POLL_TIMEOUT_MSEC NCCL_SOCKET_RCVBUF NCCL_SOCKET_RETRY_CNT NCCL_SOCKET_RETRY_SLEEP_MSEC NCCL_SOCKET_SNDBUF NCCL_SYM_CE_THRESHOLD NCCL_SYM_CTAS NCCL_SYM_GIN_KERNELS_ENABLE NCCL_SYM_KERNEL NCCL_SYM_NOWIN_ENABLE NCCL_SYM_REUSE_SYSMEM_HANDLES NCCL_SYM_RS_GIN_CHUNK_SIZE NCCL_SYM_TMA_ENABLE NCCL_THREAD_THRESHOLDS NCCL_TOPO_DUMP_FILE NCCL_TOPO_DUMP_FILE_RANK NCCL_TOPO_FILE NCCL_TOPO_SCATTER_START_NET NCCL_TOPO_SPLIT_MLOPART NCCL_TUNER_PLUGIN NCCL_UID_STAGGER_RATE NCCL_UID_STAGGER_THRESHOLD NCCL_UNPACK_DOUBLE_NCHANNELS NCCL_WARN_ENABLE_DEBUG_INFO NCCL_WIN_ENABLE NCCL_WIN_STRIDE NCCL_WORK_ARGS_BYTES NCCL_WORK_FIFO_BYTES NCCL_WORK_FIFO_DEPTH '
job_names='  '
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
  printf '%s\n' k25stack/sglang:local >"$jit/image.part" && mv -f -- "$jit/image.part" "$jit/image"
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
  printf 'error: %s of %s: not started, %s faults above\n' sglang-eager kimi-k2.5-8x-rtx-pro-6000 "$faults" >&2
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
  --reasoning-parser
  kimi_k2
  --tool-call-parser
  kimi_k2
  --cuda-graph-backend-decode
  disabled
  --cuda-graph-backend-prefill
  disabled
)
exec k25stack-watch --policy "$here/policy.json" -- "${argv[@]}"
