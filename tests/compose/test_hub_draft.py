"""A hub's target and draft in containers: `prepare` gets both at their commits, and the engine waits for them.

The hub is a twin on the address that containers have for this host; the engine is a paced one that starts in a moment.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from k25stack.jobs.composefile import MODELS, compose_files, write_tree
from k25stack.jobs.render import READY_PORT, probe
from k25stack.stack import load_stack
from tests.compose.serve_twin import fake_image, free_port
from tests.images.hub_twin import COMMIT, Hub, serve
from tests.model.test_hub_draft import REPO, tiny_draft, write_stack

pytestmark = [pytest.mark.twins, pytest.mark.timeout(600)]
UID = 10001
TARGET = "tiny/llama"
ENGINE = "k25-hub-draft-hub-1"


@dataclass
class Site:
    """A rendered compose directory, the models it mounts, and the hub it asks."""

    root: Path
    hub: Hub
    env: dict[str, str]

    @property
    def draft(self) -> Path:
        return self.root / "models" / REPO.replace("/", "--")

    def render(self, revision: str | None = COMMIT) -> None:
        """Rendered as shipped, with the host's directory of models below this test's own."""
        stack = write_stack(self.root, revision)
        source = f"name: tiny\ntarget:\n  name: {TARGET}\n  source: {{kind: hub, repo: {TARGET}, revision: {COMMIT}}}\n"
        stack.write_text(stack.read_text().replace("name: tiny\n", source))
        files = compose_files(load_stack(stack), "tiny.yaml")
        text = {name: one.replace(MODELS, str(self.root / "models")) for name, one in files.items()}
        write_tree(text, self.root / "compose")

    def compose(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        argv = ["docker", "compose", "-p", "k25-hub-draft", "-f", "compose.cpu.yaml", "--env-file", "cpu.env"]
        return subprocess.run(
            [*argv, "--profile", "hub", *words], cwd=self.root / "compose", text=True, capture_output=True,
            timeout=200, env={**os.environ, **self.env, **env},
        )  # fmt: skip

    def prepare(self, **env: str) -> subprocess.CompletedProcess[str]:
        """The one service that gets the draft, alone."""
        return self.compose("run", "--rm", "--no-deps", "-T", "prepare-hub", **env)

    def state(self, service: str) -> str:
        rows = self.compose("ps", "--all", "--format", "json", service).stdout.splitlines()
        return str(json.loads(rows[0])["State"]) if rows else ""

    def says(self, text: str) -> str:
        """The engine's log, as soon as this stands in it."""
        until = time.monotonic() + 60
        while text not in (told := self.compose("logs", "--no-log-prefix", "hub").stdout):
            assert time.monotonic() < until, told
            time.sleep(0.2)
        return told

    def ready(self) -> None:
        until = time.monotonic() + 60
        while said := self.docker("exec", ENGINE, "python3", "-c", probe(READY_PORT, "/ready")):
            assert time.monotonic() < until, said
            time.sleep(0.2)

    def docker(self, *words: str) -> str:
        done = subprocess.run(["docker", *words], text=True, capture_output=True, env={**os.environ, **self.env},
                              timeout=100)  # fmt: skip
        return done.stdout + done.stderr


def directory(place: Path, owner: int = UID) -> Path:
    place.mkdir(parents=True)
    os.chown(place, owner, owner)
    return place


@pytest.fixture(scope="module")
def site(
    docker_twin: Any, our_images: None, tiny_target_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("hub-draft")
    root.chmod(0o755)
    image = fake_image(docker_twin.docker, root, "fast", 2)
    told = docker_twin.docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}")
    target = {path.name: path.read_bytes() for path in tiny_target_dir.iterdir() if path.name != "target.json"}
    draft = {path.name: path.read_bytes() for path in tiny_draft(root / "made").iterdir()}
    both = Hub(REPO, draft | {"eagle.py": b"class Eagle: ...\n"}, others={TARGET: target})
    with serve(both, told.stdout.strip()) as hub:
        env = {**docker_twin.env, "K25_IMAGE": image, "K25_PORT": str(free_port()), "HF_ENDPOINT": hub.url,
               "K25_LEASE_DIR": str(root / "lease"), "HF_HUB_DISABLE_XET": "1"}  # fmt: skip
        found = Site(root, hub, env)
        found.render()
        directory(root / "models" / TARGET.replace("/", "--"))
        yield found
        found.compose("down", "--volumes", "--timeout", "10", "--remove-orphans")


def refused(done: subprocess.CompletedProcess[str], *said: str) -> None:
    """It ended with one line that says what and what to do."""
    faults = [line for line in done.stderr.splitlines() + done.stdout.splitlines() if line.startswith("error: ")]
    assert done.returncode != 0 and len(faults) == 1, done.stderr
    assert all(one in faults[0] for one in said) and faults[0].endswith(")"), faults


def test_a_directory_that_prepare_may_not_fill_stops_before_the_engine(site: Site) -> None:
    up = site.compose("up", "--detach")  # Docker has made the directory, for root
    assert up.returncode != 0 and "prepare-hub" in up.stderr
    assert f"closed to uid {UID}" in (told := site.compose("logs", "prepare-hub").stdout) and "chown 10001 DIR" in told
    assert site.state("hub") == "created"
    os.chown(site.draft, UID, UID)


def test_what_is_wrong_with_the_draft_is_one_line_of_prepare(site: Site) -> None:
    site.hub.token = "hf_secret"
    refused(site.prepare(), "HF_TOKEN is not set")
    secret = site.root / "token"
    secret.write_text("hf_other")
    secret.chmod(0o600)  # as such files are
    refused(site.prepare(HF_TOKEN_FILE=str(secret)), f"cannot be read by uid {UID}", f"chown {UID} the file")
    os.chown(secret, UID, UID)
    refused(site.prepare(HF_TOKEN_FILE=str(secret)), "the token given is refused")
    secret.write_text("hf_secret")
    kept = site.hub.files.pop("model.safetensors")
    refused(site.prepare(HF_TOKEN_FILE=str(secret)), "only safetensors is fetched")
    site.hub.files["model.safetensors"], site.hub.token = kept, ""
    site.hub.listed["model.safetensors"] = kept[:-1] + b"?"
    refused(site.prepare(), "not what the hub lists", "cache or proxy on the way")
    site.hub.listed.clear()
    for revision, said in (("0" * 40, "the hub does not have it"), (None, "draft_revision: tiny/eagle3 is not pinned")):
        site.render(revision)
        (site.draft / "config.json").unlink(missing_ok=True)  # what came before
        refused(site.prepare(), said)
    site.render()


def test_the_draft_is_prepared_and_served_read_only(site: Site) -> None:
    up = site.compose("up", "--detach")
    assert up.returncode == 0, up.stderr + site.compose("logs").stdout
    site.ready()
    told = site.compose("logs", "prepare-hub").stdout
    assert f"{REPO}@{COMMIT}" in told and "eagle.py" in told and "a draft for vllm 0.32.0" in told
    mounts = json.loads(site.docker("inspect", ENGINE, "--format", "{{json .Mounts}}"))
    seen = {mount["Destination"]: (mount["Source"], mount["RW"]) for mount in mounts}
    assert seen["/models/draft"] == (str(site.draft), False)
    site.hub.asked.clear()
    assert site.compose("up", "--detach").returncode == 0 and site.hub.asked == []


def test_an_altered_draft_is_named_by_the_engine_s_own_ground_and_mended_by_prepare(site: Site) -> None:
    site.compose("stop", "hub")
    weights = site.draft / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + b"?")  # of the same size
    site.docker("start", ENGINE)  # nobody asks `prepare`
    told = site.says("not started")
    assert "error: /models/draft/model.safetensors: altered since it was verified (get it again: docker" in told
    up = site.compose("up", "--detach")
    assert up.returncode == 0, up.stderr
    assert set(site.hub.asked) == {"model.safetensors"} and weights.read_bytes() == whole
    site.compose("restart", "--timeout", "0", "hub")  # Docker waits longer each time
    site.ready()


def test_a_draft_of_one_s_own_is_never_written(site: Site) -> None:
    own = tiny_draft(site.root / "own")
    before = {path.name: path.read_bytes() for path in own.iterdir()}
    os.chown(own, UID, UID)
    site.hub.asked.clear()
    done = site.prepare(K25_DRAFT=str(own))
    assert done.returncode == 0 and "K25_DRAFT: its files are compared with nothing" in done.stderr + done.stdout
    assert site.hub.asked == [] and before == {path.name: path.read_bytes() for path in own.iterdir()}


def test_a_port_that_is_taken_stops_before_the_engine(site: Site) -> None:
    site.compose("down", "--timeout", "10")
    with socket.create_server(("127.0.0.1", int(site.env["K25_PORT"]))):
        up = site.compose("up", "--detach")
    assert up.returncode != 0 and site.env["K25_PORT"] in up.stderr and "address already in use" in up.stderr
    assert site.state("hub") == "created"
    assert site.compose("up", "--detach").returncode == 0
    site.ready()
