"""Shared tensors and the barrier: what one rank writes the other reads, and a dead rank is noticed."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import params, write_inputs

from k25stack.errors import K25Error
from k25stack.train import parallel
from k25stack.train.main import program
from k25stack.train.parallel import Arena, Group, LeaderGone
from k25stack.worker import Spec

LAYOUT = {"value.a": ((3, 5), torch.bfloat16), "state.a.master": ((3, 5), torch.float32), "cursor": ((4,), torch.int64)}


def pair() -> tuple[Group, Group]:
    ours, theirs = socket.socketpair()
    return Group(0, 2, [ours]), Group(1, 2, [theirs])


def test_a_second_mapping_sees_the_same_tensors() -> None:
    ours = Arena(LAYOUT)
    theirs = Arena(LAYOUT, ours.handle)
    assert not any(bool(t.any()) for t in ours.tensors.values())
    ours["state.a.master"].copy_(torch.arange(15.0).view(3, 5))
    theirs["cursor"][2] = 7
    assert torch.equal(theirs["state.a.master"], torch.arange(15.0).view(3, 5)) and int(ours["cursor"][2]) == 7
    assert set(ours.prefixed("state.")) == {"a.master"}
    assert all(tensor.data_ptr() % parallel.ALIGNMENT == 0 for tensor in ours.tensors.values())


def test_in_place_changes_are_counted_tensor_by_tensor() -> None:
    """Autograd must not take a new gradient for a change of the weights beside it."""
    arena = Arena(LAYOUT)
    before = arena["value.a"]._version
    arena["state.a.master"].fill_(1.0)
    assert arena["value.a"]._version == before


def test_nobody_passes_the_barrier_alone() -> None:
    leader, other = pair()
    order: list[str] = []

    def follow() -> None:
        order.append("other comes")
        other.barrier()
        other.barrier()

    thread = threading.Thread(target=follow)
    thread.start()
    leader.barrier()
    order.append("leader passes")
    assert order == ["other comes", "leader passes"]
    leader.barrier()
    thread.join()


def test_a_dead_rank_ends_the_others() -> None:
    leader, other = pair()
    other.peers[0].close()
    with pytest.raises(K25Error, match="rank 1 ended early"):
        leader.barrier()
    leader, other = pair()
    leader.peers[0].close()
    with pytest.raises((LeaderGone, BrokenPipeError)):
        other.barrier()


def test_an_error_in_rank_0_ends_the_children(tmp_path: Path, tiny_target_dir: Path, monkeypatch: Any) -> None:
    inputs = write_inputs(tmp_path, tiny_target_dir, {"train": 3, "validation": 1, "held_out": 1})
    started: list[Any] = []
    begin = parallel.subprocess.Popen

    def noted(*args: Any, **kwargs: Any) -> Any:
        started.append(begin(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(parallel.subprocess, "Popen", noted)
    changes = params(processes=2, optimizer={"kind": "adamw", "lr": 1e30, "clip_norm": 1e30})
    (tmp_path / "out").mkdir()
    with pytest.raises(K25Error, match="not finite"):
        program(Spec(changes, {name: Path(path) for name, path in inputs.items()}, tmp_path / "out", 2))
    assert len(started) == 1 and started[0].poll() is not None
