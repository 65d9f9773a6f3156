"""Hosts over real SSH: a server of our own on this machine's loopback (needs openssh-server and root)."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from k25stack.errors import HostError
from k25stack.host.collect import Target, collect
from k25stack.host.fleet import check_many, check_one, exit_code
from k25stack.host.inventory import read_inventory
from k25stack.host.places import MEMINFO, UNAME
from k25stack.host.profile import load_profile
from k25stack.host.sources import shell

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
WHY = (
    "no openssh-server"
    if SSHD is None
    else "no ssh"
    if shutil.which("ssh") is None
    else "not root"
    if os.getuid()
    else ""
)
pytestmark = [pytest.mark.twins, pytest.mark.skipif(bool(WHY), reason=WHY)]


@dataclass(frozen=True)
class Server:
    port: int
    directory: Path

    @property
    def options(self) -> tuple[str, ...]:
        return ("-o", f"UserKnownHostsFile={self.directory}/known", "-o", "IdentitiesOnly=yes", "-F", "none")

    def target(self, name: str = "gpu01", **changes: object) -> Target:
        fields: dict[str, object] = {
            "address": f"{getpass.getuser()}@127.0.0.1",
            "port": self.port,
            "key": f"{self.directory}/key",
            "options": self.options,
        }
        return Target(name, **{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    assert SSHD is not None
    directory = tmp_path_factory.mktemp("sshd")
    directory.chmod(0o700)
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (directory / "config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {directory}/host\nAuthorizedKeysFile {directory}/key.pub\n"
        "StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin prohibit-password\nMaxStartups 100\nMaxSessions 100\n"
        "SetEnv SHLVL=2\n"  # bash then leaves out ~/.bashrc, whose cost on this machine is not ours
    )
    key = (directory / "host.pub").read_text().split()
    (directory / "known").write_text(f"[127.0.0.1]:{port} {key[0]} {key[1]}\n")
    daemon = subprocess.Popen([SSHD, "-D", "-e", "-f", str(directory / "config")], stderr=subprocess.PIPE, text=True)
    assert daemon.stderr is not None
    while "Server listening" not in (line := daemon.stderr.readline()):
        assert line, "sshd did not start"
    yield Server(port, directory)
    daemon.terminate()
    daemon.wait(10)


def test_a_host_is_read_in_one_session(server: Server) -> None:
    seen = collect(server.target(), [UNAME, MEMINFO, shell("connection", "echo $SSH_CONNECTION")])
    assert seen.need(UNAME).strip() == os.uname().release
    assert "127.0.0.1" in seen.readings["cmd/connection"].text
    assert "MemTotal" in seen.need(MEMINFO)


def test_a_whole_check_over_ssh_is_that_of_this_machine(server: Server) -> None:
    remote, local = (check_one(target, load_profile("cpu")) for target in (server.target(), Target("local")))
    assert remote.error is None, remote.error
    verdicts = [{check["id"]: check["verdict"] for check in one.result["checks"]} for one in (remote, local)]
    assert verdicts[0] == verdicts[1]


def test_what_goes_wrong_is_one_line(server: Server, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(wrong)], check=True)
    changed = tmp_path / "known"
    changed.write_text(f"[127.0.0.1]:{server.port} {' '.join((tmp_path / 'wrong_key.pub').read_text().split()[:2])}\n")
    options = ("-o", "IdentitiesOnly=yes", "-F", "none", "-o")
    for target, says in (
        (server.target(key=str(wrong)), "login refused"),
        (server.target(options=(*options, f"UserKnownHostsFile={changed}")), "host key has changed"),
        (server.target(options=(*options, f"UserKnownHostsFile={tmp_path}/none")), "host key is not known"),
        (server.target(port=1), "connection refused"),
        (server.target(address="no-such-host.invalid"), "no such host name"),
    ):
        with pytest.raises(HostError, match=says) as error:
            collect(target, [UNAME])
        assert str(error.value).startswith("gpu01: ") and "\n" not in str(error.value)
        assert error.value.remedy


def test_many_hosts_take_the_time_of_the_slowest(server: Server, tmp_path: Path) -> None:
    """20 hosts, each of which needs a second for one of its sources."""
    source = shell("slow", "sleep 1")
    began = time.monotonic()
    for _ in range(2):
        collect(server.target(), [source])
    one_by_one = (time.monotonic() - began) / 2

    from concurrent.futures import ThreadPoolExecutor

    began = time.monotonic()
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda number: collect(server.target(f"gpu{number:02}"), [source]), range(20)))
    assert time.monotonic() - began < 0.5 * 20 * one_by_one


def test_the_rest_goes_on_when_some_hosts_fail(server: Server, tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.ini"
    common = f"-o UserKnownHostsFile={server.directory}/known -o IdentitiesOnly=yes -F none"
    inventory.write_text(
        f"[gpu]\ngood1 ansible_port={server.port}\nrefused ansible_port=1\ntypo ansible_hots=x\n"
        f"profile ansible_port={server.port} k25stack_profile=8x-rtx-pro-600\ngood2 ansible_port={server.port}\n"
        f"[gpu:vars]\nansible_host=127.0.0.1\nansible_user={getpass.getuser()}\n"
        f"ansible_ssh_private_key_file={server.directory}/key\nansible_ssh_common_args='{common}'\n"
    )
    outcomes = check_many(read_inventory(inventory), load_profile("cpu"), record=tmp_path / "rec")
    assert [outcome.error is None for outcome in outcomes] == [True, False, False, False, True]
    told = [str(outcome.error) for outcome in outcomes if outcome.error]
    assert ["refused: connection refused" in told[0], "ansible_host" in told[1], "8x-rtx-pro-6000" in told[2]] == [
        True
    ] * 3
    assert exit_code(outcomes) == 3
    assert sorted(path.name for path in (tmp_path / "rec").iterdir()) == ["good1", "good2"]
