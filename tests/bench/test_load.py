"""Against a real server process whose pace, tokens and faults are known."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from k25stack import engines
from k25stack.bench.client import Ask, Client, session
from k25stack.bench.load import Load, closed_loop
from k25stack.bench.records import Prompt
from k25stack.bench.repeat import Repeat, assess
from k25stack.errors import HostError

Start = Callable[..., str]
ENGINE = engines.get("reference")
PROMPTS = [Prompt(f"doc{i}/0", f"doc{i}", "test", ids=(1, 2, i)) for i in range(40)]


def load(
    url: str, concurrency: int, requests: int, prompts: list[Prompt] | None = None, **ask: Any
) -> tuple[Load, Ask]:
    settings = Ask(model="fake-model", **{"max_tokens": 20, **ask})

    async def go() -> Load:
        async with session() as connections:
            client = Client(url, connections, ENGINE.request_counters)
            return await closed_loop(client, settings, prompts or PROMPTS, concurrency, requests)

    return asyncio.run(go()), settings


def measured(url: str, concurrency: int, requests: int, **ask: Any) -> Repeat:
    return assess(*load(url, concurrency, requests, **ask), steady_share=0.8)


def middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def test_known_pace_is_measured(fake_engine: Start) -> None:
    """100 ms to the first token and 20 ms per token; tolerances allow for a busy machine."""
    repeat = measured(fake_engine("--ttft-ms", "100", "--step-ms", "20"), concurrency=4, requests=8, max_tokens=30)
    assert repeat.reasons == ()
    assert 0.095 <= middle([record.ttft or 0 for record in repeat.records]) <= 0.25
    assert 0.019 <= middle([record.tpot or 0 for record in repeat.records]) <= 0.026
    assert repeat.per_request == pytest.approx(50, rel=0.2)
    assert repeat.decode is not None
    assert repeat.decode.seconds_per_token == pytest.approx(0.02, rel=0.2)
    assert repeat.decode.running == pytest.approx(4, rel=0.1)
    assert repeat.throughput == pytest.approx(4 * 30 / (0.1 + 29 * 0.02), rel=0.25)


def test_single_stream_is_decode_only(fake_engine: Start) -> None:
    """A long first token does not lower the single-stream rate."""
    repeat = measured(fake_engine("--ttft-ms", "300", "--step-ms", "10"), concurrency=1, requests=2, max_tokens=30)
    assert repeat.per_request == pytest.approx(100, rel=0.25)
    assert repeat.throughput is not None
    assert repeat.throughput < 65


@pytest.mark.parametrize("ids", [(), ("--no-ids",)])
def test_events_are_not_counted_as_tokens(fake_engine: Start, ids: tuple[str, ...]) -> None:
    """Three tokens per event: tokens per second follow the usage, not the events."""
    url = fake_engine("--step-ms", "30", "--accepted", "2", *ids)
    repeat = measured(url, concurrency=1, requests=3, max_tokens=31)
    assert [len(record.events) for record in repeat.records] == [11] * 3
    assert repeat.per_request == pytest.approx(100, rel=0.2)
    assert repeat.reasons == ()


def test_counters_per_request_are_the_servers(fake_engine: Start) -> None:
    url = fake_engine("--accepted", "1,0,2")
    records = load(url, concurrency=2, requests=6)[0].records
    rounds = records[0].rounds
    assert rounds is not None
    # 19 tokens after the first: rounds of 2, 1, 3 tokens three times make 18, the next would need 2 and is cut
    assert (rounds.verify_calls, rounds.accepted, rounds.cut) == (9, 9, 1)
    assert rounds.accept_length() == 2.0
    assert {record.rounds for record in records} == {rounds}


def test_outputs_keep_their_token_ids(fake_engine: Start) -> None:
    records = load(fake_engine(), concurrency=1, requests=1, max_tokens=5)[0].records
    assert records[0].token_ids == (0, 1, 2, 3, 4)
    assert records[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("error", "HTTP 500: .*out of memory"),
        ("truncate", "the stream ended early"),
        ("drop", "connection: "),
        ("stall", "no byte for 0.5 s"),
        ("no-usage", "no usage came"),
        ("garbage", "not an event of the protocol"),
    ],
)
def test_faults_are_named_and_reject_the_row(fake_engine: Start, fault: str, says: str) -> None:
    url = fake_engine("--fault", fault, "--fault-every", "4", "--step-ms", "1")
    repeat = measured(url, concurrency=2, requests=8, stall_s=0.5)
    assert len(repeat.records) == 6
    assert any(reason.startswith("2 of 8 requests failed") for reason in repeat.reasons)
    failed = [record for record in repeat.load.records if not record.ok]
    assert failed[0].error is not None
    assert re.search(says, failed[0].error)


def test_a_request_that_takes_too_long_is_given_up(fake_engine: Start) -> None:
    records = load(fake_engine("--step-ms", "200"), concurrency=1, requests=1, timeout_s=0.6)[0].records
    assert records[0].error == "not finished after 0.6 s"
    assert records[0].events


@pytest.mark.parametrize("ids", [(), ("--no-ids",)])
def test_a_wrong_usage_rejects_the_row(fake_engine: Start, ids: tuple[str, ...]) -> None:
    repeat = measured(fake_engine("--fault", "wrong-usage", *ids), concurrency=1, requests=2)
    assert [reason.split(":")[0] for reason in repeat.reasons if "usage" in reason] == ["2 requests with a wrong usage"]


def test_a_capped_server_shows(fake_engine: Start) -> None:
    """Eight requests open, two run: no step time comes out of such a row."""
    repeat = measured(fake_engine("--slots", "2", "--step-ms", "5", "--ttft-ms", "5"), concurrency=8, requests=24)
    assert repeat.decode is None
    assert max(record.ttft or 0 for record in repeat.records) > 0.2


def test_a_busy_client_rejects_the_row(fake_engine: Start) -> None:
    result, ask = load(fake_engine("--step-ms", "15"), concurrency=1, requests=2)
    busy = replace(result, cpu_s=0.71 * result.wall_s)
    assert assess(busy, ask, 0.8).reasons == ("client-bound: 71% of a core, at most 70%",)
    assert assess(replace(result, cpu_s=0.1 * result.wall_s), ask, 0.8).reasons == ()


def test_unreached_concurrency_rejects_the_row(fake_engine: Start) -> None:
    result, ask = load(fake_engine("--step-ms", "2"), concurrency=2, requests=8)
    assert "asked" in assess(replace(result, concurrency=4), ask, 0.8).reasons[-1]


def test_a_broken_server_is_not_asked_for_ever(fake_engine: Start) -> None:
    result, _ = load(fake_engine("--fault", "error"), concurrency=2, requests=1000)
    assert len(result.records) <= 8


def test_chat_prompts_go_through_the_servers_template(fake_engine: Start) -> None:
    chat = [Prompt("q", "q", "test", messages=({"role": "user", "content": "hello"},))]
    records = load(fake_engine(), concurrency=1, requests=1, prompts=chat)[0].records
    assert records[0].ok
    assert records[0].completion_tokens == 20


def test_no_server_is_an_environment_error() -> None:
    async def go() -> None:
        async with session() as connections:
            await Client("http://127.0.0.1:9", connections, ENGINE.request_counters).models("/v1/models")

    with pytest.raises(HostError, match="no answer") as caught:
        asyncio.run(go())
    assert caught.value.exit_code == 3


def test_bodies_say_what_was_asked() -> None:
    ask = Ask(
        "m",
        7,
        temperature=0.6,
        top_p=0.95,
        top_k=20,
        ignore_eos=True,
        template_args={"thinking": True},
        options={"x": 1},
    )
    body = ask.body(PROMPTS[0])
    assert body["prompt"] == [1, 2, 0]
    assert (body["temperature"], body["top_p"], body["top_k"], body["ignore_eos"], body["x"]) == (
        0.6,
        0.95,
        20,
        True,
        1,
    )
    assert body["stream_options"] == {"include_usage": True}
    chat = ask.body(Prompt("q", "q", "test", messages=({"role": "user", "content": "hello"},)))
    assert chat["chat_template_kwargs"] == {"thinking": True}
    assert json.loads(json.dumps(chat)) == chat
