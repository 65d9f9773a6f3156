"""The collecting script in the shells that hosts have, and what becomes of its answer."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k25stack.errors import HostError
from k25stack.host.collect import Target, collect, command_for, seen_of, target_of
from k25stack.host.script import build, parse
from k25stack.host.seen import ABSENT, DENIED, NOT_FOUND, TIMEOUT, Reading
from k25stack.host.sources import Source, command, file, files, paths, recording_name, shell

BOUNDARY = "k25x0123456789abcdef"
SHELLS = [["sh"], ["bash"], ["dash"], ["busybox", "ash"]]


@pytest.fixture(params=SHELLS, ids=lambda words: words[-1])
def shell_words(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    """A shell, and an environment whose programs come with it: with ash only those of busybox, as on Alpine."""
    words: list[str] = request.param
    program = shutil.which(words[0])
    if program is None:
        pytest.skip(f"no {words[0]} on this machine")
    if words[0] != "busybox":
        return [program], dict(os.environ)
    applets = tmp_path / "applets"
    applets.mkdir()
    subprocess.run([program, "--install", "-s", str(applets)], check=True)
    return [program, "ash"], {"PATH": str(applets)}


def answer(words: list[str], env: dict[str, str], sources: list[Source], limit_s: int = 5) -> list[Reading]:
    script = build(sources, BOUNDARY, limit_s, become=False)
    done = subprocess.run([*words, "-s"], input=script.encode(), capture_output=True, env=env, timeout=30, check=True)
    return list(parse(done.stdout, BOUNDARY, len(sources)).readings)


def test_every_kind_of_source_is_read(shell_words: tuple[list[str], dict[str, str]], tmp_path: Path) -> None:
    (tmp_path / "a b").write_text("one\ntwo")
    for name in ("0000:61:00.0", "0000:62:00.0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "type").write_text(f"{name}\n")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    sources = [
        file(f"{tmp_path}/a b"),
        file(f"{tmp_path}/missing"),
        files(f"{tmp_path}/*/type"),
        files(f"{tmp_path}/*/nothing"),
        paths(f"{tmp_path}/0000*"),
        paths(f"{tmp_path}/none*"),
        command("k25-no-such-program", "-x"),
        shell("three", "echo out; echo why >&2; exit 3"),
        file(f"{tmp_path}/binary"),
        command("echo", "it's", "$HOME", '"*"', "a;b"),
    ]
    found = answer(*shell_words, sources)
    assert (found[0].text.rstrip("\n"), found[0].rc) == ("one\ntwo", 0)
    assert found[1].rc == ABSENT and found[3].rc == ABSENT
    assert found[4].text.split() == [f"{tmp_path}/0000:61:00.0", f"{tmp_path}/0000:62:00.0"]
    assert (found[5].text, found[5].rc) == ("", 0)
    assert found[6].rc == NOT_FOUND
    assert (found[7].text, found[7].rc) == ("out\nwhy\n", 3)
    assert found[8].text == bytes(range(256)).decode(errors="replace")
    assert found[9].text == 'it\'s $HOME "*" a;b\n'
    seen = seen_of(sources, found)
    assert seen.group(sources[2]) == {
        f"{str(tmp_path).lstrip('/')}/{name}/type": f"{name}\n" for name in ("0000:61:00.0", "0000:62:00.0")
    }
    assert seen.lacks(sources[1]) and seen.lacks(sources[3])


def test_what_hangs_is_cut_off_and_the_rest_arrives(shell_words: tuple[list[str], dict[str, str]]) -> None:
    began = time.monotonic()
    found = answer(
        *shell_words, [command("sleep", "30"), command("echo", "here"), shell("deaf", "trap '' TERM; sleep 30")], 1
    )
    assert [reading.rc for reading in found] == [TIMEOUT, 0, TIMEOUT]
    assert found[1].text == "here\n"
    assert time.monotonic() - began < 10


def test_nothing_is_left_behind(shell_words: tuple[list[str], dict[str, str]], tmp_path: Path) -> None:
    words, env = shell_words
    before = {path.name for path in Path("/dev/shm").glob("k25.*")}
    answer(words, env, [command("echo", "x"), command("sleep", "30")], 1)
    assert {path.name for path in Path("/dev/shm").glob("k25.*")} <= before


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_told_from_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    assert answer(["sh"], dict(os.environ), [file(f"{tmp_path}/secret")])[0].rc == DENIED


def test_a_broken_connection_is_told_from_a_short_answer() -> None:
    whole = f"motd\n{BOUNDARY} begin 0\n{BOUNDARY} 0 0 3\nabc\n{BOUNDARY} end\n".encode()
    assert parse(whole, BOUNDARY, 1).readings[0] == Reading("abc", 0)
    for cut in range(len(whole) - 2):
        with pytest.raises(ValueError, match=r"broke off|something else"):
            parse(whole[:cut], BOUNDARY, 1)


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text(), max_size=4), junk=st.binary(max_size=30))
def test_sections_arrive_whatever_they_hold(texts: list[str], junk: bytes) -> None:
    stream = f"{BOUNDARY} begin 1000\n".encode()
    for index, text in reversed(list(enumerate(texts))):
        raw = text.encode(errors="surrogateescape" if text.isascii() else "replace")
        stream += f"{BOUNDARY} {index} 0 {len(raw)}\n".encode() + raw + b"\n"
    found = parse(stream + f"{BOUNDARY} end\n".encode() + junk, BOUNDARY, len(texts))
    assert not found.root
    assert [reading.text for reading in found.readings] == [text.encode(errors="replace").decode() for text in texts]


def fake_sudo(directory: Path, password: str) -> dict[str, str]:
    """A user who is not root and a sudo that knows one password; "" means none is asked for."""
    for name, text in (
        ("id", "#!/bin/sh\necho 1000\n"),
        (
            "sudo",
            "#!/bin/sh\n"
            'if [ "$1" = -n ]; then [ -z "$K25_RIGHT" ] || { echo "sudo: a password is needed" >&2; exit 1; }; shift\n'
            "else shift 3; IFS= read -r given; "
            '[ "$given" = "$K25_RIGHT" ] || { echo "sudo: 1 incorrect password attempt" >&2; exit 1; }; fi\n'
            'K25_AS_ROOT=1 exec "$@"\n',
        ),
    ):
        path = directory / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}", "K25_RIGHT": password}


@pytest.mark.parametrize(
    ("right", "given", "expected"),
    [("", "", "1"), ("geheim 'x", "geheim 'x", "1"), ("geheim", "", ""), ("geheim", "falsch", None)],
    ids=["no password needed", "right password", "no password given", "wrong password"],
)
def test_sudo_is_used_where_it_can_be(
    tmp_path: Path, right: str, given: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fake_sudo(tmp_path, right).items():
        monkeypatch.setenv(name, value)
    source = shell("who", "echo $K25_AS_ROOT")
    target = Target("gpu01", password=given)
    if expected is None:
        with pytest.raises(HostError, match="gpu01: sudo refuses the password"):
            collect(target, [source])
    else:
        assert collect(target, [source]).need(source).strip() == expected


def test_a_password_is_never_an_argument() -> None:
    target = Target("gpu01", "op@gpu01", password="geheim")
    assert "geheim" not in " ".join(command_for(target, "exec sh -s"))
    assert "geheim" not in repr(target)


@pytest.mark.parametrize("address", ["-oProxyCommand=touch /tmp/x", "a b", "host;reboot", "$(id)", "", "a\nb"])
def test_a_host_name_is_no_option_and_no_command(address: str) -> None:
    with pytest.raises(HostError, match="this is no host"):
        command_for(Target(address, address), "true")


def test_targets_are_read_as_people_write_them() -> None:
    assert target_of("local").local and target_of("localhost").local
    assert target_of("op@gpu01:2222") == Target("op@gpu01:2222", "op@gpu01", 2222)
    assert target_of("gpu01").port is None


def test_names_in_a_recording() -> None:
    assert recording_name(["nvidia-smi", "-q", "-x"]) == "nvidia-smi_-q_-x"
    assert recording_name(["nvidia-smi", "topo", "-m"]) == "nvidia-smi_topo_-m"
    assert recording_name(["lspci", "-vvv"]) == "lspci_-vvv"
    assert recording_name(["df", "-P", "/srv/a b"]) == "df_-P__srv_a_b"


def test_no_two_sources_share_a_place_and_none_leaves_the_recording() -> None:
    from k25stack.host.fleet import sources_for, widest
    from k25stack.host.profile import load_profile, profile_names

    for profile in [widest(), *(load_profile(name) for name in profile_names())]:
        places = [source.place for source in sources_for(profile, live=True)]
        assert len(set(places)) == len(places)
        assert all(place and not place.startswith("/") and ".." not in place and "{" not in place for place in places)


def test_this_machine_is_read_in_a_moment() -> None:
    """The figure (2 s) holds on a quiet machine; here only that it ends and answers."""
    from k25stack.host.fleet import sources_for, widest

    seen = collect(target_of("local"), sources_for(widest()))
    assert "MemTotal" in seen.readings["proc/meminfo"].text
