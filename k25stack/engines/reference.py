"""The reference engine: options, endpoints, metric names, counters.

Its server (`k25stack.reference`) takes the metric names from here; nothing else knows them.  Cut rounds are counted
apart by the engine itself, so a reply's counters and a difference of two metric readings are exact.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from k25stack.draft.layerids import as_written
from k25stack.engines.options import need_draft, refuse_own, render
from k25stack.engines.prometheus import Metrics
from k25stack.engines.protocol import Counters, Family, Launch
from k25stack.errors import UsageError
from k25stack.speculation.rounds import RoundCounts

if TYPE_CHECKING:
    from k25stack.stack.serving import Profile

PREFIX = "k25ref_"
RUNNING = PREFIX + "requests_running"
WAITING = PREFIX + "requests_waiting"
PROMPT_TOKENS = PREFIX + "prompt_tokens_total"
GENERATION_TOKENS = PREFIX + "generation_tokens_total"
VERIFY_CALLS = PREFIX + "spec_verify_calls_total"
ACCEPTED = PREFIX + "spec_accepted_tokens_total"
PROPOSED = PREFIX + "spec_proposed_tokens_total"
PER_POSITION = PREFIX + "spec_accepted_per_position_total"  # label position: 0 = first draft token
CUT = PREFIX + "spec_cut_rounds_total"
FINISHED = PREFIX + "requests_finished_total"  # label reason
PREFILL_STEPS = PREFIX + "prefill_steps_total"
PREFILL_SECONDS = PREFIX + "prefill_seconds_total"
DECODE_STEPS = PREFIX + "decode_steps_total"  # engine rounds, of all running requests at once
DECODE_SECONDS = PREFIX + "decode_seconds_total"
DECODE_REQUESTS = PREFIX + "decode_requests_total"  # sum over decode steps of the requests in them

OWN = {
    "target": "target.source",
    "draft": "speculative.draft",
    "k": "speculative.k",
    "served-model-name": "target.name",
    "host": "serving.host",
    "port": "serving.port",
    "slots": "max_running",
    "max-len": "context",
}


class Reference:
    name = "reference"
    versions: tuple[str, ...] = ()  # it ships with this package: every version is the package's own
    health_path = "/health"
    models_path = "/v1/models"
    metrics_path = "/metrics"
    flush_path: str | None = None  # it keeps no prefixes

    def argv(self, profile: Profile, launch: Launch) -> list[str]:
        """The server runs in this Python.  Raises UsageError for what this engine does not do."""
        refuse_own(profile.argv, OWN, self.name)
        if launch.dummy_seed is not None or profile.tensor_parallel != 1:
            raise UsageError("it takes real weights and one process", where=f"{self.name} profile")
        words = [sys.executable, "-m", "k25stack.reference.server", "--target", launch.model]
        speculative = profile.speculative
        if speculative is not None:
            if speculative.topk != 1:
                raise UsageError(f"topk {speculative.topk}: it drafts chains only", where=f"{self.name} profile")
            words += ["--draft", need_draft(launch.draft, self.name), "--k", str(speculative.k)]
        words += ["--served-model-name", launch.served_name, "--host", launch.host, "--port", str(launch.port)]
        words += ["--max-len", str(profile.context or launch.context), "--threads", str(launch.threads)]
        words += ["--seed", str(launch.seed)]
        if profile.max_running is not None:
            words += ["--slots", str(profile.max_running)]
        return words + render(profile.argv)

    def env(self, profile: Profile, launch: Launch) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(launch.threads), **profile.env}

    def extraction_argv(self, profile: Profile, launch: Launch, layers: Sequence[int], out: str) -> list[str]:
        raise UsageError("this engine extracts in a step of its own, not in its server", where=self.name)

    def counters(self, metrics_text: str) -> Counters:
        metrics = Metrics(metrics_text, self.name)
        return Counters(
            running=metrics.need(RUNNING),
            waiting=metrics.need(WAITING),
            generated_tokens=metrics.need(GENERATION_TOKENS),
            prompt_tokens=metrics.need(PROMPT_TOKENS),
            verify_calls=metrics.count(VERIFY_CALLS),  # absent without a draft
            accepted=metrics.count(ACCEPTED),
            proposed=metrics.count(PROPOSED),
            per_position=metrics.by_label(PER_POSITION, "position"),
            cut=metrics.count(CUT),
        )

    def request_options(self) -> dict[str, Any]:
        return {}

    def request_counters(self, reply: Mapping[str, Any]) -> RoundCounts | None:
        """From ``usage.spec``, which is there exactly when a draft is loaded."""
        spec = (reply.get("usage") or {}).get("spec")
        return RoundCounts.from_dict(spec) if isinstance(spec, Mapping) else None

    def written_layers(self, canonical: Sequence[int], family: Family) -> list[int]:
        return as_written(canonical)

    def captured_layers(self, written: Sequence[int], family: Family) -> list[int]:
        """It reads the top-level list and takes it as it stands."""
        return as_written(written)
