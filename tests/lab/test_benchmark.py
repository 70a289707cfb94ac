"""`roomscribe benchmark`, with small random weights: what it measures, says and refuses."""

from __future__ import annotations

import json
import math
import os
import signal
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import soundfile
from rigs.models import random_weights, sized, write_checkpoint
from rigs.needs import module
from rigs.wyoming import running

from appliance.config import ModelSettings, Settings, WyomingSettings
from appliance.errors import ConfigError, ModelError, ServerError
from appliance.infer.opening import open_transcriber
from appliance.lab.benchmark.limits import multiply_adds
from appliance.lab.benchmark.main import run_benchmark
from appliance.lab.benchmark.measure import measure
from appliance.lab.benchmark.options import add_benchmark_arguments
from appliance.lab.benchmark.rows import LABELS, NEEDS_WEIGHTS, Row, make_rows
from appliance.lab.benchmark.versus import compare_servers
from appliance.lab.recordings import SHIPPED
from appliance.lab.words import (
    ProductRecogniser,
    Recognised,
    Recorded,
    count_words,
    read_recordings,
)
from appliance.model.bundle import Bundle, load_bundle
from appliance.records import SAMPLE_RATE

module("jiwer")
module("whisper_normalizer", "whisper-normalizer")
QUIET = Recorded(np.zeros(SAMPLE_RATE, np.int16), "")
LONG = sized(32, (1, 1), 2, 211, 1500, 448)
"""Trained on 30 s."""


def options(*given: object) -> Namespace:
    parser = ArgumentParser()
    add_benchmark_arguments(parser)
    return parser.parse_args([str(word) for word in given])


def using(bundle: str | Path) -> Settings:
    return replace(Settings(), model=ModelSettings(bundle=str(bundle)))


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Two recordings of noise with made-up texts, and one whose entry is no text."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for name in ("one", "two", "slots"):
        soundfile.write(folder / f"{name}.wav", rng.standard_normal(2 * SAMPLE_RATE) * 0.1, 16_000)
    lines = ["file\ttext", "one.wav\tTurn on the lamp.", "two.wav\tYes.", "slots.wav\tSLOTS: a=b"]
    (folder / "transcripts.tsv").write_text("\n".join(lines))
    return folder


def rows_of(
    given: Sequence[object], settings: Settings, file: Path, status: int = 0
) -> dict[str, dict[str, Any]]:
    """The rows of a run's JSON."""
    assert run_benchmark(options(*given, "--json", file), settings) == status
    return {row["key"]: row for row in json.loads(file.read_text())["rows"]}


def test_every_row_is_measured_or_says_what_it_needs(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = write_checkpoint(tmp_path / "long", LONG, random_weights(LONG, 1))
    given = ("--checkpoint", checkpoint, "--recordings", recordings)
    rows = rows_of(given, Settings(), tmp_path / "out.json")
    assert tuple(rows) == tuple(LABELS)
    for key in ("cpu-30s-fp32", "cpu-30s-int8", "cpu"):
        row = rows[key]
        assert row["total_ms"] >= row["encoder_ms"] + row["decoder_ms"] - 0.02
        assert row["peak_mb"] > 10, "Python and its libraries alone have more"
        assert (row["recordings"], row["words"]) == (2, 5)
        assert row["wer"] == pytest.approx(100 * row["word_errors"] / 5)
    assert "faster-whisper" in rows["faster-whisper"]["absent"]
    shown = capsys.readouterr().out
    assert "Roomscribe, CPU, 10 s, INT8 (as configured)" in shown
    assert "left out: faster-whisper" in shown
    for part in ("limits of this machine: ", "\nencoder: ", "\ndecoder: "):
        assert part in shown


def test_the_encoders_work_is_that_of_its_graph(bundle: Bundle) -> None:
    products, _ = multiply_adds(bundle)
    graph = onnx.load(bundle.folder / "encoder.onnx").graph
    matrices = [each for each in graph.initializer if each.name.endswith(".matrix")]
    assert products == bundle.positions * sum(math.prod(each.dims) for each in matrices)


def test_without_weights_the_model_in_use_is_measured(
    bundle: Bundle, recordings: Path, tmp_path: Path
) -> None:
    rows = rows_of(("--recordings", recordings), using(bundle.folder), tmp_path / "out.json")
    assert rows["cpu"]["recordings"] == 2
    assert rows["cpu-30s-int8"]["absent"] == NEEDS_WEIGHTS


def test_windows_are_filled_up_with_nothing_zeros_or_silence(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = write_checkpoint(tmp_path / "long", LONG, random_weights(LONG, 1))
    given = ("--checkpoint", checkpoint, "--recordings", recordings, "--padding")
    assert run_benchmark(options(*given), Settings()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["500", "nothing"], ["700", "zeros"], ["700", "silence"], ["1500", "zeros"],
        ["1500", "silence"],
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="--padding: expected --checkpoint"):
        run_benchmark(options("--recordings", recordings, "--padding"), Settings())


def test_nothing_measured_is_no_success(recordings: Path, tmp_path: Path) -> None:
    given = ("--recordings", recordings, "--rows", "cpu-30s-int8")
    rows = rows_of(given, Settings(), tmp_path / "out.json", status=1)
    assert rows["cpu-30s-int8"]["absent"] == NEEDS_WEIGHTS


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--rows", "cpu,fast"], "found fast"),
        (["--json", "/no/such/place.json"], "/no/such: no such folder"),
        (["--json", "/dev"], "--json: /dev: is a folder"),
        (["--recordings", "/dev"], "/dev: expected MANIFEST.tsv or transcripts.tsv"),
    ],
)
def test_wrong_usage_is_one_clear_message(given: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        run_benchmark(options(*given), Settings())
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_without_weights_is_refused(recordings: Path, tmp_path: Path) -> None:
    given = options("--checkpoint", tmp_path, "--recordings", recordings, "--rows", "cpu")
    with pytest.raises(ModelError):
        run_benchmark(given, Settings())


def test_faster_whisper_needs_ctranslate2s_folder(checkpoint_folder: Path, tmp_path: Path) -> None:
    module("faster_whisper", "faster-whisper")
    [row] = make_rows(["faster-whisper"], checkpoint_folder, Settings(), 1, tmp_path)
    assert row.absent.endswith("has no model.bin and no tokenizer.json")


def test_a_row_whose_process_is_killed_says_so(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "appliance.lab.benchmark.measure.listen", _die
    )  # the kernel's way with whoever has most memory
    found = measure(Row("cpu", bundle.folder), [QUIET])
    assert str(found).startswith("its process ended with SIGKILL")


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_errors_are_those_of_whispers_normalised_words() -> None:
    said = [Recorded(QUIET.samples, text) for text in ("It's twenty one!", "Uh, no", "Go.")]
    heard = [
        Recognised(text, loops, discarded, 1.0, 1.0, 2.0)
        for text, loops, discarded in (("it is 21", 0, 0), ("yes", 1, 0), ("", 0, 2))
    ]
    found = count_words(heard, said)
    assert (found.words, found.word_errors, found.recordings, found.right) == (5, 2, 3, 1)
    assert found.wer == pytest.approx(40.0)
    assert (found.loops, found.discarded) == (1, 2)


def test_lists_are_read_and_thinned_out_evenly(recordings: Path) -> None:
    assert [one.text for one in read_recordings(recordings)] == ["Turn on the lamp.", "Yes."]
    assert [one.text for one in read_recordings(recordings, 1)] == ["Turn on the lamp."]
    assert len(read_recordings(recordings)[0].samples) >= 2 * SAMPLE_RATE


def test_words_of_any_transcriber_can_be_measured(bundle: Bundle, recordings: Path) -> None:
    with open_transcriber(Settings(), bundle=load_bundle(bundle.folder)) as transcriber:
        read, recogniser = read_recordings(recordings), ProductRecogniser(transcriber)
        found = count_words([recogniser.hear(one.samples) for one in read], read)
    assert (found.recordings, found.words) == (2, 5)


def test_two_servers_are_compared_on_what_both_were_sent(built_in: Bundle) -> None:
    """Both are ours here, in this process: texts and memory are the same."""
    heard = read_recordings(SHIPPED, 3)
    with (
        open_transcriber(Settings(), bundle=built_in) as one,
        open_transcriber(Settings(), bundle=built_in) as two,
        running(one) as ours,
        running(two) as theirs,
    ):
        chosen = replace(Settings(), wyoming=WyomingSettings(port=ours.port))
        table = compare_servers(f"127.0.0.1:{theirs.port}", chosen, heard)
    _, _, *rows = (line.strip("| ").split(" | ") for line in table.splitlines())
    assert [row[0] for row in rows] == [f"127.0.0.1:{ours.port}", f"127.0.0.1:{theirs.port}"]
    assert rows[0][1:4] == rows[1][1:4]
    assert rows[0][2].endswith("of 3") and rows[0][3] == "0"
    memory_mb = [float(row[8]) for row in rows]
    assert memory_mb == pytest.approx([memory_mb[0]] * 2, rel=0.1)
    assert memory_mb[0] > 50
    with pytest.raises(ServerError, match=r"127\.0\.0\.1:1: .*check that it runs"):
        compare_servers("127.0.0.1:1", replace(Settings(), wyoming=WyomingSettings(port=1)), heard)
