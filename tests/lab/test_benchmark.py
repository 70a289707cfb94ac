"""`roomscribe benchmark`, with small random weights: what it measures, says and refuses."""

import json
import math
import os
import re
import signal
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
import soundfile
from rigs.models import random_weights, sized, write_checkpoint
from rigs.needs import module

from appliance.config import ModelSettings, Settings
from appliance.convert.build import Recipe, build_bundle
from appliance.errors import ConfigError, ModelError
from appliance.infer.decoder import Decoder
from appliance.infer.network import Network, log_sum
from appliance.lab.benchmark import guards
from appliance.lab.benchmark.cache import ExportedNetwork, count_work
from appliance.lab.benchmark.limits import multiply_adds
from appliance.lab.benchmark.main import draw_chart, run_benchmark
from appliance.lab.benchmark.measure import measure
from appliance.lab.benchmark.options import add_benchmark_arguments
from appliance.lab.benchmark.rows import LABELS, NEEDS_WEIGHTS, Row, make_rows
from appliance.lab.benchmark.steps import GuardedNetwork
from appliance.lab.words import (
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


def options(*given: object) -> Namespace:
    parser = ArgumentParser()
    add_benchmark_arguments(parser)
    return parser.parse_args([str(word) for word in given])


def using(bundle: str | Path) -> Settings:
    return replace(Settings(), model=ModelSettings(bundle=str(bundle)))


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """Weights that were trained on 30 s."""
    return write_checkpoint(tmp_path / "long", LONG, random_weights(LONG, 1))


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
    long: Path, recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--checkpoint", long, "--recordings", recordings)
    rows = rows_of(given, Settings(), tmp_path / "out.json")
    assert tuple(rows) == tuple(LABELS)
    for key in ("cpu-30s-fp32", "cpu-30s-int8", "cpu"):
        row = rows[key]
        assert row["total_ms"] >= row["encoder_ms"] + row["decoder_ms"] - 0.02
        assert row["peak_mb"] > 10, "Python and its libraries alone have more"
        assert (row["recordings"], row["words"]) == (2, 5)
        assert row["wer"] == pytest.approx(100 * row["word_errors"] / 5)
        assert {"first_ms", "next_ms"} <= row.keys() and row["decoder_mb"] > 0
    assert "faster-whisper" in rows["faster-whisper"]["absent"]
    shown = capsys.readouterr().out
    assert "Roomscribe, CPU, 10 s, INT8 (as configured)" in shown
    assert "left out: faster-whisper" in shown


def test_without_weights_the_model_in_use_is_measured(
    bundle: Bundle, recordings: Path, tmp_path: Path
) -> None:
    rows = rows_of(("--recordings", recordings), using(bundle.folder), tmp_path / "out.json")
    assert rows["cpu"]["recordings"] == 2
    assert re.search(r"at least [\d.]+ ms of enc.* and [\d.]+ ms for a t", rows["cpu"]["limits"])
    assert rows["cpu-30s-int8"]["absent"] == NEEDS_WEIGHTS


def test_the_encoders_work_is_that_of_its_graph(bundle: Bundle) -> None:
    products, _ = multiply_adds(bundle)
    graph = onnx.load(bundle.folder / "encoder.onnx").graph
    matrices = [each for each in graph.initializer if each.name.endswith(".matrix")]
    assert products == bundle.positions * sum(math.prod(each.dims) for each in matrices)


@pytest.mark.parametrize(
    ("table", "first"),
    [
        ("padding", ["500, 50 virtual", "500, nothing", "600, zeros", "650, zeros", "700, zeros",
                     "1500, zeros", "600, silence", "650, silence", "700, silence",
                     "1500, silence"]),
        ("guards", [guard.name for guard in guards.GUARDS]),
        ("cache", ["without a cache, 32", "without a cache, 24", "with a cache, FP32",
                   "with a cache, INT8"]),
    ],
)  # fmt: skip
def test_each_table_apart_has_a_row_for_each_way(
    table: str, first: list[str], long: Path, recordings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--checkpoint", long, "--recordings", recordings, f"--{table}")
    if table == "cache":  # random weights end no text
        with pytest.raises(ConfigError, match="no recording's text is short enough"):
            run_benchmark(options(*given), Settings())
        return
    assert run_benchmark(options(*given), Settings()) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    for row, begin in zip(rows, first, strict=True):
        assert row[0].startswith(f"| {begin}")
    with pytest.raises(ConfigError, match=f"--{table}: expected --checkpoint"):
        run_benchmark(options("--recordings", recordings, f"--{table}"), Settings())


def test_a_decoder_without_a_cache_writes_the_same_text(long: Path, tmp_path: Path) -> None:
    build_bundle(long, tmp_path / "made", Recipe("made", 10.0))
    bundle = load_bundle(tmp_path / "made")
    decoder = Decoder(bundle, 1)
    decoder.positions = bundle.positions
    states = np.random.default_rng(3).standard_normal((bundle.positions, bundle.d_model))
    fixed = ExportedNetwork(long, bundle, 24, tmp_path / "fixed.onnx")
    given = states.astype(np.float32), 10.0
    text, other = decoder.decode(*given, fixed), decoder.decode(*given)
    assert len(text.tokens) > 5
    assert other.tokens[: len(text.tokens)] == text.tokens
    assert other.logprobs[: len(text.tokens)] == pytest.approx(text.logprobs, abs=1e-3)


def test_a_cache_computes_a_position_once() -> None:
    assert count_work(prompt=2, written=3) == (4, 1 + 2 + 3 + 4)
    assert count_work(prompt=2, written=3, length=32) == (96, 3 * 32 * 32)


def test_a_penalty_and_a_bonus_change_only_what_follows(long: Path, tmp_path: Path) -> None:
    build_bundle(long, tmp_path / "made", Recipe("made", 10.0))
    bundle = load_bundle(tmp_path / "made")
    states = np.zeros((bundle.positions, bundle.d_model), np.float32)
    free, guarded = Network(bundle, 1), GuardedNetwork(Network(bundle, 1), bundle, 2.0, 0.5)
    end = list(bundle.kept).index(bundle.tokens.end_of_text)
    token = int(bundle.kept[0])
    for network in (free, guarded):
        network.begin(states, bundle.positions)
    prompt = bundle.prompt, (0, len(bundle.prompt) - 1), (0,)
    first = [network.advance(*prompt) for network in (free, guarded)]
    np.testing.assert_array_equal(first[0].logits[0], first[1].logits[0])
    assert first[1].logits[1, end] == pytest.approx(first[0].logits[1, end] + 0.5)
    before, after = (network.advance((token,), (0,)) for network in (free, guarded))
    logit = float(before.logits[0, 0])
    assert after.logits[0, 0] == pytest.approx(logit / 2 if logit > 0 else logit * 2)
    assert after.totals[0] == pytest.approx(log_sum(after.logits[0]), abs=1e-4)


def test_short_recordings_are_said_twice() -> None:
    long_one = Recorded(np.zeros(5 * SAMPLE_RATE, np.int16), "no")
    tone = np.zeros(SAMPLE_RATE, np.int16)
    tone[4000:8001] = 1000
    [twice] = guards.said_twice([Recorded(tone, "New York"), long_one])
    assert (twice.text, len(twice.samples)) == ("New York New York", 2 * 4001 + 3200)


def test_the_chart_has_a_bar_for_encoder_and_decoder_of_each_row(tmp_path: Path) -> None:
    rows = [{"label": "a < b", "encoder_ms": 30.0, "decoder_ms": 10.0}]
    rows += [{"label": "simulated", "encoder_ms": "not measured", "decoder_ms": 5.0}]
    chart = ElementTree.fromstring(draw_chart(rows))
    bars = [each for each in chart.iter() if each.get("class") in ("encoder", "decoder")]
    widths = [float(each.attrib["width"]) for each in bars[:2]]
    assert widths[0] == pytest.approx(3 * widths[1], rel=0.01)
    assert "a < b" in [each.text for each in chart.iter()]
    assert "simulated" not in [each.text for each in chart.iter()]


def test_nothing_measured_is_no_success(recordings: Path, tmp_path: Path) -> None:
    given = ("--recordings", recordings, "--rows", "cpu-30s-int8")
    rows = rows_of(given, Settings(), tmp_path / "out.json", status=1)
    assert rows["cpu-30s-int8"]["absent"] == NEEDS_WEIGHTS


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--rows", "cpu,fast"], "found cpu,fast"),
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
    assert found.interval == (0.0, 100.0), "one recording, drawn three times"
    by_one = count_words(heard, [replace(one, speaker="Ada") for one in said])
    assert by_one.interval == pytest.approx((40.0, 40.0)), "one speaker says nothing of others"


def test_lists_are_read_and_thinned_out_evenly(recordings: Path) -> None:
    assert [one.text for one in read_recordings(recordings)] == ["Turn on the lamp.", "Yes."]
    assert [one.text for one in read_recordings(recordings, 1)] == ["Turn on the lamp."]
    assert len(read_recordings(recordings)[0].samples) >= 2 * SAMPLE_RATE
