"""The benchmark: every row writes what the others write, and figures come out as promised.

The rows on a Hailo run on a simulated one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rigs.checkout import ROOT, environment
from rigs.hailo_simulator.control import Simulator
from rigs.models import random_mel
from rigs.needs import module

from appliance.config import ModelSettings, Settings
from appliance.convert.checkpoint import load_checkpoint
from appliance.errors import ConfigError
from appliance.lab.benchmark import options as offered
from appliance.lab.benchmark.baselines import ExportedRunner, UncachedRunner
from appliance.lab.benchmark.clock import CLOCKS
from appliance.lab.benchmark.main import run_benchmark
from appliance.lab.benchmark.measure import RowProcess, measure
from appliance.lab.benchmark.options import add_benchmark_arguments
from appliance.lab.benchmark.ours import OurRunner
from appliance.lab.benchmark.rows import (
    KEYS,
    LABELS,
    ROUNDS,
    RowMaker,
    bytes_of_graph,
    memory_speed,
)
from appliance.lab.benchmark.subject import (
    SHAPES,
    Subject,
    make_subject,
    wanted_rows,
    write_random_checkpoint,
)
from appliance.model.bundle import Bundle, load_bundle
from appliance.records import States

COUNT, TOKENS = 12, 5


def subject_of(checkpoint_folder: Path, window_s: float, folder: Path) -> Subject:
    return make_subject("", checkpoint_folder, window_s, folder, quantize="none")


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_benchmark_arguments(parser)
    return parser.parse_args(given)


def states_of(runner: OurRunner, subject: Subject) -> States:
    bundle = subject.bundle
    return runner.encode(random_mel(subject.checkpoint.config, bundle.frames, seed=5))


def test_reference_uncached_and_ours_write_the_same_tokens(
    checkpoint_folder: Path, tmp_path: Path
) -> None:
    subject = subject_of(checkpoint_folder, 10.0, tmp_path)
    maker = RowMaker(subject, tmp_path, 1, COUNT)
    bundle = subject.bundle
    ours = OurRunner(subject.bundle.folder, "conservative", 1, encoder=True)
    reference = ExportedRunner(
        maker.encoder(bundle.positions, int8=False),
        maker.decoders(int8=False),
        bundle,
        bundle.frames,
        1,
    )
    uncached = UncachedRunner(None, maker.uncached(), bundle, 1)
    mel = random_mel(subject.checkpoint.config, bundle.frames, seed=5)
    states = ours.encode(mel)
    assert np.abs(reference.encode(mel) - states).max() < 1e-4
    tokens = ours.decode(states, COUNT).tokens
    assert len(tokens) == COUNT
    assert len(set(tokens)) > 3
    assert reference.decode(states, COUNT).tokens == tokens
    assert uncached.decode(states, COUNT).tokens == tokens
    assert ours.transcribe(states, 0)[:5] == reference.transcribe(states, 5)
    assert uncached.transcribe(states, 5) == reference.transcribe(states, 5)


def test_real_padding_writes_what_free_padding_writes(
    checkpoint_folder: Path, tmp_path: Path
) -> None:
    subject = subject_of(checkpoint_folder, 4.0, tmp_path)
    maker = RowMaker(subject, tmp_path, 1, COUNT)
    ours = OurRunner(subject.bundle.folder, "conservative", 1, encoder=True)
    unpadded = OurRunner(subject.bundle.folder, "aggressive", 1, encoder=False)
    bundle = subject.bundle
    reference = ExportedRunner(None, maker.decoders(int8=False), bundle, bundle.frames, 1)
    states = states_of(ours, subject)
    tokens = ours.decode(states, COUNT).tokens
    assert reference.decode(states, COUNT).tokens == tokens
    assert unpadded.decode(states, COUNT).tokens != tokens


def test_ctranslate2_in_float32_writes_the_same_tokens(
    checkpoint_folder: Path, tmp_path: Path
) -> None:
    module("ctranslate2")
    from appliance.convert.decoding import read_vocabulary
    from appliance.lab.benchmark.ctranslate import CTranslateRunner, write_model

    subject = subject_of(checkpoint_folder, 10.0, tmp_path)
    write_model(subject.checkpoint, read_vocabulary(checkpoint_folder), "float32", tmp_path / "ct2")
    bundle = subject.bundle
    rival = CTranslateRunner(tmp_path / "ct2", bundle, bundle.frames, 1)
    ours = OurRunner(subject.bundle.folder, "conservative", 1, encoder=True)
    mel = random_mel(subject.checkpoint.config, bundle.frames, seed=5)
    tokens = ours.decode(ours.encode(mel), COUNT).tokens
    assert rival.decode(rival.encode(mel), COUNT).tokens == tokens
    assert rival.decode(rival.encode(mel), 1).tokens == tokens[:1]


@pytest.fixture(scope="module")
def benchmarked(
    checkpoint_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """The JSON of one run over the rows that need no further package, and its folder."""
    module("onnxruntime.quantization", "onnxruntime")
    folder = tmp_path_factory.mktemp("benchmark")
    given = options(
        "--checkpoint", str(checkpoint_folder), "--rows", "reference,balanced,balanced-latin,npu",
        "--repeats", "2", "--tokens", "4", "--window", "4", "--json", str(folder / "out.json"),
    )  # fmt: skip
    assert run_benchmark(given, Settings()) == 0
    return json.loads((folder / "out.json").read_text()), folder


def test_json_holds_every_figure_of_every_row(
    benchmarked: tuple[dict[str, Any], Path],
) -> None:
    found, folder = benchmarked
    assert found["schema"] == 1
    assert (found["tokens"], found["threads"], found["repeats"]) == (4, 1, 2)
    assert found["random_weights"] is False
    assert 0.1 < found["memory_speed_gb_s"] < 10_000
    assert [path.name for path in folder.iterdir()] == ["out.json"]
    by_key = {row["key"]: row for row in found["rows"]}
    assert list(by_key) == ["reference", "balanced", "balanced-latin", "npu"]
    for key in ("reference", "balanced"):
        row = by_key[key]
        assert row["absent"] is None
        # of two rounds the median is the mean: what adds up in each does so here
        parts_ms = row["mel_ms"] + row["encoder_ms"] + row["decoder_ms"]
        assert row["total_ms"] == pytest.approx(parts_ms, abs=0.01)
        assert row["decoder_ms"] == pytest.approx(row["first_ms"] + 3 * row["later_ms"], abs=0.01)
        # no order between these two: ours decodes its first token in a run of its own
        assert 0 < row["least"]["first_ms"] <= row["first_ms"]
        assert row["decoder_ms"] > 0
        assert 0 < row["least"]["encoder_ms"] <= row["encoder_ms"]
        assert row["peak_mb"] >= row["imports_mb"] > 10
        assert row["decoder_peak_mb"] >= row["decoder_imports_mb"] > 10
        floor_ms = row["token_mb"] / found["memory_speed_gb_s"]
        assert row["floor_ms"] == pytest.approx(floor_ms, rel=0.1, abs=0.002)
        assert row["real_time_factor"] == pytest.approx(row["total_ms"] / 4000, rel=0.01)
    assert by_key["reference"]["token_mb"] > by_key["balanced"]["token_mb"], "32 bits and 8"
    assert found["ratios"]["reference"].keys() == {
        "decoder", "first_token", "later_tokens", "utterance", "peak_memory", "decoder_memory",
    }  # fmt: skip


def test_a_row_with_short_windows_encodes_the_speech_alone(
    checkpoint_folder: Path, tmp_path: Path
) -> None:
    subject = subject_of(checkpoint_folder, 4.0, tmp_path)
    [row] = RowMaker(subject, tmp_path, 1, COUNT, speech_s=1.0).rows(["short"])
    with RowProcess(row, encoder=True) as worker:
        assert len(worker.warm_up()["tokens"]) == COUNT
    whole, short = (
        OurRunner(subject.bundle.folder, "balanced", 1, encoder=True, short=each)
        for each in (False, True)
    )
    sound = np.random.default_rng(1).normal(0, 0.1, 16_000).astype(np.float32)
    mel = whole.mel(sound)
    silence = short.encode(short.mel(sound[:1] * 0))
    assert np.array_equal(short.encode(mel)[80:], silence[80:])
    assert not np.array_equal(whole.encode(mel)[75:], silence[75:])


def test_a_row_without_its_hailo_says_so(benchmarked: tuple[dict[str, Any], Path]) -> None:
    if any(Path(node).exists() for node in ("/dev/hailo0", "/dev/h1x-0")):
        pytest.skip("for a machine without a Hailo: this one has it")
    row = benchmarked[0]["rows"][-1]
    assert row["absent"] == "there is no Hailo in this machine"
    assert "total_ms" not in row


def test_table_names_the_rows_and_what_is_left_out(
    checkpoint_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = options(
        "--checkpoint", str(checkpoint_folder), "--rows", "uncached,conservative,hybrid",
        "--repeats", "1", "--tokens", "3",
    )  # fmt: skip
    run_benchmark(given, Settings())
    text = capsys.readouterr().out
    assert "real weights; window 10 s, speech 10 s, 3 tokens" in text
    assert "Roomscribe, CPU, conservative" in text
    assert "left out: Roomscribe, hybrid" in text
    assert "row / " not in text


@pytest.mark.parametrize(("name", "key"), [("ctranslate", "ct2-30s"), ("quantizer", "reference")])
def test_a_missing_package_leaves_its_row_out_by_name(
    name: str, key: str, checkpoint_folder: Path, tmp_path: Path
) -> None:
    subject = subject_of(checkpoint_folder, 4.0, tmp_path)
    packages: dict[str, Any] = {name: "no_such_package"}
    [row] = RowMaker(subject, tmp_path, 1, COUNT, **packages).rows([key])
    assert row.plan is None
    assert row.absent == "the package no_such_package is not installed"


def test_picture_is_drawn(checkpoint_folder: Path, tmp_path: Path) -> None:
    module("matplotlib")
    file = tmp_path / "bars.png"
    given = options(
        "--checkpoint", str(checkpoint_folder), "--rows", "balanced", "--repeats", "1",
        "--tokens", "2", "--picture", str(file),
    )  # fmt: skip
    run_benchmark(given, Settings())
    assert file.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["bars.png"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "--random-weights tiny"),
        (["--rows", "reference,fast"], "found fast"),
        (["--random-weights", "tiny", "--speech", "11"], "at most the window's 10, found 11"),
        (["--random-weights", "tiny", "--recordings", "x"], "made-up weights"),
        (["--checkpoint", "HOME", "--tokens", "110"], "expected at most 108"),
        (["--random-weights", "tiny", "--json", "/no/such/place.json"], "/no/such: no such folder"),
        (["--random-weights", "tiny", "--json", "/dev"], "--json: /dev: is a folder"),
    ],
)
def test_wrong_usage_is_one_clear_message(
    given: list[str], said: str, checkpoint_folder: Path
) -> None:
    given = [str(checkpoint_folder) if word == "HOME" else word for word in given]
    with pytest.raises(ConfigError) as raised:
        run_benchmark(options(*given), Settings())
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_row_whose_process_fails_or_is_killed_is_left_out_and_the_others_are_measured(
    checkpoint_folder: Path, tmp_path: Path
) -> None:
    subject = subject_of(checkpoint_folder, 4.0, tmp_path)
    good, absent, dying = RowMaker(subject, tmp_path, 1, COUNT).rows(
        ["conservative", "balanced", "aggressive"]
    )
    assert good.plan and dying.plan
    absent = replace(absent, plan={**good.plan, "folder": str(tmp_path / "gone")})
    utterances = 0

    def kill_one() -> None:
        """The kernel's way with whoever has most memory."""
        nonlocal utterances
        utterances += 1
        if utterances == 3:  # both are warm, and one has answered
            ours = f"PPid:\t{os.getpid()}\n"
            children = [path for path in Path("/proc").glob("[0-9]*") if path.name.isdecimal()]
            rows = []
            for path in children:
                with suppress(OSError):  # it may have ended meanwhile
                    spawned = b"spawned" in (path / "cmdline").read_bytes()
                    if spawned and ours in (path / "status").read_text():
                        rows.append(int(path.name))
            os.kill(rows[0], signal.SIGKILL)

    first, second, third = measure([absent, dying, good], 3, kill_one)
    assert first.trouble.startswith("its process ended: ")
    assert "gone: expected a model bundle" in first.trouble and "\n" not in first.trouble
    assert sorted([second.trouble, third.trouble]) == [
        "", "its process ended with SIGKILL: without a word",
    ]  # fmt: skip
    [whole] = [each for each in (second, third) if not each.trouble]
    assert len(whole.samples) == 3
    assert whole.memory["peak_mb"]


def test_a_row_whose_files_cannot_be_made_is_left_out_and_the_table_and_json_come(
    checkpoint_folder: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "packages"
    broken.mkdir()
    (broken / "ctranslate2.py").write_text("raise NotImplementedError('a unique\\nname')")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "appliance", "benchmark", "--checkpoint", checkpoint_folder),
            *("--rows", "ct2-window,balanced", "--repeats", "1", "--tokens", "2", "--window", "2"),
            *("--json", tmp_path / "out.json"),
        ],
        env=environment(PYTHONPATH=f"{broken}:{ROOT}"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reason = "its files cannot be made: NotImplementedError: a unique name"
    assert f"left out: {LABELS['ct2-window']}: {reason}" in done.stdout
    assert "Roomscribe, CPU, balanced" in done.stdout
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["absent"] for row in rows] == [reason, None]


def test_a_half_made_file_is_made_again_for_the_next_row(
    checkpoint_folder: Path, tmp_path: Path
) -> None:
    subject = subject_of(checkpoint_folder, 4.0, tmp_path)
    maker = RowMaker(subject, tmp_path / "later", 1, COUNT)
    [row] = maker.rows(["reference"])
    assert row.absent.startswith("its files cannot be made: FileNotFoundError: ")
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "draft").mkdir()
    (tmp_path / "later" / "draft" / "decoders").mkdir()
    [row] = maker.rows(["reference"])
    assert row.plan and not row.absent


def test_nothing_measured_is_no_success(checkpoint_folder: Path, tmp_path: Path) -> None:
    if any(Path(node).exists() for node in ("/dev/hailo0", "/dev/h1x-0")):
        pytest.skip("for a machine without a Hailo: this one has it")
    out = tmp_path / "out.json"
    given = options("--checkpoint", str(checkpoint_folder), "--rows", "npu", "--json", str(out))
    assert run_benchmark(given, Settings()) == 1
    assert json.loads(out.read_text())["rows"][0]["absent"]


def test_onnx_reads_its_operators_before_onnxruntime_adds_its_own() -> None:
    """Debian's onnx 1.17 refuses to after its onnxruntime 1.21."""
    program = "import sys, appliance.lab.benchmark.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules = done.stdout.split()
    assert modules.index("onnx.reference") < modules.index("onnxruntime")


def test_random_checkpoint_is_a_multilingual_whisper_that_builds(tmp_path: Path) -> None:
    config = replace(SHAPES["tiny"], d_model=96, encoder_layers=1, decoder_layers=1)
    folder = write_random_checkpoint(config, tmp_path / "checkpoint")
    assert load_checkpoint(folder).config == config
    again = write_random_checkpoint(config, tmp_path / "again")
    assert load_checkpoint(again).sha256 == load_checkpoint(folder).sha256
    subject = subject_of(folder, 1.0, tmp_path)
    assert subject.bundle.prompt == (50258, 50259, 50359, 50363)
    assert (subject.bundle.tokens.end_of_text, subject.bundle.trained_positions) == (50257, 1500)
    assert load_bundle(subject.bundle.folder).tokens.no_speech == 50362


def test_bytes_of_a_graph_count_tables_by_their_row(tmp_path: Path) -> None:
    table = numpy_helper.from_array(np.zeros((10, 6), np.float32), "table")
    matrix = numpy_helper.from_array(np.zeros((6, 5), np.int8), "matrix")
    aside = numpy_helper.from_array(np.zeros(100, np.float32), "aside.left_out")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Cast", ["matrix"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["rows", "cast"], ["out"]),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, (1,))
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, (1, 5))
    graph = helper.make_graph(nodes, "g", [ids], [out], [table, matrix, aside])
    onnx.save(helper.make_model(graph), str(tmp_path / "g.onnx"))
    assert bytes_of_graph(tmp_path / "g.onnx") == 6 * 4 + 30 + 400
    assert bytes_of_graph(tmp_path / "g.onnx", unread=".left_out") == 6 * 4 + 30


def test_memory_speed_is_bytes_a_second_of_the_best_round() -> None:
    rounds_s = [2.0] * (ROUNDS - 1) + [0.5]
    instants = iter([instant for length_s in rounds_s for instant in (10.0, 10.0 + length_s)])
    assert memory_speed(2, size=4_000_000, now=lambda: next(instants)) == 8_000_000.0
    assert next(instants, None) is None, "the clock is read before and after each round"
    assert 1e8 < memory_speed(2) < 1e13


def test_all_rows_are_wanted_unless_some_are_named() -> None:
    assert wanted_rows("", KEYS) == KEYS
    assert wanted_rows("balanced, reference", KEYS) == ("balanced", "reference")


def test_a_decoder_alone_is_measured_without_its_encoder(
    checkpoint_folder: Path, tmp_path: Path
) -> None:
    subject = subject_of(checkpoint_folder, 4.0, tmp_path)
    [row] = RowMaker(subject, tmp_path, 1, 3).rows(["aggressive"])
    with RowProcess(row, encoder=False) as worker:
        answer = worker.warm_up()
        assert len(answer["tokens"]) == 3
        assert answer["encoder_ms"] < answer["decoder_ms"]
        memory = worker.memory()
    assert memory["peak_mb"] is not None and memory["running_mb"] is not None
    assert memory["peak_mb"] >= memory["running_mb"] > 10, (
        "Python and its libraries alone have more"
    )


def test_errors_are_counted_on_listed_recordings_that_fit_the_window(
    checkpoint_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module("jiwer")
    module("whisper_normalizer", "whisper-normalizer")
    soundfile = module("soundfile")
    folder = tmp_path / "recordings"
    folder.mkdir()
    noise = np.random.default_rng(0).standard_normal(5 * 16_000) * 0.05
    for name, length in (("short.wav", 16_000), ("long.wav", 5 * 16_000)):
        soundfile.write(folder / name, noise[:length], 16_000)
    lines = ["file\tvoice\ttext", "short.wav\tnobody\tTurn on the lamp.", "long.wav\tnobody\tYes"]
    (folder / "transcripts.tsv").write_text("\n".join(lines))
    given = options(
        "--checkpoint", str(checkpoint_folder), "--rows", "balanced", "--repeats", "1",
        "--tokens", "2", "--window", "4", "--recordings", str(folder),
        "--json", str(tmp_path / "out.json"),
    )  # fmt: skip
    run_benchmark(given, Settings())
    shown = capsys.readouterr()
    assert "1 recordings are longer" in shown.err
    assert "WER" in shown.out
    [row] = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert row["recordings"] == 1
    assert row["wer"] >= 1, "an untrained model gets none of the four words"
    assert (4 * row["wer"]).is_integer()


def test_errors_are_those_of_whispers_normalised_words() -> None:
    module("jiwer")
    module("whisper_normalizer", "whisper-normalizer")
    from appliance.lab.benchmark.accuracy import Recorded, score

    said = [Recorded(np.zeros(1, np.float32), text) for text in ("It's twenty one!", "Uh, no")]
    found = score(["it is 21", "yes"], said)
    assert found.wer == pytest.approx(1 / 4)
    assert found.recordings == 2


def test_the_command_line_offers_every_shape_and_clock_there_is() -> None:
    assert set(offered.SHAPES) == set(SHAPES)
    assert set(offered.CLOCKS) == set(CLOCKS)


def measured(
    model: str | Path, checkpoint: Path, folder: Path, window_s: str = "2"
) -> dict[str, dict[str, Any]]:
    """The rows of a benchmark of `checkpoint` while `model` is in use."""
    given = options(
        "--checkpoint", str(checkpoint), "--rows", "conservative,hybrid,npu", "--repeats", "2",
        "--tokens", str(TOKENS), "--window", window_s, "--json", str(folder / "out.json"),
    )  # fmt: skip
    assert run_benchmark(given, replace(Settings(), model=ModelSettings(bundle=str(model)))) == 0
    rows = json.loads((folder / "out.json").read_text())["rows"]
    return {row["key"]: row for row in rows}


def test_both_rows_run_one_after_the_other_on_the_one_chip(
    simulator: Simulator,
    int8_npu_bundle: Bundle,
    checkpoint_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", simulator.environment["PYTHONPATH"])
    simulator.plug(latency_ms=20)
    rows = measured(int8_npu_bundle.folder, checkpoint_folder, tmp_path)
    assert not rows["hybrid"].get("absent") and not rows["npu"].get("absent")
    assert rows["hybrid"]["encoder_ms"] >= 20
    assert rows["npu"]["decoder_ms"] >= TOKENS * 20
    assert rows["hybrid"]["decoder_ms"] < rows["npu"]["decoder_ms"]


def test_a_chip_without_a_fitting_hef_leaves_the_rows_out_with_the_reason(
    simulator: Simulator, int8_npu_bundle: Bundle, checkpoint_folder: Path, tmp_path: Path
) -> None:
    simulator.plug()
    rows = measured("tiny.en", checkpoint_folder, tmp_path)
    assert "tiny.en, has no encoder.hef" in rows["hybrid"]["absent"]
    assert "decoder.hef" in rows["npu"]["absent"]
    rows = measured(int8_npu_bundle.folder, checkpoint_folder, tmp_path, "4")
    assert "has frames 200 instead of 400" in rows["hybrid"]["absent"]


def test_a_chip_that_is_lost_leaves_its_rows_out_and_the_others_are_measured(
    simulator: Simulator,
    int8_npu_bundle: Bundle,
    checkpoint_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", simulator.environment["PYTHONPATH"])
    simulator.plug()
    simulator.set(fail_jobs="all")
    rows = measured(int8_npu_bundle.folder, checkpoint_folder, tmp_path)
    assert rows["conservative"]["total_ms"] > 0
    for key in ("hybrid", "npu"):
        assert "NPU: the first job: HailoRT failed" in rows[key]["absent"]
        assert "total_ms" not in rows[key]
