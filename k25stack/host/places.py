"""Every source that the checks read, named once: checks that share one are served by one reading."""

from __future__ import annotations

from k25stack.host.sources import command, file, files, paths, shell

# cards and driver
SMI = command("nvidia-smi", "-q", "-x")
SMI_CC = command("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
TOPO = command("nvidia-smi", "topo", "-m")
P2P_READ = command("nvidia-smi", "topo", "-p2p", "r")
P2P_WRITE = command("nvidia-smi", "topo", "-p2p", "w")
P2P_NVLINK = command("nvidia-smi", "topo", "-p2p", "n")
DRIVER = file("/proc/driver/nvidia/version")
DRIVER_PARAMS = file("/proc/driver/nvidia/params")
MODULES = file("/proc/modules")
MODINFO = command("modinfo", "nvidia")
DKMS = command("dkms", "status")
BUILT = paths("/lib/modules/*/*/*/nvidia.ko*")
KERNELS = paths("/lib/modules/*/modules.dep")
NOUVEAU_OFF = shell(
    "nouveau-blacklist",
    "grep -hs '^ *blacklist *nouveau' /etc/modprobe.d/* /usr/lib/modprobe.d/* /lib/modprobe.d/*; true",
)
SECURE_BOOT = command("mokutil", "--sb-state")
HMM = file("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
CUDA_LINKS = paths("/usr/local/cuda*")
CUDA_TARGET = command("readlink", "-f", "/usr/local/cuda")
NVCC = command("nvcc", "--version")
PACKAGES = shell("dpkg-query_-W", "dpkg-query -W -f='${db:Status-Abbrev} ${Package} ${Version}\\n'", "dpkg-query -W")
UPGRADES = command("apt-config", "dump", "Unattended-Upgrade")
LEASE = file("/run/lock/k25stack/gpu.lease")
PROCESSES = command("ps", "-eo", "pid,ppid,user,comm")

# PCIe
LSPCI = command("lspci", "-vvv")
PCI_VENDOR = files("/sys/bus/pci/devices/*/vendor")
PCI_CLASS = files("/sys/bus/pci/devices/*/class")
PCI_NODE = files("/sys/bus/pci/devices/*/numa_node")
AER = shell("aer-totals", "grep -H TOTAL_ERR /sys/bus/pci/devices/*/aer_dev_*; true")
CMDLINE = file("/proc/cmdline")
IOMMU_UNITS = paths("/sys/class/iommu/*")
IOMMU_TYPES = files("/sys/kernel/iommu_groups/*/type")
IOMMU_MEMBERS = paths("/sys/kernel/iommu_groups/*/devices/*")

# kernel and system
JOURNAL = command("journalctl", "-k", "-b", "--no-hostname", "-o", "short-monotonic", "-n", "20000")
DMESG = command("dmesg")
UPTIME = file("/proc/uptime")
UNAME = command("uname", "-r")
OS_RELEASE = file("/etc/os-release")
REBOOT = file("/run/reboot-required")
BOOTS = command("last", "-x", "-F", "reboot", "shutdown")
PSTORE = paths("/sys/fs/pstore/*")
TIME = command("timedatectl", "show")
CHRONY = command("chronyc", "-c", "tracking")
BALANCING = file("/proc/sys/kernel/numa_balancing")
NODES = files("/sys/devices/system/node/*/meminfo")
GOVERNORS = files("/sys/devices/system/cpu/*/cpufreq/scaling_governor")
DOCKER_GROUP = command("getent", "group", "docker")

# memory
SWAPS = file("/proc/swaps")
FSTAB = file("/etc/fstab")
SWAP_UNITS = command("systemctl", "list-unit-files", "--type=swap", "--no-legend", "--no-pager")
MEMINFO = file("/proc/meminfo")
THP = file("/sys/kernel/mm/transparent_hugepage/enabled")
ULIMIT = shell("ulimit", "ulimit -H -l; ulimit -H -n", "ulimit -H -l; ulimit -H -n")
LIMITS = files("/etc/security/limits.d/*.conf")
UNIT_LIMITS = command(
    "systemctl", "show", "docker.service", "containerd.service", "-p", "Id,LoadState,LimitMEMLOCK,LimitNOFILE"
)
SHM = command("df", "-P", "-k", "/dev/shm")

# storage
MOUNTS = file("/proc/mounts")
DISKS = command("df", "-P", "-k")
DISK_MODEL = command("df", "-P", "-k", "{model_dir}")
DISK_IMAGE = command("df", "-P", "-k", "{image_dir}")
DISK_OUTPUT = command("df", "-P", "-k", "{output_dir}")
ROTATIONAL = files("/sys/block/*/queue/rotational")
NVME = command("nvme", "list", "-o", "json")
NVME_LOGS = shell(
    "nvme_smart-log",
    'command -v nvme >/dev/null || exit 127; for d in /dev/nvme[0-9] /dev/nvme[0-9][0-9]; do [ -e "$d" ] || continue; '
    'printf \'{"device":"%s","log":\' "$d"; nvme smart-log "$d" -o json || printf null; printf \'}\\n\'; done',
    "nvme smart-log of every drive",
)
MODEL_INDEX = shell(
    "model-index",
    "cd '{model_dir}' || exit 66; f=model.safetensors.index.json; [ -e $f ] || exit 66; "
    'grep -o \'"total_size": *[0-9]*\' $f | head -n 1; grep -o \'"[^"/]*\\.safetensors"\' $f | sort -u',
    "shards named in model.safetensors.index.json",
)
MODEL_FILES = shell(
    "model-files",
    "cd '{model_dir}' || exit 66; for f in *.safetensors *.json *.py *.model; "
    'do [ -e "$f" ] && wc -c "$f"; done; true',
    "sizes of the model's files",
)

# containers
DOCKER_VERSION = command("docker", "version", "--format", "json")
DOCKER_INFO = command("docker", "info", "--format", "json")
COMPOSE = command("docker", "compose", "version", "--short")
_INSPECTED = (
    '{"name":{{json .Name}},"image":{{json .Config.Image}},"ipc":{{json .HostConfig.IpcMode}},'
    '"shm":{{json .HostConfig.ShmSize}},"runtime":{{json .HostConfig.Runtime}},'
    '"requests":{{json .HostConfig.DeviceRequests}},"ports":{{json .HostConfig.PortBindings}},'
    '"network":{{json .HostConfig.NetworkMode}},"nccl":[{{range .Config.Env}}{{if gt (len .) 5}}'
    '{{if eq (slice . 0 5) "NCCL_"}}{{json .}},{{end}}{{end}}{{end}}null]}'
)  # of the environment only NCCL's variables: others may be secrets
CONTAINERS = shell(
    "docker-containers",
    f"docker ps -q >/dev/null || exit 1; docker ps -q | xargs -r docker inspect --format '{_INSPECTED}'",
    "docker inspect of running containers",
)
IMAGES = command("docker", "image", "ls", "--digests", "--no-trunc", "--format", "{{json .}}")
TOOLKIT = command("nvidia-ctk", "--version")
CDI_ETC = files("/etc/cdi/*")
CDI_RUN = files("/var/run/cdi/*")
DEV_CHAR = paths("/dev/char/195:*")

# network
LISTENERS = command("ss", "-H", "-ltn")
NFT = command("nft", "-j", "list", "ruleset")
RESOLV = file("/etc/resolv.conf")
INTERFACES = paths("/sys/class/net/*")
INFINIBAND = paths("/sys/class/infiniband/*")

# NCCL
NCCL_FILE = file("/etc/k25stack/nccl.env")
NCCL_CONF = file("/etc/nccl.conf")
NCCL_HOME = shell("nccl-conf-home", "[ -e ~/.nccl.conf ] || exit 66; cat ~/.nccl.conf", "~/.nccl.conf")
NCCL_ENV = shell("nccl-environment", "env | grep '^NCCL_'; true", "NCCL_* in the environment")
NCCL_GRAPHS = files("/etc/k25stack/*.xml")
NCCL_LIBS = paths("/usr/lib/*/libnccl.so.2.*")

# measured on request only
LIVE_NCCL = shell("live-nccl", "exit 66", "all-reduce of the cards")
LIVE_P2P = shell("live-p2p", "exit 66", "copies between the cards")
LIVE_DCGM = shell("live-dcgm", "exit 66", "dcgmi diag -r 2 -j")
LIVE_CDI = shell("live-cdi", "exit 66", "docker run --device nvidia.com/gpu=all IMAGE nvidia-smi -L")
LIVE_READ = shell("live-disk-read", "exit 66", "bounded read of the model directory")
LIVE_SOAK = shell("live-soak", "exit 66", "sustained load")
LIVE_NCCL_VERSION = shell("live-nccl-version", "exit 66", "NCCL version as torch loads it")
