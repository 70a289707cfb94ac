"""The daemon's state and counters in Prometheus' text format, for the page's `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

GAUGES = {
    "uptime_s": ("uptime_seconds", "Time since the daemon started."),
    "queue_depth": ("queue_windows", "Windows that wait to be transcribed."),
    "outbox_depth": ("unpublished_transcripts", "Transcripts that the broker lacks."),
    "soc_temperature_c": ("soc_temperature_celsius", "Temperature of the processor."),
    "npu_temperature_c": ("npu_temperature_celsius", "Temperature of the NPU."),
}
"""Field of `state` or `stats` -> name and help."""
LATENCIES = {
    "latency_ms": ("latency_seconds", "From the end of speech to its stored text."),
    "fleet_round_trip_ms": ("fleet_round_trip_seconds", "From a satellite to a worker and back."),
}


class Collector:
    """Metrics of one answer of the daemon; without an answer, only that it is offline."""

    def __init__(self, state: Mapping[str, Any] | None, stats: Mapping[str, Any]) -> None:
        self._state, self._stats = state, stats

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that have a value."""
        state, stats = self._state or {}, self._stats
        up = float(self._state is not None)
        yield GaugeMetricFamily("roomscribe_up", "Whether the daemon answers.", value=up)
        if self._state is None:
            return
        texts = ("node", "version", "model", "encoder")
        info = {name: str(state.get(name) or "") for name in texts}
        yield InfoMetricFamily("roomscribe", "What runs here.", value=info)
        status = GaugeMetricFamily("roomscribe_status", "1 for the present one.", labels=["status"])
        status.add_metric([str(state.get("status"))], 1)
        yield status
        known = {**stats, **state}
        for field, (name, text) in GAUGES.items():
            if is_number(known.get(field)):
                yield GaugeMetricFamily(f"roomscribe_{name}", text, value=known[field])
        for field, (name, text) in LATENCIES.items():
            family = GaugeMetricFamily(f"roomscribe_{name}", text, labels=["quantile"])
            for quantile in ("50", "95"):
                if is_number(value := stats.get(f"{field}_p{quantile}")):
                    family.add_metric([f"0.{quantile}"], value / 1000)
            if family.samples:
                yield family
        yield from self._counters()

    def _counters(self) -> Iterator[Metric]:
        """Yield every other number of `stats`, which are counters since the daemon's start."""
        for field, value in self._stats.items():
            if field not in GAUGES and "_ms_p" not in field and is_number(value):
                yield CounterMetricFamily(f"roomscribe_{field}", f"stats.{field} of MQTT.", value)
        text = "Utterances without a transcript."
        discarded = CounterMetricFamily("roomscribe_discarded", text, labels=["reason"])
        for reason, count in (self._stats.get("discarded") or {}).items():
            discarded.add_metric([reason], count)
        yield discarded


def is_number(value: object) -> TypeGuard[float]:
    """Return True for a number that is no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def render(state: Mapping[str, Any] | None, stats: Mapping[str, Any]) -> bytes:
    """Return the metrics as text; `state` is None if the daemon does not answer."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(state, stats))  # type: ignore[arg-type,unused-ignore]
    text: bytes = generate_latest(registry)
    return text
