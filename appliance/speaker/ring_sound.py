"""The ring of a timer: a sound of our own."""

import numpy as np

from appliance.records import Samples

NOTES_HZ = (880.0, 1108.73, 1318.51)
"""A major chord from A5 (equal temperament, 440 Hz), one note after the other."""
NOTE_S, DECAY_S, PAUSE_S = 0.18, 0.12, 0.9
ATTACK_S = 0.005
"""Rise of a note, without which it would click."""
PEAK = 0.5 * 32767


def ring(rate_hz: int) -> bytes:
    """Return one ring and the pause behind it as int16 mono samples at `rate_hz`: two rising chords
    of bell-like notes."""
    time_s = np.arange(round(4 * NOTE_S * rate_hz)) / rate_hz
    envelope = np.minimum(time_s / ATTACK_S, 1.0) * np.exp(-time_s / DECAY_S)
    sound = np.zeros(round((2 * len(NOTES_HZ) * NOTE_S + PAUSE_S) * rate_hz))
    for number, note_hz in enumerate(NOTES_HZ * 2):
        first = round(number * NOTE_S * rate_hz)
        tone = sum(np.sin(2 * np.pi * note_hz * part * time_s) / part**2 for part in (1, 2, 3))
        sound[first : first + len(time_s)] += (tone * envelope)[: len(sound) - first]
    samples: Samples = np.rint(sound / np.abs(sound).max() * PEAK).astype("<i2")
    return samples.tobytes()
