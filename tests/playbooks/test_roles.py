"""Properties of the playbooks that need no host."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from k25stack.host.profile import load_profile, profile_names

ROOT = Path(__file__).resolve().parents[2]
BOOKS = ROOT / "playbooks"
ROLES = sorted(path.name for path in (BOOKS / "roles").iterdir())
TOOLS = Path(sys.executable).parent


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text()) or {}


def defaults(role: str) -> dict:
    return read(BOOKS / "roles" / role / "defaults/main.yml")


def options(role: str) -> dict:
    return read(BOOKS / "roles" / role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]


def test_site_runs_every_role_that_there_is() -> None:
    plays = read(BOOKS / "site.yml")
    named = [entry["role"] for play in plays for entry in play.get("roles", ())]
    assert sorted(named) == ROLES
    assert sorted(read(BOOKS / "roles/preflight/vars/main.yml")["__preflight_roles"]) == ROLES
    for play in plays:
        for entry in play.get("roles", ()):
            assert entry["role"] in entry["tags"]


def test_reset_undoes_every_role_that_adds_something() -> None:
    with_reset = {role for role in ROLES if (BOOKS / "roles" / role / "tasks/reset.yml").is_file()}
    assert with_reset == set(ROLES) - {"preflight", "report"}
    assert set(re.search(r"loop: \[(.*)\]", (BOOKS / "reset.yml").read_text())[1].split(", ")) == with_reset


@pytest.mark.parametrize("role", ROLES)
def test_every_default_is_specified_and_every_option_has_a_default(role: str) -> None:
    assert set(defaults(role)) == set(options(role))
    assert all(name.startswith(f"{role}_") for name in defaults(role))
    for name, option in options(role).items():
        assert option["description"].endswith("."), name


TYPES = {"str": str, "path": str, "int": int, "float": (int, float), "bool": bool, "list": list, "dict": dict}


@pytest.mark.parametrize("role", ROLES)
def test_defaults_have_the_type_of_their_option(role: str) -> None:
    for name, value in defaults(role).items():
        if not (isinstance(value, str) and "{{" in value):
            assert isinstance(value, TYPES[options(role)[name]["type"]]), name


@pytest.mark.parametrize("role", ROLES)
def test_the_readme_names_every_variable(role: str) -> None:
    text = (BOOKS / "roles" / role / "README.md").read_text()
    assert set(re.findall(rf"`({role}_\w+)`", text)) == set(options(role))


def test_only_modules_that_come_with_ansible() -> None:
    for path in [*BOOKS.glob("*.yml"), *BOOKS.glob("roles/*/tasks/*.yml"), *BOOKS.glob("roles/*/handlers/*.yml")]:
        read(path)
        for name in re.findall(r"^\s*(?:- )?(\w+\.\w+\.\w+):", path.read_text(), re.M):
            assert name.startswith("ansible.builtin."), f"{path}: {name}"


def test_nccl_profiles_are_those_of_the_checks() -> None:
    known = json.loads((ROOT / "k25stack/host/nccl.json").read_text())["profiles"]
    ours = defaults("nccl_env")["nccl_env_profiles"]
    assert {name: (row["env"], row["source"]) for name, row in ours.items()} == {
        name: (row["env"], row["source"]) for name, row in known.items()
    }


def test_host_profiles_are_those_of_the_checks() -> None:
    ours = defaults("preflight")["preflight_profiles"]
    assert set(ours) == set(profile_names())
    for name, row in ours.items():
        profile = load_profile(name)
        assert row["gpus"] == profile.gpus
        assert row["link"] == profile.link
        assert row["virtual"] == profile.virtual
        assert row["power_w"] == profile.power_set_w


def test_defaults_are_what_the_checks_expect() -> None:
    profile = load_profile("8x-rtx-pro-6000")
    assert defaults("nvidia")["nvidia_driver_min"] == profile.driver_min
    assert defaults("nvidia")["nvidia_image_cuda"] == profile.cuda
    assert defaults("nvidia")["nvidia_toolkit_min"] == profile.toolkit_min
    assert defaults("docker")["docker_version_min"] == profile.docker_min
    assert defaults("docker")["docker_compose_min"] == profile.compose_min
    assert defaults("base")["base_nofile"] >= profile.nofile
    assert defaults("base")["base_thp"] in profile.thp
    store = defaults("model_store")
    assert f"{store['model_store_root']}/models/{store['model_store_name']}" == profile.model_dir
    assert f"{store['model_store_root']}/cache" == profile.cache_dir
    assert f"{store['model_store_root']}/runs" == profile.output_dir
    assert store["model_store_gb"] == profile.model_gb
    supported = [name.lower() for name in defaults("preflight")["preflight_systems"]]
    assert supported == list(profile.systems)


def test_the_pinned_model_is_that_of_the_stack() -> None:
    stack = read(ROOT / "stacks/kimi-k2.5-8x-rtx-pro-6000.yaml")["target"]["source"]
    assert defaults("model_store")["model_store_url"].endswith(f"{stack['repo']}/resolve/{stack['revision']}")


def test_held_packages_are_those_that_the_check_looks_for() -> None:
    from k25stack.host.checks.driver import PARTS

    probe = (BOOKS / "roles/nvidia/files/probe.sh").read_text()
    pattern = "".join(re.findall(r"pattern=['\"](?:\$pattern)?(.*)['\"]$", probe, re.M))
    for name in (
        "nvidia-driver-580-open", "nvidia-dkms-580", "nvidia-kernel-open-dkms", "nvidia-open", "libnvidia-compute-580",
        "libnvidia-ml1", "cuda-drivers", "nvidia-container-toolkit-base", "libnvidia-container1", "linux-image-amd64",
        "linux-image-6.8.0-87-generic", "linux-modules-nvidia-580-open-generic",
    ):  # fmt: skip
        assert PARTS.match(name) and re.match(pattern, name), name
    assert not re.match(pattern, "python3")


def test_playbooks_have_a_valid_syntax(tmp_path: Path) -> None:
    done = subprocess.run(
        [TOOLS / "ansible-playbook", "-i", BOOKS / "inventories/example/hosts.yml", "--syntax-check",
         *sorted(BOOKS.glob("*.yml"))],
        text=True, capture_output=True, check=False,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "ANSIBLE_LOCAL_TEMP": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_shell_programs_have_a_valid_syntax() -> None:
    programs = [*BOOKS.glob("roles/*/files/*.sh"), BOOKS / "roles/pcie_p2p/files/k25stack-acs-off"]
    assert len(programs) > 6
    for path in programs:
        assert subprocess.run(["sh", "-n", path], check=False).returncode == 0, path
