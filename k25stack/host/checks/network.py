"""What the host offers to the network, and how it reaches it."""

from __future__ import annotations

import re
from typing import Any

from k25stack.host.check import WARN, Judgement, bad, check, in_containers, ok, several
from k25stack.host.checks.docker import containers
from k25stack.host.nccl_env import collected
from k25stack.host.parse.kernel import listeners
from k25stack.host.parse.values import as_json, json_object, listed
from k25stack.host.places import (
    CONTAINERS,
    DOCKER_INFO,
    INFINIBAND,
    INTERFACES,
    LISTENERS,
    NCCL_CONF,
    NCCL_ENV,
    NCCL_FILE,
    NCCL_HOME,
    NFT,
    RESOLV,
)
from k25stack.host.profile import Profile
from k25stack.host.seen import Seen, Unseen

EVERYWHERE = ("0.0.0.0", "*", "[::]", "::")
VIRTUAL = re.compile(r"(docker|br-|veth|virbr|cni|flannel|lo$)")


@check(
    "firewall",
    "network",
    severity=WARN,
    sources=(LISTENERS, CONTAINERS, NFT),
    applies=lambda p: bool(p.api_ports),
    fix="bind 127.0.0.1 (ports: 127.0.0.1:30000:30000) and put a proxy with a key before it; ports that "
    "Docker publishes bypass ufw",
    source="Docker documentation: packet filtering and firewalls; sgl-project/sglang#30166 (server_info shows keys)",
)
def firewall(seen: Seen, profile: Profile) -> Judgement:
    ports = set(profile.api_ports)
    open_ports = {port for address, port in listeners(seen.need(LISTENERS)) if port in ports and address in EVERYWHERE}
    published = set()
    for one in containers(seen) or []:
        for inner, bindings in _mapping(one.get("ports")).items():
            for binding in bindings if isinstance(bindings, list) else []:
                host = _mapping(binding)
                port = str(host.get("HostPort") or inner.partition("/")[0])
                if host.get("HostIp", "") in ("", *EVERYWHERE) and port.isdigit() and int(port) in ports:
                    published.add(int(port))
    if published:
        return bad(f"Docker publishes {listed(sorted(published))} on all addresses", published=sorted(published))
    if open_ports and not _shielded(seen.text(NFT), open_ports):
        return bad(f"{listed(sorted(open_ports))} listens on all addresses", ports=sorted(open_ports))
    if open_ports:
        return ok(
            f"{listed(sorted(open_ports))} listens on all addresses behind a firewall that drops",
            ports=sorted(open_ports),
        )
    return ok("the API port is not open to all addresses")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _shielded(text: str | None, ports: set[int]) -> bool:
    """True when nftables drops input unless it is accepted, and no rule accepts one of these ports."""
    if text is None:
        return False
    entries = _mapping(as_json(text, str(NFT))).get("nftables")
    entries = entries if isinstance(entries, list) else []
    chains = [_mapping(_mapping(entry).get("chain")) for entry in entries]
    dropping = any(chain.get("hook") == "input" and chain.get("policy") == "drop" for chain in chains)
    accepted = [str(entry) for entry in entries if "'accept'" in str(entry) and "dport" in str(entry)]
    return dropping and not any(re.search(rf"\b{port}\b", rule) for rule in accepted for port in ports)


@check(
    "net.dns/proxy",
    "network",
    severity=WARN,
    sources=(RESOLV, DOCKER_INFO),
    applies=in_containers,
    fix="name servers in /etc/resolv.conf; the daemon's proxy in daemon.json, with localhost and 127.0.0.1 in no-proxy",
    source="Docker documentation: daemon proxy configuration",
)
def resolving(seen: Seen, profile: Profile) -> Judgement:
    text = seen.need(RESOLV)
    servers = re.findall(r"^\s*nameserver\s+([0-9A-Fa-f.:%\w]+)\s*$", text, re.MULTILINE)
    if not servers:
        return (
            bad("/etc/resolv.conf names no server")
            if re.search(r"^\s*(#|search|options|domain)", text, re.MULTILINE)
            else _odd()
        )
    info_text = seen.text(DOCKER_INFO)
    info = json_object(info_text, str(DOCKER_INFO)) if info_text is not None else {}
    proxy = str(
        info.get("HTTPSProxy") or info.get("HTTPProxy") or info.get("HttpsProxy") or info.get("HttpProxy") or ""
    )
    if proxy.rstrip("/") != profile.proxy.rstrip("/"):
        return bad(
            f"Docker's proxy is {'set' if proxy else 'not set'}, the profile says {profile.proxy or 'none'}",
            proxy=bool(proxy),
        )
    if proxy and "127.0.0.1" not in str(info.get("NoProxy", "")):
        return bad("Docker's proxy is used for 127.0.0.1 too", proxy=True)
    return ok(f"{len(servers)} name servers, {'the expected proxy' if proxy else 'no proxy'}", servers=len(servers))


def _odd() -> Judgement:
    raise Unseen(f"{RESOLV}: nothing of a resolver in it")


@check(
    "ib.absent",
    "network",
    severity=WARN,
    sources=(INFINIBAND,),
    applies=several,
    fix="one host needs no InfiniBand: NCCL_IB_DISABLE=1 keeps NCCL from trying it",
    source="NVIDIA NCCL documentation: NCCL_IB_DISABLE",
)
def infiniband(seen: Seen, profile: Profile) -> Judgement:
    names = seen.names(INFINIBAND)
    if odd := [name for name in names if not re.fullmatch(r"/sys/class/infiniband/\w+", name)]:
        raise Unseen(f"{INFINIBAND}: {odd[0]!r}")
    if names:
        return bad(f"InfiniBand devices: {listed(name.rpartition('/')[2] for name in names)}", devices=names)
    return ok("no InfiniBand device; NCCL_IB_DISABLE=1 saves NCCL the search")


@check(
    "net.ifname",
    "network",
    severity=WARN,
    sources=(INTERFACES, NCCL_FILE, NCCL_CONF, NCCL_HOME, NCCL_ENV),
    applies=several,
    fix="name an interface of this host in NCCL_SOCKET_IFNAME (lo is enough on one host), or unset it",
    source="NVIDIA NCCL documentation: NCCL_SOCKET_IFNAME",
)
def interface(seen: Seen, profile: Profile) -> Judgement:
    names = [path.rpartition("/")[2] for path in seen.names(INTERFACES)]
    if not names or any(not re.fullmatch(r"[\w.@:-]{1,16}", name) for name in names):
        raise Unseen(f"{INTERFACES}: no interfaces in it")
    chosen = next((value for key, value, _ in collected(seen) if key == "NCCL_SOCKET_IFNAME"), None)
    if chosen is None:
        return ok("NCCL_SOCKET_IFNAME is not set: NCCL chooses", interfaces=names)
    excluded, exact = chosen.startswith("^"), "=" in chosen[:2]
    asked = [word for word in chosen.lstrip("^=").split(",") if word]
    hit = [name for name in names if any(name == word if exact else name.startswith(word) for word in asked)]
    used = [name for name in names if name not in hit] if excluded else hit
    if not used:
        return bad(f"NCCL_SOCKET_IFNAME={chosen} leaves no interface of this host", interfaces=names)
    if all(VIRTUAL.match(name) for name in used if name != "lo") and "lo" not in used:
        return bad(f"NCCL_SOCKET_IFNAME={chosen} picks only virtual interfaces: {listed(used)}", interfaces=names)
    return ok(f"NCCL_SOCKET_IFNAME={chosen} picks {listed(used)}", interfaces=names)
