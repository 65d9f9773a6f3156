"""Several processes on one machine that train as one: shared memory and a barrier.

Why not threads: two processes of one thread each do the same products without waiting for each other at every
operation.  Why not a collective library: the weights live in memory that all ranks map, so a gradient is exchanged by
being read, and the only message is "I am here".  A rank that dies closes its socket, which ends the others at their
next barrier instead of leaving them waiting.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from k25stack.errors import K25Error


class LeaderGone(K25Error):
    """Rank 0 ended before this rank was done; it has said why."""


Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
ALIGNMENT = 64


class Arena:
    """Zeroed tensors in one piece of memory that child processes can map too; on a GPU, plain tensors there."""

    def __init__(self, layout: Layout, handle: int | None = None, device: str = "cpu") -> None:
        self.handle = -1
        self.tensors: dict[str, Tensor] = {}
        if device != "cpu":
            self.tensors = {name: torch.zeros(s, dtype=d, device=device) for name, (s, d) in layout.items()}
            return
        places, size = {}, 0
        for name, (shape, dtype) in layout.items():
            places[name] = size
            size += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self.handle = os.memfd_create("k25stack-train") if handle is None else handle
        if handle is None:
            os.ftruncate(self.handle, max(size, ALIGNMENT))
        self.memory = mmap.mmap(self.handle, max(size, ALIGNMENT))
        # Each tensor is made on its own: views of one tensor would share autograd's count of in-place changes.
        for name, (shape, dtype) in layout.items():
            count = math.prod(shape)
            flat = torch.frombuffer(self.memory, dtype=dtype, count=count, offset=places[name])
            self.tensors[name] = flat.view(shape)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def prefixed(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose name starts with ``prefix``, under the rest of their name."""
        return {name[len(prefix) :]: t for name, t in self.tensors.items() if name.startswith(prefix)}


@dataclass
class Group:
    """This process among the ranks.  Rank 0 holds a socket to every other rank, the others one to rank 0."""

    rank: int = 0
    world: int = 1
    peers: list[socket.socket] = field(default_factory=list)

    def barrier(self) -> None:
        """Return when all ranks have come here.  Raises K25Error when one of them is gone."""
        if self.rank:
            self.peers[0].sendall(b"+")
            self._expect(0, self.peers[0])
            return
        for number, peer in enumerate(self.peers, start=1):
            self._expect(number, peer)
        for peer in self.peers:
            peer.sendall(b"+")

    def _expect(self, number: int, peer: socket.socket) -> None:
        try:
            answer = peer.recv(1)
        except ConnectionError:
            answer = b""
        if not answer:
            remedy = "its own message says why; run again to go on"
            kind = K25Error if number else LeaderGone
            raise kind(f"rank {number} ended early", where="train", remedy=remedy)


@contextmanager
def launched(
    job: Mapping[str, Any], layout: Layout, world: int, threads: int, device: str
) -> Iterator[tuple[Group, Arena]]:
    """Rank 0 of a group whose other ranks are started here with ``job`` and ended with the block."""
    arena = Arena(layout, device=device)
    peers: list[socket.socket] = []
    children: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(1, world):
            ours, theirs = socket.socketpair()
            argv = [sys.executable, "-m", "k25stack.train.rank", str(rank), str(world)]
            handles = (arena.handle, theirs.fileno())
            environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            children.append(subprocess.Popen([*argv, *map(str, handles)], pass_fds=handles, env=environment))
            theirs.close()
            text = json.dumps(dict(job)).encode()
            ours.sendall(len(text).to_bytes(8, "little") + text)
            peers.append(ours)
        yield Group(0, world, peers), arena
        for number, child in enumerate(children, start=1):
            if code := child.wait():
                raise K25Error(f"rank {number} ended with exit {code}", where="train", remedy="see its message above")
    finally:
        for peer in peers:
            peer.close()
        for child in children:
            if child.poll() is None:
                child.terminate()
            child.wait()


def joined(arguments: list[str]) -> tuple[Group, dict[str, Any], int]:
    """In a child: its group, the job it got, and the handle of the arena."""
    rank, world, handle, number = map(int, arguments)
    peer = socket.socket(fileno=number)
    size = int.from_bytes(receive(peer, 8), "little")
    return Group(rank, world, [peer]), json.loads(receive(peer, size)), handle


def receive(peer: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes.  Raises K25Error when the other side closes before."""
    parts = b""
    while len(parts) < size:
        piece = peer.recv(size - len(parts))
        if not piece:
            raise LeaderGone("rank 0 ended early", where="train")
        parts += piece
    return parts
