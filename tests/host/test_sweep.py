"""The sweep over NCCL's settings: which combination wins, and what never does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from k25stack.cli.main import main
from k25stack.errors import HostError, UsageError
from k25stack.host.live.family import FAILED, FINE, TIMEOUT, UNABLE
from k25stack.host.live.session import Answer, Place, Session
from k25stack.host.nccl_env import faults, parse_env
from k25stack.host.sweep import (
    OWN,
    Combination,
    Swept,
    as_dict,
    base_env,
    first_round,
    is_scoped,
    nccl_file,
    sizes_of,
    sweep,
)

from .hosts import whole_host, write_host

SIZES = (8192, 1 << 20)


def answer(us: float, wrong: int = 0) -> Answer:
    lines = ["# ranks 2 cards 0,1"]
    for size in SIZES:
        columns = f"{us:.2f} 1.00 1.00 {wrong}"
        lines.append(f"{size} {size // 4} float sum -1 {columns} {columns}")
    return Answer(lines, FINE, 0.0)


class Host:
    """Answers by what is set, and remembers what was asked."""

    def __init__(self, **rules: Answer) -> None:
        self.rules = rules
        self.asked: list[dict[str, str]] = []

    def __call__(self, env: Mapping[str, str], limit_s: float) -> Answer:
        self.asked.append(dict(env))
        text = " ".join(f"{name}={value}" for name, value in env.items())
        found = [rule for words, rule in self.rules.items() if all(word in text for word in words.split("__"))]
        return found[-1] if found else answer(100)


def swept(host: Host, base: Mapping[str, str] | None = None, budget_s: float = 60) -> Swept:
    return sweep(host, base or {}, nvlink=False, scoped=True, budget_s=budget_s)


def test_the_fastest_wins_and_its_file_is_one_that_nccl_takes() -> None:
    host = Host(**{"Ring__:LL": answer(50), "Ring__:LL__=8": answer(40)})
    found = swept(host, {"NCCL_P2P_LEVEL": "SYS"})
    assert found.winner.combination == Combination("Ring", "LL", 8) and found.gain == pytest.approx(2.5)
    assert all(env["NCCL_P2P_LEVEL"] == "SYS" for env in host.asked)
    text = nccl_file(found, True, "8x card", "both", "2026-11-30")
    env = parse_env(text, "nccl.env")
    assert faults(env) == [] and env["NCCL_ALGO"] == "allreduce:Ring" and env["NCCL_MAX_NCHANNELS"] == "8"
    assert text.count("\n# Ring LL") >= 5 and "winner: Ring LL 8 channels, 2.50 times" in text
    assert json.dumps(as_dict(found, True, "8x card", "both"))


def test_what_hangs_fails_or_sums_wrong_is_recorded_and_never_wins() -> None:
    host = Host(
        **{
            "Ring__:LL": Answer(["# ranks 2"], TIMEOUT),
            "Ring__:Simple": answer(1, wrong=3),
            "Tree__:LL": Answer(["# rank 0: NCCL error: invalid usage"], FAILED),
        }
    )
    found = swept(host)
    outcomes = {str(one.combination): one.outcome for one in found.tries}
    assert outcomes["Ring LL"] == "hangs" and "sums wrong at 8192 B" in outcomes["Ring Simple"]
    assert outcomes["Tree LL"] == "fails: rank 0: NCCL error: invalid usage"
    assert found.winner.combination == OWN and found.env(True) == {}
    assert "# Ring LL                  hangs" in nccl_file(found, True, "", "both", "")


def test_a_gain_within_the_noise_is_no_gain() -> None:
    owns = iter([100.0, 90.0])

    def ask(env: Mapping[str, str], limit_s: float) -> Answer:
        return answer(92 if env else next(owns))

    found = sweep(ask, {}, nvlink=False, scoped=True, budget_s=60)
    assert found.winner.combination == OWN and found.gain == 1 and found.noise == pytest.approx(100 / 90)


def test_a_lucky_measurement_is_repeated() -> None:
    lucky = iter([10.0, 99.0])

    def ask(env: Mapping[str, str], limit_s: float) -> Answer:
        return answer(next(lucky) if env.get("NCCL_MAX_NCHANNELS") == "32" and "NCCL_ALGO" not in env else 100)

    found = sweep(ask, {}, nvlink=False, scoped=True, budget_s=60)
    assert [str(one.combination) for one in found.tries[-2:]] == ["NCCL's own choice", "32 channels"]
    assert found.winner.combination == OWN


def test_a_budget_that_is_spent_leaves_the_rest_out() -> None:
    found = swept(Host(), budget_s=-1)
    assert len(found.tries) == 1 and found.left >= len(first_round([], False))


def test_where_peer_access_hangs_it_is_turned_off() -> None:
    found = swept(Host(NCCL_P2P_LEVEL=Answer([], TIMEOUT)), {"NCCL_P2P_LEVEL": "SYS", "NCCL_IB_DISABLE": "1"})
    assert found.base == {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
    with pytest.raises(HostError, match="hangs whatever is set"):
        sweep(lambda env, limit_s: Answer([], TIMEOUT), {}, nvlink=True, scoped=True, budget_s=60)
    with pytest.raises(HostError, match="no torch") as error:
        sweep(lambda env, limit_s: Answer(["# no torch in x"], UNABLE), {}, nvlink=True, scoped=True, budget_s=60)
    assert "--python" in str(error.value)


def test_what_stands_in_the_file_stays_and_comes_before_advice() -> None:
    present = {"NCCL_P2P_DISABLE": "1", "NCCL_PROTO": "LL", "NCCL_SOCKET_IFNAME": "eth0"}
    advised = {"NCCL_P2P_LEVEL": "SYS", "NCCL_IB_DISABLE": "1"}
    assert base_env(present, advised) == {"NCCL_P2P_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_DISABLE": "1"}
    assert base_env({}, advised) == advised


def test_ll128_only_over_nvlink_and_names_only_where_nccl_takes_them() -> None:
    assert not any(one.protocol == "LL128" for one in first_round([], False))
    assert any(one.protocol == "LL128" for one in first_round([], True))
    assert is_scoped("2.28.9") and not is_scoped("2.23.4")
    assert Combination("Tree").env(True) == {"NCCL_ALGO": "allreduce:Tree"}
    assert Combination("Tree").env(False) == {"NCCL_ALGO": "Tree"}
    with pytest.raises(UsageError, match="one of latency, throughput, both"):
        sizes_of("fast")


@pytest.mark.twins
def test_a_real_sweep_with_a_combination_that_hangs() -> None:
    """Gloo instead of NCCL: nothing differs but what we plant, a rank that never joins with Tree."""
    with Session(Place()) as session:

        def ask(env: Mapping[str, str], limit_s: float) -> Answer:
            more = {"starts": [0]} if "Tree" in env.get("NCCL_ALGO", "") else {}
            limit = 1.0 if more else 60.0
            return session.ask("allreduce", limit, cards=[0, 1], backend="gloo", sizes=SIZES, env=dict(env), **more)

        found = sweep(ask, {}, nvlink=False, scoped=True, budget_s=8)
    outcomes = {str(one.combination): one.outcome for one in found.tries}
    assert outcomes["NCCL's own choice"] == "fine"
    assert {"Tree LL", "Tree Simple"} & outcomes.keys() == {name for name, said in outcomes.items() if said == "hangs"}
    assert "Tree" not in str(found.winner.combination)


def test_advise_and_a_dry_sweep_as_people_type_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = write_host(whole_host("8x-rtx-pro-6000"), tmp_path / "rec")
    assert main(["host", "nccl", "advise", "--from", str(recording)]) == 0
    told = capsys.readouterr()
    assert "NCCL_P2P_LEVEL=" in told.out and told.err.splitlines()[-1] == "Next: k25stack host nccl sweep"
    assert parse_env(told.out, "advice")
    assert main(["host", "nccl", "advise", "--from", str(recording), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["certain"] in (True, False)
    out = tmp_path / "nccl.env"
    assert main(["host", "nccl", "sweep", "-n", "-o", str(out)]) == 0
    assert "NCCL_ALGO=allreduce:Ring NCCL_PROTO=allreduce:LL\n" in capsys.readouterr().out and not out.exists()
    assert main(["host", "nccl", "sweep", "--workload", "fast"]) == 2


@pytest.mark.twins
def test_a_sweep_without_cards_says_so_and_keeps_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("K25_STATE_DIR", str(tmp_path / "state"))
    out = tmp_path / "nccl.env"
    out.write_text("NCCL_P2P_LEVEL=SYS\n")
    assert main(["host", "nccl", "sweep", "-y", "-o", str(out)]) == 3
    assert "sees 0 cards" in capsys.readouterr().err and out.read_text() == "NCCL_P2P_LEVEL=SYS\n"
    monkeypatch.setattr("typer.confirm", lambda text, **more: False)
    assert main(["host", "nccl", "sweep", "-o", str(out)]) == 1
