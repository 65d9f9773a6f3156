"""Our Grafana dashboard, made from a short table.  It asks for recorded names (``k25:*``) alone, of any engine."""

from __future__ import annotations

from typing import Any, NamedTuple

WIDTH, HEIGHT = 8, 7  # of a panel; 24 is a row
SOURCE = {"type": "prometheus", "uid": "k25-prometheus"}


class Panel(NamedTuple):
    title: str  # with its unit's meaning; the definition's name where there is one
    unit: str  # Grafana's name of the unit
    series: tuple[tuple[str, str], ...]  # (legend, PromQL)
    about: str = ""


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    ("Service", (
        Panel("Throughput, output tokens", "tok/s", (("{{engine}}", "k25:generated_tokens:rate1m"),),
              "SGLang counts with each log interval, vLLM with each step"),
        Panel("Prompt tokens computed", "tok/s", (("{{engine}}", "k25:prompt_tokens:rate1m"),)),
        Panel("Requests", "short", (("running", "k25:running"), ("waiting", "k25:waiting"))),
        Panel("Time to first token", "s", (("p50", "k25:ttft_seconds:p50"), ("p95", "k25:ttft_seconds:p95"))),
        Panel("Inter-token latency", "s", (("p50", "k25:itl_seconds:p50"), ("p95", "k25:itl_seconds:p95"))),
        Panel("KV cache in use", "percentunit", (("{{engine}}", "k25:kv_use"),)),
    )),
    ("Speculation", (
        Panel("Accept length (1 + accepted / verify calls)", "short",
              (("5 minutes", "k25:accept_length:5m"), ("30 minutes", "k25:accept_length:30m"),
               ("promised, low", "k25:promised_accept_length:low"),
               ("promised, high", "k25:promised_accept_length:high")),
              "From raw counters; the band is the interval that the draft's training predicted"),
        Panel("Survival by position", "percentunit", (("position {{position}}", "k25:survival:5m"),),
              "Share of rounds that accepted at least so many draft tokens; SGLang does not export it"),
        Panel("Rounds", "ops", (("{{engine}}", "k25:rounds:rate5m"),), "Verify calls per second"),
    )),
    ("Cards", (
        Panel("Power", "watt", (("GPU {{gpu}}", "k25:gpu_power_watts"),)),
        Panel("SM clock", "megahertz", (("GPU {{gpu}}", "k25:gpu_clock_mhz"),)),
        Panel("Temperature", "celsius", (("GPU {{gpu}}", "k25:gpu_temperature_celsius"),)),
        Panel("Last Xid", "short", (("GPU {{gpu}}", "k25:gpu_xid"),), "0: none; k25stack check host explains others"),
        Panel("Supervisor: restarts", "short", (("{{cause}}", "k25:restarts:increase1h"),), "In the last hour"),
        Panel("Ready", "bool_on_off", (("ready", "k25:ready"),)),
    )),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append(_row(title, len(panels) + 1, y))
        y += 1
        for index, panel in enumerate(row):
            place = {"x": index % 3 * WIDTH, "y": y + index // 3 * HEIGHT, "w": WIDTH, "h": HEIGHT}
            panels.append(_panel(panel, len(panels) + 1, place))
        y += -(-len(row) // 3) * HEIGHT
    return {
        "uid": "k25stack",
        "title": "k25stack",
        "tags": ["k25stack"],
        "schemaVersion": 39,
        "timezone": "utc",
        "refresh": "15s",
        "time": {"from": "now-6h", "to": "now"},
        "editable": False,
        "panels": panels,
    }


def _row(title: str, number: int, y: int) -> dict[str, Any]:
    place = {"x": 0, "y": y, "w": 24, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
        for i, (legend, expression) in enumerate(panel.series)
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def expressions() -> set[str]:
    """Every name that the dashboard asks for."""
    return {expression for _, row in ROWS for panel in row for _, expression in panel.series}
