"""A window to its transcription: mel, encoder states, tokens, text. No threads.

`opening` makes a `Transcriber`. Modules that compute are imported when it does: a satellite, whose
windows are transcribed elsewhere, has neither onnxruntime nor the memory that it takes.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from appliance.config import GateSettings
from appliance.infer.completeness import is_begun
from appliance.infer.corrections import Corrections
from appliance.infer.gates import compression_ratio, first_round, is_loop
from appliance.infer.mel import window_mel
from appliance.infer.request import Pending, Request
from appliance.records import ADDRESS_ALONE_S, HOP, Name, NoAct, States, Transcription, Window
from appliance.system import Closing

if TYPE_CHECKING:
    from appliance.infer.decoder import Decoded, Decoder
    from appliance.infer.encoder import Backend, Encoder
    from appliance.infer.phrases import Phrases
    from appliance.infer.runtime import Model
    from appliance.infer.tokenizer import Tokenizer
    from appliance.infer.vocabulary import Rescorer
    from appliance.model import Bundle

log = logging.getLogger("roomscribe.infer")

SENTENCE_TOKENS = 16
"""Fewest tokens of a last window's text that are kept of one with a loop."""
DOUBTFUL = -0.25
"""Mean log-probability below which a greedy text is doubtful, as is one without an end: it may be a
loop. Half of them are; a search of the others changed no count of errors."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """The encoder's output for a request."""

    request: Request
    states: States
    encoder: str
    """What encoded it: `Transcription.encoder`."""
    encode_ms: float


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The best transcription of a window so far, and its tokens."""

    encoded: Encoded
    decoded: Decoded
    result: Transcription
    begun_s: float
    """When its decoding began, time.perf_counter()."""


class AnyTranscriber(Closing, ABC):
    """Transcribes windows, on this machine or on another. Threads as in `Transcriber`."""

    gates: GateSettings
    known_languages: Sequence[str] = ()
    """Languages that `Encoded.language` may name; none: only the model's own."""
    in_process = True
    """True if windows are transcribed in this process, which a window may crash."""

    @property
    @abstractmethod
    def bundle(self) -> Model:
        """The model in use."""

    @property
    @abstractmethod
    def backend(self) -> Backend:
        """The device or server that it runs on, to poll."""

    @abstractmethod
    def begin(
        self, request: Request, should_continue: Callable[[], bool] = lambda: True
    ) -> Encoded | Transcription:
        """Return what `decode` needs, or the transcription itself if another machine made it.

        `should_continue` is called several times a second while another machine works; False makes
        it give up with an error.
        """

    @abstractmethod
    def decode(self, encoded: Encoded, pending: Pending | None = None) -> Transcription:
        """The second half of `transcribe`. Returns soon if `pending` is cancelled."""

    def transcribe(
        self, window: Window, *, search: bool = False, words: bool = False
    ) -> Transcription:
        """Return the transcription of a window of at most bundle.window_s; see `Request`.

        Raises ModelError if a graph fails, ValueError if the window is too long, and what `begin`
        raises.
        """
        begun = self.begin(Request(window, search=search, words=words))
        return begun if isinstance(begun, Transcription) else self.decode(begun)

    @abstractmethod
    def warm_up(self) -> None:
        """Do what would make the first window slower."""

    def is_common(self, word: str) -> bool:
        """Return True if a word, in small letters, is one that the model knows. Any thread."""
        return False

    def set_names(self, names: Sequence[Name]) -> None:
        """Set the names of the home, the likeliest first. Any thread."""
        return

    @abstractmethod
    def close(self) -> None:
        """Free the device, or cancel all requests."""


class Transcriber(AnyTranscriber):
    """Transcribes windows with a bundle on this machine.

    One thread may `begin` a window while another decodes the one before. They share only what may
    be shared: a CPU encoder and, if asked for, a Hailo. Each of the two methods is for one thread.
    """

    def __init__(
        self,
        bundle: Bundle,
        encoder: Encoder,
        decoder: Decoder,
        tokenizer: Tokenizer,
        gates: GateSettings,
        *,
        language: str,
        corrections: Corrections,
        make_phrases: Callable[..., Phrases],
        beam_size: int = 1,
        rescorer: Rescorer | None = None,
        phrases: Phrases | None = None,
        address: str = "",
    ) -> None:
        """`language` is written if the decoder does not find out. A better text than a greedy one
        is searched for with `beam_size` texts, if it is more than 1. `make_phrases` makes expected
        sentences from the tables of a file. `address` is the phrase before a command."""
        from appliance.infer.languages import RoomLanguages

        self._bundle, self.encoder, self.gates = bundle, encoder, gates
        self.phrases = phrases
        """The expected sentences; None without any."""
        self.decoder, self._tokenizer, self._beam_size = decoder, tokenizer, beam_size
        self._rescorer, self._corrections = rescorer, corrections
        self._make_phrases, self._home_names = make_phrases, tuple[Name, ...]()
        self._language, self._address = language, address
        self._rooms = RoomLanguages()
        self.known_languages = tuple(decoder.known_languages)

    @property
    def bundle(self) -> Bundle:
        """The model in use."""
        return self._bundle

    @property
    def backend(self) -> Backend:
        """The encoder, as what is polled."""
        return self.encoder

    def begin(
        self, request: Request, should_continue: Callable[[], bool] = lambda: True
    ) -> Encoded:
        """The first half of `transcribe`."""
        window = request.window
        if len(window.samples) > self.bundle.frames * HOP:
            raise ValueError(
                f"expected a window of at most {self.bundle.window_s:g} s, "
                f"found {window.duration_s:g} s; the segmenter cuts longer ones"
            )
        mel = window_mel(window.samples, self.bundle.n_mels, self.bundle.frames)
        begun_s = time.perf_counter()
        states = self.encoder.encode(mel)
        encode_ms = 1000 * (time.perf_counter() - begun_s)
        return Encoded(request, states, self.encoder.name, encode_ms)

    def decode(self, encoded: Encoded, pending: Pending | None = None) -> Transcription:
        """The second half of `transcribe`.

        If completeness is wanted, `pending.on_text` is called with the first text, and again if the
        beam search or contextual biasing change it. The expected sentences follow.
        """
        request, pending = encoded.request, pending or Pending()
        first = best = self._look_up(self._hear_command(self._first_pass(encoded)))
        if request.completeness:
            pending.on_text(first.result)
        if request.search and pending.has_time():
            best = self._search_better(best, pending)
        best = self._without_loop(best)
        if pending.wanted:
            best = self._apply_vocabulary(best)
        if request.completeness and best.decoded is not first.decoded:
            best = self._look_up(best)
            pending.on_text(best.result)
        if pending.wanted:
            best = self._find_phrase(best, pending)
        if request.is_whole:
            best = self._mark_part(best)
        if request.words and best.result.text and pending.wanted:
            best = self._time_words(best)
        return best.result

    def _first_pass(self, encoded: Encoded) -> _Candidate:
        """Decode the states, with the language that the room spoke before."""
        room, duration_s = encoded.request.room, encoded.request.window.duration_s
        begun_s = time.perf_counter()
        decoded = self.decoder.decode(
            encoded.states,
            duration_s,
            language=self._rooms.last(room),
            only=encoded.request.language,
        )
        result = self._describe(decoded, encoded, begun_s)
        self._rooms.remember(room, result)
        return _Candidate(encoded, decoded, result, begun_s)

    def _replaced(self, best: _Candidate, decoded: Decoded) -> _Candidate:
        """Return another text of the same states."""
        if decoded is best.decoded:
            return best
        result = self._describe(decoded, best.encoded, best.begun_s)
        return replace(best, decoded=decoded, result=result)

    def _hear_command(self, best: _Candidate) -> _Candidate:
        """Decode once more behind the address phrase if the text is the phrase alone, and there is
        speech for more: Whisper sometimes ends its text there."""
        from appliance.infer.sentences import plain

        window, text = best.encoded.request.window, best.result.text
        alone = self._address and plain(text) == plain(self._address)
        speech_s = window.speech_end_s - window.start_s
        if not (alone and speech_s > ADDRESS_ALONE_S and self._tokenizer.cased):
            return best
        beginning = self._tokenizer.tokenize(f" {text.rstrip('.,!?')},")
        decoded = self.decoder.decode_behind(beginning, best.decoded, window.duration_s)
        return self._replaced(best, decoded)

    def _without_loop(self, best: _Candidate) -> _Candidate:
        """Return the text with one round of the loop in which it ends, if any: a cut within a word
        can make a loop, and the words before that are right. Noise loops after few tokens."""
        decoded, is_last = best.decoded, best.encoded.request.window.last
        if decoded.ended and not is_loop(decoded.tokens):
            return best
        kept, least = first_round(decoded.tokens), SENTENCE_TOKENS if is_last else 0
        if not least <= kept < len(decoded.tokens):
            return best
        tokens, logprobs = decoded.tokens[:kept], decoded.logprobs[:kept]
        once = replace(decoded, tokens=tokens, logprobs=logprobs, ended=False)
        return self._replaced(best, once)

    def _search_better(self, best: _Candidate, pending: Pending) -> _Candidate:
        """Replace a doubtful text with the best one of a beam, if there is time for it."""
        doubtful = best.decoded.avg_logprob < DOUBTFUL or not best.decoded.ended
        if self._beam_size == 1 or not doubtful:
            return best
        duration_s = best.encoded.request.window.duration_s
        decoded = self.decoder.search(
            self._beam_size, best.decoded, duration_s, lambda: pending.wanted and pending.has_time()
        )
        return self._replaced(best, decoded)

    def _look_up(self, best: _Candidate) -> _Candidate:
        """Add whether the text is an expected sentence, if completeness is wanted, in 1 ms."""
        request, result = best.encoded.request, best.result
        if not (request.completeness and request.is_whole and result.text):
            return best
        for phrases in filter(None, (request.phrases, self.phrases)):
            if phrases.holds(result.text):
                longer = phrases.continues(result.text)
                result = replace(result, is_listed=True, text_continues=longer)
                return replace(best, result=result)
        return best

    def _apply_vocabulary(self, best: _Candidate) -> _Candidate:
        if not self._rescorer or not best.result.text:
            return best
        decoded = self._rescorer.rescore(best.decoded, best.encoded.request.names)
        found = self._replaced(best, decoded)
        # as sure as what was heard: a name is put in because no model expects it
        logprob, confidence = best.result.avg_logprob, best.result.confidence
        result = replace(found.result, avg_logprob=logprob, confidence=confidence)
        return replace(found, result=result)

    def _find_phrase(self, best: _Candidate, pending: Pending) -> _Candidate:
        request = best.encoded.request
        usual, special = self.phrases, request.phrases
        if not request.is_whole or not best.result.text or not (usual or special):
            return best
        phrase = usual.find(best.decoded, lambda: pending.wanted) if usual else None
        candidates = usual.candidates if usual else ()
        guarded = (usual.guard.value,) if usual and usual.guard else ()
        if special:
            special.find(best.decoded, lambda: pending.wanted)
            candidates = special.candidates
        result = replace(
            best.result,
            phrase=phrase,
            phrase_continues=not (usual and phrase) or usual.continues(phrase.sentence),
            candidates=candidates,
            flags=(*best.result.flags, *guarded),
            decode_ms=1000 * (time.perf_counter() - best.begun_s),
        )
        return replace(best, result=result)

    def _mark_part(self, best: _Candidate) -> _Candidate:
        """Flag a text that is only the beginning of a sentence: nothing may act on it."""
        result, usual = best.result, self.phrases
        if not is_begun(result, breaks_off=bool(usual and usual.breaks_off(result.text))):
            return best
        return replace(best, result=replace(result, flags=(*result.flags, NoAct.PART.value)))

    def _time_words(self, best: _Candidate) -> _Candidate:
        """Add when each word was spoken, if the model tells. Comes last: it uses the decoder."""
        if not self.bundle.alignment:
            return best
        from appliance.infer.word_times import time_words

        encoded, tokens = best.encoded, best.decoded.tokens
        weights, first = self.decoder.attention(encoded.states, tokens)
        samples = encoded.request.window.samples
        words = time_words(weights, first, tokens, self._tokenizer, samples)
        return replace(best, result=replace(best.result, words=words))

    def _describe(self, decoded: Decoded, encoded: Encoded, begun_s: float) -> Transcription:
        text = self._tokenizer.detokenize(decoded.tokens).strip()
        result = Transcription(
            text=text,
            tokens=decoded.tokens,
            language=decoded.language or self._language,
            language_probability=decoded.language_probability,
            avg_logprob=decoded.avg_logprob,
            no_speech_prob=decoded.no_speech_prob,
            compression_ratio=compression_ratio(text),
            ended=decoded.ended,
            encoder=encoded.encoder,
            encode_ms=encoded.encode_ms,
            decode_ms=1000 * (time.perf_counter() - begun_s),
            confidence=self.bundle.calibration.confidence(decoded.logprobs),
            flags=() if decoded.ended else ("token_limit",),
        )
        return self._corrections.apply(result)

    def warm_up(self) -> None:
        """Transcribe a window of silence, so that the first real one is not slower."""
        from appliance.infer.sessions import trim_memory

        length = self.bundle.frames * HOP
        self.transcribe(Window("", 1, True, np.zeros(length, np.int16), 0.0, 0.0, 0.0))
        if self.phrases:
            self.phrases.warm_up()
        trim_memory()

    def is_common(self, word: str) -> bool:
        """Return True if a word, in small letters, is one token: the model knows it. Any thread."""
        return len(self._tokenizer.tokenize(f" {word.casefold()}")) == 1

    def set_names(self, names: Sequence[Name]) -> None:
        """Set the names of the home, the likeliest first: words that may be spoken, and values of
        slots in the expected sentences. Any thread."""
        if self._rescorer and (trouble := self._rescorer.vocabulary.set_names(names)):
            log.info("names of the home: %s", trouble)
        self._home_names = tuple(names)
        if self.phrases:
            self.phrases.set_names(names)

    def make_phrases(self, table: Mapping[str, Any], *, alone: bool = False) -> Phrases:
        """Return expected sentences from the tables [phrases] and [slots], `alone`: without the
        built-in ones. Any thread.

        Raises ConfigError.
        """
        made = self._make_phrases(table, alone=alone)
        made.set_names(self._home_names)
        return made

    def close(self) -> None:
        """Free the encoder's device."""
        self.encoder.close()
