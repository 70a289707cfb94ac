"""What the machine says of itself: its name, its processor's temperature, what slows it down.

Read from files alone, in less than a millisecond; what a machine does not say is None.
"""

from __future__ import annotations

from appliance.health import Health
from appliance.records import ApplianceStats
from appliance.system import soc_temperature_c, throttling


def stats(health: Health, npu_temperature_c: float | None) -> ApplianceStats:
    """Counters and readings of this moment."""
    return ApplianceStats(
        counters=health.counters(),
        uptime_s=health.uptime_s,
        npu_temperature_c=npu_temperature_c,
        soc_temperature_c=soc_temperature_c(),
        throttling=throttling(),
    )
