"""Sound files and raw PCM become the same frames, whatever they are made of."""

import contextlib
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from rigs.checkout import ROOT, environment
from rigs.command import captured
from rigs.needs import unless

from appliance.capture.frames import FRAME_SAMPLES, Framer
from appliance.capture.hum import HumFilter
from appliance.capture.recording import Recording, _raw_blocks
from appliance.errors import AudioError, DeviceError
from appliance.records import SAMPLE_RATE, Frame, Samples


@pytest.fixture(autouse=True)
def _without_high_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sound is compared bit for bit; tests/capture/test_filters.py tests the filter."""
    monkeypatch.setattr(HumFilter, "push", lambda _, sound: sound)


def tone(seconds: float, rate_hz: int = SAMPLE_RATE) -> NDArray[np.float64]:
    """(n,) float64: 440 Hz at a quarter of full scale."""
    return np.sin(np.arange(int(seconds * rate_hz)) * 2 * np.pi * 440 / rate_hz) / 4


def frames_of(path: Path | str) -> list[Frame]:
    with Recording(str(path), real_time=False) as recording:
        return list(recording.frames())


def samples_of(path: Path | str) -> Samples:
    return np.concatenate([frame.samples for frame in frames_of(path)])


def error_of(path: Path | str) -> str:
    with pytest.raises(AudioError) as caught:
        frames_of(path)
    message = str(caught.value)
    assert "\n" not in message
    assert ": " in message, "it says what to do"
    return message


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
@pytest.mark.parametrize("channels", [1, 2])
def test_every_wav_encoding_gives_the_same_sound(
    tmp_path: Path, subtype: str, channels: int
) -> None:
    file = tmp_path / "tone.wav"
    soundfile.write(file, np.stack([tone(0.6)] * channels, axis=1), SAMPLE_RATE, subtype)
    samples = samples_of(file)
    worst = 32768 / 127 if subtype == "PCM_U8" else 2
    assert len(samples) == 9600
    assert np.abs(samples - tone(0.6) * 32768).max() <= worst


@pytest.mark.parametrize("rate_hz", [8000, 11025, 22050, 32000, 44100, 48000, 96000])
def test_every_rate_is_resampled_without_shifting_the_sound(tmp_path: Path, rate_hz: int) -> None:
    file = tmp_path / "tone.flac"
    soundfile.write(file, tone(1.2, rate_hz), rate_hz)
    samples = samples_of(file)
    assert abs(len(samples) - 1.2 * SAMPLE_RATE) <= FRAME_SAMPLES
    middle = slice(4000, 15000)
    assert np.abs(samples[middle] - tone(1.2)[middle] * 32768).max() < 200


def test_sixteen_bit_sound_at_16_khz_passes_bit_for_bit(tmp_path: Path) -> None:
    whole = np.random.default_rng(1).integers(-32768, 32768, FRAME_SAMPLES * 20).astype(np.int16)
    soundfile.write(tmp_path / "noise.wav", whole, SAMPLE_RATE)
    assert np.array_equal(samples_of(tmp_path / "noise.wav"), whole)


def test_float_sound_beyond_full_scale_is_clipped_and_not_wrapped(tmp_path: Path) -> None:
    loud = np.array([2.0, -2.0, np.nan, np.inf] * 120, np.float32)
    soundfile.write(tmp_path / "loud.wav", loud, SAMPLE_RATE, "FLOAT")
    assert set(samples_of(tmp_path / "loud.wav")) == {32767, -32768, 0}


def test_the_last_frame_is_filled_up_with_silence(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "short.wav", np.full(500, 0.5), SAMPLE_RATE)
    frames = frames_of(tmp_path / "short.wav")
    assert [len(frame.samples) for frame in frames] == [480, 480]
    assert not frames[1].samples[20:].any()
    assert [frame.start_s for frame in frames] == [0.0, 0.03]


def test_a_truncated_wav_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    file = tmp_path / "cut.wav"
    soundfile.write(file, tone(2.0), SAMPLE_RATE)
    file.write_bytes(file.read_bytes()[: 44 + 16000])
    assert len(samples_of(file)) == pytest.approx(8000, abs=FRAME_SAMPLES)


def test_a_truncated_flac_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    file = tmp_path / "cut.flac"
    soundfile.write(file, np.random.default_rng(0).normal(size=32000) / 9, SAMPLE_RATE)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with Recording(str(file), real_time=False) as recording:
        assert 4000 < sum(len(frame.samples) for frame in recording.frames()) < 17000
    assert len(recording.warnings) == 1


@pytest.mark.parametrize("length", [0, 0xFFFFFFFF])
def test_a_wav_without_a_length_is_read_by_the_bytes_that_are_there(
    tmp_path: Path, length: int
) -> None:
    file = tmp_path / "piped.wav"
    soundfile.write(file, tone(1), SAMPLE_RATE, "PCM_16")
    whole, data = samples_of(file), bytearray(file.read_bytes())
    data[4:8] = data[40:44] = struct.pack("<I", length)
    file.write_bytes(data)
    with Recording(str(file), real_time=False) as recording:
        samples = np.concatenate([frame.samples for frame in recording.frames()])
    np.testing.assert_array_equal(samples, whole)
    assert recording.warnings == []


def test_bad_files_are_one_line_that_says_what_was_found(tmp_path: Path) -> None:
    good = tmp_path / "good.wav"
    soundfile.write(good, tone(0.3), SAMPLE_RATE)
    contents = {
        "empty.wav": b"",
        "header.wav": good.read_bytes()[:44],
        "half_header.wav": good.read_bytes()[:20],
        "text.wav": b"this is no sound\n" * 100,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        assert name in error_of(tmp_path / name)
    assert "an empty file" in error_of(tmp_path / "empty.wav")
    assert "a folder" in error_of(tmp_path)
    assert "no such file" in error_of(tmp_path / "nowhere.wav")


@unless("" if os.geteuid() else "root: it may read any file (run the tests as another user)")
def test_a_file_without_permission_is_said_to_be_that(tmp_path: Path) -> None:
    (tmp_path / "secret.wav").touch(mode=0)
    assert "Permission denied" in error_of(tmp_path / "secret.wav")


def test_a_missing_library_is_one_line_that_names_the_package(tmp_path: Path) -> None:
    (tmp_path / "soundfile.py").write_text(
        "raise OSError(\"cannot load library 'libsndfile.so'\")\n", encoding="utf-8"
    )
    soundfile.write(tmp_path / "tone.wav", tone(0.3), SAMPLE_RATE)
    command = sys.executable, "-m", "appliance", "transcribe", tmp_path / "tone.wav"
    done = captured(*command, env=environment(PYTHONPATH=f"{tmp_path}:{ROOT}"))
    assert done.returncode == DeviceError.exit_status
    *_, line = done.stderr.splitlines()
    assert "apt install python3-soundfile libsndfile1" in line
    assert "Traceback" not in done.stderr


def test_an_impossible_rate_is_refused(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "slow.wav", tone(0.3), 1000)
    assert "found 1000 Hz" in error_of(tmp_path / "slow.wav")


def test_real_time_paces_and_dates_frames_by_the_clock(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "tone.wav", tone(0.6), SAMPLE_RATE)
    begun_s = time.monotonic()
    with Recording(str(tmp_path / "tone.wav"), real_time=True) as recording:
        frames = []
        for frame in recording.frames():
            assert time.monotonic() >= frame.end_s - 1e-3
            frames.append(frame)
    assert time.monotonic() - begun_s >= 0.59
    assert frames[0].start_s == pytest.approx(begun_s, abs=0.2)
    assert np.diff([frame.start_s for frame in frames]) == pytest.approx(0.03, abs=1e-6)


def test_a_reader_that_is_held_up_loses_nothing_and_the_dates_go_on(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "silence.wav", np.zeros(SAMPLE_RATE, np.int16), SAMPLE_RATE)
    starts = []
    with Recording(str(tmp_path / "silence.wav"), real_time=True) as recording:
        for frame in recording.frames():
            starts.append(frame.start_s)
            if len(starts) == 5:
                time.sleep(0.9)
    assert np.allclose(np.diff(starts), 0.03)


def test_stop_from_another_thread_ends_a_recording_at_once(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "long.wav", tone(30.0), SAMPLE_RATE)
    with Recording(str(tmp_path / "long.wav"), real_time=True) as recording:
        threading.Timer(0.2, recording.stop).start()
        count = sum(1 for _ in recording.frames())
    assert count < 30 * SAMPLE_RATE / FRAME_SAMPLES - 1, "not to its end"


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """Makes bytes standard input."""
    with contextlib.ExitStack() as opened:

        def pipe(data: bytes) -> None:
            read_end, write_end = os.pipe()

            def write() -> None:
                with contextlib.suppress(BrokenPipeError), os.fdopen(write_end, "wb") as writer:
                    writer.write(data)

            writer = threading.Thread(target=write)
            writer.start()
            opened.callback(writer.join)
            monkeypatch.setattr(sys, "stdin", opened.enter_context(os.fdopen(read_end, "rb")))

        yield pipe


def test_raw_pcm_comes_from_standard_input(piped: Callable[[bytes], None]) -> None:
    whole = np.arange(960, dtype="<i2")
    piped(whole.tobytes())
    assert np.array_equal(samples_of("-"), whole)


@pytest.mark.parametrize(
    ("kind", "subtype"),
    [
        ("WAV", "PCM_16"), ("WAVEX", "FLOAT"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"),
        ("MP3", "MPEG_LAYER_III"), ("AIFF", "PCM_16"), ("CAF", "PCM_16"), ("AU", "ULAW"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rate_hz", [16_000, 48_000])
def test_a_sound_file_on_standard_input_is_heard_as_the_file_is(
    tmp_path: Path, piped: Callable[[bytes], None], kind: str, subtype: str, rate_hz: int
) -> None:
    file, channels = tmp_path / "tone", 1 if rate_hz == SAMPLE_RATE else 2
    sound = np.stack([tone(0.6, rate_hz)] * channels, axis=1)
    soundfile.write(file, sound, rate_hz, subtype, format=kind)
    piped(file.read_bytes())
    from_pipe, from_file = samples_of("-").astype(int), samples_of(file).astype(int)
    assert np.abs(from_pipe - from_file).max() <= 1
    assert np.abs(from_file).max() > 4000


def test_raw_pcm_goes_on_when_a_writer_dies_within_a_sample() -> None:
    receiver, sender = os.pipe()
    stopped = threading.Event()
    sound = np.arange(480, dtype="<i2").tobytes()
    blocks = _raw_blocks(receiver, stopped)
    heard = []
    for data in (sound[:-1], sound):
        os.write(sender, data)
        while len(block := next(blocks)):
            heard.append(block)
    expected = np.concatenate([np.arange(479), np.arange(480)])
    assert np.array_equal(np.concatenate(heard), expected)
    for end in (receiver, sender):
        os.close(end)


def test_nothing_on_standard_input_is_an_error(piped: Callable[[bytes], None]) -> None:
    piped(b"")
    assert "found nothing" in error_of("-")


def test_a_frame_after_a_gap_is_flagged_and_dated_by_what_follows() -> None:
    framer = Framer()
    assert list(framer.push(np.ones(100, np.int16), 1.0)) == []
    framer.gap()
    (frame,) = framer.push(np.zeros(500, np.int16), 5.0)
    assert frame.after_gap
    assert frame.start_s == 5.0
    assert not frame.samples.any()
