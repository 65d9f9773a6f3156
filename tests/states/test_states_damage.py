"""A kill, a torn file, a flipped byte: found, named, and redone alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_row import Row
from shard_rows import HIDDEN, document, meta, write

from k25stack.errors import DamageError, HostError, UsageError
from k25stack.states.manifest import Manifest, bytes_per_token, plan_shards
from k25stack.states.reader import open_states
from k25stack.states.verify import verify
from k25stack.states.writer import ShardWriter

SHARD = "shards/00001.safetensors"


def hashes(directory: Path) -> list[str]:
    return [shard.sha256 for shard in Manifest.read(directory).shards]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_altered_byte_or_length_names_its_shard(states_dir: Path, data: st.DataObject) -> None:
    path = states_dir / SHARD
    whole = path.read_bytes()
    try:
        if data.draw(st.booleans(), label="truncate"):
            path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1), label="size")])
        else:
            place = data.draw(st.integers(0, len(whole) - 1), label="place")
            flipped = whole[place] ^ data.draw(st.integers(1, 255), label="bits")
            path.write_bytes(whole[:place] + bytes([flipped]) + whole[place + 1 :])
        assert {damage.file for damage in verify(states_dir)} == {SHARD}
        with pytest.raises(DamageError, match=SHARD):
            open_states(states_dir, check_hashes=True)
    finally:
        path.write_bytes(whole)
    assert verify(states_dir) == []


def pickled(path: Path) -> None:
    torch.save({"aux": torch.zeros(3)}, path)


def lying(path: Path) -> None:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["aux"]["shape"][0] += 1
    text = json.dumps(header, separators=(",", ":")).encode().ljust(length)
    path.write_bytes(raw[:8] + text + raw[8 + length :])


def other_width(path: Path) -> None:
    directory = path.parent.parent / "wide"
    wide = meta(hidden=HIDDEN * 2)
    sample = Row("train0001", 1, "domain1", "train", [1] * 9, [2] * 4)
    plans = plan_shards([sample], wide, 1 << 20)
    writer = ShardWriter(directory, wide)
    with writer.open(plans[0]) as shard:
        shard.add(document(sample, hidden=HIDDEN * 2))
    (directory / plans[0].file).replace(path)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda p: p.unlink(), "missing"),
        (lambda p: p.write_bytes(b""), "truncated: 0 bytes"),
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), "truncated"),
        (lambda p: p.write_bytes(p.read_bytes() + b"\0"), "longer than its header says"),
        (lambda p: p.write_bytes(b"\x80\x04" + bytes(200)), "a pickle"),
        (pickled, r"a zip archive \(torch.save"),
        (lying, "wrong header: aux says BF16"),
        (other_width, r"aux is BF16 \[13, 48\], the manifest says BF16 \[13, 24\]"),
    ],
)
def test_structural_damage_is_named_without_reading_the_data(states_dir: Path, harm: object, message: str) -> None:
    assert callable(harm)
    harm(states_dir / SHARD)
    found = verify(states_dir, hashes=False)
    assert [damage.file for damage in found if damage.what != "not in the manifest"] == [SHARD]
    assert re.search(message, found[0].what)
    with pytest.raises(DamageError, match=r"00001\.safetensors"):
        list(open_states(states_dir).documents())


def test_a_file_that_is_no_shard_is_refused(states_dir: Path) -> None:
    pickled(states_dir / "shards" / "extra.pt")
    assert [(d.file, d.what) for d in verify(states_dir)] == [("shards/extra.pt", "not in the manifest")]
    manifest = json.loads((states_dir / "manifest.json").read_text())
    manifest["shards"][0]["file"] = "shards/extra.pt"
    (states_dir / "manifest.json").write_text(json.dumps(manifest))
    assert "not the name of a safetensors file" in verify(states_dir)[0].what
    with pytest.raises(DamageError, match=r"extra\.pt"):
        list(open_states(states_dir).documents())


def test_a_damaged_shard_is_redone_alone(
    states_dir: Path, samples: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    before = hashes(states_dir)
    kept = {p.name: p.stat().st_ino for p in (states_dir / "shards").iterdir()}
    path = states_dir / SHARD
    path.write_bytes(path.read_bytes()[:-7])
    write(states_dir, samples)
    assert hashes(states_dir) == before
    changed = {p.name for p in (states_dir / "shards").iterdir() if p.stat().st_ino != kept[p.name]}
    assert changed == {path.name}
    assert f"{SHARD}: torn, altered or gone" in capsys.readouterr().err
    assert verify(states_dir) == []


def test_other_content_in_the_same_place_is_not_taken_for_finished(states_dir: Path, samples: list[Row]) -> None:
    before = hashes(states_dir)
    first = samples[0]
    samples[0] = Row(first.doc_id, first.turn, first.domain, first.split, [9, 9, 9], first.response_ids)
    write(states_dir, samples)
    assert [a == b for a, b in zip(before, hashes(states_dir), strict=True)] == [False, True, True, True, True, True]


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from shard_rows import HIDDEN, document, meta, rows
from k25stack.states.manifest import bytes_per_token, plan_shards
from k25stack.states.writer import ShardWriter
samples = [*rows([(3, 5), (9, 4), (2, 12), (1, 1), (6, 0), (4, 9)]), *rows([(3, 8), (5, 6)], "held_out")]
plans = plan_shards(samples, meta(), 20 * bytes_per_token(HIDDEN))
writer = ShardWriter(Path(sys.argv[1]), meta())
for plan in writer.missing(plans):
    with writer.open(plan) as shard:
        for position in plan.members:
            shard.add(document(samples[position]))
        if plan is plans[3]:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kill_9_loses_the_running_shard_only(tmp_path: Path, samples: list[Row], states_dir: Path) -> None:
    out = tmp_path / "killed"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", KILLED, str(out)], env=environment, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    finished = {p.name: p.stat().st_ino for p in (out / "shards").glob("*.safetensors")}
    assert sorted(finished) == ["00000.safetensors", "00001.safetensors", "00002.safetensors"]
    with pytest.raises(UsageError, match=r"no manifest\.json"):
        open_states(out)
    (out / "shards" / ".00003.safetensors.abc.part").write_bytes(b"half")
    write(out, samples)
    assert hashes(out) == hashes(states_dir)
    assert all((out / "shards" / name).stat().st_ino == inode for name, inode in finished.items())
    assert sorted(p.name for p in out.iterdir()) == ["manifest.json", "shards"]
    assert verify(out) == []


def test_a_full_disk_leaves_no_shard(tmp_path: Path, samples: list[Row]) -> None:
    """A file size limit stands in for the full disk: the same failed write, without a mount."""
    import resource

    plans = plan_shards(samples, meta(), 20 * bytes_per_token(HIDDEN))
    writer = ShardWriter(tmp_path, meta())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))
    try:
        with (
            pytest.raises(
                HostError, match=r"00000\.safetensors: File too large \(make room: .* finished shards are kept"
            ),
            writer.open(plans[0]) as shard,
        ):
            shard.add(document(samples[0]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert not list((tmp_path / "shards").iterdir())


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 1}', "\x00\x01", '{"schema": 1, "meta": {}, "shards": [{}]}'])
def test_a_manifest_that_is_none_is_one_line(states_dir: Path, text: str) -> None:
    (states_dir / "manifest.json").write_text(text)
    with pytest.raises(DamageError, match="not a shard manifest: ") as caught:
        verify(states_dir)
    assert "Error" not in str(caught.value), "in words, not as Python's exception"
