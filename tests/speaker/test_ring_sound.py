"""The ring is audible, ends in silence and has no clicks."""

import numpy as np

from appliance.speaker import ring


def test_a_ring_is_loud_and_begins_and_ends_in_silence() -> None:
    sound = np.frombuffer(ring(22_050), "<i2").astype(float)
    assert 12_000 < np.abs(sound).max() < 20_000
    assert np.abs(sound[-2205:]).max() < 50
    assert np.abs(sound[:5]).max() < 1000
