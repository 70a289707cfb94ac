"""The client with servers that others wrote, and with our own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from rigs.checkout import ROOT
from rigs.transcriber import HEARD, FakeTranscriber
from rigs.windows import a_window
from rigs.word_errors import same_words
from rigs.wyoming import LIBRARIES, RELEASES, needs_library, running, wait_for_port

from appliance.capture.recording import Recording
from appliance.config import Settings, TranscriberSettings
from appliance.errors import ServerError
from appliance.infer.opening import open_transcriber
from appliance.model.bundle import Bundle
from appliance.wyoming.client import Info, WyomingClient
from appliance.wyoming.transcriber import ServedTranscriber


@pytest.mark.parametrize(
    "release", [pytest.param(release, marks=needs_library(release)) for release in RELEASES]
)
def test_a_server_made_of_the_protocols_own_library_is_understood(release: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "rigs.wyoming_server"],
        env=os.environ | {"PYTHONPATH": f"{LIBRARIES / release}:{ROOT / 'tests'}"},
        stdout=subprocess.PIPE,
    ) as server:
        try:
            assert server.stdout
            port = int(server.stdout.readline())
            wait_for_port(port)
            client = WyomingClient(TranscriberSettings(host="127.0.0.1", port=port, language="en"))
            assert client.describe() == Info("small", ("en",))
            for length in (1, 16_000, 160_000):
                sound = np.ones(length, np.int16)
                assert client.transcribe(sound, 20.0).text == f"{length} samples in en"
        finally:
            server.terminate()


def test_another_roomscribe_transcribes_a_spoken_sentence_word_for_word(built_in: Bundle) -> None:
    with open_transcriber(Settings(), bundle=built_in) as brain, running(brain) as server:
        chosen = TranscriberSettings(backend="wyoming", host="127.0.0.1", port=server.port)
        with ServedTranscriber(Settings(transcriber=chosen), None) as ears:
            ears.warm_up()
            assert (ears.bundle.name, ears.bundle.language) == ("tiny.en", "en")
            file = ROOT / "appliance" / "cli" / "doctor" / "sentence.flac"
            with Recording(str(file), real_time=False) as recording:
                sound = np.concatenate([frame.samples for frame in recording.frames()])
            found = ears.transcribe(a_window(samples=sound))
    assert same_words(found.text, "what is the weather like in chicago")
    assert (found.model, found.encoder, found.language) == ("tiny.en", "wyoming", "en")


def test_another_roomscribe_that_has_too_much_to_do_is_busy() -> None:
    fake = FakeTranscriber()
    fake.answer = replace(HEARD, text="yes")
    with running(fake, most=0, within_s=0.3) as server:
        client = WyomingClient(TranscriberSettings(host="127.0.0.1", port=server.port))
        file = ROOT / "appliance" / "cli" / "doctor" / "sentence.flac"
        with Recording(str(file), real_time=False) as recording:
            sound = np.concatenate([frame.samples for frame in recording.frames()])
        with pytest.raises(ServerError, match=r"busy|many") as refused:
            client.transcribe(sound, 20.0)
    assert refused.value.busy
