"""Hosts with faults beside a good one: one line each with what to do, the others go on, the exit code says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import host_twin
import pytest
from docker_twin import DockerTwin
from host_twin import HostTwin, Recap, docker

pytestmark = [pytest.mark.twins, pytest.mark.timeout(600)]

NAME = "k25-playbooks-faults"
FOREIGN = "k25-playbooks-foreign"
QUIET = {"report_check": False, "k25stack_profile": "cpu"}


@pytest.fixture(scope="module")
def hosts(docker_twin: DockerTwin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HostTwin, HostTwin]]:
    """A host that is fine, and one that says it is Alpine and has no apt."""
    host_twin.build_image()
    good = host_twin.start(NAME, tmp_path_factory.mktemp("good"))
    foreign = host_twin.start(FOREIGN, tmp_path_factory.mktemp("foreign"))
    foreign.sh("printf 'ID=alpine\\nVERSION_ID=3.20.1\\n' >/etc/os-release; mv /usr/bin/apt-get /usr/bin/no-apt-get")
    assert good.play("bootstrap.yml").rc == 0
    yield good, foreign
    docker("rm", "-f", NAME, FOREIGN, check=False)


def fatal(recap: Recap, host: str) -> str:
    """The one line that Ansible prints of a host that failed."""
    lines = [line for line in recap.text.splitlines() if line.startswith(f"fatal: [{host}]")]
    assert len(lines) == 1, recap.text[-3000:]
    return lines[0]


def test_every_fault_is_one_line_and_the_others_go_on(hosts: tuple[HostTwin, HostTwin]) -> None:
    good, foreign = hosts
    other_key = (foreign.place / "known_hosts").read_text().split()[1:]
    (good.place / "changed").write_text(f"{good.address} {' '.join(other_key)}\n")
    changed = f"'-o UserKnownHostsFile={good.place}/changed -o StrictHostKeyChecking=yes -o ControlPath=none'"
    inventory = "\n".join(
        [
            good.line(),
            good.line(alias="off", ansible_host="127.0.0.1", ansible_port="1"),
            good.line(alias="password", user="careful", ansible_become_password="wrong-word"),
            good.line(alias="typo", nccl_env_profil="throughput"),
            good.line(alias="profile", preflight_profile="9x-rtx"),
            good.line(alias="key", ansible_ssh_common_args=changed),
            foreign.line(alias="alpine"),
        ]
    )
    recap = good.play("site.yml", "--tags", "preflight", variables={"report_check": False}, inventory=inventory)
    assert recap.rc != 0
    assert "Connection refused" in fatal(recap, "off")
    assert "Incorrect sudo password" in fatal(recap, "password")
    assert "nccl_env_profil: no role has such a variable (known: " in fatal(recap, "typo")
    assert "nccl_env_profile" in fatal(recap, "typo")
    assert "no host profile 9x-rtx (k25stack_profile: one of 8x-rtx-pro-6000, " in fatal(recap, "profile")
    assert "HOST IDENTIFICATION HAS CHANGED" in fatal(recap, "key")
    assert "alpine 3.20.1 is not supported (use Ubuntu 24.04, Debian 12 or Debian 13)" in fatal(recap, "alpine")
    assert "failed=0" in next(line for line in recap.text.splitlines() if line.startswith(f"{NAME} "))


def test_the_right_password_is_taken(hosts: tuple[HostTwin, HostTwin]) -> None:
    good = hosts[0]
    inventory = good.line(user="careful", ansible_become_password="right-word")
    assert good.play("site.yml", "--tags", "preflight", variables=QUIET, inventory=inventory).rc == 0


def test_broken_daemon_json_is_refused_and_left_alone(hosts: tuple[HostTwin, HostTwin]) -> None:
    good = hosts[0]
    good.sh("mkdir -p /etc/docker && printf '{\"bip\": ' >/etc/docker/daemon.json")
    variables = {**QUIET, "docker_apt_source": "", "docker_packages": [], "docker_compose_min": ""}
    recap = good.play("site.yml", "--tags", "docker", variables=variables)
    assert recap.rc == 2
    (told,) = recap.failures()
    assert told.startswith("/etc/docker/daemon.json is no JSON object: ") and told.endswith(
        "(mend it, it was left alone)"
    )
    assert good.read("/etc/docker/daemon.json") == '{"bip": '


def test_a_card_that_is_lost_and_a_small_window_are_told(hosts: tuple[HostTwin, HostTwin], tmp_path: Path) -> None:
    import planted

    good = hosts[0]
    planted.plant(good, tmp_path)
    variables = {**QUIET, **planted.VARIABLES}
    state = f"{planted.PLACE}/smi.xml"
    good.sh(f"cp {state} /root/whole.xml")
    good.sh(f"sed -i 's/<gpu id=\"00000000:E1:00.0\">/<lost>/' {state}")
    (told,) = good.play("site.yml", "--tags", "nvidia", variables=variables).failures()
    assert told == "7 cards answer, expected 8 (reseat what is missing; see dmesg for Xid 79)"
    good.sh(f"perl -0pe 's:(<bar1_memory_usage>\\s*<total>)[0-9]+:${{1}}256:' /root/whole.xml >{state}")
    (told,) = good.play("site.yml", "--tags", "pcie_p2p", variables=variables).failures()
    assert told.startswith("BAR1 of 256 MiB is smaller than the card's memory")
