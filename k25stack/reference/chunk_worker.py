"""What a child of the regeneration does: load the target once, then answer one chunk after the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from k25stack import __version__
from k25stack.files import sha256_file
from k25stack.model.tokenizer import Tokenizer
from k25stack.reference.answer import Answer, Ask, Batch
from k25stack.reference.chunks import Chunk, Setup
from k25stack.reference.exact import shape_exact
from k25stack.reference.parts import PARTS, ChunkRecord, RecordedPart
from k25stack.reference.pool import Report
from k25stack.reference.recording import Recording, write_part
from k25stack.reference.sampling import Sampling
from k25stack.reference.target import Target
from k25stack.train.memory import keep_freed_memory
from k25stack.train.samples import Prompt, Sample, write_records

ENGINE = "k25stack-reference"


def make_worker(setup: Setup) -> ChunkWorker:
    """Load target and tokenizer; the result answers chunks and leaves their part files."""
    torch.set_num_threads(1)
    keep_freed_memory()
    return ChunkWorker(setup)


class ChunkWorker:
    """Target and tokenizer in memory, and a batch that several chunks share.

    A chunk's slots that become free are taken by the next chunk where a row's bits do not depend on what else is in
    the batch; elsewhere chunks are answered one by one, so that each has the same bytes in any run.
    """

    def __init__(self, setup: Setup) -> None:
        self.settings = settings = setup.settings
        self.out = Path(setup.out)
        self.tokenizer = Tokenizer.load(Path(setup.target))
        self.target = Target.load(Path(setup.target))
        self.shares = shape_exact(self.target)
        self.batch = Batch(self.target, settings.slots, self.tokenizer.eos_ids, settings.record)
        self.open: list[tuple[Chunk, list[Document]]] = []
        self.progress: Report = lambda count: None

    def begin(self, chunk: Chunk, progress: Report) -> None:
        """Let the chunk's prompts wait for slots, long ones first."""
        documents = [Document(self, prompt) for prompt in chunk.prompts]
        ordered = sorted(documents, key=lambda document: -len(document.asks[0].prompt))
        self.batch.add([d.asks[0] for d in ordered], lambda index, answers: ordered[index].follow(answers))
        self.open.append((chunk, documents))
        self.progress = progress

    def hungry(self) -> bool:
        free = not self.batch.waiting and len(self.batch.running) < self.batch.slots
        return free if self.shares else not self.open

    def busy(self) -> bool:
        return bool(self.open)

    def advance(self) -> list[tuple[Chunk, None]]:
        """One step of the batch; chunks whose documents are all answered are written."""
        self.batch.refill()
        finished = self.batch.step()
        if not finished:
            return []
        self.progress(finished)
        complete = [entry for entry in self.open if all(document.complete for document in entry[1])]
        self.open = [entry for entry in self.open if entry not in complete]
        for chunk, documents in complete:
            self._write(chunk, [turn for document in documents for turn in document.turns()])
        return [(chunk, None) for chunk, _ in complete]

    def _write(self, chunk: Chunk, turns: Sequence[tuple[Sample, Answer]]) -> None:
        """The files of a chunk, the record last."""
        file = f"{chunk.part}.jsonl"
        write_records(self.out / PARTS / file, [sample for sample, _ in turns])
        files = {file: sha256_file(self.out / PARTS / file)}
        recorded = self._record(chunk, turns)
        if recorded is not None:
            files[Path(recorded.file).name] = recorded.sha256
        ChunkRecord(chunk.key, files, recorded).write(self.out / PARTS / f"{chunk.part}.json")

    def ask(self, prompt: Prompt, said: Sequence[str]) -> Ask:
        """A prompt's next turn as token ids, with the target's own answers ``said`` in between."""
        settings = self.settings
        ids = settings.prompt_ids(self.tokenizer, prompt, said)
        mode = settings.mode(prompt)
        room = min(mode.max_new_tokens, settings.context - len(ids))
        sampling = Sampling(mode.temperature, mode.top_p, max(0, mode.top_k))
        return Ask(ids, room, sampling, settings.draw_seed(prompt, len(said)))

    def sample(self, prompt: Prompt, turn: int, ask: Ask, reply: Answer) -> Sample:
        decode: dict[str, Any] = self.settings.mode(prompt).as_dict()
        return Sample(
            doc_id=prompt.doc_id,
            turn=turn,
            question_id=prompt.question_id,
            domain=prompt.domain,
            split=prompt.split,
            prompt_ids=ask.prompt,
            response_ids=reply.tokens,
            finish=reply.finish,
            decode=decode,
            template_hash=self.settings.template_hash,
            target_revision=self.settings.target_revision,
            engine=ENGINE,
            engine_version=__version__,
        )

    def _record(self, chunk: Chunk, turns: Sequence[tuple[Sample, Answer]]) -> RecordedPart | None:
        recordings: list[Recording] = [reply.recording for _, reply in turns if reply.recording is not None]
        if not recordings:
            return None
        names = [sample.name for sample, _ in turns]
        return write_part(self.out, f"{PARTS}/{chunk.part}.safetensors", names, recordings)


class Document:
    """What was asked and what was answered, turn by turn."""

    def __init__(self, worker: ChunkWorker, prompt: Prompt) -> None:
        self.worker, self.prompt = worker, prompt
        self.asks = [worker.ask(prompt, ())]
        self.answers: list[Answer] = []
        self.said: list[str] = []

    @property
    def complete(self) -> bool:
        return len(self.answers) == len(self.prompt.turns)

    def follow(self, answers: list[Answer]) -> Ask | None:
        """The next turn after these answers; None after the last."""
        self.answers = answers
        if self.complete:
            return None
        self.said.append(self.worker.tokenizer.decode(answers[-1].tokens))
        self.asks.append(self.worker.ask(self.prompt, self.said))
        return self.asks[-1]

    def turns(self) -> list[tuple[Sample, Answer]]:
        pairs = enumerate(zip(self.asks, self.answers, strict=True))
        return [(self.worker.sample(self.prompt, turn, ask, reply), reply) for turn, (ask, reply) in pairs]
