"""The reference engine behind the engine protocol."""

from __future__ import annotations

import shlex
import sys

import pytest

from k25stack.engines import Launch, get
from k25stack.errors import UsageError
from k25stack.reference.server import arguments
from k25stack.speculation import RoundCounts
from k25stack.stack.serving import Profile

LAUNCH = Launch("/models/smol", "smol", "127.0.0.1", 30000, 2048, "llama", draft="/drafts/own", threads=2, seed=7)
METRICS = """\
# TYPE k25ref_requests_running gauge
k25ref_requests_running{model="smol"} 2
k25ref_requests_waiting{model="smol"} 1
k25ref_prompt_tokens_total{model="smol"} 90
k25ref_generation_tokens_total{model="smol"} 250
"""
SPECULATIVE = """\
k25ref_spec_verify_calls_total{model="smol"} 100
k25ref_spec_accepted_tokens_total{model="smol"} 70
k25ref_spec_proposed_tokens_total{model="smol"} 300
k25ref_spec_accepted_per_position_total{model="smol",position="0"} 40
k25ref_spec_accepted_per_position_total{model="smol",position="1"} 20
k25ref_spec_accepted_per_position_total{model="smol",position="2"} 10
k25ref_spec_cut_rounds_total{model="smol"} 5
"""


def profile(**fields: object) -> Profile:
    return Profile.model_validate({"engine": "reference", "version": "1", **fields})


def test_command_line_without_a_draft() -> None:
    words = get("reference").argv(profile(), LAUNCH)
    assert shlex.join(words) == (
        f"{sys.executable} -m k25stack.reference.server --target /models/smol --served-model-name smol"
        " --host 127.0.0.1 --port 30000 --max-len 2048 --threads 2 --seed 7"
    )
    assert arguments(words[3:]).draft is None


def test_command_line_with_a_draft_and_options() -> None:
    spec = profile(
        speculative={"k": 4, "draft": "own"}, max_running=8, context=1024, argv={"same-rows": True, "grace": 5}
    )
    words = get("reference").argv(spec, LAUNCH)
    assert shlex.join(words[1:]) == (
        "-m k25stack.reference.server --target /models/smol --draft /drafts/own --k 4 --served-model-name smol"
        " --host 127.0.0.1 --port 30000 --max-len 1024 --threads 2 --seed 7 --slots 8 --same-rows --grace 5"
    )
    options = arguments(words[3:])
    assert (options.k, options.slots, options.same_rows, options.grace) == (4, 8, True, 5.0)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"argv": {"port": 1}}, "set serving.port"),
        ({"tensor_parallel": 2}, "one process"),
        ({"speculative": {"k": 3, "topk": 2, "draft_tokens": 4, "draft": "own"}, "max_running": 4}, "chains only"),
    ],
)
def test_what_it_does_not_do_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        get("reference").argv(profile(**fields), LAUNCH)


def test_counters() -> None:
    engine = get("reference")
    assert engine.counters(METRICS).rounds() is None
    counters = engine.counters(METRICS + SPECULATIVE)
    assert (counters.running, counters.waiting, counters.generated_tokens) == (2, 1, 250)
    assert counters.rounds() == RoundCounts(100, 70, 300, (60, 20, 10, 10), 5)
    with pytest.raises(UsageError, match="k25ref_requests_running"):
        engine.counters("sglang:num_running_reqs 1\n")


def test_request_counters() -> None:
    engine = get("reference")
    counts = RoundCounts(4, 2, 12, (3, 0, 1, 0), 1)
    assert engine.request_counters({"usage": {"spec": counts.as_dict()}}) == counts
    assert engine.request_counters({"usage": {"completion_tokens": 3}}) is None


def test_layer_lists_mean_what_they_say() -> None:
    engine = get("reference")
    assert engine.written_layers([10, 20, 29], "llama") == [10, 20, 29]
    assert engine.captured_layers([1, 15, 27], "llama") == [1, 15, 27]
