"""Prometheus rules, rendered: one recorded name per figure for every engine, alerts on those names alone.

The engines' own series come from ``k25stack.engines.series``; dashboard and alerts know only ``k25:*``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from k25stack.engines.series import SERIES, Series
from k25stack.errors import UsageError
from k25stack.watch.page import PREFIX as WATCH

SHORT, LONG = "5m", "30m"
INTERVAL = "15s"
ENOUGH_ROUNDS = 1500  # of an accept length that is judged
QUANTILES = (50, 95)
Rule = dict[str, Any]


def recording_rules() -> dict[str, Any]:
    """The rule file that gives every engine's figures one name each, told apart by the label ``engine``."""
    groups = [
        {"name": f"k25_{engine}", "interval": INTERVAL, "rules": list(_engine_rules(engine, series))}
        for engine, series in SERIES.items()
    ]
    groups.append({"name": "k25_watch", "interval": INTERVAL, "rules": list(_watch_rules())})
    groups.append({"name": "k25_gpu", "interval": INTERVAL, "rules": list(_gpu_rules())})
    return {"groups": groups}


def _engine_rules(engine: str, series: Series) -> Iterator[Rule]:
    def rule(name: str, expression: str, **labels: str) -> Rule:
        return {"record": f"k25:{name}", "expr": expression, "labels": {"engine": engine, **labels}}

    yield rule("running", series.running)
    yield rule("waiting", series.waiting)
    yield rule("generated_tokens:rate1m", f"sum(rate({series.generated}[1m]))")
    yield rule("prompt_tokens:rate1m", f"sum(rate({series.prompt}[1m]))")
    if series.requests:
        yield rule("requests:rate5m", f"sum(rate({series.requests}[{SHORT}]))")
    for name, histogram in (("ttft_seconds", series.ttft), ("itl_seconds", series.itl)):
        if histogram:
            for quantile in QUANTILES:
                spread = f"sum by (le) (rate({histogram}_bucket[{SHORT}]))"
                expression = f"histogram_quantile({quantile / 100:g}, {spread})"
                yield rule(f"{name}:p{quantile}", expression)
    if series.kv_use:
        yield rule("kv_use", series.kv_use)
    if series.verify_calls:
        yield rule("rounds:rate5m", f"sum(rate({series.verify_calls}[{SHORT}]))")
        yield rule("rounds:increase30m", f"sum(increase({series.verify_calls}[{LONG}]))")
    if series.accept_length:
        for window in (SHORT, LONG):
            yield rule(f"accept_length:{window}", series.accept_length.replace("{window}", window))
    if series.per_position and series.verify_calls:
        rounds = f"on () group_left () (sum(rate({series.verify_calls}[{SHORT}])) > 0)"
        yield rule("survival:5m", f"sum by (position) (rate({series.per_position}[{SHORT}])) / {rounds}")


def _watch_rules() -> Iterator[Rule]:
    yield {"record": "k25:ready", "expr": f"max({WATCH}ready)"}
    yield {"record": "k25:restarts:increase1h", "expr": f"sum by (cause) (increase({WATCH}restarts_total[1h]))"}


def _gpu_rules() -> Iterator[Rule]:
    """Of NVIDIA's DCGM exporter (field names of its default list)."""
    for name, field in (
        ("gpu_power_watts", "DCGM_FI_DEV_POWER_USAGE"),
        ("gpu_clock_mhz", "DCGM_FI_DEV_SM_CLOCK"),
        ("gpu_temperature_celsius", "DCGM_FI_DEV_GPU_TEMP"),
        ("gpu_xid", "DCGM_FI_DEV_XID_ERRORS"),
    ):
        yield {"record": f"k25:{name}", "expr": f"max by (gpu) ({field})"}


def alert_rules() -> dict[str, Any]:
    """The alerts.  Each says what it means and what to type."""
    enough = f"and on (engine) (k25:rounds:increase30m > {ENOUGH_ROUNDS})"
    draft = "k25stack check URL --draft DIR"
    measured, promised = f"k25:accept_length:{LONG}", "k25:promised_accept_length"

    def alert(name: str, expression: str, wait: str, severity: str, summary: str, remedy: str) -> Rule:
        told = {"summary": summary, "remedy": remedy}
        return {"alert": name, "expr": expression, "for": wait, "labels": {"severity": severity}, "annotations": told}

    shown = 'accept length {{ $value | printf "%.2f" }} over 30 minutes'
    rules = [
        alert("EngineDown", 'up{job="engine"} == 0', "2m", "page", "the engine's metrics do not answer",
              "docker compose ps; docker compose logs --tail 50"),
        alert("EngineNotReady", "k25:ready == 0", "45m", "page", "the supervisor has not said ready for 45 minutes",
              "GET /status; docker compose logs --tail 50"),
        alert("EngineRestarts", "sum(k25:restarts:increase1h) > 2", "0m", "warn",
              "{{ $value | printf \"%.0f\" }} restarts in an hour", "GET /status names the causes"),
        alert("EngineStalled", "k25:running > 0 and on (engine) k25:generated_tokens:rate1m == 0", "3m", "page",
              "{{ $labels.engine }}: requests run and no token comes", "the supervisor restarts it: GET /status"),
        alert("QueueGrows", "k25:waiting > 16 and on (engine) deriv(k25:waiting[10m]) > 0", "10m", "warn",
              "{{ $labels.engine }}: {{ $value }} requests wait, and more each minute",
              "raise max_running, or shed load"),
        alert("CacheFull", "k25:kv_use > 0.97", "10m", "warn", "{{ $labels.engine }}: the KV cache is full",
              "lower the context or max_running: k25stack stack plan --memory STACK"),
        alert("SlowFirstToken", "k25:ttft_seconds:p95 > 30", "10m", "warn",
              "{{ $labels.engine }}: p95 of the first token is {{ $value | humanizeDuration }}", "look at the queue"),
        alert("DraftContributesNothing", f"{measured} < 1.02 {enough}", "5m", "page",
              "{{ $labels.engine }}: " + shown + ": the draft costs time and gives nothing", draft),
        alert("AcceptLengthBelowPromise", f"{measured} < on () group_left () {promised}:low {enough}",
              "10m", "warn", "{{ $labels.engine }}: " + shown + ", under the interval that the draft promised", draft),
        alert("AcceptLengthAbovePromise", f"{measured} > on () group_left () {promised}:high {enough}",
              "10m", "info", "{{ $labels.engine }}: " + shown + ", over the promise: other traffic than was scored",
              "score the draft on recorded traffic: k25stack draft score"),
        alert("GpuXid", "k25:gpu_xid > 0", "0m", "page", "GPU {{ $labels.gpu }}: Xid {{ $value }}",
              "k25stack check host"),
        alert("GpuHot", "k25:gpu_temperature_celsius > 88", "5m", "warn",
              "GPU {{ $labels.gpu }}: {{ $value }} degrees Celsius", "k25stack check host"),
    ]  # fmt: skip
    return {"groups": [{"name": "k25_alerts", "interval": INTERVAL, "rules": rules}]}


def promise_rules(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """The interval that a draft promised, as two constant series; no rule when nothing was promised.

    ``record`` is the draft's k25stack.json.  Raises UsageError when its prediction is not two numbers.
    """
    predicted = (record or {}).get("predicted") or {}
    interval = predicted.get("interval")
    if not interval:
        return {"groups": []}
    if (
        not isinstance(interval, list | tuple)
        or len(interval) != 2
        or not all(isinstance(x, int | float) for x in interval)
    ):
        raise UsageError(f"predicted.interval is {interval!r}, no pair of numbers", where="k25stack.json",
                         remedy="score the draft again: k25stack draft score")  # fmt: skip
    ends = zip(("low", "high"), sorted(float(x) for x in interval), strict=True)
    rules = [{"record": f"k25:promised_accept_length:{end}", "expr": f"vector({value:.4f})"} for end, value in ends]
    return {"groups": [{"name": "k25_promise", "interval": INTERVAL, "rules": rules}]}


def scrape_config(port: int, ready_port: int) -> dict[str, Any]:
    """prometheus.yml: engine and supervisor under their one name in the engines' network, and the card exporter."""

    def job(name: str, target: str) -> dict[str, Any]:
        return {"job_name": name, "static_configs": [{"targets": [target]}]}

    return {
        "global": {"scrape_interval": "5s", "scrape_timeout": "4s", "evaluation_interval": INTERVAL},
        "rule_files": [
            "/etc/k25stack/monitoring/rules.yml",
            "/etc/k25stack/monitoring/alerts.yml",
            "/etc/k25stack/promise.yml",
        ],
        "scrape_configs": [
            job("engine", f"engine:{port}"),
            job("watch", f"engine:{ready_port}"),
            {**job("dcgm", "dcgm:9400"), "scrape_interval": INTERVAL},
        ],
    }


def monitoring_files(port: int, ready_port: int, pins: Mapping[str, str]) -> dict[str, str]:
    """Path below ``compose/`` -> text.  ``pins``: image with digest of "dcgm" and "grafana", where there are such."""
    from k25stack.jobs.dashboard import SOURCE, dashboard
    from k25stack.jobs.templates import fill

    provider = {"name": "k25stack", "type": "file", "options": {"path": "/var/lib/grafana/dashboards"}}
    source_file = {
        "name": "Prometheus",
        "type": "prometheus",
        "uid": SOURCE["uid"],
        "url": "http://prometheus:9090",
        "isDefault": True,
    }
    dcgm, grafana = pins.get("dcgm", ""), pins.get("grafana", "")
    return {
        "monitoring.yaml": fill("monitoring.yaml.j2", dcgm=dcgm, grafana=grafana),
        "monitoring/prometheus.yml": _text(scrape_config(port, ready_port)),
        "monitoring/rules.yml": _text(recording_rules()),
        "monitoring/alerts.yml": _text(alert_rules()),
        "monitoring/promise.yml": _text(promise_rules(None)),
        "monitoring/dashboard.json": json.dumps(dashboard(), indent=1) + "\n",
        "monitoring/grafana/dashboards/k25stack.yml": _text({"apiVersion": 1, "providers": [provider]}),
        "monitoring/grafana/datasources/prometheus.yml": _text({"apiVersion": 1, "datasources": [source_file]}),
    }


def promise_text(record: Mapping[str, Any] | None) -> str:
    """The rule file of `promise_rules`."""
    return _text(promise_rules(record))


def _text(value: Any) -> str:
    import yaml

    head = "# Rendered by `k25stack stack render STACK --to compose`; k25stack/jobs/monitorfile.py holds the source.\n"
    return head + str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100_000))
