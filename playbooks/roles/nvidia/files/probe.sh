# Read-only.  sh -s SMI CTK PROC CUDA_HOME CDI_FILE: KEY=VALUE lines.
smi=$1 ctk=$2 proc=$3 cuda=$4 cdi=$5
echo "on_bus=$(cat /sys/bus/pci/devices/*/vendor /dev/null 2>/dev/null | grep -c 0x10de)"
if [ -r "$proc/version" ]; then
  echo "loaded=$(sed -n 's/.*Kernel Module.* \([0-9]\{3,4\}\.[0-9.]*\) .*/\1/p' "$proc/version" | head -n 1)"
  grep -q 'Open Kernel Module' "$proc/version" && echo open=yes || echo open=no
fi
if command -v "$smi" >/dev/null; then
  echo smi=yes
  timeout 30 "$smi" -q -x >"${T:=$(mktemp)}" 2>&1 || echo "smi_error=$(head -n 1 "$T")"
  one() { sed -n "s:.*<$1>\(.*\)</$1>.*:\1:p" "$T" | sort | uniq; }
  if grep -q '<nvidia_smi_log>' "$T"; then
    echo "cards=$(grep -c '<gpu id=' "$T")"
    echo "driver=$(one driver_version | head -n 1)"
    echo "cuda=$(one cuda_version | head -n 1)"
    echo "products=$(one product_name | paste -s -d, -)"
    echo "persistence=$(one persistence_mode | paste -s -d, -)"
    # The driver names it current_power_limit (r535 and newer) or power_limit.
    limit=$(one current_power_limit | paste -s -d, -)
    echo "power=$(echo "${limit:-$(one power_limit | paste -s -d, -)}" | sed 's/\.[0-9]*//g; s/ W//g')"
    echo "power_max=$(one max_power_limit | sed 's/[. ].*//' | sort -n | head -n 1)"
  fi
  rm -f "$T"
fi
command -v "$ctk" >/dev/null && echo "toolkit=$("$ctk" --version 2>/dev/null | sed -n 's/.*version \([0-9.]*[0-9]\).*/\1/p' | head -n 1)"
for file in "$cdi" /etc/cdi/*.yaml /var/run/cdi/*.yaml /var/run/cdi/*.json; do
  grep -q 'nvidia.com/gpu' "$file" 2>/dev/null || continue
  echo "cdi=$file"
  echo "cdi_driver=$(grep -o '\.so\.[0-9]\{3,4\}\.[0-9.]*[0-9]' "$file" | sed 's/.*\.so\.//' | sort | uniq | paste -s -d, -)"
  break
done
[ -d "$cuda" ] && echo "toolkit_home=$(readlink -f "$cuda")"
[ -x "$cuda/bin/nvcc" ] && echo "nvcc=$("$cuda/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
set -- /dev/char/195:*
[ -e "$1" ] && echo "links=$#"
systemctl list-unit-files nvidia-persistenced.service --no-legend 2>/dev/null | grep -q . && echo persistenced=yes
systemctl list-unit-files nvidia-cdi-refresh.service --no-legend 2>/dev/null | grep -q . && echo refresh=yes
# Installed packages of driver, toolkit and kernel that an upgrade would change.
pattern='^(nvidia-(driver|dkms|kernel|open|headless|utils|compute-utils|firmware)|libnvidia-(compute|cfg|ml)|cuda-drivers'
pattern="$pattern|nvidia-container-toolkit|libnvidia-container|linux-(image|modules-nvidia)-|linux-generic$)"
dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' 2>/dev/null | awk -v p="$pattern" '$2 ~ p && $1 == "ii" {print $2}' |
  sort -u | paste -s -d, - | sed 's/^/unheld=/'
exit 0
