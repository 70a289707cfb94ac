"""The loudspeaker: order, stopping, losing it; and real sound through PulseAudio."""

import os
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from rigs.loudspeaker import playing
from rigs.microphone import SINK, PulseMicrophone
from rigs.needs import needs_microphone
from rigs.waiting import PATIENCE_S, until

from appliance.config import SpeakerSettings
from appliance.speaker import Ending, Kind, Loudspeaker

TONE = (np.sin(np.arange(8000) * 0.3) * 9000).astype("<i2").tobytes()
"""Half a second at 16 kHz."""


def test_a_sound_is_played_whole_and_reported_once(tmp_path: Path) -> None:
    with playing(tmp_path / "sound") as player:
        sound = player.say(TONE)
        until(lambda: player.endings)
    assert player.endings == {sound: Ending.PLAYED}
    assert player.sound == TONE
    assert player.speaker.available


def test_a_device_of_another_rate_gets_resampled_sound(tmp_path: Path) -> None:
    with playing(tmp_path / "sound", device="48 kHz", volume=50) as player:
        player.say(TONE)
        until(lambda: player.endings)
    samples = np.frombuffer(player.sound, "<i2")
    assert len(samples) == pytest.approx(24_000, abs=2)
    assert np.abs(samples).max() == pytest.approx(9000 / 8, rel=0.05)


def test_announcements_wait_for_answers_and_a_ring_for_both(tmp_path: Path) -> None:
    with playing(tmp_path / "sound") as player:
        ring = player.say(TONE, kind=Kind.RING)
        until(lambda: len(player.sound) > 2 * len(TONE))
        kinds = (Kind.ANNOUNCEMENT, Kind.ANSWER, Kind.ANNOUNCEMENT, Kind.ANSWER)
        first, second, third, fourth = (player.say(TONE, kind=kind) for kind in kinds)
        until(lambda: len(player.endings) == 4)
        before = len(player.sound)
        until(lambda: len(player.sound) >= before + 2 * len(TONE))
        ring.stop()
        until(lambda: ring in player.endings)
    assert set(list(player.endings)[:2]) in ({first, second}, {second, fourth})
    assert list(player.endings)[3:] == [third, ring]
    assert player.endings[ring] is Ending.STOPPED


def test_a_stopped_sound_ends_at_once_also_if_it_waits(tmp_path: Path) -> None:
    with playing(tmp_path / "sound") as player:
        first, second = player.say(TONE * 100), player.say(TONE)
        until(lambda: player.sound)
        second.stop()
        first.stop()
        until(lambda: len(player.endings) == 2)
    assert set(player.endings.values()) == {Ending.STOPPED}
    assert len(player.sound) < 50 * len(TONE)


def test_the_queue_is_bounded_and_a_sound_too_many_fails(tmp_path: Path) -> None:
    with playing(tmp_path / "sound") as player:
        sound = player.speaker.begin(16_000, 1, Kind.ANSWER, lambda _: None)
        taken = [sound.write(TONE * 200) for _ in range(8)]
        assert taken[0]
        assert not taken[-1]
        endings: list[Ending] = []
        for _ in range(8):
            player.speaker.begin(16_000, 1, Kind.ANSWER, endings.append)
        assert endings == [Ending.FAILED]


@pytest.mark.parametrize(
    ("device", "problem"),
    [
        ("missing", "no loudspeaker found"),
        ("vanishes", "loudspeaker: expected to play, found it was unplugged: is it still plugged"),
    ],
)
def test_without_a_device_a_sound_fails_with_a_problem(
    tmp_path: Path, device: str, problem: str
) -> None:
    with playing(tmp_path / "sound", device=device) as player:
        sound = player.say(TONE)
        until(lambda: player.endings)
        assert player.endings == {sound: Ending.FAILED}
        assert not player.speaker.available
        assert (player.problems[-1] or "").startswith(problem)


def test_a_missing_device_is_known_before_the_first_sound(tmp_path: Path) -> None:
    with playing(tmp_path / "sound", device="missing") as player:
        until(lambda: player.problems == ["no loudspeaker found"])
        assert not player.speaker.available


def test_a_person_who_speaks_lowers_the_sound(tmp_path: Path) -> None:
    with playing(tmp_path / "sound") as player:
        player.played.is_removed = True
        player.speaker.on_speech(True)
        player.say(TONE)
        until(lambda: player.endings)
    assert np.abs(np.frombuffer(player.sound, "<i2")).max() == pytest.approx(1800, rel=0.01)


@needs_microphone
def test_a_real_loudspeaker_sounds_stops_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with PulseMicrophone(tmp_path, rate_hz=48_000) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        command = ["parec", "--raw", "--format=s16le", "--rate=16000", "--channels=1"]
        with subprocess.Popen(
            [*command, "--latency-msec=10", f"--device={SINK}.monitor"], stdout=subprocess.PIPE
        ) as heard:
            assert heard.stdout
            os.set_blocking(heard.stdout.fileno(), False)
            endings = list[Ending]()

            def is_heard() -> bool:
                data = heard.stdout.read() if heard.stdout else b""
                sound = np.frombuffer((data or b"")[: len(data or b"") // 2 * 2], "<i2")
                return bool(np.abs(sound.astype(int)).max(initial=0) > 1000)

            speaker = Loudspeaker(SpeakerSettings(True, f"pulse:{SINK}", 100))
            thread = threading.Thread(target=speaker.run, args=(lambda: None,))
            thread.start()
            try:
                sound = speaker.begin(22_050, 1, Kind.RING, endings.append)
                sound.write(TONE * 4)
                sound.end()
                until(is_heard)
                sound.stop()
                until(lambda: endings == [Ending.STOPPED])
                until(lambda: not is_heard())
                sound = speaker.begin(22_050, 1, Kind.RING, endings.append)
                sound.write(TONE)
                sound.end()
                until(is_heard)
                server.unplug()
                until(lambda: endings == [Ending.STOPPED, Ending.FAILED])
                assert not speaker.available
                server.plug()
                until(lambda: speaker.available)
                assert f"the loudspeaker {SINK} is back" in caplog.text
            finally:
                speaker.stop()
                thread.join(PATIENCE_S)
                heard.kill()
