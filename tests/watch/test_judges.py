"""The pure parts: when looks make an engine unhealthy, why an engine ended, how long phases took."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from k25stack.engines.supervise import FATAL, policy, supervision
from k25stack.errors import UsageError
from k25stack.watch import cause
from k25stack.watch.heartbeat import Heartbeat, look_closer
from k25stack.watch.history import usual
from k25stack.watch.load import Phases, left_s
from k25stack.watch.look import Eye, Failed, Look, fetch


def fine(running: float, tokens: float, waiting: float = 0.0) -> Look:
    return Look("fine", "", running, waiting, tokens)


def verdicts(*looks: Look, misses: int = 3) -> list[bool]:
    beat = Heartbeat(misses)
    return [beat.feed(look) for look in looks]


def test_three_misses_in_a_row() -> None:
    gone = Look("refused")
    assert verdicts(gone, gone, gone) == [False, False, True]
    assert verdicts(gone, gone, fine(0, 0), gone, gone) == [False] * 5


def test_a_stall_is_requests_without_tokens_between_two_looks() -> None:
    assert verdicts(fine(1, 5), fine(1, 5), fine(1, 5), fine(1, 5)) == [False, False, False, True]
    assert verdicts(fine(0, 5), fine(0, 5), fine(0, 5), fine(0, 5)) == [False] * 4
    assert verdicts(*[fine(0, 5, waiting=2)] * 4)[-1]  # waiting alone is a stall as well


def test_a_prefill_shorter_than_the_rule_and_a_slow_engine_are_no_alarm() -> None:
    quiet = [fine(1, 5)] * 3  # two whole heartbeats without a token
    assert not any(verdicts(*quiet, fine(1, 6), *[fine(1, 6)] * 2, fine(1, 7)))


def test_an_engine_that_started_anew_counts_from_zero() -> None:
    assert not any(verdicts(fine(1, 500), fine(1, 0), fine(1, 0), fine(1, 3)))


def test_ways_of_missing_are_told_apart() -> None:
    beat = Heartbeat(3)
    for look, kind in ((fine(1, 1), ""), (Look("timeout"), "timeout"), (Look("saturated"), "saturated"),
                       (fine(1, 1), "stalled"), (Look("refused"), "refused")):  # fmt: skip
        beat.feed(look)
        assert beat.kind == kind


def test_quiet_engines_are_asked_for_their_health() -> None:
    def with_health(look: Look, before: Look | None, health: Look) -> Look:
        beat = Heartbeat(3)
        beat.before = before
        return look_closer(look, beat, lambda: health)

    wedged = Look("timeout", "no answer")
    assert with_health(fine(0, 5), fine(0, 5), wedged) == wedged
    assert with_health(fine(2, 9), fine(2, 5), wedged) == fine(2, 9)  # busy and moving: not asked
    stall = with_health(fine(2, 5), fine(2, 5), Look("fine"))
    assert stall == fine(2, 5)  # a good answer proves nothing


def test_counters_are_summed_over_labels_and_other_names_are_left_out() -> None:
    eye = Eye(policy("vllm", "m", 1))
    text = (
        b"# TYPE vllm:generation_tokens_total counter\n"
        b'vllm:generation_tokens_total{engine="0",m="a}b"} 5.0\nvllm:generation_tokens_total{engine="1"} 7e0\n'
        b"vllm:prompt_tokens_total 3\nvllm:prompt_tokens_total_created 1e9\nvllm:num_requests_running 2 1700000000\n"
    )
    found = [pattern.findall(text) for pattern in (eye.tokens, eye.running, eye.waiting) if pattern]
    assert found == [[b"5.0", b"7e0", b"3"], [b"2"], []]


@pytest.fixture
def listener() -> Callable[..., int]:
    sockets: list[socket.socket] = []

    def open_port(reply: bytes | None = None, backlog: int = 5) -> int:
        """A port that answers every connection with these bytes and hangs up; None: never answers."""
        server = socket.socket()
        server.bind(("127.0.0.1", 0))
        server.listen(backlog)
        sockets.append(server)

        def answer() -> None:
            while reply is not None:
                try:
                    link, _ = server.accept()
                except OSError:
                    return
                link.recv(65536)
                link.sendall(reply)
                link.close()

        threading.Thread(target=answer, daemon=True).start()
        return int(server.getsockname()[1])

    return open_port


def outcome(port: int) -> str:
    try:
        fetch(f"http://127.0.0.1:{port}/x", 0.2)
    except Failed as failed:
        return failed.look.outcome
    return "fine"


def test_refused_timed_out_cut_and_strange_answers(listener: Callable[..., int]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert outcome(closed.getsockname()[1]) == "refused"
    assert outcome(listener()) == "timeout"
    assert outcome(listener(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel")) == "bad"
    assert outcome(listener(b"SSH-2.0\r\n")) == "bad"
    assert outcome(listener(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")) == "fine"


def test_a_full_accept_queue_is_saturation(listener: Callable[..., int]) -> None:
    port = listener(backlog=0)
    waiting = []
    for _ in range(8):
        link = socket.socket()
        link.setblocking(False)
        link.connect_ex(("127.0.0.1", port))
        waiting.append(link)
    assert outcome(port) == "saturated"


def test_ends_are_told_apart() -> None:
    lost = ("gpu_lost", "GPU is lost")
    assert cause.of_exit(1, None, None).kind == "error"
    assert cause.of_exit(0, None, None).kind == "ended"
    assert cause.of_exit(139, None, None).kind == "signal"
    assert cause.of_exit(137, None, None).kind == "killed"
    assert cause.of_exit(137, None, "this container").kind == "oom"
    assert cause.of_exit(1, None, "this container").kind == "error"
    assert not cause.of_exit(1, lost, None).restart
    assert cause.of_exit(1, ("port_taken", "address already in use"), None).restart
    assert not cause.of_heartbeat("stalled", "x", lost).restart
    assert cause.of_heartbeat("stalled", "x", ("gpu_oom", "CUDA out of memory")).kind == "stalled"


def test_out_of_memory_kills_are_counted_from_now_on(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([{"this container": 2, "the host": 5}, {"this container": 2, "the host": 5},
                   {"this container": 3, "the host": 6}])  # fmt: skip
    monkeypatch.setattr(cause, "_oom_kills", lambda: next(counts))
    seen = cause.oom_counter()
    assert seen() is None
    assert seen() == "this container"


def test_this_host_counts_out_of_memory_kills() -> None:
    assert set(cause._oom_kills()) <= {"this container", "the host"}
    assert cause._oom_kills()


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Unable to determine the device handle for GPU0000:41:00.0: GPU is lost.", "gpu_lost"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu_reset"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "gpu_oom"),
        ("[Errno 98] error while attempting to bind on address ('0.0.0.0', 30000)", "port_taken"),
        ("INFO 11-30 12:00:00 engine.py:310] Added request cmpl-1", None),
    ],
)
def test_fatal_lines(line: str, kind: str | None) -> None:
    import re

    assert next((name for name, text in FATAL.items() if re.search(text, line)), None) == kind


def test_phases_follow_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("k25stack.watch.load.time.monotonic", lambda: clock[0])
    phases = Phases(supervision("sglang").load_markers)
    for at, line in ((2, b"Load weight begin. avail mem=90 GB"), (3, b"Load weight begin. avail mem=90 GB"),
                     (12, b"Loading safetensors checkpoint shards: 100% Completed | 64/64"), (20, b"Load weight end."),
                     (22, b"Multi-thread loading shards: 100% Completed | 1/1"),  # the draft's
                     (25, b"Capture decode CUDA graph begin. "), (27, b"Capture verify CUDA graph begin. "),
                     (40, b"INFO:     Application startup complete.")):  # fmt: skip
        clock[0] = at
        phases.line(line)
    assert phases.now == "warm"
    clock[0] = 44.0
    phases.finish()
    assert phases.seconds() == {"start": 2.0, "read": 10.0, "copy": 8.0, "memory": 5.0, "graphs": 15.0, "warm": 4.0}


def test_time_left_comes_from_earlier_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("k25stack.watch.load.time.monotonic", lambda: clock[0])
    earlier = usual([{"phases": {"start": start, "read": 30.0, "warm": 5.0}} for start in (2.0, 9.0, 3.0)])
    phases = Phases({"read": "read"})
    clock[0] = 1.0
    assert left_s(phases, earlier) == 2.0 + 30.0 + 5.0
    phases.line(b"read")
    clock[0] = 100.0
    assert left_s(phases, earlier) == 5.0
    assert left_s(phases, {}) is None


def test_no_supervision_without_names() -> None:
    with pytest.raises(UsageError, match="no supervision for engine 'llama'"):
        supervision("llama")
