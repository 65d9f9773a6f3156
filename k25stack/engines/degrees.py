"""How a profile divides a model between cards: tensor, data, pipeline and context parallelism, by the engine's options.

Source: sglang 0.5.20 ``srt/layers/dp_attention.py``, ``srt/models/deepseek_v2.py``, ``srt/arg_groups/parallel_hook.py``
(0.5.23: ``attn_dp_size``); vllm 0.31.0 ``config/parallel.py``, ``model_executor/layers/fused_moe``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from k25stack.model.shapes import Part
    from k25stack.stack.serving import Profile

EXPERTS = "routed experts"
ENDS = ("embedding", "output head")  # of a pipeline: the first and the last stage hold them


@dataclass(frozen=True)
class Degrees:
    """Into how many each thing is divided."""

    tensor: int  # every weight that is split, but for attention
    attention: int  # heads
    experts: int
    pipeline: int
    context: int  # the cache of one token, by vLLM's and SGLang's decode context parallelism
    schedulers: int  # that share the requests: each has a cache of its own
    cards: int
    whole_embedding: bool  # held whole by each card

    def weights(self, part: Part) -> int:
        """Bytes of a part on the fullest card."""
        if part.name in ENDS:
            whole = self.whole_embedding and part.name == "embedding"
            return part.bytes if whole else -(-part.bytes // self.tensor)
        divided = {"attention": self.attention, EXPERTS: self.experts}.get(part.name, self.tensor)
        return round(part.bytes / (divided if part.split else 1) / self.pipeline)

    def cache(self, token: int) -> int:
        """Bytes of one token on each card, out of those that all layers of one rank cost."""
        return -(-token // (self.pipeline * self.context))


def degrees(profile: Profile, argv: Mapping[str, Any]) -> Degrees:
    """The degrees of a profile; what is not given is 1."""

    def given(*names: str) -> int:
        values = (argv[name] for name in names if type(argv.get(name)) is int)
        return max(1, next(values, 1))

    tp = profile.tensor_parallel
    pp = given("pp-size", "pipeline-parallel-size")
    dp = given("dp-size", "data-parallel-size")
    cp = given("dcp-size", "decode-context-parallel-size")
    if profile.engine == "vllm":  # every rank of data parallelism has its own cards; experts are divided between all
        return Degrees(tp, tp, tp * dp, pp, cp, dp, tp * pp * dp, False)
    inside = given("attn-dp-size", "attention-data-parallel-size")
    if inside == 1 and argv.get("enable-dp-attention") is True:
        inside, dp = dp, 1
    return Degrees(tp, max(1, tp // inside), tp, pp, cp, inside * dp, tp * pp * dp, inside > 1)


# Options that change what lies on a card and that no figure here counts.
NOT_COUNTED = (
    *("quantization", "torchao-config", "cpu-offload-gb", "offload-group-size", "enable-lora", "lora-paths"),
    *("attn-cp-size", "attention-context-parallel-size", "moe-dp-size", "moe-data-parallel-size", "moe-dense-tp-size"),
    *("ep-num-redundant-experts", "enable-symm-mem", "prefill-context-parallel-size", "kv-offloading-size"),
)


def not_counted(argv: Mapping[str, Any]) -> list[str]:
    """Options of a profile that the plan leaves out."""
    cache = str(argv.get("kv-cache-dtype", "auto"))
    found = [name for name in NOT_COUNTED if argv.get(name) not in (None, False)]
    return found + ([f"kv-cache-dtype {cache}"] if "fp4" in cache or "turbo" in cache else [])
