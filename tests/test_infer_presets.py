"""Presets scale with the bundle, and single rules override them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.config import DecoderSettings
from appliance.errors import ConfigError
from appliance.infer.decoder import choose_guards
from appliance.model.bundle import Bundle, Guards

NAMES = ("conservative", "balanced", "aggressive")


def chosen(bundle: Bundle, positions: int, trained: int) -> list[Guards]:
    sized = replace(bundle, positions=positions, trained_positions=trained)
    return [choose_guards(sized, DecoderSettings(preset=name)) for name in NAMES]


@pytest.mark.parametrize(
    ("positions", "trained", "padded"),
    [
        (500, 1500, (1500, 700, 500)),
        (250, 1500, (1500, 500, 250)),
        (1500, 1500, (1500, 1500, 1500)),
        (500, 500, (500, 500, 500)),
    ],
)
def test_a_preset_pads_by_what_the_model_was_trained_on(
    bundle: Bundle, positions: int, trained: int, padded: tuple[int, ...]
) -> None:
    rules = chosen(bundle, positions, trained)
    assert tuple(each.positions for each in rules) == padded
    assert [each.repetition_penalty for each in rules] == [1.0, 1.1, 1.2]
    assert [each.eot_boost for each in rules] == [0.0, 0.2, 0.5]


def test_the_bundle_decides_unless_a_preset_is_named(bundle: Bundle) -> None:
    advised = replace(bundle, guards=Guards(1500, 1.1, 0.7), trained_positions=1500)
    assert choose_guards(advised, DecoderSettings()) == Guards(1500, 1.1, 0.7)
    named = DecoderSettings(preset="aggressive")
    assert choose_guards(advised, named) == Guards(500, 1.2, 0.5)


def test_each_rule_can_be_set_by_itself(bundle: Bundle) -> None:
    wide = replace(bundle, trained_positions=1500)
    own = DecoderSettings(preset="balanced", repetition_penalty=1.0)
    assert choose_guards(wide, own) == Guards(700, 1.0, 0.2)
    own = DecoderSettings(preset="aggressive", positions=900, eot_boost=0.0)
    assert choose_guards(wide, own) == Guards(900, 1.2, 0.0)


def test_fewer_positions_than_the_encoder_gives_are_refused(bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match=r"\[decoder\] positions: expected 0 or at least 500"):
        choose_guards(bundle, DecoderSettings(positions=499))
