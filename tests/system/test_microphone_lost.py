"""The daemon and a microphone that goes in the middle of a sentence."""

import time
from pathlib import Path

from rigs.checkout import SPEECH
from rigs.daemon import listening_house
from rigs.needs import needs_broker, needs_microphone
from rigs.waiting import until

FIRST, SECOND = SPEECH / "00.flac", SPEECH / "01.flac"


@needs_broker
@needs_microphone
def test_a_sentence_during_which_the_microphone_went_is_flagged(tmp_path: Path) -> None:
    with listening_house(tmp_path) as (microphone, heard, running):
        with microphone.play(FIRST) as speaker:
            until(lambda: heard.payloads("speech")[-1:] == [b"ON"])
            time.sleep(0.8)
            microphone.unplug()
            speaker.kill()
        until(lambda: len(heard.events()) == 1)
        until(lambda: heard.payloads("microphone")[-1] == b"offline")
        assert heard.state()["status"] == "degraded"
        microphone.plug()
        until(lambda: heard.payloads("microphone")[-1] == b"online")
        until(lambda: heard.state()["status"] == "running")
        microphone.speak(SECOND)
        until(lambda: len(heard.events()) == 2)
        assert running.poll() is None, "the daemon is the same one"
        first, second = heard.events()
    assert "interrupted" in first["flags"]
    assert "interrupted" not in second["flags"]
