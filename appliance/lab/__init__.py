"""Measure and export models: benchmark, packs, and exports for Hailo's compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.lab.benchmark.main import run_benchmark as run_benchmark
    from appliance.lab.benchmark.options import add_benchmark_arguments as add_benchmark_arguments
    from appliance.lab.fit.main import FitRequest as FitRequest, fit_model as fit_model
    from appliance.lab.hailo.calibration import recorded_mels as recorded_mels
    from appliance.lab.hailo.export import export_for_hailo as export_for_hailo
    from appliance.lab.packs import write_pack as write_pack
    from appliance.lab.recordings import SHIPPED as SHIPPED, listed_texts as listed_texts
    from appliance.lab.words import (
        Recorded as Recorded,
        WordCounts as WordCounts,
        count_words as count_words,
        measure_words as measure_words,
        read_recordings as read_recordings,
    )
    from appliance.lab.xrt import check_pack as check_pack

__getattr__ = lazily(__name__, __file__)
