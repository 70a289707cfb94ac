"""How the chip is: temperature, power, throttling; read beside the running model.

HailoRT allows a second, reading handle on a chip that is in use. A reading that a board or a
version does not have is None. Never read from a real chip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from appliance.infer.hailo_errors import NpuError

GREEN, ORANGE, RED = 0, 1, 2
"""The firmware's zones of temperature; in the red one it stops the network by itself."""


@dataclass(frozen=True, slots=True)
class Readings:
    """One look at the chip."""

    temperature_c: float | None = None
    """The hotter one of its two sensors."""
    power_w: float | None = None
    """None on boards without the sensor."""
    zone: int | None = None
    """GREEN, ORANGE or RED; None where it does not say."""
    throttled: bool | None = None
    """True when the firmware has slowed the chip down, for heat or current (inferred)."""


def read(binding: Any, device_id: str) -> Readings:
    """The readings; those that cannot be had are None. Takes some ms, raises nothing."""
    opened = _or_none(lambda: binding.Device(device_id))
    if opened is None:
        return Readings()
    with opened as device:
        control = device.control
        sensors = _or_none(control.get_chip_temperature)
        power = _or_none(control.power_measurement)
        health = _or_none(getattr(control, "_get_health_information", None))
    return Readings(
        None if sensors is None else max(sensors.ts0_temperature, sensors.ts1_temperature),
        None if power is None else float(power),
        getattr(health, "current_temperature_zone", None),
        None if health is None else _is_throttled(health),
    )


def too_hot(readings: Readings) -> NpuError:
    """The error for a chip in the red zone."""
    found = "" if readings.temperature_c is None else f" of {readings.temperature_c:.0f} °C"
    return NpuError(
        "hot",
        f"expected a chip in its green zone, found a temperature{found} in the red one; "
        "it is left alone until it has cooled down; give it a heat sink and moving air",
    )


def _is_throttled(health: Any) -> bool:
    """True when a clock was lowered. `temperature_throttling_active` alone says that it may be."""
    by_heat = health.temperature_throttling_active and health.current_temperature_zone != GREEN
    return bool(health.overcurrent_throttling_active or by_heat)


def _or_none(reading: Callable[[], Any] | None) -> Any:
    try:
        return reading() if reading else None
    except Exception:  # raw HailoRTStatusException, HailoRTException, or no such method
        return None
