"""vLLM: options, endpoints, counters.

Read in the wheel of 0.33.0 (``engine/arg_utils.py``, ``config/speculative.py``, ``v1/spec_decode/metrics.py``); the
options written here have the same names in 0.31.0 and in the CPU build 0.32.0.

Counters: ``vllm:spec_decode_*`` count drafts (verify calls), draft tokens, accepted tokens, and accepted tokens per
position, over all requests since the start.  Replies hold no speculative counters, so rounds are differences of two
readings of ``/metrics``.  Rounds cut by the end of a response are not told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from k25stack.draft.layerids import as_written
from k25stack.engines.options import compact, need_draft, refuse_own, refuse_version, render
from k25stack.engines.prometheus import Metrics
from k25stack.engines.protocol import Counters, Family, Launch
from k25stack.errors import UsageError
from k25stack.speculation.rounds import RoundCounts

if TYPE_CHECKING:
    from k25stack.stack.serving import Profile, Speculative

OWN = {
    "model": "target.source",
    "revision": "target.source.revision",
    "served-model-name": "target.name",
    "host": "serving.host",
    "port": "serving.port",
    "tensor-parallel-size": "tensor_parallel",
    "max-model-len": "context",
    "max-num-seqs": "max_running",
    "load-format": "target.source.kind: dummy",
    "speculative-config": "speculative",
}

ENTRYPOINT = ("vllm", "serve")  # the image's own entrypoint too: in a container leave these two words out


class VLLM:
    name = "vllm"
    versions: tuple[str, ...] = ("0.31.0", "0.32.0", "0.33.0")
    health_path = "/health"
    models_path = "/v1/models"
    metrics_path = "/metrics"
    flush_path: str | None = None  # /reset_prefix_cache exists in development mode only

    def argv(self, profile: Profile, launch: Launch) -> list[str]:
        refuse_version("vLLM", profile.version, self.versions)
        refuse_own(profile.argv, OWN, self.name)
        words = [*self._base(profile, launch), *render(profile.argv)]
        if profile.speculative is not None:
            words += ["--speculative-config", compact(self._speculative(profile.speculative, launch))]
        return words

    def _base(self, profile: Profile, launch: Launch) -> list[str]:
        words = [*ENTRYPOINT, launch.model, "--served-model-name", launch.served_name]
        if launch.revision:
            words += ["--revision", launch.revision]
        if launch.dummy_seed is not None:
            words += ["--load-format", "dummy", "--seed", str(launch.dummy_seed)]
        words += ["--host", launch.host, "--port", str(launch.port)]
        words += ["--tensor-parallel-size", str(profile.tensor_parallel)]
        words += ["--max-model-len", str(profile.context or launch.context)]
        if profile.max_running is not None:
            words += ["--max-num-seqs", str(profile.max_running)]
        return words

    def _speculative(self, speculative: Speculative, launch: Launch) -> dict[str, Any]:
        draft = need_draft(launch.draft, self.name)
        if speculative.topk != 1:
            raise UsageError("vLLM drafts a chain, not a tree", remedy="set speculative.topk to 1")
        # Without "method" the engine guesses it from the path's name.
        config: dict[str, Any] = {"method": "eagle3", "model": draft, "num_speculative_tokens": speculative.k}
        if launch.draft_revision:
            config["revision"] = launch.draft_revision
        if speculative.attention_backend is not None:
            config["attention_backend"] = speculative.attention_backend
        if launch.dummy_seed is not None:
            config["draft_load_config"] = {"load_format": "auto"}
        return config

    def env(self, profile: Profile, launch: Launch) -> dict[str, str]:
        return dict(profile.env)

    def extraction_argv(self, profile: Profile, launch: Launch, layers: Sequence[int], out: str) -> list[str]:
        """One safetensors file per request below ``out``; the reply's ``kv_transfer_params`` names it.

        Layer id n (the number of layers) is the last layer's output before the final norm.
        """
        plain = profile.model_copy(update={"speculative": None})
        capture = {"eagle_aux_hidden_state_layer_ids": self.written_layers(layers, launch.family)}
        speculative = {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": capture},
        }
        transfer = {
            "kv_connector": "ExampleHiddenStatesConnector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": out},
        }
        words = self.argv(plain, launch)
        return [*words, "--speculative-config", compact(speculative), "--kv-transfer-config", compact(transfer)]

    def counters(self, metrics_text: str) -> Counters:
        metrics = Metrics(metrics_text, self.name)
        return Counters(
            running=metrics.need("vllm:num_requests_running"),
            waiting=metrics.need("vllm:num_requests_waiting"),
            generated_tokens=metrics.need("vllm:generation_tokens_total"),
            prompt_tokens=metrics.need("vllm:prompt_tokens_total"),
            verify_calls=metrics.count("vllm:spec_decode_num_drafts_total"),
            accepted=metrics.count("vllm:spec_decode_num_accepted_tokens_total"),
            proposed=metrics.count("vllm:spec_decode_num_draft_tokens_total"),
            per_position=metrics.by_label("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position"),
        )

    def request_options(self) -> dict[str, Any]:
        return {}

    def request_counters(self, reply: Mapping[str, Any]) -> RoundCounts | None:
        return None

    def written_layers(self, canonical: Sequence[int], family: Family) -> list[int]:
        return list(canonical)

    def captured_layers(self, written: Sequence[int], family: Family) -> list[int]:
        return as_written(written)
