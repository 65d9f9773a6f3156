"""Take out of readings what names a host, its owner or its parts: serials, UUIDs, MAC and IP addresses, names.

Each secret becomes a number of its kind in the order in which it is first seen, so that equal values stay equal
across files, the result is the same for the same input, and nothing can be computed back.  Judges give the same
verdicts for masked readings.  PCI addresses stay: they are the topology.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

from k25stack.host.seen import Reading, Seen

HOSTNAME = "proc/sys/kernel/hostname"
KEPT_NETWORKS = ("127.", "0.", "255.", "169.254.")


class Masker:
    """One table of secrets for a whole recording."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[str, int]] = {}

    def number(self, kind: str, value: str) -> int:
        table = self.seen.setdefault(kind, {})
        return table.setdefault(value.lower(), len(table) + 1)

    def uuid(self, match: re.Match[str]) -> str:
        return f"00000000-0000-0000-0000-{self.number('uuid', match.group(0)):012x}"

    def mac(self, match: re.Match[str]) -> str:
        if match.group(0).lower() in ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"):
            return match.group(0)
        number = self.number("mac", match.group(0))
        return f"02:00:00:00:{number >> 8 & 255:02x}:{number & 255:02x}"

    def ipv4(self, match: re.Match[str]) -> str:
        text = match.group(0)
        try:
            ipaddress.IPv4Address(text)
        except ValueError:
            return text
        if text.startswith(KEPT_NETWORKS):
            return text
        number = self.number("ipv4", text)
        return f"192.0.2.{number}" if number < 255 else f"198.18.{number >> 8 & 255}.{number & 255}"

    def ipv6(self, match: re.Match[str]) -> str:
        text = match.group(0)
        try:
            address = ipaddress.IPv6Address(text)
        except ValueError:
            return text
        if address.is_loopback or address.is_unspecified:
            return text
        return f"2001:db8::{self.number('ipv6', text):x}"

    def serial(self, match: re.Match[str]) -> str:
        value = match.group("value")
        if value.strip() in ("", "N/A", "[N/A]", "0") or set(value) <= set("0x"):
            return match.group(0)
        return match.group(0).replace(value, f"{self.number('serial', value):013d}")

    def account(self, match: re.Match[str]) -> str:
        name = match.group("value")
        return match.group(0).replace(name, f"user{self.number('account', name)}")

    def host(self, match: re.Match[str]) -> str:
        return match.group(0).replace(match.group("value"), f"host{self.number('host', match.group('value'))}")


SERIALS = re.compile(
    r"<(?P<tag>serial|pdi|chassis_serial_number|gpu_fabric_guid|board_id)>(?P<value>[^<]+)</(?P=tag)>"
    r"|Device Serial Number (?P<value2>[0-9a-f-]{8,})"
    r'|"(?:SerialNumber|serialnumber|SN|sn|ID|NodeID|ID_SERIAL|Serial)" ?: ?"(?P<value3>[^"]+)"'
    r"|(?:Serial ?Number|serial(?: number)?)[:=] ?(?P<value4>\w{4,})",
)
ACCOUNTS = re.compile(r"(?<=/home/)(?P<value>[^/\s<:]+)")
CREDENTIALS = re.compile(r"(?<=://)(?P<value>[^/\s@\"]+)(?=@)")
DOCKER_NAME = re.compile(r'"Name": ?"(?P<value>[^"]+)"')
REMOTE_MOUNT = re.compile(r"^(?P<value>[A-Za-z0-9][\w.-]*)(?=:/\S* \S+ (?:nfs4?|cifs|ceph) )", re.MULTILINE)
UUID = re.compile(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b")
MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])")
IPV4 = re.compile(r"(?<![\w.+-])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
IPV6 = re.compile(r"(?<![\w:.])(?=[0-9a-fA-F:]*:[0-9a-fA-F:]*:)[0-9a-fA-F:]{6,39}(?![\w:.])")


def mask(seen: Seen) -> Seen:
    """The same readings without secrets, in the order of their places."""
    masker = Masker()
    names = _hostnames(seen)
    masked = {
        place: Reading(mask_text(reading.text, masker, names, place), reading.rc)
        for place, reading in sorted(seen.readings.items())
    }
    return Seen(masked, seen.absent)


def mask_text(text: str, masker: Masker, names: tuple[str, ...] = (), place: str = "") -> str:
    """One text.  ``names`` are the host's own names; ``place`` decides what else counts as a name."""
    text = SERIALS.sub(lambda match: _named(match, masker.serial), text)
    text = UUID.sub(masker.uuid, text)
    text = MAC.sub(masker.mac, text)
    text = CREDENTIALS.sub("masked", text)
    text = ACCOUNTS.sub(masker.account, text)
    text = IPV4.sub(masker.ipv4, text)
    text = IPV6.sub(masker.ipv6, text)
    text = REMOTE_MOUNT.sub(masker.host, text)
    if place.startswith("cmd/docker_info"):
        text = DOCKER_NAME.sub(masker.host, text, count=1)
    if place.startswith("cmd/getent_group"):
        text = re.sub(
            r"^([^:\n]*:[^:\n]*:\d*:)(.*)$",
            lambda m: m.group(1) + _members(masker, m.group(2)),
            text,
            flags=re.MULTILINE,
        )
    if place.startswith("cmd/ps_"):
        text = re.sub(
            r"^(\s*\d+\s+\d+\s+)(\S+)", lambda m: m.group(1) + _user(masker, m.group(2)), text, flags=re.MULTILINE
        )
    if place == "run/lock/k25stack/gpu.lease":
        text = re.sub(r'("(?:user|host)": ?")([^"]*)"', lambda m: f'{m.group(1)}{_user(masker, m.group(2))}"', text)
    for name in names:
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", f"host{masker.number('host', name)}", text)
    return text


def _named(match: re.Match[str], replace: Callable[[re.Match[str]], str]) -> str:
    """Serial numbers stand in one of several groups: hand over a match whose group is called value."""
    value = next(group for name, group in match.groupdict().items() if name.startswith("value") and group)
    simple = re.fullmatch(rf".*?(?P<value>{re.escape(value)}).*", match.group(0), re.DOTALL)
    return replace(simple) if simple else match.group(0)


def _members(masker: Masker, names: str) -> str:
    return ",".join(_user(masker, name) for name in names.split(","))


def _user(masker: Masker, name: str) -> str:
    return (
        name if name in ("root", "USER", "") or name.startswith("systemd") else f"user{masker.number('account', name)}"
    )


def _hostnames(seen: Seen) -> tuple[str, ...]:
    reading = seen.readings.get(HOSTNAME)
    name = reading.text.strip() if reading is not None and reading.rc == 0 else ""
    short = name.split(".")[0]
    plain = ("", "localhost", "host", "debian", "ubuntu", "(none)")
    return tuple(one for one in dict.fromkeys((name, short)) if one not in plain and len(one) > 2)
