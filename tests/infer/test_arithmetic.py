"""The check of a processor's integer products: right ones pass, saturating ones are told."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rigs.checkout import SPEECH
from rigs.needs import needs_model
from rigs.saturating import Saturating

from appliance.config import CaptureSettings, ModelSettings, MqttSettings, Settings, StoreSettings
from appliance.convert.build import Recipe, build_bundle
from appliance.daemon.assembly import Factories, build
from appliance.daemon.pipeline import Pipeline
from appliance.errors import ModelError
from appliance.infer import arithmetic
from appliance.infer.arithmetic import Values, find_trouble, warn_of_trouble
from appliance.infer.opening import open_transcriber
from appliance.infer.sessions import _options
from appliance.infer.transcriber import Transcriber
from appliance.model.bundle import Bundle
from appliance.system import lacks_vnni


@pytest.fixture
def int8(bundle: Bundle) -> Bundle:
    """A bundle that says it is one of 8 bits."""
    return replace(bundle, quantize="int8")


class Broken:
    """Does not run."""

    def run(self, _feeds: Mapping[str, NDArray[np.generic]], /) -> list[Values]:
        raise ModelError("running the graph failed")


def test_this_processor_computes_all_products_right(int8: Bundle) -> None:
    session = arithmetic.open_products()
    found = session.run({"many": arithmetic.inputs(), "one": arithmetic.inputs()[:, :1]})
    assert max(arithmetic.errors(found).values()) < 0.2 * arithmetic.LARGEST_ERROR
    assert find_trouble(int8) is None
    assert warn_of_trouble(int8) == ""


def test_products_that_saturate_are_told_with_what_to_do(int8: Bundle) -> None:
    trouble = find_trouble(int8, Saturating())
    assert trouble
    assert "many_rows off by 49%, one_row off by 49%, scanned off by 49%)" in trouble.found
    assert "onnxruntime 1." in trouble.found
    assert "--quantize none" in trouble.fix


def test_one_wrong_number_is_enough_and_so_is_one_that_is_none(int8: Bundle) -> None:
    for wrong in (1e6, np.nan):

        class Once:
            def run(self, _feeds: Mapping[str, NDArray[np.generic]], /) -> list[Values]:
                found = list(arithmetic.golden().values())
                found[1][0, 0, 7] = wrong  # noqa: B023
                return found

        trouble = find_trouble(int8, Once())
        assert trouble and "one_row off by" in trouble.found
        assert "many_rows" not in trouble.found


def test_a_check_that_cannot_run_is_told_and_ends_nothing(int8: Bundle) -> None:
    trouble = find_trouble(int8, Broken())
    assert trouble and "could not be checked: running the graph failed" in trouble.found


def test_a_trouble_is_logged_on_one_line_with_its_fix(
    int8: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "roomscribe"):
        line = warn_of_trouble(int8, Saturating())
    assert caplog.messages == [line]
    assert "computes INT8 products wrongly" in line and "--quantize none" in line


def test_a_transcriber_of_8_bits_knows_of_it(checkpoint_folder: Path, tmp_path: Path) -> None:
    build_bundle(checkpoint_folder, tmp_path / "small", Recipe("small", 2.0, quantize="int8"))
    settings = Settings(model=ModelSettings(bundle=str(tmp_path / "small")))
    with open_transcriber(settings, Saturating()) as transcriber:
        assert transcriber.trouble == warn_of_trouble(transcriber.bundle, Saturating()) != ""
    with open_transcriber(settings) as transcriber:
        assert transcriber.trouble == ""


@needs_model
def test_the_appliance_says_so_in_its_state_and_goes_on(tmp_path: Path) -> None:
    def troubled(settings: Settings) -> Transcriber:
        transcriber = open_transcriber(settings)
        transcriber.trouble = "off; mend"
        return transcriber

    settings = Settings(
        capture=CaptureSettings(recording=str(SPEECH / "00.flac")),
        mqtt=MqttSettings(enabled=False),
        store=StoreSettings(path=str(tmp_path)),
    )
    pipeline = Pipeline(build(settings, Factories(transcriber=troubled)))
    pipeline.start()
    try:
        assert pipeline.ended.wait(30)
        state = pipeline.state()
    finally:
        pipeline.stop()
    pipeline.check()
    assert (state.status, state.reasons) == ("degraded", ("off; mend",))
    assert pipeline.health.counters()["transcripts"] == 1


@pytest.mark.parametrize("saturating", [True, False])
def test_weights_become_unsigned_only_where_products_saturate(saturating: bool) -> None:
    options = _options(1, True, saturating=saturating)
    assert options.get_session_config_entry("session.x64quantprecision") == str(int(saturating))
    own = _options(1, True).get_session_config_entry("session.x64quantprecision")
    assert own == str(int(lacks_vnni()))
