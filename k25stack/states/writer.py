"""Write planned shards, each whole or not at all, and resume after a kill.

::

    plans = plan_shards(samples, meta, shard_bytes)
    writer = ShardWriter(out, meta)
    for plan in writer.missing(plans):            # what an earlier try left intact is kept
        with writer.open(plan) as shard:
            for position in plan.members:
                shard.add(Document.from_sample(samples[position], aux, last, argmax))
    manifest = writer.finish(plans)

Shards may be written by several processes at once, as long as each shard is written by one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from k25stack.errors import DamageError, HostError
from k25stack.files import read_json, sha256_file, write_json
from k25stack.model.tensorfile import Part, write_tensors
from k25stack.states.document import Document, to_fp8
from k25stack.states.manifest import (
    AUX_LAYERS,
    MANIFEST,
    SHARDS,
    STATE_TYPES,
    Manifest,
    ShardPlan,
    ShardRecord,
    StatesMeta,
    bytes_per_token,
)
from k25stack.worker import log

RECORDS = "records"  # one small file per finished shard, until the manifest takes them over


class OpenShard:
    """A shard being filled.  Documents must come in plan order; their tensors are kept, not copied, until it closes."""

    def __init__(self, plan: ShardPlan, meta: StatesMeta) -> None:
        self.plan = plan
        self.meta = meta
        self.names: list[str] = []
        self.domains: list[str] = []
        self.lengths: list[int] = []
        self.columns: dict[str, list[Tensor]] = {}

    def add(self, document: Document) -> None:
        """Take the next document of the plan.

        Raises DamageError when it is another one, when a shape is wrong or a state is not finite.
        """
        expected = self.plan.documents[len(self.names)] if len(self.names) < len(self.plan.documents) else "no more"
        if document.name != expected:
            raise DamageError(f"got document {document.name}, planned {expected}", where=self.plan.file)
        document.check(self.meta.hidden)
        self.names.append(document.name)
        self.domains.append(document.domain)
        self.lengths.append(len(document))
        self._keep("token_ids", document.token_ids.to(torch.int32))
        self._keep("argmax", document.argmax.to(torch.int32))
        if self.meta.dtype == "float8_e4m3fn":
            aux, aux_scales = to_fp8(document.aux, AUX_LAYERS)
            last, last_scales = to_fp8(document.last, 1)
            self._keep("scales", torch.cat([aux_scales, last_scales], dim=1))  # [T, 4]
        else:
            aux, last = document.aux.to(torch.bfloat16), document.last.to(torch.bfloat16)
        self._keep("aux", aux)
        self._keep("last", last)
        self._keep("loss_mask", document.loss_mask.to(torch.bool))

    def _keep(self, name: str, rows: Tensor) -> None:
        self.columns.setdefault(name, []).append(rows.detach().cpu().contiguous())

    def parts(self) -> list[Part]:
        """The tensors of the file, widest type first so that all are aligned when mapped."""
        tokens, hidden = sum(self.lengths), self.meta.hidden
        states = STATE_TYPES[self.meta.dtype][0]
        layout: list[tuple[str, str, tuple[int, ...]]] = [
            ("token_ids", "I32", (tokens,)),
            ("argmax", "I32", (tokens,)),
            ("scales", "F32", (tokens, AUX_LAYERS + 1)),
            ("aux", states, (tokens, AUX_LAYERS * hidden)),
            ("last", states, (tokens, hidden)),
            ("loss_mask", "BOOL", (tokens,)),
        ]
        offsets = torch.tensor([0, *self.lengths]).cumsum(0)
        doc_ids, domains = ("\n".join(lines).encode() for lines in (self.names, self.domains))
        return [
            Part("offsets", "I64", (len(offsets),), [_bytes(offsets)]),
            *(Part(n, t, s, map(_bytes, self.columns[n])) for n, t, s in layout if n in self.columns),
            Part("doc_ids", "U8", (len(doc_ids),), [doc_ids]),
            Part("domains", "U8", (len(domains),), [domains]),
        ]


class ShardWriter:
    """The shards of one directory; ``out`` may hold the finished ones of an earlier try."""

    def __init__(self, out: Path, meta: StatesMeta) -> None:
        self.out = out
        self.meta = meta
        (out / SHARDS).mkdir(parents=True, exist_ok=True)
        self._earlier: dict[str, ShardRecord] = {}
        if (out / MANIFEST).exists():
            self._earlier = {record.file: record for record in Manifest.read(out).shards}

    def missing(self, plans: Sequence[ShardPlan]) -> Iterator[ShardPlan]:
        """The planned shards that are absent, torn, altered or of other content, in order; each is named on stderr."""
        return (plan for plan in plans if not self.intact(plan))

    def intact(self, plan: ShardPlan) -> bool:
        """True when this shard was finished with this plan's content and its bytes still have the recorded hash."""
        path, record = self.out / plan.file, self._record(plan)
        if record is None or record.key != plan.key:
            return False
        if path.exists() and path.stat().st_size == record.bytes and sha256_file(path) == record.sha256:
            return True
        log(f"{path}: torn, altered or gone since it was written; made again")
        return False

    @contextmanager
    def open(self, plan: ShardPlan) -> Iterator[OpenShard]:
        """Fill one shard; it gets its name when the block ends without an error, and not before.

        Raises DamageError when the block did not add the plan's tokens, HostError when the disk does not take them.
        """
        shard = OpenShard(plan, self.meta)
        yield shard
        tokens = sum(shard.lengths)
        if (len(shard.names), tokens) != (len(plan.members), plan.tokens):
            what = f"{len(shard.names)} documents of {tokens} tokens, planned {len(plan.members)} of {plan.tokens}"
            raise DamageError(what, where=plan.file)
        metadata = {**self.meta.text(), "split": plan.split, "key": plan.key}
        path = self.out / plan.file
        try:
            written = write_tensors(path, shard.parts(), metadata)
        except OSError as error:
            need = plan.tokens * bytes_per_token(self.meta.hidden, self.meta.dtype) / 1e6
            remedy = f"make room: this shard takes {need:.1f} MB; run again, finished shards are kept"
            raise HostError(error.strerror or str(error), where=str(path), remedy=remedy) from None
        record = ShardRecord(
            file=plan.file,
            sha256=written.sha256,
            bytes=written.bytes,
            tokens=plan.tokens,
            response_tokens=plan.response_tokens,
            docs=len(plan.members),
            split=plan.split,
            key=plan.key,
        )
        write_json(self._record_path(plan), asdict(record))

    def finish(self, plans: Sequence[ShardPlan]) -> Manifest:
        """Write the manifest of all planned shards.  Raises DamageError naming one that was never finished."""
        records = []
        for plan in plans:
            record = self._record(plan)
            if record is None or record.key != plan.key or not (self.out / plan.file).exists():
                raise DamageError("this planned shard was not written", where=plan.file, remedy="run again")
            records.append(record)
        manifest = Manifest(self.meta, tuple(records))
        manifest.write(self.out)
        for path in (self.out / RECORDS).glob("*.json"):
            path.unlink()
        planned = {plan.file for plan in plans}
        for path in (self.out / SHARDS).iterdir():  # parts of a killed write, shards of another plan
            if path.relative_to(self.out).as_posix() not in planned:
                path.unlink()
        if (self.out / RECORDS).exists():
            (self.out / RECORDS).rmdir()
        return manifest

    def _record(self, plan: ShardPlan) -> ShardRecord | None:
        path = self._record_path(plan)
        return ShardRecord(**read_json(path)) if path.exists() else self._earlier.get(plan.file)

    def _record_path(self, plan: ShardPlan) -> Path:
        return self.out / RECORDS / f"{Path(plan.file).stem}.json"


def _bytes(rows: Tensor) -> memoryview:
    """A contiguous tensor's bytes, without a copy (numpy has no bfloat16 or float8)."""
    array: Any = rows.flatten().view(torch.uint8).numpy()
    return memoryview(array)
