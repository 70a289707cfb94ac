"""`/metrics`: off by default, for the holder of the token alone, and in Prometheus' own words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rigs.checkout import ROOT
from rigs.page import STATE, STATS, house

pytest.importorskip("prometheus_client", reason="not installed: prometheus_client")

TOKEN = "0123456789abcdef"


def test_the_holder_of_the_token_reads_the_numbers(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n", encoding="utf-8")
    file.chmod(0o600)
    with house(tmp_path, metrics_token_file=str(file)) as (found, _, server):
        assert found.get("metrics", Cookie=None)[0] == 401
        assert found.get("metrics", Authorization="Bearer 0123456789abcdeF")[0] == 401
        status, headers, body = found.get("metrics", Authorization=f"Bearer {TOKEN}")
        lines = body.decode().splitlines()
        assert status == 200
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "roomscribe_up 1.0" in lines
        assert 'roomscribe_latency_seconds{quantile="0.95"} 0.88' in lines
        assert 'roomscribe_discarded_total{reason="no_speech"} 31.0' in lines
        assert "roomscribe_queue_windows 0.0" in lines
        server.stop()
        status, _, body = found.get("metrics", Authorization=f"Bearer {TOKEN}")
        assert (status, body.decode().splitlines()[-1]) == (200, "roomscribe_up 0.0")
        file.write_text("short\n", encoding="utf-8")
        assert found.get("metrics", Authorization="Bearer short")[0] == 503


def test_every_metric_of_the_dashboard_exists() -> None:
    from appliance.web.metrics import render

    names = set(re.findall(r"^(roomscribe_\w+)", render(STATE, STATS).decode(), re.M))
    dashboard = json.loads((ROOT / "examples/grafana.json").read_text(encoding="utf-8"))
    used = re.findall(r"roomscribe_\w+", json.dumps([p["targets"] for p in dashboard["panels"]]))
    assert used
    assert set(used) <= names
