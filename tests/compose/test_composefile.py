"""The rendered ``compose/``: no drift, and what holds for every service of it."""

from __future__ import annotations

import json
import re
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from k25stack.errors import UsageError
from k25stack.jobs.composefile import compose_files, differences, layout, write_tree
from k25stack.stack import load_stack

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("kimi-k2.5-8x-rtx-pro-6000", "smollm2-vllm-cpu")
ONE_SHOTS = {"ground", "prepare", "prepare-sglang-eagle3-aq", "prometheus-ground"}


@cache
def files_of(name: str) -> dict[str, str]:
    return compose_files(load_stack(ROOT / "stacks" / f"{name}.yaml"), f"stacks/{name}.yaml")


@cache
def services_of(name: str) -> dict[str, Any]:
    files = files_of(name)
    whole = yaml.safe_load(files[layout(load_stack(ROOT / "stacks" / f"{name}.yaml")).file])
    return dict(whole["services"]) | dict(yaml.safe_load(files["monitoring.yaml"])["services"])


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_directory_is_what_the_stack_says(name: str) -> None:
    begun = time.process_time()
    files = compose_files(load_stack(ROOT / "stacks" / f"{name}.yaml"), f"stacks/{name}.yaml")
    assert time.process_time() - begun < 2
    remedy = f"k25stack stack render stacks/{name}.yaml --to compose -o compose"
    assert differences(files, ROOT / "compose") == [], remedy


@pytest.mark.parametrize("name", SHIPPED)
def test_only_the_proxy_and_prometheus_are_published_and_on_loopback(name: str) -> None:
    services = services_of(name)
    published = {service: one["ports"] for service, one in services.items() if one.get("ports")}
    assert set(published) == {"proxy", "prometheus"}
    assert published["proxy"] == ["${K25_BIND:-127.0.0.1}:${K25_PORT:-30000}:8443"]
    assert published["prometheus"][0].startswith("127.0.0.1:")


@pytest.mark.parametrize("name", SHIPPED)
def test_every_service_is_closed(name: str) -> None:
    for service, one in services_of(name).items():
        assert one["read_only"] is True, service
        assert one["cap_drop"] == ["ALL"] and "cap_add" not in one, service
        assert one["security_opt"] == ["no-new-privileges:true"], service
        assert not one.get("privileged") and one.get("ipc") != "host" and one.get("network_mode") in (None, "none"), (
            service
        )
        assert one["user"] == ("0:0" if "ground" in service else "10001:10001"), service
        assert "docker.sock" not in json.dumps(one), service
        assert one["restart"] == ("no" if service in ONE_SHOTS else "unless-stopped"), service
        if service != "prometheus-ground":
            assert one["logging"]["options"]["max-file"], service


@pytest.mark.parametrize("name", SHIPPED)
def test_engines_have_no_way_out_and_a_model_that_cannot_be_written(name: str) -> None:
    text = files_of(name)[layout(load_stack(ROOT / "stacks" / f"{name}.yaml")).file]
    whole = yaml.safe_load(text)
    assert whole["networks"]["engine"] == {"internal": True}
    engines = {service: one for service, one in whole["services"].items() if "profiles" in one and "labels" in one}
    assert all(one["profiles"] == [service] for service, one in engines.items())
    for one in engines.values():
        assert list(one["networks"]) == ["engine"] and one["networks"]["engine"]["aliases"] == ["engine"]
        assert "secrets" not in one and "HF_TOKEN" not in json.dumps(one)
        models = [volume for volume in one["volumes"] if volume["target"].startswith("/models")]
        assert models and all(volume["read_only"] for volume in models)
        assert "/run/lock/k25stack" in {volume["target"] for volume in one["volumes"]}
        assert one["depends_on"]["prepare"]["condition"] == "service_completed_successfully"
        assert seconds(one["stop_grace_period"]) > policy_of(name, one["profiles"][0])["grace_s"]
        assert (
            seconds(one["healthcheck"]["start_period"]) >= load_stack(ROOT / "stacks" / f"{name}.yaml").serving.ready_s
        )


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


def policy_of(name: str, profile: str) -> dict[str, Any]:
    return dict(json.loads(files_of(name)[f"jobs/{name}/{profile}/policy.json"]))


def test_the_hub_token_is_a_file_of_prepare_alone() -> None:
    whole = yaml.safe_load(files_of("kimi-k2.5-8x-rtx-pro-6000")["compose.yaml"])
    outside = {service for service, one in whole["services"].items() if "outside" in one.get("networks", ())}
    assert outside == {service for service, one in whole["services"].items() if one.get("secrets")}
    assert outside == {"prepare", "prepare-sglang-eagle3-aq"}
    assert all(list(whole["services"][service]["networks"]) == ["outside"] for service in outside)
    assert (
        yaml.safe_load(files_of("smollm2-vllm-cpu")["compose.cpu.yaml"])["services"]["prepare"]["network_mode"]
        == "none"
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_plain_up_starts_the_default_profile(name: str) -> None:
    stack = load_stack(ROOT / "stacks" / f"{name}.yaml")
    env = dict(
        line.split("=", 1)
        for line in files_of(name)[layout(stack).env_file].splitlines()
        if "=" in line and line[0] != "#"
    )
    assert env["COMPOSE_PROFILES"] == stack.serving.default
    assert env["K25_BIND"] == "127.0.0.1"


def test_every_variable_is_explained() -> None:
    told = (ROOT / "docs" / "compose.md").read_text()
    used = {
        found
        for name in SHIPPED
        for text in files_of(name).values()
        for found in re.findall(r"\$\{(K25_\w+|HF_\w+)", text)
    }
    shell_only = {"K25_IMAGE_KEY"}  # of the script, set by an image
    assert {name for name in used - shell_only if f"`{name}`" not in told} == set()


def test_a_stack_whose_default_is_no_container_is_refused() -> None:
    with pytest.raises(UsageError, match="runs in this package"):
        compose_files(load_stack(ROOT / "stacks" / "smollm2-cpu.yaml"), "stacks/smollm2-cpu.yaml")


def test_what_differs_is_named_and_written_once(tmp_path: Path) -> None:
    files = files_of("smollm2-vllm-cpu")
    assert set(write_tree(files, tmp_path)) == set(files)
    (tmp_path / "proxy" / "nginx.conf").write_text("mine")
    (tmp_path / "cpu.env").unlink()
    assert sorted(differences(files, tmp_path)) == ["cpu.env", "proxy/nginx.conf"]
    assert sorted(write_tree(files, tmp_path)) == ["cpu.env", "proxy/nginx.conf"]
    assert write_tree(files, tmp_path) == []
