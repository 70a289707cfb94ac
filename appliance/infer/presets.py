"""Which guards the decoder runs with: the bundle's, a preset's, or single ones of one's own."""

from __future__ import annotations

from appliance.config import DecoderSettings
from appliance.errors import ConfigError
from appliance.model.bundle import Bundle, Guards

BALANCED_SHARE = 0.2
"""Of the positions that the model was trained on and the window does not fill."""


def preset_guards(bundle: Bundle, preset: str) -> Guards:
    """The guards of a preset, made for the bundle's window.

    For a 10 s window (500 positions) of a model trained on 30 s (1500):

    conservative   1500 positions, no penalty, no boost: what the model was trained on
    balanced        700 positions, penalty 1.1, boost 0.2: a fifth of the missing positions
    aggressive      500 positions, penalty 1.2, boost 0.5: the window's own, nothing added

    A 5 s window (250) has 1500, 500 and 250; a model trained on its window's length never pads.
    """
    if preset == "bundle":
        return bundle.guards
    missing = bundle.trained_positions - bundle.positions
    return {
        "conservative": Guards(bundle.trained_positions, 1.0, 0.0),
        "balanced": Guards(bundle.positions + round(BALANCED_SHARE * missing), 1.1, 0.2),
        "aggressive": Guards(bundle.positions, 1.2, 0.5),
    }[preset]


def choose_guards(bundle: Bundle, settings: DecoderSettings) -> Guards:
    """The configured guards: the preset's where the configuration leaves the choice to it.

    Raises ConfigError when fewer positions are asked for than the encoder gives.
    """
    if 0 < settings.positions < bundle.positions:
        raise ConfigError(
            f"[decoder] positions: expected 0 or at least {bundle.positions} (what the encoder of "
            f"bundle {bundle.name} gives), found {settings.positions}"
        )
    advice = preset_guards(bundle, settings.preset)
    return Guards(
        positions=settings.positions or advice.positions,
        repetition_penalty=settings.repetition_penalty or advice.repetition_penalty,
        eot_boost=advice.eot_boost if settings.eot_boost < 0 else settings.eot_boost,
    )
