"""``host up`` and ``host reset``: playbooks run for real on this machine, by host and role."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from k25stack.cli.main import main
from k25stack.errors import UsageError
from k25stack.host.inventory import without_faults
from k25stack.host.play import Watcher
from k25stack.host.playbook import Order, Run, run_playbook

pytest.importorskip("ansible_runner", reason="no ansible-runner")

ROLE = """
- name: Write a file
  ansible.builtin.copy: {content: "hello {{ inventory_hostname }}\\n", dest: "{{ place }}/{{ inventory_hostname }}", mode: "0644"}
- name: Say what this target could not show
  ansible.builtin.debug: {msg: ["no card here", "reboot required: kernel arguments"]}
- name: Keep a secret
  ansible.builtin.copy: {content: "hunter2\\n", dest: "{{ place }}/{{ inventory_hostname }}.secret", mode: "0600"}
  no_log: true
- name: Refuse bad hosts
  ansible.builtin.assert: {that: "inventory_hostname != 'bad'", fail_msg: "{{ inventory_hostname }} is bad (mend it)", quiet: true}
"""  # noqa: E501
HOSTS = f"""
[gpu]
good ansible_connection=local
bad ansible_connection=local
typo ansible_connection=local ansible_hots=x
broken ansible_connection local
dead ansible_host=127.0.0.1 ansible_port=1
[gpu:vars]
ansible_python_interpreter={sys.executable}
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A playbook of one role, an inventory of five hosts, and an empty directory to write to."""
    tasks = tmp_path / "roles" / "one" / "tasks"
    tasks.mkdir(parents=True)
    (tasks / "main.yml").write_text(ROLE)
    (tmp_path / "out").mkdir()
    play = {"name": "Tiny", "hosts": "all", "gather_facts": False, "vars": {"place": str(tmp_path / "out")}}
    (tmp_path / "site.yml").write_text(json.dumps([{**play, "roles": [{"role": "one", "tags": ["one"]}]}]))
    (tmp_path / "hosts.ini").write_text(HOSTS)
    return tmp_path


def order(work: Path, **changes: object) -> Order:
    return Order(work / "site.yml", work / "hosts.ini", **changes)  # type: ignore[arg-type]


def by_name(run: Run) -> dict[str, str]:
    return {host.name: host.summary() for host in run.hosts}


@pytest.mark.twins
def test_up_goes_on_past_bad_hosts_and_changes_nothing_the_second_time(work: Path) -> None:
    told: list[str] = []
    shown = run_playbook(order(work, check=True), told.append)
    assert not list((work / "out").iterdir())
    (change,) = next(host for host in shown.hosts if host.name == "good").changes  # a secret one is only counted
    assert (change.role, change.task) == ("one", "Write a file") and "+hello good" in change.diff
    assert change.diff[0] == f"--- {work}/out/good (before)"
    assert "one: Write a file" in told and "  would change: good" in told
    first = run_playbook(order(work))
    summaries = by_name(first)
    assert summaries["good"] == "good: 4 ok, 2 changed, 0 skipped"
    assert "one: Refuse bad hosts: bad is bad (mend it)" in summaries["bad"]
    assert "unknown variable ansible_hots (did you mean ansible_host?)" in summaries["typo"]
    assert "local is no name=value" in summaries["broken"]
    assert "connection refused" in summaries["dead"]
    assert first.exit_code == 3
    assert [host.failure is not None for host in first.hosts] == [False, True, True, True, True]
    assert (work / "out" / "good").read_text() == "hello good\n"
    second = run_playbook(order(work, limit="good"))
    assert [(host.name, host.changed) for host in second.hosts] == [("good", 0)] and second.exit_code == 0
    assert next(iter(second.hosts)).notes == ["no card here", "reboot required: kernel arguments"]
    failed = run_playbook(order(work, limit="bad"))
    assert failed.exit_code == 1


@pytest.mark.twins
def test_the_command(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["host", "up", str(work / "hosts.ini"), "--playbook", str(work / "site.yml"), "--limit", "good"]
    assert main([*words, "-n"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("one\n  Write a file  [good]\n") and "hunter2" not in told.out + told.err
    assert told.err.splitlines()[-1].startswith("Next: k25stack host up ")
    assert main([*words, "-y", "--json", "--tags", "one"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert found["exit_code"] == 0 and [host["host"] for host in found["hosts"]] == ["good"]
    assert "reboot the hosts" in told.err.splitlines()[-1]
    for more, says in (
        (["--limit", "nobody"], "no host matches nobody"),
        (["--playbook", str(work / "none.yml")], "no such playbook"),
    ):
        assert main([*words, "-y", *more]) == 2
        assert says in capsys.readouterr().err


def test_no_run_without_a_yes(work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []
    monkeypatch.setattr("typer.confirm", lambda text, **more: asked.append(text) or False)
    assert main(["host", "reset", str(work / "hosts.ini")]) == 1
    assert "3 hosts (good, bad, dead)" in asked[0] and "nothing was done" in capsys.readouterr().err


def test_a_broken_inventory_or_playbook_is_one_line(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host", "up", str(work / "none.ini"), "-y"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (work / "hosts.ini").write_text("[gpu\n")
    with pytest.raises(UsageError, match=r"hosts.ini:1: no section"):
        run_playbook(order(work))
    (work / "hosts.ini").write_text("typo ansible_hots=x\n")
    run = run_playbook(order(work))
    assert run.exit_code == 3 and [host.verdict for host in run.hosts] == ["unreached"]


def test_faulty_lines_become_comments_and_nothing_else_changes() -> None:
    text = "[gpu]\ngood a=1\nbad word\n# note it\n[gpu:vars]\nx y = 1\n[other]\nplain\n"
    assert without_faults(text) == text.replace("bad word", "# bad word")


@pytest.mark.parametrize(
    ("said", "unreached", "what", "remedy"),
    [
        ("Failed to connect via ssh: Host key verification failed.", True, "host key is not known", "ssh gpu01"),
        ("... REMOTE HOST IDENTIFICATION HAS CHANGED! ...", True, "host key has changed", "ssh-keygen -R gpu01"),
        ("Task failed: Incorrect sudo password", False, "sudo refuses the password", "K25_BECOME_PASSWORD"),
        ("Missing sudo password", False, "sudo refuses the password", "K25_BECOME_PASSWORD"),
        ("no room for the images (free space)", False, "no room for the images (free space)", ""),
        ("odd", False, "odd", "--limit gpu01"),
    ],
)  # fmt: skip
def test_failures_say_what_to_do(said: str, unreached: bool, what: str, remedy: str) -> None:
    watcher = Watcher(lambda line: None, check=False)
    kind = "runner_on_unreachable" if unreached else "runner_on_failed"
    data = {"host": "gpu01", "task": "Do it", "role": "base", "res": {"msg": said}}
    watcher.event({"event": kind, "event_data": data})
    (host,) = watcher.hosts.values()
    assert host.failure is not None and what in host.failure.what and remedy in host.failure.remedy
    assert host.unreached is (unreached or "sudo" in what)


def test_of_a_loop_the_failed_item_speaks_and_a_rescued_failure_is_none() -> None:
    watcher = Watcher(lambda line: None, check=False)
    items = [{"changed": True}, {"failed": True, "msg": "non-zero return code", "rc": 2, "stderr": "a\nno such disk"}]
    data = {
        "host": "gpu01",
        "task": "Mount",
        "role": "base",
        "res": {"msg": "One or more items failed", "results": items},
    }
    watcher.event({"event": "runner_on_failed", "event_data": data})
    host = watcher.hosts["gpu01"]
    assert host.failure is not None and host.failure.what == "exit 2: no such disk"
    watcher.event({"event": "playbook_on_stats", "event_data": {"ok": {"gpu01": 3}, "rescued": {"gpu01": 1}}})
    assert host.failure is None and host.ok == 3


@pytest.mark.twins
def test_an_interrupt_ends_the_run_and_leaves_no_password_behind(work: Path) -> None:
    (work / "site.yml").write_text(
        json.dumps([{"name": "Slow", "hosts": "all", "gather_facts": False, "tasks": [
            {"name": "Wait", "ansible.builtin.raw": f"echo $$ > {work}/pid; exec sleep 300"}]}])
    )  # fmt: skip
    before = set(Path("/dev/shm").glob("k25-ansible-*"))
    words = ["host", "up", str(work / "hosts.ini"), "--playbook", str(work / "site.yml"), "--limit", "good", "-y"]
    command = subprocess.Popen(
        [sys.executable, "-m", "k25stack", *words],
        env={**os.environ, "K25_BECOME_PASSWORD": "hunter2"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (work / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (work / "pid").exists()
    command.send_signal(signal.SIGHUP)  # a lost terminal
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=120)
    assert command.returncode == 130 and "what is done stays done" in err.splitlines()[-1], err
    assert "hunter2" not in out + err and set(Path("/dev/shm").glob("k25-ansible-*")) <= before
