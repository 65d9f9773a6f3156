"""The training step of the draft, fast: test-time training over a packed batch, every product done once.

Against the readable `loss.eager_loss` the result is the same; the work is not:

* Prompt rows give keys and values only; queries, MLP and head run on the rows that need them (``data.py``).
* Step i reads the embeddings of step 0 shifted by i, so the embedding halves of q, k and v are projected once per
  token for all steps.
* The head of all steps is one block, with its gradient formed at once (``head.py``); weight gradients are formed once
  for all steps (``ops.Matrix``); documents never meet in a product (``attention.py``).

Weights and activations are in the compute dtype (bf16 in training); norm weights, statistics and loss in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from k25stack.draft.spec import DraftSpec
from k25stack.train.attention import attend, rounded
from k25stack.train.data import ROUND_ROWS, Batch, grown
from k25stack.train.head import DraftHead, HeadSums
from k25stack.train.ops import Matrix, rms_norm, swiglu, turn, wide
from k25stack.train.weights import HEAD, MATRICES, NORMS, Frozen


class FastDraft:
    """The draft over given weight tensors: changing them in place changes the draft.

    ``values`` and ``grads`` hold every name of `weights.shapes`; norms are fp32 (or fp64), the rest in one dtype.
    """

    def __init__(self, spec: DraftSpec, values: Mapping[str, Tensor], grads: Mapping[str, Tensor], frozen: Frozen):
        self.spec, self.frozen = spec, frozen
        self.matrices = {name: Matrix(values[name], grads[name]) for name in MATRICES}
        self.head = DraftHead(values[HEAD], grads[HEAD], frozen.teacher)
        self.norms = {name: values[name].detach().requires_grad_() for name in NORMS}
        self.norm_grads = {name: grads[name] for name in NORMS}
        split = spec.heads * spec.head_dim
        self.q_embed, self.kv_embed = self._parts("qkv_embed", split)
        self.q_state, self.kv_state = self._parts("qkv_state", split)
        device = values[HEAD].device
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        pairs = torch.arange(0, spec.head_dim, 2, dtype=torch.float32, device=device)
        self.frequencies = spec.rope_theta ** (-pairs / spec.head_dim)  # [d/2], angle per position

    def _parts(self, name: str, split: int) -> tuple[Matrix, Matrix]:
        whole = self.matrices[name]
        return whole.rows(0, split), whole.rows(split, len(whole.value))

    def step(self, batch: Batch, decay: float, rows: int) -> HeadSums:
        """Forward and backward over one batch; leaves the gradient of every weight in ``grads``.

        ``rows`` is sum_t m(t,0) over all batches of the optimizer step, the divisor of the loss.
        """
        k = batch.loss_rows.shape[1]
        device = batch.loss_exists.device
        per_step = torch.tensor([decay**i / rows for i in range(k)], dtype=torch.float64, device=device)
        weights = batch.loss_exists * per_step  # [U, k]
        sums = HeadSums(torch.zeros_like(per_step), torch.zeros_like(per_step))
        states = [
            rms_norm(stream.index_select(0, batch.loss_rows[:, i]), self.norms["norm_out"], self.spec.rms_eps)
            for i, stream in enumerate(self.streams(batch, k))
        ]
        block = torch.stack(states, dim=1)  # [U, k, H]
        weights = weights.to(wide(block.dtype))
        self.head.loss(block, batch.last, batch.best, weights, sums).backward()  # type: ignore[no-untyped-call]
        self._finish()
        return sums

    def _finish(self) -> None:
        own = ("fc", "o", "gate_up", "down")
        for matrix in [self.matrices[name] for name in own] + [
            self.q_embed,
            self.kv_embed,
            self.q_state,
            self.kv_state,
        ]:
            matrix.finish()
        for name, weight in self.norms.items():
            assert weight.grad is not None
            self.norm_grads[name].copy_(weight.grad)
            weight.grad = None

    def streams(self, batch: Batch, steps: int) -> Iterator[Tensor]:
        """The raw residual stream of the query rows after each step, [N, H]."""
        spec, eps, anchor, norms = self.spec, self.spec.rms_eps, self.anchor, self.norms
        groups = spec.kv_heads
        embeds = rms_norm(batch.embeds, norms["norm_embed"], eps)  # [S, H]
        e_kv = self.kv_embed(embeds, anchor)  # [S, 2*g*d]
        e_q = self.q_embed(embeds.index_select(0, batch.query_tokens), anchor)  # [M, n*d]
        fused = self.matrices["fc"](batch.aux[:-1], anchor)  # [S-1, H]: row t reads token t+1
        unit = rms_norm(fused, norms["norm_state"], eps)
        cos, sin = self.tables(batch.key_positions[:-1], fused.dtype)
        k0, v0 = self._keys(self.kv_state(unit, anchor, e_kv[1:]), cos, sin)  # [g, S-1, d]
        own: list[tuple[Tensor, Tensor]] = []
        state = fused.index_select(0, batch.query_rows)  # [N, H]
        unit = unit.index_select(0, batch.query_rows)
        for step in range(steps):
            positions = batch.query_positions + step
            if step > 0:
                unit = rms_norm(state, norms["norm_state"], eps)
                cos, sin = self.tables(positions, state.dtype)
                mixed = self.kv_state(unit, anchor, e_kv.index_select(0, batch.inputs[step]))
                own.append(self._keys(mixed, cos, sin))
            # The scores' factor 1/sqrt(d) is in the tables of the queries.
            cos, sin = self.tables(positions, state.dtype, spec.head_dim**-0.5)
            q = self.q_state(unit, anchor, e_q.index_select(0, batch.input_places[step]))  # [N, n*d]
            heads = attend(batch.spans, turn(q, cos, sin, groups), k0, v0, own)  # [N, n*d]
            stream = self.matrices["o"](heads, anchor, state)  # [N, H], on top of the raw state
            gate_up = self.matrices["gate_up"](rms_norm(stream, norms["norm_mlp"], eps), anchor)
            stream = self.matrices["down"](swiglu(gate_up), anchor, stream)
            yield stream
            state = rms_norm(stream, norms["norm_out"], eps) if spec.norm_output else stream

    def _keys(self, kv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """[R, 2*g*d] -> turned keys and values, each [g, R, d]."""
        groups = self.spec.kv_heads
        keys, values = kv.chunk(2, dim=1)
        turned = turn(keys, cos, sin, groups).squeeze(2)
        return turned, values.reshape(len(kv), groups, -1).transpose(0, 1).contiguous()

    def tables(self, positions: Tensor, dtype: torch.dtype, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every rope angle, each [R, d/2], times ``factor``."""
        angles = positions[:, None].to(self.frequencies.dtype) * self.frequencies
        cos, sin = angles.cos().to(wide(dtype)), angles.sin().to(wide(dtype))
        return (cos * factor).to(dtype), (sin * factor).to(dtype)

    @torch.no_grad()
    def accepted(self, batch: Batch, steps: int) -> Tensor:
        """int64 [count]: how many leading proposals of each query's chain are the text's own tokens."""
        alive = torch.ones(len(batch.query_rows), dtype=torch.bool, device=batch.query_rows.device)
        total = torch.zeros(len(batch.query_rows), dtype=torch.int64, device=alive.device)
        for step, stream in enumerate(self.streams(batch, steps)):
            rows = (alive & (batch.targets[step] >= 0)).nonzero().squeeze(1)  # a broken chain is not scored further
            alive = torch.zeros_like(alive)
            alive[rows] = self._best(stream, rows, batch.targets[step][rows])
            total += alive
        return total[: batch.count]

    def _best(self, stream: Tensor, rows: Tensor, targets: Tensor) -> Tensor:
        """bool [R]: whether the draft's argmax at ``rows`` is ``targets`` (the lowest id on a tie)."""
        hits = []
        for begin in range(0, len(rows), CHUNK_ROWS):
            part, wanted = rows[begin : begin + CHUNK_ROWS], targets[begin : begin + CHUNK_ROWS]
            states = stream.index_select(0, grown(part, rounded(len(part), ROUND_ROWS)))
            states = rms_norm(states, self.norms["norm_out"], self.spec.rms_eps)
            logits = torch.mm(states, self.head.value.t())[: len(part)]  # [c, D]
            hit = logits.gather(1, wanted[:, None]).squeeze(1) == logits.amax(-1)
            # argmax is slow, so only rows that may match ask it about ties.
            hit[hit.clone()] = logits[hit].argmax(-1) == wanted[hit]
            hits.append(hit)
        return torch.cat(hits) if hits else targets.bool()


CHUNK_ROWS = 512  # rows of one head product in evaluation
