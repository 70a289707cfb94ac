"""The protocol's own library, in the releases that are about, has a sentence transcribed."""

import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rigs.recordings import heard_right
from rigs.word_errors import same_words
from rigs.wyoming import RELEASES, Running, needs_library, running, say, sound_of

from appliance.config import Settings
from appliance.infer.opening import open_transcriber
from appliance.model.bundle import Bundle
from appliance.records import SAMPLE_RATE

SENTENCE = heard_right()[3]


@pytest.fixture(scope="module")
def house(built_in: Bundle) -> Iterator[Running]:
    with open_transcriber(Settings(), bundle=built_in) as transcriber, running(transcriber) as one:
        yield one


@pytest.mark.parametrize(
    "release", [pytest.param(one, marks=needs_library(one)) for one in RELEASES]
)
@pytest.mark.parametrize("stereo", [False, True])
def test_a_client_reads_what_we_are_and_gets_its_sentence(
    house: Running, tmp_path: Path, release: str, stereo: bool
) -> None:
    file = tmp_path / "sentence.wav"
    sound = sound_of(SENTENCE.file)
    rate, channels = (2 * SAMPLE_RATE, 2) if stereo else (SAMPLE_RATE, 1)
    with wave.open(str(file), "wb") as written:
        written.setparams((channels, 2, rate, 0, "NONE", ""))
        written.writeframes(np.repeat(sound, 4 if stereo else 1).tobytes())
    info, pong, *answer = say(release, house.port, file)
    assert info["name"] == "Roomscribe kitchen"
    assert info["languages"] == ["en"]
    assert info["streaming"] in (True, None)
    assert pong["text"] == "hallo"
    assert [one["type"] for one in answer] == ["transcript-start", "transcript-chunk", "transcript"]
    assert same_words(answer[-1]["text"], SENTENCE.text)
    assert answer[-1]["language"] == "en"
