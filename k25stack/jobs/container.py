"""What a job's container is created with: what it may do, sees and is given (standard library only)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from k25stack.jobs.job import Job
from k25stack.jobs.render import SHM, cdi_devices, labels

PACKAGE = Path(__file__).resolve().parents[1]
CODE = "/opt/k25stack"


def container_name(directory: Path, root: Path) -> str:
    """The one name of a job's container: two cannot be there at once."""
    place = hashlib.sha256(str(root).encode()).hexdigest()[:8]
    return f"k25-{place}-{directory.parent.name}-{directory.name}"


def settings(
    engine: Any, job: Job, directory: Path, root: Path, workspace: Path, lease: Path | None, fed: bool
) -> dict[str, Any]:
    """Arguments of the SDK's ``create_container`` beside the image.  ``fed``: values come on standard input."""
    host = engine.api.create_host_config(
        mounts=list(_mounts(job, root, workspace, lease)),
        network_mode=job.network,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        read_only=True,
        tmpfs={"/tmp": "mode=1777"},
        init=True,
        shm_size=job.shm_bytes or SHM,
        mem_limit=job.memory_bytes or None,
        memswap_limit=job.memory_bytes or None,
        device_requests=_cards(job),
        ulimits=[{"Name": name, "Soft": size, "Hard": size} for name, size in job.ulimits.items()],
        log_config={"Type": "local", "Config": {"max-size": "10m", "max-file": "2"}},
    )
    path = [CODE, *filter(None, [job.env.get("PYTHONPATH")])]
    base = {"HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    return {
        "name": container_name(directory, root),
        "command": [str(directory)],
        "entrypoint": ["python3", "-m", "k25stack.jobs.inside"],
        "environment": {**base, **job.env, "PYTHONPATH": os.pathsep.join(path)},
        "user": job.user or f"{os.getuid()}:{os.getgid()}",
        "working_dir": job.workdir or str(workspace),
        "labels": {**labels(job), "org.k25stack.root": str(root)},
        "stdin_open": fed,
        "host_config": host,
    }


def _mounts(job: Job, root: Path, workspace: Path, lease: Path | None) -> Iterator[dict[str, Any]]:
    """The working directory and the lease writable under their own paths; code and the job's own mounts."""
    wanted = {str(workspace): (str(workspace), True), CODE + "/k25stack": (str(PACKAGE), False)}
    for place in (workspace / "state", workspace / "runs", root):
        real = place.resolve()
        if not real.is_relative_to(workspace):
            wanted[str(real)] = (str(real), True)
    if lease is not None:
        wanted[str(lease.parent)] = (str(lease.parent), True)
    for file in _named_files(job):
        wanted[file] = (file, False)
    for mount in job.mounts:
        wanted[mount.target] = (mount.source, mount.writable)
    for target, (source, writable) in wanted.items():
        kind = "bind" if "/" in source else "volume"
        yield {"Type": kind, "Source": source, "Target": target, "ReadOnly": not writable}


def _named_files(job: Job) -> Iterator[str]:
    """Certificates and settings of this host that variables passed by name speak of, and pip's own file."""
    values = [os.environ.get(name, "") for name in job.pass_env]
    values += ["/etc/pip.conf"] if any(name.startswith("PIP_") for name in job.pass_env) else []
    yield from (value for value in values if value.startswith("/") and Path(value).is_file())


def _cards(job: Job) -> list[dict[str, Any]] | None:
    if not job.gpus:
        return None
    if job.gpu_request == "cdi":
        return [{"Driver": "cdi", "DeviceIDs": cdi_devices(job.gpus)}]
    return [{"Driver": "nvidia", "Count": job.gpus, "Capabilities": [["gpu"]]}]
