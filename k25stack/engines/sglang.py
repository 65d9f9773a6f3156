"""SGLang: options, endpoints, counters.

Read in the wheels of 0.5.16, 0.5.20 and 0.5.23 (``srt/arg_groups/fields``, ``srt/server_args.py``,
``srt/managers/tokenizer_manager.py``, ``srt/observability/metrics_collector.py``).

Counters, and why metrics alone are not enough:

* ``sglang:spec_accept_length`` and ``_rate`` are gauges of the last log interval: never used here.
* ``sglang:spec_verify_calls_total`` and ``generation_tokens_total`` go up when a request *finishes*; accepted tokens
  are not exported at all.  So rounds come from each reply (``request_counters``).
* A reply's counters take the last round in full even when the response ended inside it.  Prefill gives one token and
  a round 1 + accepted, so tokens missing from that sum show the cut round (`split_cut`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from k25stack.draft.layerids import plus_one, plus_one_if_first_is_one, portable_ids
from k25stack.draft.target import layer_family
from k25stack.engines.cut import missing_tokens, split_cut
from k25stack.engines.options import need_draft, refuse_own, refuse_version, render
from k25stack.engines.prometheus import Metrics
from k25stack.engines.protocol import Counters, Family, Launch
from k25stack.errors import UsageError
from k25stack.speculation.rounds import RoundCounts

if TYPE_CHECKING:
    from k25stack.stack.serving import Profile, Speculative

OWN = {
    "model-path": "target.source",
    "model": "target.source",
    "revision": "target.source.revision",
    "served-model-name": "target.name",
    "host": "serving.host",
    "port": "serving.port",
    "tp-size": "tensor_parallel",
    "tensor-parallel-size": "tensor_parallel",
    "context-length": "context",
    "max-running-requests": "max_running",
    "load-format": "target.source.kind: dummy",
    "enable-metrics": "nothing (always on)",
    "speculative-algorithm": "speculative.algorithm",
    "speculative-draft-model-path": "speculative.draft",
    "speculative-draft-model": "speculative.draft",
    "speculative-draft-model-revision": "speculative.draft_revision",
    "speculative-num-steps": "speculative.k",
    "speculative-eagle-topk": "speculative.topk",
    "speculative-num-draft-tokens": "speculative.draft_tokens",
    "speculative-draft-attention-backend": "speculative.attention_backend",
}
# What a reply counts: its name, and the name that 0.5.9 had.
ACCEPTED = ("spec_num_correct_drafts", "spec_accept_token_num")
PROPOSED = ("spec_num_proposed_drafts", "spec_draft_token_num")
HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
LONGEST_CHAIN = 1000  # draft tokens of a round; more is no counter
AUX_CAPTURE = ("0.5.23",)  # versions with --enable-return-aux-hidden-states


def count(value: Any) -> int | None:
    """A counter out of a reply; None for what is none."""
    return value if type(value) is int and 0 <= value < 1 << 53 else None


class SGLang:
    name = "sglang"
    versions: tuple[str, ...] = ("0.5.16", "0.5.20", "0.5.23")
    health_path = "/health"  # generates one token when idle, so a wedged scheduler does not pass
    models_path = "/v1/models"
    metrics_path = "/metrics"
    flush_path: str | None = "/flush_cache"

    def argv(self, profile: Profile, launch: Launch) -> list[str]:
        refuse_version("SGLang", profile.version, self.versions)
        refuse_own(profile.argv, OWN, self.name)
        words = ["python3", "-m", "sglang.launch_server", *self._model(launch)]
        words += ["--host", launch.host, "--port", str(launch.port)]
        words += ["--tp-size", str(profile.tensor_parallel)]
        words += ["--context-length", str(profile.context or launch.context)]
        if profile.max_running is not None:
            words += ["--max-running-requests", str(profile.max_running)]
        words += ["--enable-metrics", *render(profile.argv)]
        if profile.speculative is not None:
            words += self._speculative(profile.speculative, launch)
        return words

    def _model(self, launch: Launch) -> list[str]:
        words = ["--model-path", launch.model, "--served-model-name", launch.served_name]
        if launch.revision:
            words += ["--revision", launch.revision]
        if launch.dummy_seed is not None:
            words += ["--load-format", "dummy", "--random-seed", str(launch.dummy_seed)]
        return words

    def _speculative(self, speculative: Speculative, launch: Launch) -> list[str]:
        draft = need_draft(launch.draft, self.name)
        # EAGLE, a legal value too, would load an EAGLE-3 draft and bypass its fc without a word.
        words = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", draft]
        if launch.draft_revision:
            words += ["--speculative-draft-model-revision", launch.draft_revision]
        words += ["--speculative-num-steps", str(speculative.k), "--speculative-eagle-topk", str(speculative.topk)]
        words += ["--speculative-num-draft-tokens", str(speculative.rows)]
        if speculative.attention_backend is not None:
            words += ["--speculative-draft-attention-backend", speculative.attention_backend]
        if launch.dummy_seed is not None:  # the draft would inherit random weights from the target
            words += ["--speculative-draft-load-format", "auto"]
        return words

    def env(self, profile: Profile, launch: Launch) -> dict[str, str]:
        return dict(profile.env)

    def extraction_argv(self, profile: Profile, launch: Launch, layers: Sequence[int], out: str) -> list[str]:
        """States come back in the replies (slow: JSON), so ``out`` is not used.  Canonical ids; 0.5.23 only."""
        if profile.version not in AUX_CAPTURE:
            raise UsageError(
                f"SGLang {profile.version} gives out aux states only inside speculation",
                remedy=f"use {' or '.join(AUX_CAPTURE)}",
            )
        plain = profile.model_copy(update={"speculative": None})
        written = self.written_layers(layers, launch.family)
        words = [*self.argv(plain, launch), "--disable-radix-cache", "--enable-return-aux-hidden-states"]
        words += ["--speculative-algorithm", "EAGLE3", "--return-aux-hidden-state-layer-ids"]
        return [*words, *(str(layer) for layer in written)]

    def counters(self, metrics_text: str) -> Counters:
        metrics = Metrics(metrics_text, self.name)
        return Counters(
            running=metrics.need("sglang:num_running_reqs"),
            waiting=metrics.need("sglang:num_queue_reqs"),
            generated_tokens=metrics.total("sglang:generation_tokens_total") or 0.0,  # of finished requests
            prompt_tokens=metrics.total("sglang:prompt_tokens_total") or 0.0,
            verify_calls=metrics.count("sglang:spec_verify_calls_total"),  # cut rounds included
        )

    def request_options(self) -> dict[str, Any]:
        return {"return_spec_tokens_details": True}

    def request_counters(self, reply: Mapping[str, Any]) -> RoundCounts | None:
        """From ``sglext.spec_tokens_details`` (OpenAI routes) or ``meta_info`` (``/generate``)."""
        details = reply.get("sglext")
        meta = reply.get("meta_info") or (details.get("spec_tokens_details") if isinstance(details, Mapping) else None)
        if not isinstance(meta, Mapping):
            return None
        calls = count(meta.get("spec_verify_ct"))
        accepted, proposed = (count(meta.get(new, meta.get(old))) for new, old in (ACCEPTED, PROPOSED))
        if not calls or accepted is None or proposed is None or proposed // calls > LONGEST_CHAIN:
            return None
        k = proposed // calls
        told: list[Any] = next((meta[name] for name in HISTOGRAM if isinstance(meta.get(name), list)), [])
        seen = [number for number in map(count, told[: k + 1]) if number is not None]
        histogram = (*seen, *[0] * (k + 1 - len(seen))) if seen else ()
        whole = RoundCounts(calls, accepted, calls * k, tuple(histogram))
        usage = reply.get("usage")
        completion = count(
            meta.get("completion_tokens", usage.get("completion_tokens") if isinstance(usage, Mapping) else 0)
        )
        missing = 0 if completion is None else missing_tokens(whole, completion)
        return split_cut(whole, k, missing)

    def written_layers(self, canonical: Sequence[int], family: Family) -> list[int]:
        written = portable_ids(canonical, layer_family(family))[1]
        if self.captured_layers(written, family) != list(canonical):
            raise UsageError(
                f"SGLang cannot capture {list(canonical)} on a target of family {family}",
                remedy="it adds 1 to every id of a list that begins with 1: begin with 2 or later",
            )
        return written

    def captured_layers(self, written: Sequence[int], family: Family) -> list[int]:
        return plus_one(written) if family == "llama" else plus_one_if_first_is_one(written)
