"""Sound to windows: the microphone or a recording, frames, voice detection, segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.capture.devices import (
        is_stream as is_stream,
        names_to_configure as names_to_configure,
        public_name as public_name,
    )
    from appliance.capture.frames import (
        CLIPPED_SHARE as CLIPPED_SHARE,
        QUIET_PEAK_DB as QUIET_PEAK_DB,
        Framer as Framer,
        Loudness as Loudness,
        Resampler as Resampler,
        frame_powers as frame_powers,
        measure_loudness as measure_loudness,
        measure_speech as measure_speech,
    )
    from appliance.capture.microphone import (
        Microphone as Microphone,
        Source as Source,
        list_microphones as list_microphones,
        open_source as open_source,
    )
    from appliance.capture.recorder import EndError as EndError, Recorder as Recorder
    from appliance.capture.recording import Recording as Recording
    from appliance.capture.segmenter import Segmenter as Segmenter, split_sound as split_sound
    from appliance.capture.voice import VoiceDetector as VoiceDetector

__getattr__ = lazily(__name__, __file__)
