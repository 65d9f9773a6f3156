"""What a host with eight cards shows, planted as files and small programs: the GPU roles read these instead."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from host_twin import ROOT, HostTwin, docker

sys.path.insert(0, str(ROOT / "tests/host"))

PLACE = "/opt/planted"
DRIVER = "580.95.05"
BRIDGES = {"0000:00:01.1": "001d", "0000:80:01.1": "0000"}  # ACS on, ACS off
CARDS = [f"0000:{0x01 if index < 4 else 0x81:02x}:0{index % 4}.0" for index in range(8)]

SMI = f"""#!/bin/sh
state={PLACE}/smi.xml
case "$*" in
  "-q -x") cat $state ;;
  "-pm 1") sed -i 's:<persistence_mode>[^<]*<:<persistence_mode>Enabled<:' $state ;;
  "-pl "*) sed -i "s:<current_power_limit>[^<]*<:<current_power_limit>$2.00 W<:" $state ;;
  *) echo "nothing planted for $*" >&2; exit 9 ;;
esac
"""
CTK = f"""#!/bin/sh
case "$*" in
  --version) echo "NVIDIA Container Toolkit CLI version 1.18.1" ;;
  "cdi generate --output="*) cat {PLACE}/cdi.yaml >"${{3#--output=}}" ;;
  *) exit 9 ;;
esac
"""
SETPCI = f"""#!/bin/sh
# setpci -s BRIDGE ECAP_ACS+6.w[=VALUE]
file={PLACE}/acs/$2
[ -e "$file" ] || {{ echo "setpci: $2: Capability 000d not found" >&2; exit 1; }}
case $3 in *=*) echo "${{3#*=}}" >"$file" ;; *) cat "$file" ;; esac
"""
VARIABLES = {
    "k25stack_profile": "8x-rtx-pro-6000",
    "pcie_p2p_setpci": f"{PLACE}/setpci",
    "pcie_p2p_sysfs": f"{PLACE}/sys",
    "pcie_p2p_proc_cmdline": f"{PLACE}/proc/cmdline",
    "nvidia_ctk": f"{PLACE}/nvidia-ctk",
    "nvidia_proc": f"{PLACE}/proc/driver/nvidia",
}


def smi_text() -> str:
    """Eight cards of one kind, persistence off, a power limit of 450 W."""
    from hosts import smi_xml

    text = smi_xml("v13", 8, driver=DRIVER)
    text = re.sub(r"<persistence_mode>.*?<", "<persistence_mode>Disabled<", text)
    return re.sub(r"<current_power_limit>.*?<", "<current_power_limit>450.00 W<", text)


def cdi_text() -> str:
    lines = ["cdiVersion: 0.5.0", "kind: nvidia.com/gpu", "devices:"]
    for name in [*map(str, range(8)), "all"]:
        lines += [f'- name: "{name}"', "  containerEdits:", "    env: [PLANTED=1]"]
    return "\n".join([*lines, "containerEdits:", "  env:", f"  - LIBRARY=/usr/lib/libcuda.so.{DRIVER}"]) + "\n"


def plant(twin: HostTwin, place: Path) -> None:
    """Put everything below PLACE on the host, nvidia-smi on its path, and a package of the driver into its database."""
    tree = place / "planted"
    (tree / "acs").mkdir(parents=True)
    for bridge, value in BRIDGES.items():
        (tree / "acs" / bridge).write_text(value + "\n")
    for name, text in {"nvidia-smi": SMI, "nvidia-ctk": CTK, "setpci": SETPCI}.items():
        (tree / name).write_text(text)
        (tree / name).chmod(0o755)
    (tree / "smi.xml").write_text(smi_text())
    (tree / "cdi.yaml").write_text(cdi_text())
    (tree / "proc/driver/nvidia").mkdir(parents=True)
    (tree / "proc/driver/nvidia/version").write_text(
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build  (builder@host)\n"
    )
    (tree / "proc/cmdline").write_text("BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro quiet\n")
    parameters = tree / "sys/module/nvidia_uvm/parameters"
    parameters.mkdir(parents=True)
    (parameters / "uvm_disable_hmm").write_text("N\n")
    _cards(tree / "sys")
    (tree / "deb/DEBIAN").mkdir(parents=True)
    (tree / "deb/DEBIAN/control").write_text(
        f"Package: nvidia-driver-580-open\nVersion: {DRIVER}-1\nArchitecture: amd64\n"
        "Maintainer: k25stack tests <root@localhost>\nDescription: planted\n"
    )
    docker("cp", str(tree), f"{twin.name}:{PLACE}")
    twin.sh(f"""
        chown -R root:root {PLACE}
        ln -s {PLACE}/nvidia-smi /usr/local/bin/nvidia-smi
        printf '#!/bin/sh\\necho update-grub >>{PLACE}/grub.log\\n' >/usr/sbin/update-grub
        chmod 755 /usr/sbin/update-grub
        dpkg-deb --build {PLACE}/deb /tmp/planted.deb >/dev/null
        dpkg -i /tmp/planted.deb >/dev/null
    """)


def _cards(sysfs: Path) -> None:
    """Two root ports with four cards each, as /sys/bus/pci/devices shows them."""
    links = sysfs / "bus/pci/devices"
    links.mkdir(parents=True)
    for index, card in enumerate(CARDS):
        bridge = list(BRIDGES)[index // 4]
        device = sysfs / f"devices/pci{bridge[:7]}/{bridge}/{card}"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
        (links / card).symlink_to(Path("../../..") / device.relative_to(sysfs))
