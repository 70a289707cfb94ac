"""Windows go in, transcriptions come out, sized by the bundle."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from rigs.models import never_ending
from rigs.records import differences

from appliance.config import DecoderSettings, EncoderSettings, ModelSettings, Settings
from appliance.convert.build import Recipe, build_bundle
from appliance.errors import ModelError
from appliance.infer.decoder import Decoded
from appliance.infer.gates import compression_ratio
from appliance.infer.opening import open_transcriber
from appliance.infer.request import Pending, Request
from appliance.infer.transcriber import DOUBTFUL, Transcriber
from appliance.model.bundle import Bundle, load_bundle
from appliance.records import SAMPLE_RATE, NoAct, Transcription, Window


def settings(folder: Path, **decoder: float) -> Settings:
    return Settings(
        model=ModelSettings(bundle=str(folder)),
        encoder=EncoderSettings(threads=1),
        decoder=DecoderSettings(threads=1, **decoder),  # type: ignore[arg-type]
    )


def window(seconds: float, seed: int = 1) -> Window:
    rng = np.random.Generator(np.random.PCG64(seed))
    samples = (rng.random(round(seconds * SAMPLE_RATE)) * 20_000 - 10_000).astype(np.int16)
    return Window("utterance", 1, True, samples, 0.0, seconds, seconds)


@pytest.fixture(scope="module")
def transcriber(bundle_folder: Path) -> Transcriber:
    return open_transcriber(settings(bundle_folder))


def test_a_window_becomes_a_transcription(transcriber: Transcriber) -> None:
    result = transcriber.transcribe(window(3.0))
    assert result.text and result.text == result.text.strip() and len(result.tokens) > 3
    assert result.language == "en" and result.encoder == transcriber.encoder.name == "cpu"
    assert result.avg_logprob < 0 and 0 < result.no_speech_prob < 1
    assert result.compression_ratio == compression_ratio(result.text)
    assert result.encode_ms > 0 and result.decode_ms > 0


def test_a_doubtful_text_is_searched_again_while_there_is_time(transcriber: Transcriber) -> None:
    greedy, best, again = (
        transcriber.transcribe(window(1.0), search=search) for search in (False, True, False)
    )
    assert greedy.avg_logprob < DOUBTFUL
    assert best.avg_logprob > greedy.avg_logprob and best.tokens != greedy.tokens
    assert set(differences(greedy, again)) <= {"encode_ms", "decode_ms"}
    answers = iter([True] * 5)

    class Hurried(Pending):
        def has_time(self) -> bool:
            return next(answers, False)

    encoded = transcriber.begin(Request(window(1.0), search=True))
    assert transcriber.decode(encoded, Hurried()).tokens == greedy.tokens
    assert next(answers, None) is None, "it had begun"


def test_a_sure_text_and_a_beam_of_one_are_not_searched(
    bundle_folder: Path, transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = transcriber.transcribe(window(1.0))
    alone = open_transcriber(settings(bundle_folder, beam_size=1))
    assert alone.transcribe(window(1.0), search=True).tokens == greedy.tokens
    sure = open_transcriber(settings(bundle_folder), bundle=ending(transcriber))
    greedy = sure.transcribe(window(1.0))
    monkeypatch.setattr("appliance.infer.transcriber.DOUBTFUL", greedy.avg_logprob)
    assert sure.transcribe(window(1.0), search=True).tokens == greedy.tokens


def test_a_text_without_an_end_is_searched_again_however_sure(
    transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = transcriber.transcribe(window(1.0))
    monkeypatch.setattr("appliance.infer.transcriber.DOUBTFUL", greedy.avg_logprob)
    assert not greedy.ended
    assert transcriber.transcribe(window(1.0), search=True).tokens != greedy.tokens


def ending(transcriber: Transcriber) -> Bundle:
    """Its bundle, whose texts end with a token that is common in others."""
    bundle = transcriber.bundle
    common = transcriber.transcribe(window(1.0)).tokens[3]
    return replace(bundle, tokens=replace(bundle.tokens, end_of_text=common))


def test_a_decode_stopped_by_the_limit_is_marked(
    bundle_folder: Path, transcriber: Transcriber
) -> None:
    for bundle, ended in ((transcriber.bundle, False), (ending(transcriber), True)):
        result = open_transcriber(settings(bundle_folder), bundle=bundle).transcribe(window(1.0))
        assert result.ended == ended and ("token_limit" in result.flags) == (not ended)


def test_a_loop_at_a_cut_or_behind_a_sentence_is_written_once(
    transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, rounds, last, ended, kept in (
        (2, 9, False, False, 5),
        (2, 9, False, True, 5),
        (2, 4, False, True, 14),
        (2, 4, False, False, 5),
        (12, 9, True, False, 39),
        (13, 9, True, False, 16),
    ):
        tokens = (*range(10, 10 + words), *(7, 8, 9) * rounds)
        looping = Decoded(tokens, (*[-3.0] * 5, *[0.0] * (len(tokens) - 5 + ended)), 0.1, ended)
        monkeypatch.setattr(transcriber.decoder, "decode", lambda *_, one=looping, **__: one)
        result = transcriber.transcribe(replace(window(1.0), last=last))
        assert result.tokens == tokens[:kept] and result.avg_logprob == -15 / (kept + 1)
        whole = ended and kept == len(tokens)
        assert result.ended == whole == ("token_limit" not in result.flags)


def test_the_same_window_gives_the_same_transcription(transcriber: Transcriber) -> None:
    first, _, again = (transcriber.transcribe(window(2.0, seed)) for seed in (1, 2, 1))
    assert set(differences(first, again)) <= {"encode_ms", "decode_ms"}


def test_silence_behind_a_short_window_changes_nothing_but_the_limit(
    transcriber: Transcriber,
) -> None:
    short = window(2.0)
    long = replace(short, samples=np.pad(short.samples, (0, 8 * SAMPLE_RATE)))
    tokens = transcriber.transcribe(short).tokens
    assert transcriber.transcribe(long).tokens[: len(tokens)] == tokens


def test_a_window_of_the_models_whole_length_is_taken_and_a_longer_one_refused(
    transcriber: Transcriber,
) -> None:
    assert transcriber.transcribe(window(10.0)).tokens
    with pytest.raises(ValueError, match=r"at most 10 s, found 10\.01 s"):
        transcriber.transcribe(window(10.01))


def test_the_shortest_and_the_emptiest_windows_do_no_harm(transcriber: Transcriber) -> None:
    silence = np.zeros(SAMPLE_RATE, np.int16)
    for samples in (silence, silence[:1], silence[:0], silence - 32767):
        result = transcriber.transcribe(replace(window(1.0), samples=samples))
        assert np.isfinite(result.avg_logprob)


@pytest.mark.parametrize("seconds", [2.0, 5.0, 9.98])
def test_the_length_of_the_window_comes_from_the_bundle(
    checkpoint_folder: Path, tmp_path: Path, seconds: float
) -> None:
    build_bundle(checkpoint_folder, tmp_path / "other", Recipe("other", seconds))
    other = open_transcriber(settings(tmp_path / "other"))
    assert other.bundle.frames == round(seconds * 100)
    assert other.transcribe(window(seconds)).tokens
    with pytest.raises(ValueError, match=f"at most {seconds:g} s"):
        other.transcribe(window(seconds + 0.1))


def test_a_damaged_bundle_stops_the_opening(bundle_folder: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(bundle_folder, tmp_path / "broken"))
    (broken / "vocabulary.json").write_text("{}")
    with pytest.raises(ModelError, match=r"vocabulary\.json"):
        open_transcriber(settings(broken))


def test_two_threads_may_encode_and_write_at_once(transcriber: Transcriber) -> None:
    expected = [transcriber.transcribe(window(2.0, seed)).tokens for seed in range(6)]
    encoded = transcriber.begin(Request(window(2.0, 0)))
    found = []
    with ThreadPoolExecutor(1) as other:
        for seed in range(6):
            following = other.submit(transcriber.begin, Request(window(2.0, seed + 1)))
            found.append(transcriber.decode(encoded).tokens)
            encoded = following.result()
    assert found == expected


def test_full_scale_noise_and_endless_repetition_end_within_the_limit(bundle_folder: Path) -> None:
    endless = open_transcriber(
        settings(bundle_folder), bundle=never_ending(load_bundle(bundle_folder))
    )
    decoder = endless.decoder
    rng = np.random.Generator(np.random.PCG64(3))
    noise = np.where(rng.random(10 * SAMPLE_RATE) < 0.5, -32768, 32767).astype(np.int16)
    for samples in (noise, noise[:SAMPLE_RATE], noise[:1], noise * 0):
        result = endless.transcribe(replace(window(1.0), samples=samples))
        assert not result.ended and "token_limit" in result.flags
        assert len(result.tokens) == decoder.token_limit(len(samples) / SAMPLE_RATE)


def test_a_bundle_with_nan_in_it_is_an_error_not_a_text(
    bundle_folder: Path, tmp_path: Path
) -> None:
    for name, tensor in (
        ("encoder.onnx", "model.encoder.layer_norm.bias"),
        ("step.onnx", "model.decoder.layer_norm.bias"),
    ):
        broken = Path(shutil.copytree(bundle_folder, tmp_path / name))
        graph = onnx.load(str(broken / name), load_external_data=False)
        bias = next(each for each in graph.graph.initializer if each.name == tensor)
        bias.CopyFrom(numpy_helper.from_array(np.full(128, np.nan, np.float32), tensor))
        onnx.save(graph, str(broken / name))
        manifest = json.loads((broken / "bundle.json").read_text())
        data = (broken / name).read_bytes()
        manifest["files"][name] = {"size": len(data), "sha256": sha256(data).hexdigest()}
        (broken / "bundle.json").write_text(json.dumps(manifest))
        with pytest.raises(ModelError, match=r"expected finite .*, found NaN"):
            open_transcriber(settings(broken)).warm_up()


def test_the_first_text_is_reported_before_any_other_work(
    bundle_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transcriber = open_transcriber(settings(bundle_folder))
    did: list[str] = []

    class Looked:
        candidates = ()
        guard = NoAct.GUARDED

        def holds(self, _: str) -> bool:
            return False

        breaks_off = holds

        def find(self, *_: object) -> None:
            did.append("phrases")

    monkeypatch.setattr(transcriber, "phrases", Looked())
    encoded = transcriber.begin(Request(window(1.0), completeness=True))

    class Deciding(Pending):
        def on_text(self, result: Transcription) -> None:
            did.append(result.text)

    result = transcriber.decode(encoded, Deciding())
    assert result.text and did == [result.text, "phrases"]
    assert result.flags[-1] == "guarded"
    did.clear()
    transcriber.decode(encoded, Deciding(wanted=False))
    assert did == [result.text], "cancelled"
