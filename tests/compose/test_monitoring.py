"""Rules and alerts through promtool on made-up series; the dashboard asks for nothing that the rules do not record."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from k25stack import engines
from k25stack.engines.series import SERIES
from k25stack.errors import UsageError
from k25stack.jobs.dashboard import dashboard, expressions
from k25stack.jobs.monitorfile import alert_rules, monitoring_files, promise_rules, promise_text, recording_rules

FILES = monitoring_files(30000, 8099, {})
PROMISE = {"predicted": {"accept_length": 1.6, "interval": [1.55, 1.70]}}
VLLM = "vllm:spec_decode_num"


def promtool(directory: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        pytest.skip("no promtool here: apt-get install prometheus")
    return subprocess.run(["promtool", *argv], cwd=directory, text=True, capture_output=True, timeout=60, check=False)


def unit_test(directory: Path, series: dict[str, str], promise: dict[str, Any] | None, **checks: Any) -> None:
    """One promtool test.  ``series``: name -> values by minute; ``checks``: alerts (name, minute, labels), figures."""
    rules = {"rules.yml": recording_rules(), "alerts.yml": alert_rules(), "promise.yml": promise_rules(promise)}
    for name, content in rules.items():
        (directory / name).write_text(yaml.safe_dump(content))
    alerts = [
        {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": [{"exp_labels": labels}] if labels else []}
        for name, minute, labels in checks.get("alerts", ())
    ]
    figures = [
        {"expr": expression, "eval_time": f"{minute}m", "exp_samples": [{"labels": labels, "value": value}]}
        for expression, minute, labels, value in checks.get("figures", ())
    ]
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": figures,
        "alert_rule_test": [_with_annotations(alert) for alert in alerts],
    }
    test = {"rule_files": sorted(rules), "evaluation_interval": "1m", "tests": [case]}
    (directory / "test.yml").write_text(yaml.safe_dump(test))
    done = promtool(directory, "test", "rules", "test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


ANNOTATIONS: dict[str, dict[str, str]] = {}


def _with_annotations(alert: dict[str, Any]) -> dict[str, Any]:
    """promtool compares annotations too, so an expected alert has to spell them out."""
    for expected in alert["exp_alerts"]:
        labels = dict(expected["exp_labels"])
        value = labels.pop("value")
        expected["exp_labels"] = labels
        rule = next(rule for rule in alert_rules()["groups"][0]["rules"] if rule["alert"] == alert["alertname"])
        text = rule["annotations"]["summary"]
        text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found, own=labels: own[found[1]], text)
        text = re.sub(r'\{\{ \$value( \| printf "%\.\df")? \}\}', value, text)
        expected["exp_annotations"] = {**rule["annotations"], "summary": text}
    return alert


def speculating(accepted_per_round: float, rounds_per_minute: int = 300) -> dict[str, str]:
    return {
        f"{VLLM}_drafts_total": f"0+{rounds_per_minute}x70",
        f"{VLLM}_accepted_tokens_total": f"0+{rounds_per_minute * accepted_per_round:g}x70",
        "vllm:num_requests_running": "4x70",
        "vllm:generation_tokens_total": f"0+{rounds_per_minute * (1 + accepted_per_round):g}x70",
    }


def test_a_healthy_draft_raises_nothing(tmp_path: Path) -> None:
    names = [rule["alert"] for rule in alert_rules()["groups"][0]["rules"]]
    figures = [("k25:accept_length:30m", 60, '{__name__="k25:accept_length:30m", engine="vllm"}', 1.6)]
    unit_test(tmp_path, speculating(0.6), PROMISE, alerts=[(name, 60, None) for name in names], figures=figures)


@pytest.mark.parametrize(
    ("accepted", "name", "severity"),
    [(0.4, "AcceptLengthBelowPromise", "warn"), (0.9, "AcceptLengthAbovePromise", "info")],
)
def test_leaving_the_promised_interval_is_told(tmp_path: Path, accepted: float, name: str, severity: str) -> None:
    labels = {"engine": "vllm", "severity": severity, "value": f"{1 + accepted:.2f}"}
    unit_test(tmp_path, speculating(accepted), PROMISE, alerts=[(name, 60, labels), (name, 5, None)])


def test_without_a_promise_or_rounds_nothing_is_judged(tmp_path: Path) -> None:
    unit_test(tmp_path, speculating(0.4), None, alerts=[("AcceptLengthBelowPromise", 60, None)])
    few = speculating(0.0, rounds_per_minute=20)  # 600 in 30 minutes
    unit_test(
        tmp_path, few, PROMISE, alerts=[("AcceptLengthBelowPromise", 60, None), ("DraftContributesNothing", 60, None)]
    )


def test_a_draft_that_gives_nothing_pages(tmp_path: Path) -> None:
    labels = {"engine": "vllm", "severity": "page", "value": "1.00"}
    unit_test(tmp_path, speculating(0.0), None, alerts=[("DraftContributesNothing", 60, labels)])


def test_sglang_gives_its_accept_length_by_tokens_requests_and_rounds(tmp_path: Path) -> None:
    # Each minute 10 responses of 101 tokens in 50 rounds: 1 is from the prefill, so 100 in 50 rounds are 2.0 a round.
    series = {
        'sglang:generation_tokens_total{is_streaming="true"}': "0+1010x70",
        'sglang:num_requests_total{is_streaming="true"}': "0+10x70",
        'sglang:spec_verify_calls_total{tp_rank="0"}': "0+500x70",
    }
    figures = [("k25:accept_length:5m", 30, '{__name__="k25:accept_length:5m", engine="sglang"}', 2.0)]
    unit_test(tmp_path, series, None, figures=figures)


def test_a_stalled_engine_pages(tmp_path: Path) -> None:
    series = {"vllm:num_requests_running": "2x20", "vllm:generation_tokens_total": "0+100x9 900x11"}
    labels = {"engine": "vllm", "severity": "page", "value": ""}
    unit_test(tmp_path, series, None, alerts=[("EngineStalled", 9, None), ("EngineStalled", 16, labels)])


def test_an_xid_pages_at_once(tmp_path: Path) -> None:
    labels = {"gpu": "3", "severity": "page", "value": "79"}
    unit_test(
        tmp_path,
        {'DCGM_FI_DEV_XID_ERRORS{gpu="3"}': "0x5 79x5"},
        None,
        alerts=[("GpuXid", 4, None), ("GpuXid", 7, labels)],
    )


def test_the_shipped_files_pass_promtool(tmp_path: Path) -> None:
    for name in ("rules", "alerts", "promise"):
        (tmp_path / f"{name}.yml").write_text(FILES[f"monitoring/{name}.yml"])
    (tmp_path / "promised.yml").write_text(promise_text(PROMISE))
    done = promtool(tmp_path, "check", "rules", "rules.yml", "alerts.yml", "promise.yml", "promised.yml")
    assert done.returncode == 0, done.stderr
    config = FILES["monitoring/prometheus.yml"].replace("/etc/k25stack/monitoring/", "").replace("/etc/k25stack/", "")
    (tmp_path / "prometheus.yml").write_text(config)
    done = promtool(tmp_path, "check", "config", "prometheus.yml")
    assert done.returncode == 0, done.stderr


def recorded() -> set[str]:
    groups = [*recording_rules()["groups"], *promise_rules(PROMISE)["groups"]]
    return {rule["record"] for group in groups for rule in group["rules"]}


def test_dashboard_and_alerts_know_recorded_names_alone() -> None:
    assert expressions() <= recorded()
    for rule in alert_rules()["groups"][0]["rules"]:
        assert set(re.findall(r"k25:[a-z0-9_:]+", rule["expr"])) <= recorded()
        assert not re.search(r"(vllm|sglang|k25ref)[:_]", rule["expr"])


def test_every_series_is_one_that_the_engine_room_reads() -> None:
    assert set(SERIES) == set(engines.NAMES)


def test_the_dashboard_is_whole() -> None:
    panels = dashboard()["panels"]
    assert json.loads(FILES["monitoring/dashboard.json"]) == dashboard()
    assert len({panel["id"] for panel in panels}) == len(panels)
    shown = {panel["title"] for panel in panels}
    assert {
        "Power",
        "SM clock",
        "Temperature",
        "Last Xid",
        "KV cache in use",
        "Survival by position",
        "Rounds",
    } <= shown


def test_nothing_is_published_beyond_loopback_and_no_password_is_set() -> None:
    pins = {"grafana": "grafana/grafana@sha256:" + "0" * 64, "dcgm": "dcgm@sha256:" + "1" * 64}
    for given in ({}, pins):
        services = yaml.safe_load(monitoring_files(30000, 8099, given)["monitoring.yaml"])["services"]
        assert set(given) == {"grafana", "dcgm"} & set(services)
        ports = [port for service in services.values() for port in service.get("ports", ())]
        assert ports and all(port.startswith("127.0.0.1:") for port in ports)
        assert "PASSWORD" not in json.dumps(services).upper().replace("ADMIN_PASSWORD", "PASSWORD") or not given


@pytest.mark.parametrize("interval", [[1.5], "1.5-1.7", [1.5, None]])
def test_a_broken_promise_is_refused(interval: object) -> None:
    with pytest.raises(UsageError, match=r"predicted\.interval"):
        promise_rules({"predicted": {"interval": interval}})
