# Read-only.  sh -s PROC_CMDLINE SYSFS SMI UPDATE_GRUB SETPCI: KEY=VALUE lines.
echo "cmdline=$(cat "$1" 2>/dev/null)"
echo "hmm=$(cat "$2/module/nvidia_uvm/parameters/uvm_disable_hmm" 2>/dev/null)"
command -v "$4" >/dev/null && echo grub=yes
command -v update-initramfs >/dev/null && echo initramfs=yes
command -v "$5" >/dev/null && echo setpci=yes
if command -v "$3" >/dev/null; then
  # Every card's BAR1 window must hold its memory (MiB, from the XML).
  timeout 30 "$3" -q -x 2>/dev/null | awk '
    BEGIN {RS = "<"} # an element a record, however the lines are broken
    /^(fb|bar1)_memory_usage>/ {kind = ($0 ~ /^bar1/) ? "bar1" : "fb"}
    /^total>/ && kind {
      gsub(/[^0-9]/, "")
      if (kind == "fb") fb = $0
      else {cards++; if ($0 + 0 < fb + 0) small = $0}
      kind = ""
    }
    END {if (cards) print "bars=" cards; if (small) print "bar_small=" small}'
fi
exit 0
