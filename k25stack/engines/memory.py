"""What one server asks of its cards and its host, from shapes alone (no torch, nothing is read or started).

SGLang takes ``mem-fraction-static`` of a card for weights and cache.  It counts the cache of an EAGLE draft as if each
of its layers cost what a target layer costs, sizes both pools for that many tokens, and then allocates what the draft
really needs.  Beside latent attention that is far more: 64 heads of keys and values for one draft layer are 28 target
layers.  What the draft leaves behind while it is built is still there at that moment (`draftcost`).
vLLM divides ``gpu-memory-utilization`` of a card by what target and draft really need, or a fixed size where one is
given (``kv-cache-memory-bytes``; on a CPU ``VLLM_CPU_KVCACHE_SPACE`` in GiB).

Source: sglang 0.5.16 to 0.5.23 ``srt/model_executor/pool_configurator.py``, ``srt/arg_groups/memory_hook.py``,
``srt/managers/scheduler.py`` (init_memory_pools); vllm 0.31.0 ``config/cache.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from k25stack.engines.degrees import Degrees, degrees, not_counted
from k25stack.engines.draftcost import DraftCost, draft_cost
from k25stack.model.shapes import Part, kv_bytes_per_token, weight_parts

if TYPE_CHECKING:
    from k25stack.stack.model import Stack
    from k25stack.stack.serving import Profile

GIB = 1 << 30
MIB = 1 << 20
KV_BYTES = {"fp8": 1, "int8": 1, "bf16": 2, "bfloat16": 2, "float16": 2, "auto": 2}
UTILIZATION = 0.92  # vLLM's default
TOWERS = {"kimi_k25": (27, 1152)}  # layers and width of the image tower, as SGLang's own config class has them
LOADERS = 8  # threads with which SGLang reads weight files, per card


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes per card unless the name says otherwise."""

    engine: str
    gpus: int
    schedulers: int  # that share the requests; the figures are those of one
    card: int  # the card's memory
    parts: tuple[Part, ...]
    shares: dict[str, int]  # of each part, on the fullest card
    weights: int
    draft: DraftCost
    fraction: float  # of the card, for weights and cache
    lowered_from: float | None  # SGLang's default before it makes room for images; None where nothing was lowered
    reserve: int  # the rest of the card: graphs, activations, buffers
    target_token: int  # cache of one token
    target_layers: int
    tokens: int  # both pools are sized for so many
    capped: bool  # by the profile, below what would fit
    fitting: int  # tokens whose target and draft cache together fill the budget exactly
    budget: int  # for cache
    given: int | None  # the budget as the profile says it; None: what the card has left
    host_ram: int  # of the machine: at worst while weights are loaded, all cards together
    loaders: int  # threads that read weight files, per card
    shard: int  # bytes of one weight file
    graphs: dict[str, int] = field(default_factory=dict)  # what the reserve is made of, as the engine estimates it
    left_out: tuple[str, ...] = ()  # options that change what lies on a card and are not counted

    @property
    def draft_token(self) -> int:
        return self.draft.token

    @property
    def resident(self) -> int:
        """All that lies on the card once the server is up, but for graphs and activations."""
        return self.weights + self.draft.weights + self.draft.table + self.target_pool + self.draft_pool

    @property
    def target_pool(self) -> int:
        return self.tokens * self.target_token

    @property
    def draft_pool(self) -> int:
        return self.tokens * self.draft_token

    @property
    def draft_share(self) -> float:
        """Of the whole cache."""
        both = self.target_token + self.draft_token
        return self.draft_token / both if both else 0.0

    @property
    def draft_in_target_layers(self) -> float:
        """How many layers of the target cost as much cache as the draft."""
        return self.draft_token * self.target_layers / self.target_token if self.target_token else 0.0

    @property
    def over(self) -> int:
        """Cache beyond the budget; what of it the reserve cannot take does not fit at all."""
        return max(0, self.target_pool + self.draft_pool - self.budget)

    @property
    def largest_request(self) -> int:
        """The largest single allocation of the draft's pool: keys and values of a layer are two."""
        return self.draft_pool // 2


def plan_memory(stack: Stack, profile: Profile, *, files: int = 64, loaders: int = LOADERS) -> MemoryPlan:
    """The memory of one profile on the stack's host.  ``files``: into how many the weights are divided."""
    shape = stack.target.shape
    argv: dict[str, Any] = dict(profile.argv)
    by = degrees(profile, argv)
    parts = tuple(weight_parts(stack.target))
    shares = {part.name: by.weights(part) for part in parts}
    if by.pipeline > 1 and shares.get("output head"):  # no stage has both
        shares["embedding"] = 0
    weights = sum(shares.values())
    card = (stack.host.gpu_memory_gib or 0) * GIB
    target_token = by.cache(kv_bytes_per_token(shape, by.attention, kv_width(argv.get("kv-cache-dtype"))))
    draft = draft_cost(stack, profile.model_copy(update={"tensor_parallel": by.attention}), draft_width(profile, argv))
    graphs = reserve_parts(argv, by, card, shape.mla is not None)
    share = image_share(profile, argv, stack.target.family)
    fraction = static_fraction(profile, argv, card, sum(graphs.values())) * share
    given = fixed_cache(profile, argv)
    budget = max(0, round(card * fraction) - weights - draft.loaded) if given is None else given
    counted = target_token + (target_token // shape.layers if draft.token else 0)  # as SGLang counts an EAGLE draft
    both = target_token + draft.token
    wanted = budget // (counted if profile.engine == "sglang" else both)
    cap = argv.get("max-total-tokens")
    tokens = min(wanted, cap) if isinstance(cap, int) else wanted
    stored = sum(part.bytes for part in parts)
    return MemoryPlan(
        engine=profile.engine,
        gpus=by.cards,
        schedulers=by.schedulers,
        card=card,
        parts=parts,
        shares=shares,
        weights=weights,
        draft=draft,
        fraction=fraction,
        lowered_from=None if share == 1 else round(fraction / share, 3),
        reserve=card - round(card * fraction),
        target_token=target_token,
        target_layers=shape.layers,
        tokens=tokens,
        capped=tokens < wanted,
        fitting=budget // both,
        budget=budget,
        given=given,
        host_ram=host_ram(stored, files, by.cards, loaders),
        loaders=loaders,
        shard=-(-stored // files),
        graphs=graphs,
        left_out=tuple(not_counted(argv)),
    )


def draft_width(profile: Profile, argv: dict[str, Any]) -> int:
    """Bytes of one cached value of the draft: as its own option says, else those of the target's cache."""
    return kv_width(argv.get("speculative-draft-kv-cache-dtype", argv.get("kv-cache-dtype")))


def kv_width(dtype: Any) -> int:
    """Bytes of one cached value for an engine's cache type."""
    text = str(dtype or "auto")
    return next((width for name, width in KV_BYTES.items() if text.startswith(name)), 2)


def fixed_cache(profile: Profile, argv: dict[str, Any]) -> int | None:
    """Bytes of cache that vLLM is told to take; None where it divides what the card has left."""
    if profile.engine != "vllm":
        return None
    given = argv.get("kv-cache-memory-bytes")
    if isinstance(given, int):
        return given
    space = profile.env.get("VLLM_CPU_KVCACHE_SPACE", "")
    return int(space) * GIB if space.isdecimal() else None


def reserve_parts(argv: dict[str, Any], by: Degrees, card: int, latent: bool) -> dict[str, int]:
    """What SGLang sets aside for graphs and activations, by its own rule of thumb; vLLM measures it at start."""
    usual_chunk, usual_batch = usual(card, by.tensor)
    chunk = argv.get("chunked-prefill-size", argv.get("max-num-batched-tokens", usual_chunk))
    batch = int(argv.get("cuda-graph-max-bs-decode", argv.get("cuda-graph-max-bs", usual_batch)))
    eager = argv.get("cuda-graph-backend-decode") == "disabled" or argv.get("disable-cuda-graph") is True
    prefill_graph = latent and not eager and argv.get("cuda-graph-backend-prefill") != "disabled"
    inside = by.schedulers if by.attention < by.tensor else 0
    return {
        "activations": round(max(int(chunk), 2048) * 1.5 * MIB) + 512 * MIB,
        "decode graphs": 0 if eager else batch * 2 * MIB,
        "padding of data parallelism": round(batch * inside * (4.5 if batch > 300 else 3) * MIB),
        "prefill graphs": 1536 * MIB if prefill_graph else 0,
        "parallel buffers": by.tensor * by.pipeline * 128 * MIB,
    }


def usual(card: int, tensor_parallel: int) -> tuple[int, int]:
    """(tokens of one prefill, largest batch with a graph) that SGLang takes on a card of this size."""
    few = tensor_parallel < 4
    tiers = ((20, 2048, 8, 8), (35, 4096, 48, 160), (60, 4096, 32, 160), (160, 8192, 256, 512))
    chunk, small, large = next((tier[1:] for tier in tiers if card < tier[0] * GIB), (16384, 512, 512))
    return chunk, small if few else large


def static_fraction(profile: Profile, argv: dict[str, Any], card: int, reserve: int) -> float:
    """The share of a card for weights and cache: as given, else the engine's default."""
    if profile.engine == "vllm":
        return float(argv.get("gpu-memory-utilization", UTILIZATION))
    given = argv.get("mem-fraction-static")
    if given is not None:
        return float(given)
    if card > 60 * GIB:
        reserve = max(reserve, 10 * GIB)
    return round(1 - reserve / card, 3) if card else 0.0


def image_share(profile: Profile, argv: dict[str, Any], family: str) -> float:
    """SGLang takes its default times this for a target that sees: less, the larger the image tower.

    (sglang 0.5.16 to 0.5.23, ``adjust_mem_fraction_for_vlm``; not where ``mem-fraction-static`` is given.)
    """
    text_only = any(argv.get(name) is True for name in ("language-only", "language-model-only"))
    if profile.engine != "sglang" or family not in TOWERS or text_only or "mem-fraction-static" in argv:
        return 1.0
    layers, width = TOWERS[family]
    complexity = layers * width**2 / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (complexity - 1)))


def host_ram(stored: int, files: int, gpus: int, loaders: int) -> int:
    """Memory of the host that reading weights takes at worst: each card's process holds a file per thread and two more.

    With memory-mapped files the pages are shared and can be dropped, so this is an upper bound; with mapping off it is
    what is taken.  (sglang 0.5.20 ``srt/model_loader/weight_utils.py``.)
    """
    return gpus * (loaders + 2) * -(-stored // files)


def loaders_for(ram: int, stored: int, files: int, gpus: int, share: float = 0.8) -> int:
    """Threads per card with which loading stays within a share of the host's memory; 0 when even one is too many."""
    return max(0, int(ram * share / (gpus * -(-stored // files))) - 2)
