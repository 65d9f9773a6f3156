# Read-only.  sh -s PROC_SWAPS MEMLOCK NOFILE FSTAB SYSCTL_NAME...: KEY=VALUE lines.
swaps=$1 memlock=$2 nofile=$3
fstab=$4
shift 4
[ -f "$fstab" ] && echo fstab=yes
echo "swap_kib=$(awk 'NR > 1 {total += $3} END {print total + 0}' "$swaps" 2>/dev/null)"
echo "swap_used_kib=$(awk 'NR > 1 {total += $4} END {print total + 0}' "$swaps" 2>/dev/null)"
echo "swap_on=$(awk 'NR > 1 {print $1}' "$swaps" 2>/dev/null | paste -s -d, -)"
echo "available_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)"
# A limit that the kernel refuses would refuse every login as well (pam_limits), so it is tried first.
(ulimit -l "$memlock") 2>/dev/null && echo memlock=yes
(ulimit -n "$nofile") 2>/dev/null && echo nofile=yes
for name in "$@"; do
  file=/proc/sys/$(echo "$name" | tr . /)
  [ -e "$file" ] || { echo "sysctl $name=absent"; continue; }
  [ -w "$file" ] && echo "sysctl $name=$(tr '\t' ' ' <"$file")" || echo "sysctl $name=read-only"
done
thp=/sys/kernel/mm/transparent_hugepage/enabled
[ -w "$thp" ] && echo "thp=$(sed 's/.*\[\(.*\)\].*/\1/' "$thp")"
set -- /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor
[ -w "$1" ] && echo "governors=$(sort -u "$@" | paste -s -d, -)"
# Swap units that come from elsewhere than fstab, and the makers of compressed swap.
systemctl list-unit-files --type=swap --no-legend --no-pager 2>/dev/null | while read -r unit state rest; do
  case $state in masked* | disabled*) continue ;; esac
  [ "$(systemctl show -P SourcePath "$unit" 2>/dev/null)" = /etc/fstab ] && continue
  echo "unit $unit=$state"
  [ -f "/etc/systemd/system/$unit" ] && echo "own $unit=yes" # stands where the mask belongs
done
for unit in zramswap.service zram-config.service dphys-swapfile.service systemd-zram-setup@zram0.service; do
  state=$(systemctl is-enabled "$unit" 2>/dev/null)
  case $state in "" | not-found | masked*) ;; *) echo "unit $unit=$state" ;; esac
done
for unit in chrony.service chronyd.service systemd-timesyncd.service ntp.service ntpsec.service; do
  [ "$(systemctl show -P LoadState "$unit" 2>/dev/null)" = loaded ] && echo "clock=$unit" && break
done
exit 0
