"""What a child of the regeneration does: load the target once, then answer one chunk after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from k25stack import __version__
from k25stack.files import sha256_file
from k25stack.model.tokenizer import Tokenizer
from k25stack.reference.answer import Answer, Ask, answer
from k25stack.reference.chunks import Chunk, Setup
from k25stack.reference.parts import PARTS, ChunkRecord, RecordedPart
from k25stack.reference.recording import Recording, write_part
from k25stack.reference.sampling import Sampling
from k25stack.reference.target import Target
from k25stack.train.samples import Prompt, Sample, read_samples, write_records

ENGINE = "k25stack-reference"


def make_worker(setup: Setup) -> Callable[[Chunk, Callable[[int], None]], None]:
    """Load target and tokenizer; the result answers a chunk and leaves its part files."""
    torch.set_num_threads(1)
    worker = ChunkWorker(setup)
    return worker.run


class ChunkWorker:
    """Target and tokenizer in memory."""

    def __init__(self, setup: Setup) -> None:
        self.settings = setup.settings
        self.out = Path(setup.out)
        self.tokenizer = Tokenizer.load(Path(setup.target))
        self.target = Target.load(Path(setup.target))

    def run(self, chunk: Chunk, progress: Callable[[int], None]) -> None:
        """Answer every prompt of the chunk and write its files, the record last."""
        settings = self.settings
        asks = self._asks(chunk)
        order = sorted(range(len(asks)), key=lambda i: -len(asks[i].prompt))  # long prompts first
        found = answer(
            self.target,
            [asks[i] for i in order],
            slots=settings.slots,
            stop_ids=self.tokenizer.eos_ids,
            layers=settings.record,
            done=progress,
        )
        answers = [reply for _, reply in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]
        samples = [
            self._sample(chunk, prompt, ask, reply)
            for prompt, ask, reply in zip(chunk.prompts, asks, answers, strict=True)
        ]
        file = f"{chunk.part()}.jsonl"
        write_records(self.out / PARTS / file, samples)
        files = {file: sha256_file(self.out / PARTS / file)}
        recorded = self._record(chunk, samples, answers)
        if recorded is not None:
            files[Path(recorded.file).name] = recorded.sha256
        ChunkRecord(chunk.key, files, recorded).write(self.out / PARTS / f"{chunk.part()}.json")

    def _asks(self, chunk: Chunk) -> list[Ask]:
        """The chunk's prompts as token ids, with the target's own earlier answers in between."""
        settings = self.settings
        said: dict[str, list[str]] = {prompt.doc_id: [] for prompt in chunk.prompts}
        for turn in range(chunk.turn):
            for sample in read_samples(self.out / PARTS / f"{chunk.part(turn)}.jsonl"):
                if sample.doc_id in said:
                    said[sample.doc_id].append(self.tokenizer.decode(sample.response_ids))
        asks = []
        for prompt in chunk.prompts:
            ids = settings.prompt_ids(self.tokenizer, prompt, said[prompt.doc_id])
            mode = settings.mode(prompt)
            room = min(mode.max_new_tokens, settings.context - len(ids))
            sampling = Sampling(mode.temperature, mode.top_p, max(0, mode.top_k))
            asks.append(Ask(ids, room, sampling, settings.draw_seed(prompt, chunk.turn)))
        return asks

    def _sample(self, chunk: Chunk, prompt: Prompt, ask: Ask, reply: Answer) -> Sample:
        decode: dict[str, Any] = self.settings.mode(prompt).as_dict()
        return Sample(
            doc_id=prompt.doc_id,
            turn=chunk.turn,
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

    def _record(self, chunk: Chunk, samples: list[Sample], answers: list[Answer]) -> RecordedPart | None:
        recordings: list[Recording] = [reply.recording for reply in answers if reply.recording is not None]
        if not recordings:
            return None
        names = [sample.name for sample in samples]
        return write_part(self.out, f"{PARTS}/{chunk.part()}.safetensors", names, recordings)
