"""The engine: continuous batching over static caches, plain or with a draft.

Design choices:

* One `step` = at most one prefill forward (prompts packed side by side, long ones in chunks) and one decode round
  over every request past its prefill.  New requests join between steps.
* With a draft, a round is k draft forwards (`drafting`) and one target forward of k+1 rows per request; rolling back
  rejected rows is only a smaller start position next time.
* ``same_rows``: every decode forward has the shape [slots, k+1], with or without a draft, idle rows padded, and
  prompts are prefilled one by one.  Then no sum is taken in another order because of speculation, and the text with
  and without a draft must be equal to the last token.  Otherwise equal up to batch-shape noise (`lossless`).
* Single-threaded and not thread-safe; `loop` runs it in a thread.

Not here: paged caches, prefix reuse, trees, several processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from k25stack.draft.model import DraftModel
from k25stack.errors import UsageError
from k25stack.reference import verify
from k25stack.reference.attention import Span
from k25stack.reference.drafting import Drafter, Proposals
from k25stack.reference.request import Active, Event, Finish, Request
from k25stack.reference.sampling import draw, probabilities
from k25stack.reference.scheduler import Scheduler
from k25stack.reference.settings import EngineConfig, Totals, check_fit
from k25stack.reference.target import ForwardOut, Target, top_ids
from k25stack.speculation.rounds import RoundCounts

__all__ = ["Engine", "EngineConfig", "Result"]


@dataclass(frozen=True)
class Result:
    """A whole response, from `Engine.generate`."""

    tokens: tuple[int, ...]
    finish: Finish
    counts: RoundCounts | None


class Engine:
    """A target, perhaps a draft, and the requests in flight."""

    def __init__(
        self,
        target: Target,
        draft: DraftModel | None = None,
        layers: tuple[int, ...] = (),
        config: EngineConfig | None = None,
    ) -> None:
        """``layers``: canonical ids of the target states that the draft takes (input of layer i).

        Raises UsageError when the draft does not fit the target or the context is longer than the target's.
        """
        self.target = target
        self.config = config or EngineConfig()
        check_fit(target, draft, layers, self.config)
        self.layers = layers if draft is not None else ()
        # k more positions than tokens: a verify forward writes its rejected rows behind the end.
        length = self.config.max_len + self.config.k
        self.cache = target.new_cache(self.config.slots, length, whole=self.config.same_rows)
        self.drafter: Drafter | None = None
        width = 0  # of the histograms
        if draft is not None:
            self.drafter = Drafter(draft, target.embed, self.config.k, self.config.slots, length)
            width = self.config.k + 1
        self.scheduler = Scheduler(self.config.slots, self.config.seed, width)
        self.totals = Totals(histogram=[0] * width)

    # -- requests ---------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request.  Raises UsageError when it can never be served."""
        request.check(self.target.config.vocab, self.config.max_len)
        if self.scheduler.knows(request.id):
            raise UsageError("a request of this id is in flight", where=f"request {request.id}")
        self.scheduler.submit(request)

    def abort(self, request_id: str, reason: Finish = "abort") -> None:
        """End a request now; unknown and finished ids are ignored."""
        request = self.scheduler.drop_waiting(request_id)
        if request is not None:
            self._emit(request, (), reason, None)
        elif (active := self.scheduler.active.get(request_id)) is not None:
            active.finish = reason
            self._finish(active, ())

    def abort_all(self, reason: Finish = "abort") -> None:
        for request_id in [r.id for r in self.scheduler.waiting] + list(self.scheduler.active):
            self.abort(request_id, reason)

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.active)

    def generate(self, requests: Iterable[Request]) -> dict[str, Result]:
        """Serve requests to their end and return the responses by request id (for programs and tests)."""
        tokens: dict[str, list[int]] = {}
        results: dict[str, Result] = {}

        def collect(event: Event) -> None:
            tokens.setdefault(event.request_id, []).extend(event.tokens)
            if event.finish is not None:
                results[event.request_id] = Result(tuple(tokens[event.request_id]), event.finish, event.counts)

        for request in requests:
            self.submit(replace(request, on_event=collect))
        while self.busy:
            self.step()
        return results

    # -- one step ---------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> None:
        """One prefill forward if a prompt waits, then one decode round if a request runs."""
        self.scheduler.admit()
        group = self.scheduler.prefill_group(
            self.config.prefill_tokens, self.config.prefill_chunk, self.config.same_rows
        )
        totals = self.totals
        if group:
            begun = time.perf_counter()
            self._prefill(group)
            totals.prefill_steps += 1
            totals.prefill_seconds += time.perf_counter() - begun
        running = self.scheduler.running()
        if running:
            begun = time.perf_counter()
            if self.drafter is not None:
                self._speculate(running, self.drafter)
            else:
                self._decode(running)
            totals.decode_steps += 1
            totals.decode_requests += len(running)
            totals.decode_seconds += time.perf_counter() - begun

    def _prefill(self, group: list[Active]) -> None:
        counts = [min(active.remaining_prompt, self.config.prefill_chunk) for active in group]
        ids: list[int] = []
        following: list[int] = []  # the next token of each position; the one after the prompt is not known yet
        spans = []
        for active, count in zip(group, counts, strict=True):
            prompt, start = active.request.prompt, active.cached
            spans.append(Span(len(ids), len(ids) + count, active.slot, start))
            ids += prompt[start : start + count]
            following += (*prompt[start + 1 : start + count], prompt[min(start + count, len(prompt) - 1)])
        out = self._prefill_forward(torch.tensor(ids), spans)
        if self.drafter is not None:
            self.drafter.prefill(torch.tensor(following), out.aux, spans)
        for active, count in zip(group, counts, strict=True):
            active.cached += count
            self.totals.prompt_tokens += count
        done = [row for row, active in enumerate(group) if active.remaining_prompt == 0]
        if done:
            self._first_tokens([group[row] for row in done], out, torch.tensor([spans[row].end - 1 for row in done]))

    def _prefill_forward(self, ids: Tensor, spans: list[Span]) -> ForwardOut:
        """States of prompt tokens [T]: of several beginnings side by side, or of one prompt's later chunk."""
        slots = [span.slot for span in spans]
        if spans[0].start == 0:
            offsets = torch.tensor([0, *(span.end for span in spans)])
            return self.target.prefill_packed(ids, offsets, self.layers, self.cache, slots)
        start = torch.tensor([spans[0].start])
        out = self.target.forward(ids.unsqueeze(0), self.cache, torch.tensor(slots), start, self.layers)
        return ForwardOut(out.last[0], out.aux[0])

    def _first_tokens(self, finished: list[Active], out: ForwardOut, ends: Tensor) -> None:
        """Choose what follows each prompt, from the states at ``ends`` [F]."""
        logits = self.target.logits(out.last[ends])  # [F, V]
        if self.drafter is not None:
            slots = torch.tensor([active.slot for active in finished])
            self.drafter.observe(slots, out.aux[ends].unsqueeze(1))
        argmax = top_ids(logits).tolist()
        for row, active in enumerate(finished):
            active.pending = 1
            self._commit(active, [self._choose(active, logits[row], argmax[row])])

    def _decode(self, running: list[Active]) -> None:
        """One token per request."""
        logits = self._verify_logits(running, [[] for _ in running])[0][:, 0]  # [B, V]
        argmax = top_ids(logits).tolist()
        for row, active in enumerate(running):
            active.cached += 1
            self._commit(active, [self._choose(active, logits[row], argmax[row])])

    def _speculate(self, running: list[Active], drafter: Drafter) -> None:
        """One round: k proposals per request, one target forward, 1 to k + 1 tokens."""
        proposals = drafter.propose(running, sample=self.config.sample_rule == "rejection")
        logits, aux, slots = self._verify_logits(running, proposals.tokens)  # [B, k+1, V], [B, k+1, 3H]
        drafter.observe(slots, aux)
        argmax = top_ids(logits.flatten(0, 1)).view(logits.shape[:2]).tolist()
        for row, active in enumerate(running):
            verdict = self._judge(active, row, proposals, logits[row], argmax[row])
            active.cached += verdict.accepted + 1
            active.pending = verdict.accepted + 1
            self._commit(active, verdict.tokens, accepted=verdict.accepted)

    def _verify_logits(self, running: list[Active], proposals: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Target logits after the newest token of each request and after each of its proposals.

        Returns logits [B, n, V], aux [B, n, 3H] and the slots [B], n = 1 + proposals (same_rows: computed on padded
        rows, the padding cut off again).
        """
        ids = [[active.output[-1], *chain] for active, chain in zip(running, proposals, strict=True)]
        slots = torch.tensor([active.slot for active in running])
        wanted = len(ids[0])
        if not self.config.same_rows:
            start = torch.tensor([active.cached for active in running])
            out = self.target.forward(torch.tensor(ids), self.cache, slots, start, capture=self.layers)
            return self.target.logits(out.last), out.aux, slots
        rows = [[0] * (self.config.k + 1) for _ in range(self.config.slots)]
        starts = [0] * self.config.slots
        for active in self.scheduler.active.values():
            starts[active.slot] = active.cached  # padding rows of a prompt in progress land behind it
        for active, row in zip(running, ids, strict=True):
            rows[active.slot][:wanted] = row
        everything = torch.arange(self.config.slots)
        out = self.target.forward(torch.tensor(rows), self.cache, everything, torch.tensor(starts), capture=self.layers)
        logits = self.target.logits(out.last)  # [slots, k+1, V]
        aux = out.aux[slots, :wanted] if self.layers else out.aux
        return logits[slots, :wanted], aux, slots

    def _judge(
        self, active: Active, row: int, proposals: Proposals, logits: Tensor, argmax: list[int]
    ) -> verify.Verdict:
        """Apply the verify rule to one request: ``logits`` [k+1, V]."""
        tokens = proposals.tokens[row]
        sampling = active.request.sampling
        if sampling.greedy:
            return verify.greedy(tokens, argmax)
        p = probabilities(logits, sampling)
        uniforms = [active.rng.random() for _ in range(len(tokens) + 1)]
        q = proposals.probs[row]
        if q is None:
            return verify.target_only(tokens, p, uniforms)
        full = verify.scatter(q, self.drafter.target_ids, p.shape[-1])  # type: ignore[union-attr]
        return verify.rejection(tokens, p, full, uniforms)

    def _choose(self, active: Active, logits: Tensor, argmax: int) -> int:
        """The next token of one request from logits [V]."""
        sampling = active.request.sampling
        return argmax if sampling.greedy else draw(probabilities(logits, sampling), active.rng.random())

    # -- results ----------------------------------------------------------------------------------------------------

    def _commit(self, active: Active, tokens: list[int], accepted: int | None = None) -> None:
        taken = active.commit(tokens)
        self.totals.generation_tokens += len(taken)
        if accepted is not None:
            if active.note_round(accepted, len(taken)):
                self.totals.histogram[accepted] += 1
            else:
                self.totals.cut += 1
        if active.finish is not None:
            self._finish(active, taken)
        else:
            self._emit(active.request, taken, None, None)

    def _finish(self, active: Active, tokens: tuple[int, ...]) -> None:
        self.scheduler.release(active)
        self._emit(active.request, tokens, active.finish, active.counts())

    def _emit(
        self, request: Request, tokens: tuple[int, ...], finish: Finish | None, counts: RoundCounts | None
    ) -> None:
        if finish is not None:
            self.totals.finished[finish] += 1
        if request.on_event is not None:
            request.on_event(Event(request.id, tokens, finish, counts))
