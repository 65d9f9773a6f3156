"""``host up`` over real SSH against a container that runs real systemd: what keeps a host from being reached."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from k25stack.host.playbook import Order, run_playbook

if TYPE_CHECKING:
    from docker_twin import DockerTwin

NAME = "k25-hostlive-target"
PLAY = """
- name: Look
  hosts: all
  gather_facts: false
  become: true
  tasks:
    - name: Be root
      ansible.builtin.raw: test "$(id -u)" = 0 && sleep {{ slow | default(0) }}
      changed_when: false
"""
pytestmark = pytest.mark.twins


@pytest.fixture(scope="module")
def target(docker_twin: DockerTwin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "playbooks"))
    try:
        import host_twin
    finally:
        sys.path.pop(0)
    host_twin.build_image()
    twin = host_twin.start(NAME, tmp_path_factory.mktemp("target") / "place")
    yield twin
    host_twin.docker("rm", "-f", NAME)


def test_each_host_that_cannot_be_used_is_one_line_and_the_rest_go_on(target: Any, tmp_path: Path) -> None:
    (tmp_path / "changed").write_text(f"{target.address} {(target.place / 'key.pub').read_text()}")
    (tmp_path / "site.yml").write_text(PLAY)

    def line(name: str, user: str = "deploy", known: Path | None = None, **more: str) -> str:
        if known is not None:
            more["ansible_ssh_common_args"] = f"'-o UserKnownHostsFile={known} -o ControlPath=none'"
        return str(target.line(user, **more)).replace(NAME, name, 1)

    hosts = [
        line("good"),
        line("right", "careful", ansible_become_password="right-word"),
        line("wrong", "careful", ansible_become_password="wrong-word"),
        line("lacking", "careful"),
        line("changed", known=tmp_path / "changed"),
        line("unknown", known=tmp_path / "none"),
        line("stranger", "nobody"),
        line("closed", ansible_port="1"),
        line("typo", ansible_hots="x"),
    ]
    (tmp_path / "hosts.ini").write_text("\n".join(hosts) + "\n")
    told: list[str] = []
    run = run_playbook(Order(tmp_path / "site.yml", tmp_path / "hosts.ini"), told.append)
    summaries = {host.name: host.summary() for host in run.hosts}
    expected = {
        "good": "good: 1 ok, ",
        "right": "right: 1 ok, ",
        "wrong": "UNREACHED: sudo refuses the password (mend ansible_become_password or K25_BECOME_PASSWORD)",
        "lacking": "UNREACHED: sudo refuses the password",
        "changed": "UNREACHED: its host key has changed",
        "unknown": "UNREACHED: its host key is not known",
        "stranger": "UNREACHED: login refused",
        "closed": "UNREACHED: connection refused",
        "typo": "UNREACHED: unknown variable ansible_hots",
    }
    assert {name for name, says in expected.items() if says not in summaries[name]} == set(), summaries
    assert summaries.keys() == expected.keys() and run.exit_code == 3
    assert all("\n" not in text and "word" not in text.replace("password", "") for text in summaries.values())
    password = Order(tmp_path / "site.yml", tmp_path / "hosts.ini", limit="lacking", password="right-word")
    assert run_playbook(password).exit_code == 0


def test_twenty_hosts_take_the_time_of_the_slowest(target: Any, tmp_path: Path) -> None:
    """Each needs two seconds for its task: one after the other that alone is forty."""
    (tmp_path / "site.yml").write_text(PLAY)
    lines = [str(target.line("deploy")).replace(NAME, f"gpu{number:02}", 1) for number in range(20)]
    (tmp_path / "hosts.ini").write_text("\n".join(lines) + "\n")
    began = time.monotonic()
    run = run_playbook(Order(tmp_path / "site.yml", tmp_path / "hosts.ini", variables={"slow": 2}))
    assert run.exit_code == 0 and len(run.hosts) == 20
    assert time.monotonic() - began < 40
