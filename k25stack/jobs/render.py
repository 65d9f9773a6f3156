"""One job, three forms: the script inside the container, a compose service, a file for sbatch.

All come from the same frozen value.  Templates lie in ``templates/``; jinja2 and PyYAML are loaded at the first use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from k25stack.errors import UsageError
from k25stack.jobs.images import pinned
from k25stack.jobs.job import Ground, Job
from k25stack.jobs.templates import directory, fill

HOME = "/etc/k25stack/job"  # of script and policy in a container
READY_PORT = 8099
LABEL = "org.k25stack."
SHM = 1 << 30  # of a job that names none: torch's processes share tensors there
STOP_MARGIN_S = 30.0  # between the supervisor's own grace and the engine's kill


def script(job: Job) -> str:
    """A bash script that proves the ground and then becomes the program (or its supervisor)."""
    ground = job.ground or Ground()
    look = {"lease": ground.lease, "models": ground.models, "configs": ground.configs, "ports": job.ports}
    asked = json.dumps(look) if any(look.values()) else None
    inspector = (directory() / "inspect.py").read_text(encoding="utf-8")
    return fill("script.sh.j2", job=job, ground=ground, asked=asked, inspector=inspector.rstrip())


def policy(job: Job) -> dict[str, Any]:
    """What the supervisor is told; empty for a job without one."""
    return dict(job.policy or {})


def job_files(job: Job) -> dict[str, str]:
    """The files of a job's directory by name; a container sees the directory at ``HOME``."""
    files = {"run.sh": script(job)}
    if job.policy is not None:
        files["policy.json"] = json.dumps(policy(job), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return files


def service_text(job: Job, name: str = "", indent: int = 0) -> str:
    """A compose service as YAML text.  Raises UsageError for somebody else's image without a digest."""
    if job.image is None:
        raise UsageError("no image: it runs in this package", where=job.step, remedy="--to argv, script or sbatch")
    pinned(job.image, job.step)
    text = fill(
        "service.yaml.j2",
        job=job,
        name=name or job.step,
        home=HOME,
        cdi_devices=cdi_devices(job.gpus),
        probe=probe(job.health.port, job.health.path) if job.health else "",
        labels=labels(job),
    )
    return "".join(" " * indent + line for line in text.splitlines(keepends=True))


def service(job: Job) -> dict[str, Any]:
    """A compose service as a mapping."""
    import yaml

    loaded = yaml.load(service_text(job, "service"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return dict(loaded["service"])


def sbatch(job: Job) -> str:
    """A file for ``sbatch``; a job with an image runs in a container of the node's Docker Engine.

    Raises UsageError for a place that is a variable of compose or relative: a node knows neither.
    """
    for mount in job.mounts if job.image else ():
        if not mount.is_volume and not mount.source.startswith("/"):
            raise UsageError(f"{mount.source!r} is no absolute path, for {mount.target}", where=job.step,
                             remedy="give --model, --draft and --job-dir")  # fmt: skip
    words = container_words(job) if job.image else list(job.argv)
    return fill("sbatch.sh.j2", job=job, words=words, env={} if job.image else job.env, output=_output(job))


def _output(job: Job) -> str:
    """Where Slurm writes: a job whose log has its place in the container alone gets one where it was submitted.

    Slurm does not start a job, and leaves no line about it, when the directory is not there on the node.
    """
    inside = any(job.log.is_relative_to(mount.target) and mount.source != mount.target for mount in job.mounts)
    return f"{job.run}.{job.step}-%j.log" if job.image and inside else str(job.log)


def container_words(job: Job) -> list[str]:
    """The ``docker run`` of a job."""
    words = ["docker", "run", "--rm", "--init", "--read-only", "--tmpfs", "/tmp:mode=1777", "--network", "host"]
    words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges:true"]
    words += ["--stop-timeout", str(int(job.grace_s)), "--shm-size", str(job.shm_bytes or SHM)]
    for option, value in (("--user", job.user), ("--workdir", job.workdir)):
        words += [option, value] if value else []
    if job.memory_bytes:
        words += ["--memory", str(job.memory_bytes)]
    if job.gpus and job.gpu_request == "cdi":
        words += [word for device in cdi_devices(job.gpus) for word in ("--device", device)]
    elif job.gpus:
        words += ["--gpus", str(job.gpus)]
    for name, size in job.ulimits.items():
        words += ["--ulimit", f"{name}={size}"]
    for name, value in {"HOME": "/tmp", **job.env}.items():
        words += ["--env", f"{name}={value}"]
    for name in job.pass_env:
        words += ["--env", name]
    for mount in job.mounts:
        kind = "volume" if mount.is_volume else "bind"
        parts = [f"type={kind}", f"source={mount.source}", f"target={mount.target}"]
        words += ["--mount", ",".join(_csv(part) for part in (*parts, *(() if mount.writable else ("readonly",))))]
    for name, value in labels(job).items():
        words += ["--label", f"{name}={value}"]
    image = pinned(job.image or "", job.step)
    start = ["bash", f"{HOME}/run.sh"] if any(mount.target == HOME for mount in job.mounts) else list(job.argv)
    return [*words, "--entrypoint", start[0], image, *start[1:]]


def _csv(field: str) -> str:
    """A field of Docker's --mount, which is a line of CSV."""
    return '"' + field.replace('"', '""') + '"' if any(sign in field for sign in ',"\n') else field


def labels(job: Job) -> Mapping[str, str]:
    """How a job's container is found again."""
    return {f"{LABEL}run": job.run, f"{LABEL}step": job.step, f"{LABEL}key": job.key}


def cdi_devices(count: int) -> list[str]:
    """The first cards of the host by their CDI names."""
    return [f"nvidia.com/gpu={index}" for index in range(count)]


def probe(port: int, path: str) -> str:
    """A Python line that ends well when ``path`` answers 200."""
    return f"import urllib.request as u; u.urlopen('http://127.0.0.1:{port}{path}', timeout=4)"
