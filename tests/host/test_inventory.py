"""Ansible inventories in both forms; a fault of one host is that host's alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k25stack.errors import HostError, UsageError
from k25stack.host.collect import Target
from k25stack.host.inventory import read_inventory

INI = """\
# eight cards each
[gpu]
gpu[01:03] ansible_user=op   # three of them
head ansible_host=192.0.2.7 ansible_port=2222 k25stack_profile=cpu

[gpu:vars]
ansible_ssh_private_key_file=/keys/gpu
ansible_ssh_common_args='-o ProxyJump=bastion'

[all_hosts:children]
gpu

[all:vars]
ansible_become_password=geheim
"""

YAML = """\
all:
  vars: {ansible_become_password: geheim}
  children:
    gpu:
      vars: {ansible_ssh_private_key_file: /keys/gpu, ansible_ssh_common_args: -o ProxyJump=bastion}
      hosts:
        gpu[01:03]: {ansible_user: op}
        head: {ansible_host: 192.0.2.7, ansible_port: 2222, k25stack_profile: cpu}
"""


def read(tmp_path: Path, text: str, name: str = "hosts.ini") -> list[Target | HostError]:
    path = tmp_path / name
    path.write_text(text)
    return read_inventory(path)


@pytest.mark.parametrize(("name", "text"), [("hosts.ini", INI), ("hosts", INI), ("hosts.yml", YAML)])
def test_both_forms_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    found = read(tmp_path, text, name)
    assert found == [
        *(
            Target(f"gpu0{n}", f"op@gpu0{n}", None, "/keys/gpu", ("-o", "ProxyJump=bastion"), True, "geheim")
            for n in (1, 2, 3)
        ),
        Target("head", "192.0.2.7", 2222, "/keys/gpu", ("-o", "ProxyJump=bastion"), True, "geheim", "cpu"),
    ]


def test_variables_of_files_count_and_nearer_ones_win(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "host_vars").mkdir()
    (tmp_path / "group_vars/all.yml").write_text("ansible_user: all\nansible_port: 1\n")
    (tmp_path / "group_vars/gpu.yml").write_text("ansible_user: group\n")
    (tmp_path / "host_vars/b.yml").write_text("ansible_user: file\n")
    found = read(tmp_path, "[gpu]\na\nb\nc ansible_user=line\n[other]\nd\n")
    assert [one.address for one in found if isinstance(one, Target)] == ["group@a", "file@b", "line@c", "all@d"]
    assert all(isinstance(one, Target) and one.port == 1 for one in found)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("bad ansible_hots=192.0.2.1", "did you mean ansible_host"),
        ("bad ansible_host 192.0.2.1", "192.0.2.1 is no name=value"),
        ("bad ansible_port=ssh", "is no port"),
        ("bad ansible_become_password='{{ vault }}'", "template or a vault"),
        ("bad! ansible_user=op", "no host name"),
        ("bad/../../x ansible_connection=local", "no host name"),
        ('bad ansible_ssh_common_args="-o \'x"', "open quote"),
    ],
)
def test_a_typo_of_one_host_leaves_the_others(tmp_path: Path, line: str, says: str) -> None:
    found = read(tmp_path, f"good\n{line}\nalso\n")
    assert [one.name for one in found if isinstance(one, Target)] == ["good", "also"]
    (error,) = [one for one in found if isinstance(one, HostError)]
    assert says in str(error) and error.where.startswith("bad") and "\n" not in str(error)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("hosts", "", "no host in it"),
        ("hosts", "[gpu\na\n", "hosts:1: no section"),
        ("hosts", "[gpu:var]\na=b\n", "did you mean vars"),
        ("hosts", "[gpu:vars]\nword\n", "no name=value"),
        ("hosts", "[gpu]\na\n[all:children]\ngpus\n", "did you mean gpu"),
        ("hosts.yml", "all: [a]\n", "is no mapping"),
        ("hosts.yml", "all: {host: {a: }}\n", "did you mean hosts"),
        ("hosts.yml", "all: {hosts: [a]}\n", "one entry a line"),
        ("hosts.yml", "a: [\n", "no YAML"),
        ("hosts.yml", "- a\n", "no mapping of groups"),
        ("hosts", "gpu[001:2000]\n", "2000"),
    ],
)
def test_a_broken_file_says_where(tmp_path: Path, name: str, text: str, says: str) -> None:
    try:
        found = read(tmp_path, text, name)
    except UsageError as error:
        assert says in str(error) and "\n" not in str(error)
    else:  # too wide a range is no range: the one host has an odd name
        assert [isinstance(one, HostError) for one in found] == [True] and says in str(found[0])


def test_groups_that_contain_each_other_end(tmp_path: Path) -> None:
    (found,) = read(tmp_path, "[a]\nx\n[a:children]\nb\n[b:children]\na\n")
    assert isinstance(found, HostError) and "contains itself" in str(found)


def test_a_vault_is_left_closed(tmp_path: Path) -> None:
    vault = "!vault |\n        $ANSIBLE_VAULT;1.1;AES256\n        6162\n"
    text = f"all:\n  hosts:\n    a:\n      ansible_become_password: {vault}"
    (found,) = read(tmp_path, text, "hosts.yml")
    assert isinstance(found, HostError) and "vault" in str(found)


@settings(max_examples=80, deadline=None)
@given(text=st.text(alphabet="ab[]:=\n #'\"{}-x1 ", max_size=60), suffix=st.sampled_from(["", ".yml"]))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str, suffix: str) -> None:
    path = tmp_path_factory.mktemp("inventory") / f"hosts{suffix}"
    path.write_text(text)
    try:
        read_inventory(path)
    except UsageError as error:
        assert "\n" not in str(error)
