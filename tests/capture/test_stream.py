"""Streams as microphones and references: through ffmpeg, a pipe and PulseAudio."""

import base64
import io
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from ctypes.util import find_library
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from rigs import rtsp
from rigs.checkout import TESTS
from rigs.microphone import SINK, PulseMicrophone, missing as no_microphone
from rigs.needs import needs_ffmpeg
from rigs.waiting import PATIENCE_S, holds

from appliance.capture.devices import is_stream, public_name
from appliance.capture.microphone import Microphone, open_source, read_device
from appliance.capture.recorder import Recorder
from appliance.capture.reference import Reference
from appliance.capture.stream import Stream, redact
from appliance.config import CaptureSettings
from appliance.errors import DeviceError
from appliance.records import Frame

PASSWORD = "s3cret/tv"
ADDRESS = "rtsp://admin:s3cret%2Ftv@camera.local:554/live?token=abc"
AUTHORIZATION = "Basic " + base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
RATE_HZ = 16_000


def wave() -> Iterator[bytes]:
    """An endless WAV file of a tone, 100 ms at a time."""
    header = b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\x01\0\x01\0"
    yield (
        header
        + RATE_HZ.to_bytes(4, "little")
        + (2 * RATE_HZ).to_bytes(4, "little")
        + (b"\x02\0\x10\0data\xff\xff\xff\xff")
    )
    tone = (8000 * np.sin(np.arange(RATE_HZ // 10) * 2 * np.pi * 440 / RATE_HZ)).astype("<i2")
    while True:
        yield tone.tobytes()


class Camera(BaseHTTPRequestHandler):
    """A web stream with a password."""

    blocks = 10_000

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != AUTHORIZATION:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="camera"')
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            for block in islice(wave(), self.blocks):
                self.wfile.write(block)
                time.sleep(0.095)

    def log_message(self, *_: Any) -> None:
        """Prints nothing."""


@contextmanager
def camera(blocks: int = 10_000) -> Iterator[int]:
    """The port of a running stream that ends after so many blocks."""
    handler = type("Camera", (Camera,), {"blocks": blocks})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()


def command_lines() -> str:
    """The arguments of all processes of this machine."""
    found = ""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += file.read_text(errors="replace") + "\n"
    return found


def test_streams_are_told_from_sound_cards_and_named_without_their_secrets() -> None:
    assert [is_stream(name) for name in (ADDRESS, "pulse:", "pipe:///tmp/a")] == [True] * 3
    assert not any(is_stream(name) for name in ("", "none", "USB PnP: Audio (hw:1,0)"))
    assert public_name(ADDRESS) == "rtsp://camera.local:554/live"
    assert public_name(" HTTP://cam:s3cret@10.0.0.5/a?token=abc") == "HTTP://10.0.0.5/a"
    assert public_name("rtmp://cam:s3/cr@et@tv/a#s3cret") == "rtmp://tv/a"
    assert public_name("rtsp://cam:s3?cret@tv/a") == "rtsp://..."
    message = f"{ADDRESS}: 401; {PASSWORD} of rtsp://admin:s3cret%2Ftv@camera.local; token=abc"
    assert "s3cret" not in redact(message, ADDRESS) and "abc" not in redact(message, ADDRESS)


@pytest.mark.parametrize("scheme", ["mms", "file", "gopher"])
def test_another_scheme_is_refused_without_its_password(scheme: str) -> None:
    settings = CaptureSettings(device=f" {scheme}://cam:s3cret@tv/a?token=abc")
    with Recorder() as recorder, pytest.raises(DeviceError, match=rf"of rtsp, .*, found {scheme}$"):
        Microphone(settings, recorder)


@needs_ffmpeg
def test_a_playlist_of_a_stream_may_not_name_files_of_this_machine(tmp_path: Path) -> None:
    secret = tmp_path / "secret.wav"
    soundfile.write(secret, np.zeros(16_000, np.int16), 16_000)
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{secret}\n#EXT-X-ENDLIST\n"

    class Hostile(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/vnd.apple.mpegurl")
            self.end_headers()
            self.wfile.write(playlist.encode())

        def log_message(self, *_: Any) -> None:
            """Prints nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        device = f"http://127.0.0.1:{server.server_address[1]}/live.m3u8"
        with Recorder() as recorder, pytest.raises(DeviceError, match=r"whitelist|Invalid"):
            Microphone(CaptureSettings(device=device), recorder)
        server.shutdown()


@needs_ffmpeg
def test_a_web_stream_is_a_microphone_and_its_password_is_in_no_process_list() -> None:
    with camera() as port:
        device = f"http://admin:s3cret%2Ftv@127.0.0.1:{port}/live?token=abc"
        with Microphone(CaptureSettings(device=device)) as microphone:
            assert microphone.name == f"http://127.0.0.1:{port}/live"
            coming = microphone.frames()
            frames = list(islice(coming, 20))
            assert "ffmpeg" in command_lines()
            assert "s3cret" not in command_lines() and "token=abc" not in command_lines()
    loud = np.concatenate([frame.samples for frame in frames[5:]]).astype(float)
    assert loud.std() == pytest.approx(8000 / 2**0.5, rel=0.02)


@needs_ffmpeg
def test_a_stream_that_ends_is_a_lost_microphone_and_can_be_opened_again() -> None:
    with camera(blocks=12) as port:
        settings = CaptureSettings(device=f"http://admin:s3cret%2Ftv@127.0.0.1:{port}/")
        for _ in range(2):
            heard: list[Frame] = []
            with (
                Microphone(settings) as microphone,
                pytest.raises(DeviceError, match="the end of the stream") as lost,
            ):
                heard += microphone.frames()
            assert "s3cret" not in str(lost.value)


@needs_ffmpeg
def test_a_wrong_password_is_one_line_without_it() -> None:
    with camera() as port:
        device = f"http://admin:s3cret-2@127.0.0.1:{port}/"
        with Recorder() as recorder, pytest.raises(DeviceError, match="401") as wrong:
            Microphone(CaptureSettings(device=device), recorder)
    assert "s3cret" not in str(wrong.value) and "\n" not in str(wrong.value)
    assert "check its address, user and password" in str(wrong.value)


@needs_ffmpeg
def test_an_rtsp_camera_is_a_microphone_that_can_be_opened_again() -> None:
    """It asks for a digest and breaks the connection off, as when it starts again."""
    with rtsp.Camera("admin", PASSWORD, seconds=0.7) as found:
        settings = CaptureSettings(device=f"rtsp://admin:s3cret%2Ftv@127.0.0.1:{found.port}/live")
        for _ in range(2):
            heard: list[Frame] = []
            with Microphone(settings) as microphone:
                assert microphone.name == f"rtsp://127.0.0.1:{found.port}/live"
                assert "s3cret" not in command_lines()
                with pytest.raises(DeviceError, match="it is opened again") as lost:
                    heard += microphone.frames()
            assert "s3cret" not in str(lost.value)
            loud = np.concatenate([frame.samples for frame in heard[2:20]]).astype(float)
            assert loud.std() == pytest.approx(8000 / 2**0.5, rel=0.02)
        assert found.plays == 2
        wrong = CaptureSettings(device=f"rtsp://admin:s3cret-2@127.0.0.1:{found.port}/live")
        with Recorder() as recorder, pytest.raises(DeviceError, match="401") as refused:
            Microphone(wrong, recorder)
        assert "s3cret" not in str(refused.value)


def test_a_pipe_is_a_microphone_and_outlives_its_writer(tmp_path: Path) -> None:
    pipe = tmp_path / "snap"
    os.mkfifo(pipe)
    device = f"pipe://{pipe}?sampleformat=32000:16:2"
    tone = np.repeat((9000 * np.sin(np.arange(16_000) / 8)).astype("<i2"), 2).tobytes()
    with Microphone(CaptureSettings(device=device)) as microphone:
        frames = microphone.frames()
        for _ in range(2):
            with pipe.open("wb") as writer:
                writer.write(tone)
            heard = np.concatenate([frame.samples for frame in islice(frames, 12)])
            assert 5000 < np.abs(heard[2000:].astype(int)).max() < 10_000


class WatchedStream(Stream):
    """A stream that reports when it has waited for the rest of a frame."""

    idle = threading.Event()

    def _is_ready(self, within_s: float | None) -> bool:
        found = super()._is_ready(within_s)
        if within_s is not None and not found:
            self.idle.set()
        return found


def test_the_address_may_be_in_a_file_of_its_own(tmp_path: Path) -> None:
    secret = tmp_path / "camera"
    secret.write_text(f"{ADDRESS}\n", encoding="utf-8")
    assert read_device(CaptureSettings(device_file=str(secret))) == ADDRESS
    assert read_device(CaptureSettings(device="USB")) == "USB"
    with pytest.raises(DeviceError, match=r"capture.device_file: expected a file"):
        read_device(CaptureSettings(device_file=str(tmp_path / "nothing")))


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_writer_that_dies_within_a_frame_deafens_nobody(
    tmp_path: Path, channels: int, lost: int
) -> None:
    """What is out of step is noise at full scale, or the other channel."""
    pipe = tmp_path / "snap"
    os.mkfifo(pipe)
    frame = 2 * channels
    stream = WatchedStream(f"pipe://{pipe}?sampleformat=16000:16:{channels}")
    stream.idle.clear()
    first, second = (bytes(range(start, start + 40)) * 24 for start in (0, 100))
    pipe.write_bytes(first[:-lost])
    whole = len(first[:-lost]) // frame * frame
    assert stream.read(whole) == first[:whole]
    with ThreadPoolExecutor() as pool:
        following = pool.submit(stream.read, len(second))
        assert lost % frame == 0 or stream.idle.wait(PATIENCE_S)
        pipe.write_bytes(second)
        assert following.result(30) == second


@pytest.mark.skipif(bool(no_microphone()), reason=no_microphone())
def test_a_source_that_vanishes_is_lost_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server moves its listeners to another source: what the loudspeakers play."""
    with PulseMicrophone(tmp_path / "rig") as rig:
        for name in ("PULSE_SERVER", "PULSE_COOKIE", "PULSE_RUNTIME_PATH"):
            monkeypatch.setenv(name, rig.environment[name])
        rig.rescue_streams()
        module = rig.add_source("mic")
        settings = CaptureSettings(device="pulse:mic.monitor")
        with Microphone(settings) as microphone:
            frames = microphone.frames()
            next(frames)
            rig.remove_source(module)
            with pytest.raises(DeviceError, match=f"moved it to {SINK}.monitor"):
                for _ in frames:
                    pass
        with Microphone(settings) as microphone, pytest.raises(DeviceError, match="No such entity"):
            next(microphone.frames())
        rig.add_source("mic")
        with Microphone(settings) as microphone:
            assert next(microphone.frames()).samples.shape == (480,)
        default = CaptureSettings(device="pulse:")
        with Microphone(default) as microphone, pytest.raises(DeviceError, match=r"play: .*pactl"):
            next(microphone.frames())


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("pipe:///nowhere/there", "No such file"),
        ("pipe:///etc/hostname", "is no pipe"),
        ("pipe:///dev/null?sampleformat=cd", "expected sampleformat=RATE:16:CHANNELS"),
    ],
)
def test_a_wrong_pipe_is_one_line(device: str, reason: str) -> None:
    with Recorder() as recorder, pytest.raises(DeviceError, match=reason):
        Microphone(CaptureSettings(device=device), recorder)


def test_a_missing_reference_is_a_problem_and_delays_nothing() -> None:
    reference = Reference("pipe:///nowhere/there")

    def is_reported() -> bool:
        reference.poll()
        return bool(reference.problem)

    try:
        assert holds(is_reported, 10)
        assert "the television is not removed" in reference.problem
    finally:
        reference.close()


@pytest.mark.skipif(bool(no_microphone()), reason=no_microphone())
@pytest.mark.skipif(not find_library("speexdsp"), reason="not installed: libspeexdsp1")
def test_the_monitor_of_a_sound_server_is_a_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rig's microphone hears exactly what is played: little of it is left."""
    with PulseMicrophone(tmp_path / "rig") as rig:
        for name in ("ALSA_CONFIG_PATH", "PULSE_SERVER", "PULSE_COOKIE", "PULSE_RUNTIME_PATH"):
            monkeypatch.setenv(name, rig.environment[name])
        settings = CaptureSettings(reference={"device": f"pulse:{SINK}.monitor"})
        with Microphone(settings) as microphone:
            stopped = threading.Event()
            talk = threading.Thread(target=play, args=(rig, stopped))
            talk.start()
            until_s = time.monotonic() + PATIENCE_S
            reduction_db = 0.0
            for _ in microphone.frames():
                echo = microphone.echo
                reduction_db = echo.reduction_db or 0.0 if echo else 0.0
                if reduction_db > 10 or time.monotonic() > until_s:
                    break
            stopped.set()
            talk.join()
    assert reduction_db > 10, echo


def play(rig: PulseMicrophone, stopped: threading.Event) -> None:
    """One sentence after the other."""
    while not stopped.is_set():
        rig.speak(TESTS / "speech" / "01.flac")


KEYS: list[dict[str, Any]] = [
    *({"channel": number} for number in (0, 1, 2, 33)),
    {"silence_s": 0.0},
    {"channel": 1, "reference": {"device": "pipe:///nowhere/there"}},
]


def test_every_key_of_the_section_is_tried() -> None:
    known = {entry.name for entry in fields(CaptureSettings)} - {"device", "device_file"}
    assert known - {"recording"} == {name for chosen in KEYS for name in chosen}


@needs_ffmpeg
@pytest.mark.skipif(bool(no_microphone()), reason=no_microphone())
@pytest.mark.parametrize("chosen", KEYS, ids=str)
def test_every_key_works_with_every_kind_of_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: dict[str, Any]
) -> None:
    """Frames come, or one line says that there is no such channel."""
    pipe, sound = tmp_path / "snap", tmp_path / "sound.wav"
    os.mkfifo(pipe)
    soundfile.write(sound, np.full((16_000, 2), 1000, np.int16), 16_000)
    descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    os.write(descriptor, bytes(60_000))
    with PulseMicrophone(tmp_path / "rig", channels=2) as rig, camera() as port:
        for name in ("ALSA_CONFIG_PATH", "PULSE_SERVER", "PULSE_COOKIE", "PULSE_RUNTIME_PATH"):
            monkeypatch.setenv(name, rig.environment[name])
        kinds: dict[str, tuple[int, dict[str, Any]]] = {
            "sound card": (32, {"device": ""}),  # as ALSA's plugin says
            "web stream": (1, {"device": f"http://admin:s3cret%2Ftv@127.0.0.1:{port}/"}),
            "pulse": (32, {"device": f"pulse:{SINK}.monitor"}),
            "pipe": (2, {"device": f"pipe://{pipe}?sampleformat=16000:16:2"}),
            "recording": (64, {"recording": str(sound)}),
        }
        found = {}
        for kind, (channels, device) in kinds.items():
            settings = CaptureSettings(**device, **chosen)
            try:
                with Recorder() as recorder, open_source(settings, recorder) as source:
                    assert next(source.frames()).samples.shape == (480,)
                found[kind] = True
            except DeviceError as error:
                assert "capture.channel" in str(error) and "\n" not in str(error)
                found[kind] = False
            assert found[kind] == (chosen.get("channel", 0) <= channels), kind
    os.close(descriptor)


@needs_ffmpeg
@pytest.mark.parametrize(("channel", "frequency_hz"), [(1, 440), (2, 880)])
def test_a_channel_of_a_web_stream_can_be_chosen(channel: int, frequency_hz: int) -> None:
    times = np.arange(16_000 * 20) / 16_000
    both = np.stack([np.sin(2 * np.pi * hz * times) for hz in (440, 880)], axis=1)
    content = io.BytesIO()
    soundfile.write(content, 0.5 * both, 16_000, format="FLAC")

    class Stereo(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(content.getvalue())

        def log_message(self, *_: Any) -> None:
            """Prints nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Stereo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        device = f"http://127.0.0.1:{server.server_address[1]}/live"
        with Microphone(CaptureSettings(device=device, channel=channel)) as microphone:
            frames = [frame.samples for frame in islice(microphone.frames(), 40)]
        server.shutdown()
    spectrum = np.abs(np.fft.rfft(np.concatenate(frames[5:37]).astype(float)[: 16_000 * 30 // 32]))
    assert np.argmax(spectrum) * 16_000 / 15_000 == pytest.approx(frequency_hz, abs=5)
