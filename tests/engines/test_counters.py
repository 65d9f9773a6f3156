"""Metrics text and replies to counters: the values, the differences, and what an engine does not tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k25stack import engines
from k25stack.engines import Counters
from k25stack.engines.native import as_openai, native_request
from k25stack.errors import UsageError
from k25stack.speculation import RoundCounts

VLLM = """\
# HELP vllm:num_requests_running Requests in execution.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.2e+03
vllm:prompt_tokens_total{engine="0",model_name="m"} 900.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 300.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 110.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 60.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 35.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 15.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
"""

SGLANG = """\
sglang:num_running_reqs{model_name="m",tp_rank="0",odd="a\\"b,c=\\"d"} 2.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 0.0
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 500.0
sglang:generation_tokens_total{is_streaming="false",model_name="m"} 250.0
sglang:prompt_tokens_total{is_streaming="true",model_name="m"} 80.0
sglang:spec_verify_calls_total{model_name="m"} 333.0
sglang:spec_accept_length{model_name="m"} 1.9
"""

REFERENCE = """\
k25ref_requests_running 1
k25ref_requests_waiting 0
k25ref_generation_tokens_total 40
k25ref_prompt_tokens_total 10
"""


def test_vllm_counts_rounds_by_position() -> None:
    counters = engines.get("vllm").counters(VLLM)
    assert (counters.running, counters.waiting) == (3, 1)
    assert (counters.generated_tokens, counters.prompt_tokens) == (1200, 900)
    rounds = counters.rounds()
    assert rounds == RoundCounts(100, 110, 300, (40, 25, 20, 15))
    assert rounds.accept_length() == pytest.approx(2.1)
    assert rounds.survival() == pytest.approx([0.6, 0.35, 0.15])


def test_without_a_draft_there_are_no_rounds() -> None:
    plain = "\n".join(line for line in VLLM.splitlines() if "spec_decode" not in line)
    assert engines.get("vllm").counters(plain).rounds() is None
    assert engines.get("reference").counters(REFERENCE).rounds() is None


def test_sglang_does_not_export_accepted_tokens_and_its_gauges_are_not_used() -> None:
    counters = engines.get("sglang").counters(SGLANG)
    assert (counters.running, counters.generated_tokens, counters.verify_calls) == (2, 750, 333)
    assert counters.accepted is None
    assert counters.rounds() is None


def test_figures_are_differences_of_two_readings() -> None:
    earlier = Counters(1, 5, 200, 900, verify_calls=40, accepted=50, proposed=120, per_position=(25, 15, 10))
    window = engines.get("vllm").counters(VLLM).since(earlier)
    assert (window.generated_tokens, window.prompt_tokens, window.running, window.waiting) == (1000, 0, 3, 1)
    assert window.rounds() == RoundCounts(60, 60, 180, (25, 15, 15, 5))


def test_before_the_first_speculative_request_counts_as_zero() -> None:
    engine = engines.get("vllm")
    plain = "\n".join(line for line in VLLM.splitlines() if "spec_decode" not in line)
    assert engine.counters(VLLM).since(engine.counters(plain)).rounds() == engine.counters(VLLM).rounds()


@pytest.mark.parametrize("engine", engines.NAMES)
@pytest.mark.parametrize("text", ["", "<html>404</html>", "other_metric 1\n", "vllm:num_requests_running{a=} x\n"])
def test_text_of_something_else_is_refused(engine: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"metrics of {engine}"):
        engines.get(engine).counters(text)


def test_requests_ask_sglang_for_counters() -> None:
    assert engines.get("sglang").request_options() == {"return_spec_tokens_details": True}
    assert engines.get("vllm").request_options() == {}
    assert engines.get("vllm").request_counters({"usage": {"completion_tokens": 5}}) is None


def sglang_meta(histogram: list[int], completion: int, k: int = 3) -> dict[str, object]:
    calls, accepted = sum(histogram), sum(j * n for j, n in enumerate(histogram))
    while histogram and not histogram[-1]:
        histogram = histogram[:-1]  # the engine's list ends with the highest count it saw
    return {
        "spec_verify_ct": calls,
        "spec_num_correct_drafts": accepted,
        "spec_num_proposed_drafts": calls * k,
        "spec_correct_drafts_histogram": histogram,
        "completion_tokens": completion,
    }


def test_sglang_replies_carry_exact_counters() -> None:
    reply = {"meta_info": sglang_meta([5, 3, 0, 0], 1 + 8 + 3)}
    assert engines.get("sglang").request_counters(reply) == RoundCounts(8, 3, 24, (5, 3, 0, 0))


def test_names_of_an_old_sglang() -> None:
    """0.5.9, ``srt/managers/tokenizer_manager.py``."""
    meta = {"spec_verify_ct": 8, "spec_accept_token_num": 3, "spec_draft_token_num": 24, "completion_tokens": 12}
    reply = {"meta_info": {**meta, "spec_accept_histogram": [5, 3]}}
    assert engines.get("sglang").request_counters(reply) == RoundCounts(8, 3, 24, (5, 3, 0, 0))
    assert engines.get("sglang").request_counters({"meta_info": {"spec_verify_ct": 8}}) is None


def test_sglangs_own_route_in_the_shape_of_the_others() -> None:
    """As seen from 0.5.16 on an H200 (shortened)."""
    assert native_request("vllm", [1, 2], 8) is None
    assert native_request("sglang", [], 8) is None  # chat prompts have no ids
    path, body = native_request("sglang", [1, 2], 8) or ("", {})
    assert (path, body["input_ids"], body["sampling_params"]["max_new_tokens"]) == ("/generate", [1, 2], 8)
    meta = sglang_meta([0, 0, 0, 2], 9)
    reply = {
        "text": "w9",
        "output_ids": [9] * 9,
        "meta_info": {**meta, "finish_reason": {"type": "length", "length": 9}},
    }
    shaped = as_openai(reply)
    assert shaped["choices"] == [{"text": "w9", "token_ids": [9] * 9, "finish_reason": "length"}]
    assert engines.get("sglang").request_counters(shaped) == RoundCounts(2, 6, 6, (0, 0, 0, 2))
    with pytest.raises(ValueError, match="no meta_info"):
        as_openai({"error": {"message": "no"}})


def test_sglang_streams_carry_them_in_two_late_chunks() -> None:
    meta = sglang_meta([5, 3, 0, 0], 0)
    completion = {"completion_tokens": 12}
    del meta["completion_tokens"]
    reply = {"choices": [], "sglext": {"spec_tokens_details": meta}, "usage": completion}
    assert engines.get("sglang").request_counters(reply) == RoundCounts(8, 3, 24, (5, 3, 0, 0))


def test_a_reply_without_rounds_gives_none() -> None:
    engine = engines.get("sglang")
    assert engine.request_counters({"usage": {"completion_tokens": 1}}) is None
    assert engine.request_counters({"meta_info": {"completion_tokens": 1}}) is None
    assert engines.get("reference").request_counters({"usage": {"completion_tokens": 1}}) is None


def test_a_dead_draft_is_not_flattered_by_the_token_from_prefill() -> None:
    """The engine's own accept length reads 256 / 255 = 1.004 here."""
    rounds = engines.get("sglang").request_counters({"meta_info": sglang_meta([255, 0, 0, 0], 256)})
    assert rounds is not None
    assert rounds.accept_length() == 1.0


@given(
    histogram=st.lists(st.integers(0, 40), min_size=4, max_size=4),
    last=st.integers(0, 3),
    lost=st.integers(0, 3),
)
def test_a_round_cut_by_the_end_is_taken_out(histogram: list[int], last: int, lost: int) -> None:
    """Whole rounds plus one last round of ``last`` accepted tokens, of which ``lost`` tokens do not fit."""
    lost = min(lost, last)
    whole = RoundCounts.from_histogram(tuple(histogram))
    with_last = [count + (j == last) for j, count in enumerate(histogram)]
    sent = 1 + whole.verify_calls + whole.accepted + (last + 1 - lost)
    rounds = engines.get("sglang").request_counters({"meta_info": sglang_meta(with_last, sent)})
    assert rounds is not None
    if lost == 0:
        assert rounds == RoundCounts.from_histogram(tuple(with_last))
    else:
        assert (rounds.cut, rounds.verify_calls) == (1, whole.verify_calls)
        assert abs(rounds.accepted - whole.accepted) <= 3 - lost  # exact when only one bin can hold the last round
        assert rounds.proposed == 3 * rounds.verify_calls


def test_counters_that_cannot_agree_are_not_used() -> None:
    assert engines.get("sglang").request_counters({"meta_info": sglang_meta([8, 0, 0, 0], 5)}) is None


def test_the_reference_engine_counts_cut_rounds_itself() -> None:
    spec = {"verify_calls": 4, "accepted": 3, "proposed": 12, "histogram": [2, 1, 1, 0], "cut": 1}
    rounds = engines.get("reference").request_counters({"usage": {"completion_tokens": 9, "spec": spec}})
    assert rounds == RoundCounts(4, 3, 12, (2, 1, 1, 0), 1)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "nan"])
def test_what_is_no_number_is_no_count(value: str) -> None:
    """A gauge that nobody has set is NaN: it is left out, and what must be there is then missing."""
    text = VLLM.replace("} 100.0", f"}} {value}").replace("} 60.0", f"}} {value}")
    found = engines.get("vllm").counters(text)
    assert (found.verify_calls, found.accepted, found.per_position, found.rounds()) == (None, 110, (0, 35, 15), None)
    with pytest.raises(UsageError, match="no metric"):
        engines.get("vllm").counters(VLLM.replace("} 3.0", f"}} {value}"))


@pytest.mark.parametrize("position", ["99999999999", "-1", "\u00b2", "x", ""])
def test_positions_that_no_round_has_are_passed_over(position: str) -> None:
    found = engines.get("vllm").counters(VLLM.replace('position="2"', f'position="{position}"'))
    assert found.per_position == (60, 35)
