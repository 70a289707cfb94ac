from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from evening_run.stream import Stream
from rigs.microphone import PulseMicrophone
from rigs.needs import needs_microphone

from appliance.records import Samples

RATE = 16_000
pytestmark = needs_microphone


def tone(seconds: float) -> Samples:
    sound: Samples = (3000 * np.sin(np.arange(int(seconds * RATE)))).astype(np.int16)
    return sound


def test_each_sample_is_found_and_dated_until_the_server_stutters(tmp_path: Path) -> None:
    with PulseMicrophone(tmp_path) as microphone, Stream(microphone, 1) as stream:
        begun_s = time.monotonic()
        first = stream.play(tone(1.0))
        second = stream.play(tone(0.5))
        assert second == first + RATE
        stream.wait_for(second + RATE)
        assert stream.is_intact(first, second + RATE // 2)
        apart_s = stream.moment_s(second) - stream.moment_s(first)
        assert apart_s == pytest.approx(1.0, abs=0.002)
        assert begun_s < stream.moment_s(first) < time.monotonic() - 1.0
        stream.forget(second)
        third = stream.play(tone(4.0))
        stream.wait_for(third + RATE)
        for process in stream.processes[1:]:
            process.kill()  # the player: what is left of the tone never comes
        time.sleep(2.0)
        assert not stream.is_intact(third, third + 4 * RATE)
        with pytest.raises(RuntimeError, match="ended"):
            stream.wait_for(third + 60 * RATE)
