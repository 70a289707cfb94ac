"""Speech at lower levels: words suffer below `QUIET_DBFS`, and not above it."""

from itertools import islice

import numpy as np
import pytest
from rigs.recordings import SHARED_AUDIO, manifest
from rigs.sounds import Sound, cut, read, to_int16
from rigs.word_errors import word_errors

from appliance.capture.loudness import QUIET_DBFS, measure_speech
from appliance.config import PhrasesSettings, Settings
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import Transcriber
from appliance.records import Window

CLIPS = 24


def test_words_are_lost_below_the_level_that_is_too_quiet_and_not_above() -> None:
    if not SHARED_AUDIO.exists():
        pytest.skip(f"recordings of people are needed: {SHARED_AUDIO} is not there")
    found = (
        (read(file), row["transcript"])
        for file, row in manifest(SHARED_AUDIO)
        if row["transcript"] and row["category"].startswith("speech")
        if file.exists() and float(row["duration_s"]) < 9
    )
    clips = list(islice(found, CLIPS))
    assert len(clips) == CLIPS
    # the search of expected sentences is no part of what is measured
    with open_transcriber(Settings(phrases=PhrasesSettings(file=""))) as model:
        assert isinstance(model, Transcriber)
        loud, above, below = (
            sum(_errors(model, *clip, level_dbfs) for clip in clips)
            for level_dbfs in (-20.0, QUIET_DBFS, QUIET_DBFS - 15)
        )
    assert above <= 1.3 * loud
    assert below >= 1.5 * loud


def _errors(model: Transcriber, sound: Sound, text: str, level_dbfs: float) -> int:
    """Wrong words of a recording whose speech has that level, through detector and segmenter."""
    level, _ = measure_speech(to_int16(sound))
    assert level is not None
    samples = to_int16(np.pad(sound * 10 ** ((level_dbfs - level) / 20), (8_000, 16_000)))
    windows = cut(samples, Settings(), model.bundle.window_s)
    heard = [model.transcribe(one).text for one in windows if isinstance(one, Window)]
    errors, words = word_errors(text, " ".join(heard))
    return min(errors, words)  # a text that repeats itself counts as one that is all wrong
