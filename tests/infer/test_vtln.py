"""A text that is not sure is heard again as other throats would have said it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from figures.model import read, to_int16
from rigs.checkout import TINY_EN, SPEECH
from rigs.recordings import sentences
from rigs.records import differences

from appliance.config import DecoderSettings, EncoderSettings, ModelSettings, Settings
from appliance.infer.decoder import Cache, Decoded, Decoder, LogOdds
from appliance.infer.encoder import Encoder
from appliance.infer.mel import warp
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import Progress, Transcriber
from appliance.infer.vtln import VtlnRescorer
from appliance.model.bundle import Vtln, enter_files, load_bundle
from appliance.records import Mel, States, Transcription, Window

VTLN = Vtln(warp=0.1, below=-0.5, beam=2)
END = 9
MEL = np.arange(2 * 80, dtype=np.float32).reshape(2, 80)
OWN = np.zeros((1, 1), np.float32)


class Warping:
    """Gives the mel as states; in place of an encoder."""

    def __init__(self) -> None:
        self.heard: list[Mel] = []

    def encode(self, mel: Mel) -> States:
        self.heard.append(mel)
        return mel


class Hearing:
    """Hears one text in each window that is begun; in place of a decoder."""

    prompt = (7,)

    def __init__(self, *texts: Decoded) -> None:
        self._left = list(texts)
        self.begun: States | None = None

    def restart(self) -> Cache:
        self._text = self._left.pop(0)
        return Cache()

    def start(self, states: States) -> Cache:
        self.begun = states
        return self.restart() if self._left else Cache()

    def token_limit(self, duration_s: float) -> int:
        return 1 + int(10 * duration_s)

    def odds(self, cache: Cache, tokens: Sequence[int]) -> LogOdds:
        place = len(tokens) - len(self.prompt)
        following = (*self._text.tokens, END)
        odds = np.full((1, END + 1), -np.inf, np.float32)
        odds[0, following[min(place, len(following) - 1)]] = 0.0
        return LogOdds(odds, -np.array(self._text.logprobs[:1]), np.arange(END + 1))


def decoded(*tokens: int, logprob: float) -> Decoded:
    """A text of which every token, and its end, is this likely."""
    return Decoded(tokens, (logprob,) * (len(tokens) + 1), 0.25, ended=True)


def best(*heard: Decoded, limit_s: float = 1.0) -> tuple[Decoded, list[Mel], States | None]:
    """What is chosen where the first was written and then, of the window and of the two others,
    these; which mels were encoded for that, and the states begun in the end."""
    encoder, decoder = Warping(), Hearing(*heard[1:])
    bundle = load_bundle(str(TINY_EN))
    tokens = replace(bundle.tokens, end_of_text=END)
    bundle = replace(bundle, tokens=tokens, suppressed_first=())
    rescorer = VtlnRescorer(bundle, VTLN, cast(Encoder, encoder), cast(Decoder, decoder))
    found, encode_ms = rescorer.rescore(heard[0], MEL, OWN, limit_s)
    assert (encode_ms > 0) == bool(encoder.heard)
    return found, encoder.heard, decoder.begun


def test_a_warped_spectrum_has_its_peaks_elsewhere() -> None:
    mel = np.zeros((3, 80), np.float32)
    mel[:, 40] = 1.0
    assert np.array_equal(warp(mel, 1.0), mel)
    assert warp(mel, 1.25)[0].argmax() == 32, "of a longer throat all resonances are lower"
    assert warp(mel, 0.8)[0].argmax() == 50
    assert warp(mel, 1.25).shape == mel.shape and warp(mel, 1.25).dtype == np.float32
    half = warp(mel, 80 / 79)  # band 39 comes from between 39 and 40
    assert half[0, 39] == pytest.approx(39 * 80 / 79 - 39, abs=1e-5)


def test_the_highest_bands_of_a_longer_throat_are_what_was_highest() -> None:
    mel = np.tile(np.arange(80, dtype=np.float32), (2, 1))
    assert np.array_equal(warp(mel, 1.2)[0, -10:], [79.0] * 10)


def test_what_is_sure_is_heard_once() -> None:
    sure = decoded(1, 2, logprob=-0.5)
    assert best(sure) == (sure, [], None)


def test_where_nothing_was_heard_nothing_is_sought() -> None:
    silent = decoded(logprob=-4.0)
    assert best(silent) == (silent, [], None)


def test_the_likeliest_text_counts_and_what_follows_is_compared_with_its_states() -> None:
    first, short = decoded(1, 2, logprob=-2.0), decoded(1, 3, logprob=-1.0)
    found, mels, begun = best(first, first, short, decoded(4, 5, logprob=-3.0))
    assert not differences(found, short)
    assert [np.array_equal(mel, warp(MEL, f)) for mel, f in zip(mels, (0.9, 1.1), strict=True)]
    assert begun is not None and np.array_equal(begun, warp(MEL, 0.9))


def test_the_states_of_what_was_written_last_are_still_there() -> None:
    first, likely = decoded(1, 2, logprob=-2.0), decoded(1, 3, logprob=-1.0)
    begun = best(first, first, first, likely)[2]
    assert begun is not None and np.array_equal(begun, warp(MEL, 1.1))
    assert best(likely, likely, first, first)[2] is OWN


def test_a_likelier_text_of_the_window_itself_needs_no_other_throat() -> None:
    first, likely = decoded(1, 2, logprob=-2.0), decoded(1, 3, logprob=-1.0)
    found, _, begun = best(first, likely, first, first)
    assert not differences(found, likely) and begun is OWN


def test_the_sound_itself_says_whether_anybody_speaks_and_an_empty_text_is_no_answer() -> None:
    first = decoded(1, 2, logprob=-2.0)
    likely = replace(decoded(3, logprob=-0.1), no_speech_prob=0.9)
    found = best(first, first, likely, first)[0]
    assert not differences(found, replace(likely, no_speech_prob=0.25))
    empty = decoded(logprob=-0.1)
    assert not differences(best(first, empty, empty, empty)[0], first)


def test_a_text_that_never_ends_is_no_answer() -> None:
    first, endless = decoded(1, logprob=-2.0), decoded(*range(1, 6), logprob=-0.1)
    assert not differences(best(first, *3 * [endless], limit_s=0.3)[0], first)
    assert not differences(best(first, *3 * [endless], limit_s=0.5)[0], endless)


def test_no_other_throat_is_tried_once_it_is_cancelled() -> None:
    first, likely = decoded(1, 2, logprob=-2.0), decoded(1, 3, logprob=-1.0)
    answers = iter([True, True, False])
    encoder, decoder = Warping(), Hearing(first, likely)
    bundle = replace(load_bundle(str(TINY_EN)), suppressed_first=())
    bundle = replace(bundle, tokens=replace(bundle.tokens, end_of_text=END))
    rescorer = VtlnRescorer(bundle, VTLN, cast(Encoder, encoder), cast(Decoder, decoder))
    rescorer.rescore(first, MEL, OWN, 1.0, lambda: next(answers))
    assert len(encoder.heard) == 1


@pytest.fixture(scope="module")
def hearing_twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Transcriber, Transcriber]:
    """The built-in model, with other throats and without."""
    made = []
    for name, vtln in (("with", {"warp": 0.12, "below": -0.15, "beam": 4}), ("without", None)):
        folder = tmp_path_factory.mktemp("bundles") / name
        shutil.copytree(TINY_EN, folder)
        enter_files(folder, (), vtln=vtln)
        made.append(open_transcriber(settings(folder)))
    return made[0], made[1]


def settings(folder: Path) -> Settings:
    return Settings(
        model=ModelSettings(bundle=str(folder)),
        encoder=EncoderSettings(threads=1),
        decoder=DecoderSettings(threads=1),
    )


def spoken(name: str) -> Window:
    samples = to_int16(np.concatenate((np.zeros(9600, np.float32), read(SPEECH / name))))
    return Window("utterance", 1, True, samples, 0.0, 1.0, 1.0)


def test_more_sentences_are_right_and_what_is_sure_stays(
    hearing_twice: tuple[Transcriber, Transcriber],
) -> None:
    twice, once = hearing_twice
    right = {twice: 0, once: 0}
    for one in sentences():
        window = spoken(one.file.name)
        texts = {model: model.transcribe(window) for model in hearing_twice}
        for model, heard in texts.items():
            right[model] += heard.text == one.text
        assert texts[twice].no_speech_prob == texts[once].no_speech_prob
        if texts[once].avg_logprob >= -0.15:
            assert texts[twice].text == texts[once].text
    assert right[twice] > right[once]


def test_it_is_the_same_each_time(hearing_twice: tuple[Transcriber, Transcriber]) -> None:
    twice, _ = hearing_twice
    window = spoken("01.flac")
    first, second = twice.transcribe(window), twice.transcribe(window)
    assert (first.text, first.avg_logprob) == (second.text, second.avg_logprob)


def test_a_window_is_heard_again_while_the_next_one_is_encoded(
    hearing_twice: tuple[Transcriber, Transcriber],
) -> None:
    twice, _ = hearing_twice
    windows = [spoken(one.file.name) for one in sentences()[:8]]
    encoded = [twice.encode(window) for window in windows]
    texts = [twice.decode(one).text for one in encoded]
    with ThreadPoolExecutor(1) as other:
        writing = other.submit(lambda: [twice.decode(one).text for one in encoded])
        states = [twice.encode(window).states for window in windows]
        assert writing.result(60) == texts
    assert all(
        np.array_equal(found, one.states) for found, one in zip(states, encoded, strict=True)
    )


class Followed:
    """What a caller is told of a guess that is written, and what the model had done by then."""

    def __init__(self, transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[str] = []
        self.told: list[Transcription] = []
        self.wanted = True
        self.transcriber, self.watch = transcriber, monkeypatch
        self.note(transcriber._vtln, "rescore", "second pass")
        self.note(transcriber.phrases, "find", "phrases")
        self.note(transcriber._decoder, "end_prior", "prior")
        self.note(transcriber._decoder, "decode", "decode")

    def note(self, owner: object, name: str, what: str) -> None:
        done = getattr(owner, name)

        def noted(*arguments: object, **named: object) -> object:
            self.did.append(what)
            return done(*arguments, **named)

        self.watch.setattr(owner, name, noted)

    def decided(self, result: Transcription) -> None:
        self.did.append("told")
        self.told.append(result)

    def decode(self, window: Window, cancelled_after: int = 99) -> Transcription:
        self.did.clear()
        self.told.clear()
        progress = Progress(self.decided, lambda: len(self.did) <= cancelled_after)
        encoded = replace(self.transcriber.encode(window), speculative=True)
        return self.transcriber.decode(encoded, progress)


@pytest.fixture
def followed(
    hearing_twice: tuple[Transcriber, Transcriber], monkeypatch: pytest.MonkeyPatch
) -> Followed:
    return Followed(hearing_twice[0], monkeypatch)


def test_whether_a_sentence_is_over_is_decided_before_what_that_does_not_need(
    followed: Followed,
) -> None:
    changed = 0
    for one in sentences()[:16]:
        window = spoken(one.file.name)
        result = followed.decode(window)
        assert followed.did[:4] == ["decode", "prior", "told", "second pass"]
        first, last = followed.told[0], followed.told[-1]
        again = ["prior", "told"] if len(followed.told) == 2 else []
        assert followed.did[4:] == [*again, "phrases"]
        assert (last.text, last.complete) == (result.text, result.complete)
        assert len(followed.told) == 2 or first.text == result.text
        changed += first.text != result.text
        plain = followed.transcriber.transcribe(window)
        kept = ("text", "tokens", "avg_logprob", "no_speech_prob", "confidence", "phrase")
        assert all(getattr(plain, name) == getattr(result, name) for name in kept)
    assert changed


@pytest.mark.parametrize("done", [3, 4])
def test_a_guess_that_is_cancelled_does_no_more(followed: Followed, done: int) -> None:
    """After the decision, and after the second pass."""
    for one in sentences()[:4]:
        followed.decode(spoken(one.file.name), cancelled_after=done - 1)
        assert followed.did == ["decode", "prior", "told", "second pass"][:done]
