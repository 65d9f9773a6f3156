"""NCCL's settings on this host."""

from __future__ import annotations

import re

from k25stack.host import nccl_env
from k25stack.host.check import FAIL, WARN, Judgement, bad, check, ok, several
from k25stack.host.checks.docker import containers
from k25stack.host.parse.values import listed, plural
from k25stack.host.places import CONTAINERS, NCCL_CONF, NCCL_ENV, NCCL_FILE, NCCL_GRAPHS, NCCL_HOME
from k25stack.host.profile import Profile
from k25stack.host.seen import Seen, Unseen


@check(
    "nccl.env",
    "nccl",
    severity=FAIL,
    sources=(NCCL_FILE, NCCL_CONF, NCCL_HOME, NCCL_ENV, CONTAINERS, NCCL_GRAPHS),
    applies=several,
    fix="write it anew: k25stack host nccl advise says what fits, host nccl sweep measures it",
    source="NVIDIA NCCL 2.30 src/graph/paths.cc and tuning.cc: a wrong level is ignored, a wrong protocol is fatal",
)
def environment(seen: Seen, profile: Profile) -> Judgement:
    on_host = nccl_env.collected(seen)
    sets = {"the host": {key: value for key, value, _ in on_host}, **nccl_env.in_containers(containers(seen) or [])}
    for key in {key for key, _, _ in on_host}:
        values = sorted({(value, where) for name, value, where in on_host if name == key})
        if len({value for value, _ in values}) > 1:
            return bad(f"{key} differs: {listed(f'{value} in {where}' for value, where in values)}", values=values)
    found = [(who, fault) for who, env in sets.items() for fault in nccl_env.faults(env)]
    if found:
        worst = min(found, key=lambda one: one[1].severity == WARN)
        told = f"{worst[1].name} {worst[1].what}" + ("" if worst[0] == "the host" else f" (container {worst[0]})")
        more = f"; {plural(len(found) - 1, 'more finding')}" if len(found) > 1 else ""
        return bad(
            told + more,
            severity=worst[1].severity,
            faults=[f"{who}: {fault.name} {fault.what}" for who, fault in found],
        )
    if graph := sets["the host"].get("NCCL_GRAPH_FILE"):
        return _graph(seen, profile, graph)
    names = sorted({key for env in sets.values() for key in env})
    if names:
        return ok(
            f"{plural(len(names), 'variable')} set, all known to NCCL: {listed(names)}", variables=sets["the host"]
        )
    if not nccl_env.looked(seen):
        seen.need(NCCL_FILE)
        raise Unseen(f"{NCCL_FILE}: no setting in it, and other places were not read")
    if profile.nccl_env == "required":
        return bad("nothing is set: NCCL's own choice is slow or hangs on such hosts", severity=WARN)
    return ok("nothing is set: NCCL chooses")


def _graph(seen: Seen, profile: Profile, path: str) -> Judgement:
    """The file of NCCL_GRAPH_FILE must exist and name as many devices as there are cards."""
    if not path.startswith("/etc/k25stack/"):
        raise Unseen(f"NCCL_GRAPH_FILE={path}: only files in /etc/k25stack are read")
    files = seen.group(NCCL_GRAPHS)
    text = files.get(path.lstrip("/"))
    if text is None:
        return bad(f"NCCL_GRAPH_FILE={path} does not exist")
    first = re.search(r"<channel>(.*?)</channel>", text, re.DOTALL)
    devices = re.findall(r'<gpu\s+dev="?\w+', first.group(1)) if first else []
    if len(devices) != profile.gpus:
        return bad(f"{path} orders {len(devices)} devices, the host has {profile.gpus} cards", devices=len(devices))
    return ok(f"NCCL_GRAPH_FILE={path} orders {len(devices)} devices")
