"""What `serve` decides without a container: what to serve, what is good, what is worse, what it tells meanwhile."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k25stack.errors import DamageError, HostError, LeaseError, UsageError
from k25stack.pipeline.composectl import Compose, key_for, keys_of
from k25stack.pipeline.outputs import scan
from k25stack.pipeline.serveproof import prove_files, require_fillable, require_readable, require_unaltered
from k25stack.pipeline.serveup import promote, rollback, worse
from k25stack.pipeline.servewait import complaint, phase_of
from k25stack.pipeline.serving import KEEP, Choice, Site, choose, made_by_run
from k25stack.pipeline.workspace import Workspace
from k25stack.stack import load_stack
from k25stack.stack.dump import dump_stack
from tests.compose.serve_twin import ROOT, STACK
from tests.images.hub_twin import COMMIT
from tests.model.test_hub_draft import tiny_draft, write_stack

CHOICE = Choice("s", "p", "k25stack/cpu:local", "/t", "/d", image_id="sha256:1", env="e")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(Workspace(tmp_path), load_stack(STACK), str(STACK))


def finished_run(root: Path, name: str, *steps: str) -> None:
    """A run of the demo that has made ``steps``."""
    run = root / "runs" / name
    run.mkdir(parents=True)
    (run / "stack.resolved.yaml").write_text(dump_stack(load_stack(ROOT / "stacks" / "smollm2-cpu.yaml")))
    (run / "plan.json").write_text(
        json.dumps({"stack": "smollm2-cpu", "steps": {step: f"{name}-{step}" for step in steps}})
    )
    for step in steps:
        out = root / "state" / "artefacts" / f"{name}-{step}" / "out"
        out.mkdir(parents=True)
        (out / "config.json").write_text("{}")


def test_target_and_draft_come_from_the_newest_run_that_has_made_them(site: Site) -> None:
    root = site.workspace.root
    finished_run(root, "smollm2-cpu-1", "target", "package", "control")
    finished_run(root, "smollm2-cpu-2", "target")
    assert choose(site, "vllm-own").draft.endswith("smollm2-cpu-1-package/out")
    assert choose(site, "vllm-random").draft.endswith("smollm2-cpu-1-control/out")
    assert choose(site, "vllm-baseline").target.endswith("smollm2-cpu-2-target/out")
    assert choose(site, "vllm-baseline").draft == ""
    (root / "runs" / "smollm2-cpu-1" / "stack.resolved.yaml").write_text("format: 1\nname: of-another-version\n")
    assert made_by_run(site, "package") is None


def test_what_cannot_be_chosen_says_what_to_do(site: Site) -> None:
    with pytest.raises(UsageError, match="run the loop first"):
        choose(site, "vllm-own")
    with pytest.raises(UsageError, match=r"no config\.json"):
        choose(site, "vllm-baseline", target=str(site.workspace.root))
    with pytest.raises(UsageError, match="one of vllm-baseline"):
        choose(site, "baseline")


def test_good_ones_are_kept_once_and_not_for_ever(site: Site) -> None:
    for number in range(KEEP + 3):
        site.remember(replace(CHOICE, image_id=f"sha256:{number}"))
    site.remember(replace(CHOICE, image_id=f"sha256:{KEEP}", since=5.0))
    ids = [one["image_id"] for one in site.read("good")]
    assert len(ids) == len(set(ids)) == KEEP and ids[-1] == f"sha256:{KEEP}"


def test_notes_survive_and_go_away(site: Site) -> None:
    assert site.choice("current") is None and site.read("good") == []
    site.note("current", CHOICE)
    assert site.choice("current") == CHOICE
    site.note("current", None)
    assert site.choice("current") is None


def row(concurrency: int, speed: float | None, accepted: bool = True) -> dict[str, Any]:
    figure = None if speed is None else {"median": speed, "interval": None, "values": [speed]}
    return {"concurrency": concurrency, "throughput_tok_s": figure, "accepted": accepted}


def test_a_candidate_may_lose_noise_but_no_speed_and_no_row() -> None:
    before = [row(1, 100.0), row(4, 300.0)]
    assert worse(before, [row(1, 96.0), row(4, 330.0)]) == []
    assert worse(before, [row(1, 94.0), row(4, 330.0)]) == ["C=1: 94.0 tok/s, 100.0 before"]
    assert worse(before, [row(1, 100.0), row(4, 300.0, accepted=False)]) == ["C=4: its row was rejected"]
    assert worse([row(1, None)], [row(1, 5.0)]) == []


def test_phases_are_told_with_what_is_left() -> None:
    assert phase_of({}) == "starting the supervisor"
    assert phase_of({"ready": True, "state": "ready"}) == "ready"
    loading = {"ready": False, "state": "starting", "load": {"phase": "read", "left_s": 95.0}}
    assert phase_of(loading) == "starting: read, about 1:35 left"
    assert phase_of({"ready": False, "state": "backoff", "text": "again in 5 s", "load": {}}) == "backoff: again in 5 s"


def test_keys_are_found_by_role() -> None:
    text = "# ours\nann user k1\n\nbob operator k2\nbroken line\n"
    assert keys_of(text) == [("ann", "user", "k1"), ("bob", "operator", "k2")]
    assert key_for(text, "operator") == "k2"
    with pytest.raises(HostError, match="no key of role user"):
        key_for("bob operator k2", "user")


def test_a_shell_s_compose_variables_mean_nothing_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMPOSE_FILE", "other.yaml")
    compose = Compose(tmp_path, "compose.cpu.yaml", "k25stack-cpu", CHOICE.values(tmp_path / "promise.yml"))
    assert compose.env["COMPOSE_FILE"] == "" and compose.env["COMPOSE_PROFILES"] == "p"
    assert compose.argv("ps")[:2] == ["docker", "compose"] and "-f" in compose.argv("ps")


def test_files_closed_to_the_containers_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    tmp_path.chmod(0o755)
    require_readable(tmp_path)
    (tmp_path / "config.json").chmod(0o600)
    with pytest.raises(HostError, match=r"config\.json: closed to uid 10001"):
        require_readable(tmp_path)


def test_what_a_run_has_made_must_be_what_it_was(tmp_path: Path) -> None:
    place = tmp_path / "key" / "out"
    place.mkdir(parents=True)
    (place / "model.safetensors").write_bytes(b"weights")
    record = {"step": "target", "run": "demo-1", "files": scan(place).as_json()}
    (place.parent / "outputs.json").write_text(json.dumps(record))
    require_unaltered(place)
    (place / "model.safetensors").write_bytes(b"weighty")  # of the same size
    with pytest.raises(DamageError, match=r"model\.safetensors was altered, since run demo-1 made it") as caught:
        require_unaltered(place)
    assert "--only target" in caught.value.remedy
    (place.parent / "outputs.json").write_text("[]")
    with pytest.raises(DamageError, match="not a list of what was made"):
        require_unaltered(place)


def test_a_target_of_a_hub_may_still_have_to_be_fetched(tmp_path: Path) -> None:
    file = ROOT / "stacks" / "kimi-k2.5-8x-rtx-pro-6000.yaml"
    kimi = Site(Workspace(tmp_path), load_stack(file), str(file))
    found = choose(kimi)
    assert (found.profile, found.target) == ("sglang-nccl", "/srv/k25stack/models/moonshotai--Kimi-K2.5")
    prove_files(kimi.stack, found.profile, Path(found.target), None)  # nothing there yet: the launch line is judged
    with pytest.raises(UsageError, match=r"not pinned.*AQ-MedAI--Kimi-K25-eagle3 does not hold it") as caught:
        choose(kimi, "sglang-eagle3-aq")
    assert "stack fetch STACK --draft sglang-eagle3-aq -n" in caught.value.remedy
    with pytest.raises(HostError, match="it is to be filled by uid 10001") as closed:
        require_fillable(tmp_path / "models")
    assert closed.value.remedy == f"sudo install -d -o 10001 -g 10001 {tmp_path / 'models'}"


def test_a_draft_that_is_pinned_may_still_have_to_be_fetched(tmp_path: Path) -> None:
    file = write_stack(tmp_path, COMMIT)
    site = Site(Workspace(tmp_path), load_stack(file), str(file))
    finished_run(tmp_path, "smollm2-cpu-1", "target")
    found = choose(site, "hub")
    assert (found.draft, found.hub_draft) == ("/srv/k25stack/models/tiny--eagle3", True)
    assert found.values(site.promise)["K25_DRAFT"] == "", "the compose file's own place, which `prepare` may fill"
    own = tiny_draft(tmp_path / "own")
    given = choose(site, "hub", draft=str(own))
    assert given.values(site.promise)["K25_DRAFT"] == str(own.resolve()) and not given.hub_draft


def test_what_was_served_comes_back_whatever_the_stack_file_says_now(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    parent = os.path.relpath(STACK, tmp_path)
    text = f"extends: {parent}\nname: mine\nserving: {{profiles: {{vllm-own: {{notes: [x]}}}}}}\n"
    file.write_text(text)
    before = Site(Workspace(tmp_path), load_stack(file), str(file))
    then = before.render(replace(CHOICE, profile="vllm-own", draft=""))
    file.write_text(text.replace("notes: [x]", "env: {OMP_NUM_THREADS: '7'}"))
    after = Site(Workspace(tmp_path), load_stack(file), str(file))
    now = after.render(replace(CHOICE, profile="vllm-own", draft=""))
    script = after.directory / "jobs/mine/vllm-own/run.sh"
    assert now.env != then.env and "OMP_NUM_THREADS 7" in script.read_text()
    again = after.as_of(then).render(then)
    assert again.env == then.env and "OMP_NUM_THREADS 7" not in script.read_text()
    after.remember(again)
    assert [path.stem for path in (after.directory / "stacks").glob("*.yaml")] == [then.made_from]


def test_a_change_that_was_broken_off_comes_back_before_another_begins(site: Site) -> None:
    site.note("current", replace(CHOICE, image_id="sha256:2"))
    site.note("pending", CHOICE)
    with pytest.raises(UsageError, match="an earlier change was broken off; before it was p of s") as caught:
        promote(site, replace(CHOICE, image_id="sha256:3"), print)
    assert "serve rollback" in caught.value.remedy and site.choice("pending") == CHOICE


def test_a_rollback_that_was_broken_off_goes_to_the_same_one_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (replace(CHOICE, profile="vllm-own", image_id=f"sha256:{number}") for number in (1, 2))
    for one in (old, new):
        site.remember(one)
        site.note("current", one)
    monkeypatch.setenv("PATH", "/nonexistent")  # Docker is away
    for _ in range(2):
        with pytest.raises(HostError):
            rollback(site)
        assert site.choice("pending") == old
        site.note("current", old)  # as far as it got


def test_two_commands_do_not_change_one_site_at_once(site: Site) -> None:
    with site.changing("serve promote"), pytest.raises(LeaseError, match=r"serve promote \(pid \d+"):
        rollback(site)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"stack": "s"}', "7"])
def test_a_damaged_note_is_named(site: Site, text: str) -> None:
    site.note("current", CHOICE)
    (site.directory / "current.json").write_text(text)
    with pytest.raises(DamageError, match="not what this version writes") as caught:
        site.choice("current")
    assert caught.value.where.endswith("current.json") and "move it away" in caught.value.remedy


def test_a_container_s_complaint_is_its_first_fault_and_how_many_more() -> None:
    faults = ["error: GPU: 7 cards are visible (k25stack check host)", "error: /dev/shm: 64 MiB (shm_size 1g)"]
    whole = ["ground: x", *faults, "error: a of b: not started, 2 faults above"]
    assert complaint(whole * 3) == "GPU: 7 cards are visible (k25stack check host); and 1 more"
    assert complaint(["loading", "Traceback", "ValueError: x"]) == "ValueError: x"
    assert complaint(["error: x", "k25stack-watch: given up: y"]) == "k25stack-watch: given up: y"
    assert complaint([]) == ""
