"""What a model makes of a sentence: whether the text is right, and what the decoder knew of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np

from appliance.config import Settings
from appliance.errors import RoomscribeError
from appliance.infer import (
    Decoded,
    Decoder,
    Encoded,
    Encoder,
    Phrases,
    Tokenizer,
    Transcriber,
    TranscriberParts,
    VtlnRescorer,
    build_network,
    choose_guards,
    choose_languages,
    fill_gates,
    judge,
    open_encoder,
    second_pass_encoder,
    window_mel,
)
from appliance.lab.fit.speech import (
    Clip,
    Condition,
    cut_windows,
    first_part,
    is_same,
    only_window,
    place_sound,
    read_sound,
    words,
)
from appliance.model import Bundle, Vtln
from appliance.records import SAMPLE_RATE, Window

WARP, BEAM = 0.12, 4
"""Of the second pass: the values of the built-in model, and those for beam search alone."""
ALWAYS = 0.0
"""`Vtln.below` that any text is under."""


class Text(NamedTuple):
    """A transcription, as far as it counts."""

    right: bool
    total: float
    """Sum of the natural log-probabilities of its tokens and end-of-text."""
    length: int
    """How many they are."""
    kept: bool
    """False if the gates discard it."""

    @property
    def mean(self) -> float:
        """Their mean."""
        return self.total / max(1, self.length)


class FoundSentence(NamedTuple):
    """The likeliest expected sentence."""

    right: bool
    share: float
    mean: float
    lead: float


class Heard(NamedTuple):
    """A sentence under a condition."""

    text: Text
    prior: float
    """Natural log-probability without sound that the text ends where it does; minus infinity if it
    is unknown."""
    listed: FoundSentence | None = None
    """Found in a list that contains the commands."""
    other: FoundSentence | None = None
    """Found in a list without the sentence, but with similar ones."""


class Again(NamedTuple):
    """A second pass over the same."""

    beam: Text
    """With the beam search alone."""
    warped: Text
    """With other warp factors as well."""
    beam_ms: float
    warped_ms: float
    """What each took."""


class SentenceListener:
    """Transcribes sentences with a bundle as the microphone's path does. One thread."""

    def __init__(
        self, bundle: Bundle, settings: Settings, listed: Sequence[str], others: Sequence[str]
    ) -> None:
        """`listed` are the expected sentences that contain the commands, `others` similar ones.
        Raises RoomscribeError."""
        self.bundle = replace(bundle, vtln=None)
        self.encoded: Counter[str] = Counter()
        """Windows by what encoded them."""
        self._decoder = Decoder(
            bundle, choose_guards(bundle, Settings().decoder), settings.decoder.threads
        )
        tokenizer = Tokenizer.open(bundle)
        language = bundle.language
        if bundle.language != "en" and "en" in bundle.languages:
            self._decoder.languages, language = choose_languages(bundle, tokenizer, "en", ())
        self._encoder: Encoder = open_encoder(bundle, settings.encoder)
        parts = TranscriberParts(
            bundle=self.bundle,
            encoder=self._encoder,
            decoder=self._decoder,
            tokenizer=tokenizer,
            gates=fill_gates(Settings().gates, bundle),
            language=language,
        )
        self._transcriber = Transcriber(parts)
        again = second_pass_encoder(bundle, settings.encoder, self._encoder)
        self._second = [
            VtlnRescorer(bundle, Vtln(warp, ALWAYS, BEAM), again, self._decoder)
            for warp in (0.0, WARP)
            if again
        ]
        self._phrases = [
            _open_phrases(texts, bundle, tokenizer, self._decoder) for texts in (listed, others)
        ]

    def hear(self, clip: Clip, condition: Condition, *, phrases: bool) -> Heard | None:
        """Return what is made of a sentence; None if it does not give exactly one window."""
        window = self._window(clip, condition)
        if window is None:
            return None
        encoded, decoded = self._decode(window)
        text = self._judge(decoded, encoded, window, clip.text)
        prior = self._decoder.end_prior(decoded.tokens) if decoded.ended else -np.inf
        heard = Heard(text, float(prior))
        if not phrases or not decoded.tokens:
            return heard
        listed, other = (self._find(phrases, decoded, clip.text) for phrases in self._phrases)
        return heard._replace(listed=listed, other=other)

    def hear_beginning(self, clip: Clip) -> float | None:
        """Return the same prior for the first part of the sentence; None unless its text is a
        beginning of the sentence's."""
        sound = first_part(read_sound(clip.file))
        windows = cut_windows(place_sound(sound, Condition("beginning"), clip.file.name), 30.0)
        if len(windows) != 1 or len(windows[0].samples) > self._longest:
            return None
        encoded, decoded = self._decode(windows[0])
        spoken = words(clip.text)
        text = words(self._transcriber.describe(decoded, encoded, 0.0).text)
        if not decoded.ended or not 0 < len(text) < len(spoken) or spoken[: len(text)] != text:
            return None
        return float(self._decoder.end_prior(decoded.tokens))

    def hear_again(self, clip: Clip, condition: Condition) -> Again | None:
        """Return what two kinds of second pass make of a sentence; None as for `hear`, and if the
        bundle has no encoder for it."""
        window = self._window(clip, condition) if self._second else None
        if window is None:
            return None
        encoded, decoded = self._decode(window)
        mel = window_mel(window.samples, self.bundle.n_mels, self.bundle.frames)
        texts, times = [], []
        for rescorer in self._second:
            begun_s = time.perf_counter()
            found, _ = rescorer.rescore(decoded, mel, encoded.states, encoded.duration_s)
            times.append(1000 * (time.perf_counter() - begun_s))
            texts.append(self._judge(found, encoded, window, clip.text))
        return Again(texts[0], texts[1], times[0], times[1])

    def close(self) -> None:
        """Free the encoder's device."""
        self._encoder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _longest(self) -> int:
        return int(self.bundle.window_s * SAMPLE_RATE)

    def _window(self, clip: Clip, condition: Condition) -> Window | None:
        sound = read_sound(clip.file)
        return only_window(sound, condition, clip.file.name, self.bundle.window_s)

    def _decode(self, window: Window) -> tuple[Encoded, Decoded]:
        self._encoder.poll(time.monotonic())  # a chip that failed is tried again
        encoded = self._transcriber.encode(window)
        self.encoded[encoded.encoder] += 1
        return encoded, self._decoder.decode(encoded.states, encoded.duration_s)

    def _judge(self, decoded: Decoded, encoded: Encoded, window: Window, spoken: str) -> Text:
        result = self._transcriber.describe(decoded, encoded, 0.0)
        kept = not judge(result, self._transcriber.gates, window.voiced_s)
        count = len(decoded.tokens) + 1
        return Text(is_same(result.text, spoken), decoded.avg_logprob * count, count, kept)

    def _find(self, phrases: Phrases | None, decoded: Decoded, spoken: str) -> FoundSentence | None:
        if phrases is None:
            return None
        phrases.find(decoded)
        if (found := phrases.evidence) is None:
            return None
        return FoundSentence(is_same(found.sentence, spoken), found.share, found.mean, found.lead)


def _open_phrases(
    texts: Sequence[str], bundle: Bundle, tokenizer: Tokenizer, decoder: Decoder
) -> Phrases | None:
    """Return the texts as expected sentences; None if the bundle cannot write them."""
    try:
        network = build_network({"phrases": {"said": list(texts)}}, "", ("en",), None)
        return Phrases(network, bundle, tokenizer, decoder)
    except RoomscribeError:
        return None
