"""What libsndfile does not know is unpacked by a real ffmpeg, or refused in one line."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from rigs.checkout import ROOT, SPEECH, environment
from rigs.command import captured, roomscribe
from rigs.needs import needs_ffmpeg

from appliance.capture.recording import Recording
from appliance.errors import AudioError
from appliance.records import Samples

SENTENCE = SPEECH / "00.flac"
ENDINGS = ("m4a", "mp4", "webm", "mkv", "aac", "wma")


def convert(out: Path, *options: str | Path, source: Path = SENTENCE) -> Path:
    """Another form of a recording."""
    subprocess.run(
        ["ffmpeg", "-v", "error", "-y", "-i", source, *options, out],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return out


def heard(file: Path | str) -> tuple[Samples, list[str]]:
    """All samples, and the warnings."""
    with Recording(str(file), real_time=False) as recording:
        samples = np.concatenate([frame.samples for frame in recording.frames()])
    return samples, recording.warnings


def error_of(file: Path) -> str:
    with pytest.raises(AudioError) as caught:
        heard(file)
    message = str(caught.value)
    assert "\n" not in message and "proc/self" not in message
    return message


def helpers() -> list[str]:
    """Programs named ffmpeg that this process started and that still run."""
    found = subprocess.run(
        ["pgrep", "-P", str(os.getpid()), "ffmpeg"], capture_output=True, text=True, check=False
    )
    return found.stdout.split()


@needs_ffmpeg
@pytest.mark.parametrize("ending", ENDINGS)
def test_what_phones_and_browsers_record_is_heard(tmp_path: Path, ending: str) -> None:
    file = convert(tmp_path / f"talk.{ending}")
    samples, warnings = heard(file)
    original, _ = heard(SENTENCE)
    assert warnings == []
    assert len(samples) == pytest.approx(len(original), abs=3000)
    assert samples.std() == pytest.approx(original.std(), rel=0.1)
    assert helpers() == []


@needs_ffmpeg
@pytest.mark.parametrize("ending", ["m4a", "webm"])
def test_it_is_heard_from_standard_input_too_and_its_text_is_the_same(
    tmp_path: Path, ending: str
) -> None:
    file = convert(tmp_path / f"talk.{ending}")
    from_pipe = roomscribe("transcribe", "-", stdin=file.read_bytes())
    assert from_pipe.returncode == 0
    assert from_pipe.stdout == roomscribe("transcribe", SENTENCE).stdout


@needs_ffmpeg
@pytest.mark.parametrize("name", ["-i.m4a", "http://evil/talk.m4a", "concat:a|b.m4a", "%d.m4a"])
def test_a_name_is_a_name_and_no_option_address_or_pattern(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    convert(tmp_path / "talk.m4a").rename(file)
    command = sys.executable, "-m", "appliance", "transcribe", "--", name
    done = captured(*command, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout


@needs_ffmpeg
def test_a_film_is_heard_and_one_without_sound_is_refused(tmp_path: Path) -> None:
    film = convert(tmp_path / "film.mp4", "-filter_complex", "[0:a]pan=5.1|FC=c0")
    samples, _ = heard(film)
    original, _ = heard(SENTENCE)
    assert samples.std() > original.std() / 5
    silent = tmp_path / "silent.mp4"
    picture = ("-f", "lavfi", "-i", "color=c=red:s=64x64:d=1")
    subprocess.run(["ffmpeg", "-v", "error", *picture, silent], check=True)
    assert "no sound in it" in error_of(silent)


@needs_ffmpeg
def test_damaged_files_are_used_as_far_as_they_go_or_refused(tmp_path: Path) -> None:
    whole = convert(tmp_path / "talk.m4a").read_bytes()
    streamed = convert(tmp_path / "talk.webm").read_bytes()
    for name, data, said in (
        ("no_index.m4a", whole[:9000], "moov atom not found"),
        ("header.m4a", whole[:40], "no sound in it"),
        ("noise.webm", streamed[:4] + np.random.default_rng(0).bytes(9000), "no sound in it"),
    ):
        (tmp_path / name).write_bytes(data)
        assert said in error_of(tmp_path / name)
    cut = tmp_path / "cut.webm"
    cut.write_bytes(streamed[: len(streamed) // 2])
    samples, (warning,) = heard(cut)
    assert 8000 < len(samples) < 26_000
    assert "): 1." in warning and "\n" not in warning
    assert helpers() == []


@needs_ffmpeg
def test_a_list_of_other_files_is_opened_by_nobody(tmp_path: Path) -> None:
    """A playlist in a disguise that the first bytes let pass."""
    list_of_files = f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile://{SENTENCE}\n"
    for name, data in (
        ("list.m4a", list_of_files.encode()),
        ("list.ts", b"\x47" + list_of_files.encode()),
        ("list.mp4", b"    ftyp" + list_of_files.encode()),
        ("both.mp4", f"ffconcat version 1.0\nfile {SENTENCE}\n".encode()),
    ):
        (tmp_path / name).write_bytes(data)
        error_of(tmp_path / name)


def test_without_ffmpeg_one_line_says_what_converts_it(tmp_path: Path) -> None:
    file = tmp_path / "memo.m4a"
    file.write_bytes(b"\0\0\0\x20ftypM4A " + bytes(100))
    command = sys.executable, "-m", "appliance", "transcribe", file
    done = captured(*command, cwd=ROOT, env=os.environ | {"PATH": str(tmp_path)})
    assert done.returncode == AudioError.exit_status
    *_, line = done.stderr.splitlines()
    assert "memo.m4a" in line
    assert "apt install ffmpeg" in line and "ffmpeg -i FILE" in line


@needs_ffmpeg
def test_stop_ends_it_at_once(tmp_path: Path) -> None:
    file = convert(tmp_path / "talk.m4a")
    with Recording(str(file), real_time=True) as recording:
        frames = recording.frames()
        next(frames)
        recording.stop()
        assert list(frames) == []
    assert helpers() == []


@needs_ffmpeg
def test_a_chain_of_ogg_files_is_heard_to_its_end(tmp_path: Path) -> None:
    chain = tmp_path / "chain.ogg"
    tone = np.sin(np.arange(24_000) / 8).astype(np.float32) / 2
    for _ in range(2):
        soundfile.write(tmp_path / "one.ogg", tone, 16_000)
        with chain.open("ab") as file:
            file.write((tmp_path / "one.ogg").read_bytes())
    with Recording(str(chain), real_time=False) as recording:
        length = sum(len(frame.samples) for frame in recording.frames())
    assert length == pytest.approx(48_000, abs=2000)
    assert not recording.warnings


@needs_ffmpeg
def test_a_flac_from_a_pipe_is_whole(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.sin(np.arange(24_000) / 8) / 2, 16_000)
    piped = tmp_path / "a.flac"
    command = ["ffmpeg", "-v", "error", "-i", str(tmp_path / "a.wav"), "-f", "flac", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout
        piped.write_bytes(running.stdout.read())
    with Recording(str(piped), real_time=False) as recording:
        assert sum(len(frame.samples) for frame in recording.frames()) == 24_000
        assert (recording.warnings, recording.duration_s) == ([], 0.0)


@needs_ffmpeg
def test_a_film_is_heard_at_its_times_and_in_its_default_track(tmp_path: Path) -> None:
    for name, level in (("quiet", 0.1), ("loud", 0.5)):
        soundfile.write(tmp_path / f"{name}.wav", np.sin(np.arange(32_000) / 8) * level, 16_000)
    film = tmp_path / "film.mkv"
    sources = [
        "-i",
        str(tmp_path / "quiet.wav"),
        "-itsoffset",
        "1",
        "-i",
        str(tmp_path / "loud.wav"),
    ]
    picture = ["-f", "lavfi", "-i", "color=s=16x16:d=3"]
    tracks = ["-map", "2:v", "-map", "0:a", "-map", "1:a", "-c:a", "flac"]
    chosen = ["-disposition:a:0", "0", "-disposition:a:1", "default"]
    subprocess.run(
        ["ffmpeg", "-v", "error", *sources, *picture, *tracks, *chosen, film], check=True
    )
    with Recording(str(film), real_time=False) as recording:
        sound = np.concatenate([frame.samples for frame in recording.frames()]).astype(float)
    assert np.abs(sound[:15_000]).max() < 100, "it begins after a second"
    assert np.abs(sound[20_000:40_000]).max() == pytest.approx(16_384, rel=0.02)


@needs_ffmpeg
@pytest.mark.parametrize("ending", ["mp3", "aac"])
def test_a_library_prints_nothing_while_a_file_is_read(
    tmp_path: Path, ending: str, capfd: pytest.CaptureFixture[str]
) -> None:
    samples, _ = heard(convert(tmp_path / f"a.{ending}"))
    assert len(samples) > 30_000
    assert capfd.readouterr().err == ""
