"""The image of containers in these tests: the base with Python, by its content hash."""

from __future__ import annotations

import tempfile
from pathlib import Path

from docker_twin import DockerTwin

from k25stack.jobs.docker import image_id

IMAGE = "local/k25-jobs:python"


def build(twin: DockerTwin) -> str:
    """Build it, or take what an earlier call has built."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "Dockerfile").write_text(
            f"FROM {twin.base}\nRUN apt-get update -qq && "
            "apt-get install -y -qq --no-install-recommends python3 >/dev/null && rm -rf /var/lib/apt/lists/*\n"
        )
        twin.docker("build", "-q", "-t", IMAGE, place, timeout_s=600)
    return image_id(IMAGE)
