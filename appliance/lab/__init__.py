"""Measure and export models: benchmark, packs, and exports for Hailo's compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.lab.benchmark.main import run_benchmark
    from appliance.lab.benchmark.options import add_benchmark_arguments
    from appliance.lab.child import Child, ChildDiedError
    from appliance.lab.fit.main import FitRequest, fit_model
    from appliance.lab.hailo.calibration import recorded_mels
    from appliance.lab.hailo.export import export_for_hailo
    from appliance.lab.packs import write_pack

__getattr__ = lazily(__name__, __file__)
