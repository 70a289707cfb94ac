"""`roomscribe transcribe`: subtitles that people can read, and what a terminal is told."""

import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
from rigs.checkout import SPEECH
from rigs.command import errors, roomscribe
from rigs.hailo_simulator.control import Simulator, with_hef
from rigs.word_errors import same_words

from appliance.cli import terminal
from appliance.model.bundle import Bundle


@pytest.mark.parametrize("ending", ["srt", "vtt"])
def test_each_of_several_files_has_subtitles_of_its_own(tmp_path: Path, ending: str) -> None:
    files = [SPEECH / "00.flac", SPEECH / "01.flac"]
    refused = roomscribe("transcribe", f"--{ending}", *files)
    assert (refused.returncode, "needs --output-dir" in refused.stderr) == (2, True)
    done = roomscribe("transcribe", f"--{ending}", "--output-dir", tmp_path, *files)
    assert (done.returncode, done.stdout) == (0, "")
    head, mark = ("", ",") if ending == "srt" else ("WEBVTT\n\n", ".")
    time = rf"00:00:0\d\{mark}\d{{3}}"
    for file in files:
        written = (tmp_path / f"{file.stem}.{ending}").read_text("utf-8")
        assert re.fullmatch(rf"{head}1\n{time} --> {time}\n[^\n]+\n\n", written), written
    assert roomscribe("transcribe", f"--{ending}", file).stdout == written


def test_of_a_folder_the_sound_files_are_transcribed_by_name(tmp_path: Path) -> None:
    for name in ("02", "01"):
        (tmp_path / f"{name}.flac").write_bytes((SPEECH / f"{name}.flac").read_bytes())
    (tmp_path / "notes.txt").write_text("no sound", encoding="utf-8")
    done = roomscribe("transcribe", "--json", tmp_path)
    files = [json.loads(line)["file"] for line in done.stdout.splitlines()]
    assert (done.returncode, files) == (
        0,
        [str(tmp_path / f"{name}.flac") for name in ("01", "02")],
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    refused = roomscribe("transcribe", empty)
    assert refused.returncode and "no sound file is in this folder" in refused.stderr


def test_sound_on_standard_input_is_read_whatever_it_is(tmp_path: Path) -> None:
    sound, rate_hz = soundfile.read(SPEECH / "02.flac", dtype="int16")
    soundfile.write(tmp_path / "talk.wav", sound, rate_hz)
    files = [(SPEECH / "02.flac").read_bytes(), (tmp_path / "talk.wav").read_bytes()]
    for data in (*files, sound.tobytes()):
        done = roomscribe("transcribe", "-", stdin=data)
        assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
        assert same_words(done.stdout, "how much power are we using")


def test_a_file_without_speech_says_so_and_not_to_programs(tmp_path: Path) -> None:
    quiet = tmp_path / "quiet.wav"
    soundfile.write(quiet, np.zeros(32_000, np.int16), 16_000)
    done = roomscribe("transcribe", quiet)
    assert (done.returncode, done.stdout) == (0, "")
    assert errors(done)[-1] == f"roomscribe: No speech found in {quiet}."
    assert roomscribe("transcribe", "-q", quiet).stderr == ""
    assert "no speech" not in roomscribe("transcribe", "--json", quiet).stderr


def test_what_encoded_is_told_and_why_a_hailo_did_not(tmp_path: Path, built_in: Bundle) -> None:
    machine = Simulator(tmp_path / "machine")
    machine.plug(latency_ms=1, patience=100)
    model = with_hef(built_in, tmp_path / "with-hef").folder

    def heard(*options: str | Path) -> tuple[str, str]:
        file, environment = SPEECH / "02.flac", machine.environment
        done = roomscribe("transcribe", "--json", *options, file, environment=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["encoder"], done.stderr

    assert heard("--model", model) == ("hailo8", "")
    encoder, line = heard()
    assert (encoder, "the model tiny.en has no encoder for it" in line) == ("cpu", True)
    machine.set(import_error="no libhailort")
    encoder, line = heard("--model", model)
    assert (encoder, line.count("\n")) == ("cpu", 1)
    assert line.startswith("roomscribe: the CPU encodes, not the Hailo: NPU: HailoRT's Python")
    (machine.folder / "dev/hailo0").unlink()
    assert heard("--model", model) == ("cpu", "")


def test_a_terminal_sees_how_far_a_long_file_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(terminal, "FIRST_AFTER_S", 0.3)
    for quiet in (True, False):
        with terminal.ProgressLine("talk.flac", quiet=quiet) as progress:
            progress.update(1.0, 4000.0)
            assert capsys.readouterr().err == "", "what is soon done needs none"
            time.sleep(0.6)
            progress.update(50.0, 4000.0)
            shown = capsys.readouterr().err
            assert bool(re.search(r"talk.flac: 1% of 4000 s, \d+:\d\d left", shown)) != quiet
    assert capsys.readouterr().err.strip() == "", "it leaves nothing"


def test_onnxruntime_keeps_no_telemetry(tmp_path: Path) -> None:
    """No file in the user's home: onnxruntime's telemetry would keep its queue there."""
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": "", "XDG_DATA_HOME": "", "XDG_STATE_HOME": ""}
    done = roomscribe("transcribe", SPEECH / "02.flac", environment=home, fresh=True)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
