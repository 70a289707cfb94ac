"""Sound to windows: the microphone or a recording, frames, voice detection, segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.capture.cuts import split_sound
    from appliance.capture.devices import LOUDSPEAKER, is_stream, names_to_configure, public_name
    from appliance.capture.endpoint import is_same_voice
    from appliance.capture.filters import Resampler
    from appliance.capture.frames import Framer, Source
    from appliance.capture.joined import JoiningSegmenter
    from appliance.capture.loudness import (
        CLIPPED_SHARE,
        QUIET_DBFS,
        Loudness,
        frame_powers,
        has_sound,
        measure_loudness,
        measure_speech,
        quantile,
    )
    from appliance.capture.microphone import Microphone, list_microphones, open_source
    from appliance.capture.portaudio import SOUND
    from appliance.capture.recorder import EndError, Opened, Recorder, StallError
    from appliance.capture.recording import Recording
    from appliance.capture.reference import PlayedSound
    from appliance.capture.segmenter import Segmenter
    from appliance.capture.utterance import PRE_ROLL_MS
    from appliance.capture.voice import VoiceDetector

__getattr__ = lazily(__name__, __file__)
