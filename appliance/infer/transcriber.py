"""The numeric chain: window -> mel -> encoder states -> tokens -> transcription. No threads.

What computes is imported when a model is opened: whoever has windows transcribed elsewhere needs
neither onnxruntime nor the memory that it takes.

Over 500 lines because one place orders the steps of a transcription, and opens what each needs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from appliance.config import EncoderSettings, GateSettings, Settings
from appliance.errors import ConfigError, ModelError, RoomscribeError
from appliance.infer.corrections import Corrections
from appliance.infer.gates import compression_ratio, is_doubtful, is_failed
from appliance.infer.runtime import lacking_runtime
from appliance.records import HOP, Mel, Name, States, Transcription, Window

if TYPE_CHECKING:
    from appliance.infer.arithmetic import Products
    from appliance.infer.decoder import Decoded, Decoder
    from appliance.infer.drafts import Drafts
    from appliance.infer.encoder import Encoder, Unit
    from appliance.infer.hailo.decoder import HailoDecoder
    from appliance.infer.phrases import Phrases
    from appliance.infer.tokenizer import Tokenizer
    from appliance.infer.vocabulary import SecondLook
    from appliance.infer.vtln import OtherThroats
    from appliance.model import Bundle

log = logging.getLogger("roomscribe.infer")

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Tried in this order while a decode fails (openai/whisper, transcribe.py)."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A window as the encoder left it, for the decoder."""

    states: States
    duration_s: float
    encoder: str
    """What encoded it."""
    encode_ms: float
    ahead: bool = False
    """True for a guess, of which it is asked, too, whether the text is whole."""
    whole: bool = False
    """True for an utterance of one window, in which an expected sentence is looked for."""
    names: tuple[str, ...] = ()
    """Words that are likely in this one, beside the home's."""
    room: str | None = ""
    """Where it was said, "" here: a room is likely to go on in the language that it spoke last;
    None where nobody knows."""
    owner: tuple[str, int] = ("", 0)
    """Utterance and index of the window, whose text may have been guessed before."""
    mel: Mel | None = None
    """What was encoded, where it may be heard again."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How the caller of `write` follows the transcription while it is made."""

    decided: Callable[[Transcription], object]
    """Called with the first text and whether it is a whole sentence (`finished`), before anything
    that this decision does not need, and again if the text changes after that."""
    should_continue: Callable[[], bool]
    """False cancels: `write` returns soon, and the caller must discard its result."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """A transcription on its way from the first text to the final one."""

    encoded: Encoded
    decoded: Decoded
    heard: Transcription


FOLLOWED_BY_NOBODY = Progress(lambda _: None, lambda: True)


class Model(Protocol):
    """What is asked of a model while it is used; a bundle has it."""

    @property
    def name(self) -> str:
        """The bundle's name."""

    @property
    def language(self) -> str:
        """ISO 639 code of what it writes."""

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that it knows."""

    @property
    def window_s(self) -> float:
        """Longest window."""

    @property
    def demo_model(self) -> bool:
        """True for one that is for demonstration alone."""


class AnyTranscriber(Protocol):
    """What makes transcriptions of windows, here or elsewhere: see `Transcriber`."""

    gates: GateSettings
    trouble: str
    goes_on: Callable[[], bool]
    """Called several times a second while `encode` waits for another machine; False: it is to give
    up, with an error."""
    in_process: bool
    """True when windows are transcribed in this process, which may die of one."""

    @property
    def bundle(self) -> Model:
        """The model in use."""

    @property
    def encoder(self) -> Unit:
        """What it runs on."""

    def encode(self, window: Window) -> Encoded:
        """The first half of `transcribe`."""

    def write(self, encoded: Encoded, progress: Progress = FOLLOWED_BY_NOBODY) -> Transcription:
        """The second half of `transcribe`."""

    def transcribe(self, window: Window) -> Transcription:
        """The transcription of a window."""

    def warm_up(self) -> None:
        """Does what would make the first window slower."""

    def __enter__(self) -> Self:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class Transcriber:
    """Makes text of windows; everything in it is sized by its bundle.

    One thread may `encode` a window while another writes the one before: they share nothing but
    what may be shared, a CPU's encoder and, if asked for, a Hailo. Each of them is for one thread.
    """

    def __init__(
        self,
        bundle: Bundle,
        encoder: Encoder,
        decoder: Decoder | HailoDecoder,
        tokenizer: Tokenizer,
        gates: GateSettings,
        *,
        fallback: bool = False,
        trouble: str = "",
        phrases: Phrases | None = None,
        drafts: Drafts | None = None,
        look: SecondLook | None = None,
        corrections: Corrections | None = None,
        language: str = "",
        throats: OtherThroats | None = None,
    ) -> None:
        """`drafts` are the decoder's; `language` is what it writes if it does not say, the bundle's
        where it is empty."""
        self.bundle, self.encoder = bundle, encoder
        self._drafts = drafts
        self.phrases = phrases
        """The sentences that are expected; None without any."""
        self._look, self._throats = look, throats
        self._corrections = corrections or Corrections({})
        self._language = language or bundle.language
        self._spoken: dict[str, str] = {}
        self._decoder, self._tokenizer = decoder, tokenizer
        self._temperatures = TEMPERATURES if fallback else TEMPERATURES[:1]
        self.gates = gates
        """For `Gates`."""
        self.goes_on: Callable[[], bool] = lambda: True
        self.in_process = True
        self.trouble = trouble
        """Why texts are worse here than they should be, with the fix; mostly empty."""

    def transcribe(self, window: Window) -> Transcription:
        """The transcription of a window of at most bundle.window_s.

        Raises ModelError when a graph fails and ValueError when the window is too long.
        """
        return self.write(self.encode(window))

    def encode(self, window: Window) -> Encoded:
        """The first half of `transcribe`."""
        if len(window.samples) > self.bundle.frames * HOP:
            raise ValueError(
                f"expected a window of at most {self.bundle.window_s:g} s, "
                f"found {window.duration_s:g} s; the segmenter cuts longer ones"
            )
        from appliance.infer.mel import window_mel

        mel = window_mel(window.samples, self.bundle.n_mels, self.bundle.frames)
        begun_s = time.perf_counter()
        states = self.encoder.encode(mel)
        encode_ms = 1000 * (time.perf_counter() - begun_s)
        whole = window.index == 1 and window.last
        owner = window.utterance_id, window.index
        name = self.encoder.name
        kept = mel if self._throats else None
        return Encoded(
            states, window.duration_s, name, encode_ms, whole=whole, owner=owner, mel=kept
        )

    def write(self, encoded: Encoded, progress: Progress = FOLLOWED_BY_NOBODY) -> Transcription:
        """The second half of `transcribe`.

        Of a guess (`Encoded.ahead`) it is decided by the first text whether the sentence is whole,
        and `progress` is told so. The second pass, the vocabulary and the expected sentences follow
        that decision. If they change the text, it is decided again.
        """
        first = draft = self._first(encoded)
        if encoded.ahead:
            draft = self._decide(draft, progress)
        if progress.should_continue():
            draft = self._second_pass(draft, progress)
        if progress.should_continue():
            draft = self._rescore(draft)
        if encoded.ahead and draft.decoded is not first.decoded:
            draft = self._decide(draft, progress)
        if progress.should_continue():
            draft = self._find_phrase(draft, progress)
        return draft.heard

    def _first(self, encoded: Encoded) -> _Draft:
        """The text of one decode; of several at higher temperatures, where that is wanted."""
        decode_ms = 0.0
        drafts = self._drafts if self._drafts and self._drafts.worth_it else None
        if drafts:
            drafts.expect(encoded.owner)
        for temperature in self._temperatures:
            begun_s = time.perf_counter()
            decoded = self._decode(encoded, temperature)
            decode_ms += 1000 * (time.perf_counter() - begun_s)
            heard = self._describe(decoded, encoded, decode_ms)
            if not is_failed(heard, self.gates):
                break
        if drafts:
            drafts.add(decoded.tokens)
        self._remember(encoded.room, heard)
        return _Draft(encoded, decoded, heard)

    def _decide(self, draft: _Draft, progress: Progress) -> _Draft:
        """Whether the text is a whole sentence, which `progress` is told."""
        if self.bundle.endings and draft.decoded.ended:
            finished = self._is_finished(draft.heard, draft.decoded)
            draft = replace(draft, heard=replace(draft.heard, finished=finished))
        progress.decided(draft.heard)
        return draft

    def _second_pass(self, draft: _Draft, progress: Progress) -> _Draft:
        """The likeliest text over several warp factors, where the first one is doubtful."""
        encoded, mel = draft.encoded, draft.encoded.mel
        if not self._throats or mel is None:
            return draft
        begun_s = time.perf_counter()
        decoded, more_ms = self._throats.best(
            draft.decoded, mel, encoded.states, encoded.duration_s, progress.should_continue
        )
        if more_ms == 0.0:
            return draft
        encoded = replace(encoded, encode_ms=encoded.encode_ms + more_ms)
        took_ms = 1000 * (time.perf_counter() - begun_s) - more_ms
        return self._rewritten(replace(draft, encoded=encoded), decoded, took_ms)

    def _rescore(self, draft: _Draft) -> _Draft:
        """The text with words of the vocabulary in it, where that is likelier."""
        if not self._look or not draft.heard.text:
            return draft
        begun_s = time.perf_counter()
        decoded = self._look.at(draft.decoded, draft.encoded.names)
        return self._rewritten(draft, decoded, 1000 * (time.perf_counter() - begun_s))

    def _find_phrase(self, draft: _Draft, progress: Progress) -> _Draft:
        """The text with the expected sentence that it is likely to be."""
        if not self.phrases or not draft.encoded.whole or not draft.heard.text:
            return draft
        begun_s = time.perf_counter()
        phrase = self.phrases.find(draft.decoded, progress.should_continue)
        heard = replace(
            draft.heard,
            phrase=phrase,
            phrase_continues=phrase is None or self.phrases.continues(phrase),
            decode_ms=draft.heard.decode_ms + 1000 * (time.perf_counter() - begun_s),
        )
        return replace(draft, heard=heard)

    def _rewritten(self, draft: _Draft, decoded: Decoded, took_ms: float) -> _Draft:
        """What `decoded` says in place of the draft, after `took_ms` more of the decoder."""
        heard = self._describe(decoded, draft.encoded, draft.heard.decode_ms + took_ms)
        heard = replace(heard, finished=draft.heard.finished)
        return replace(draft, decoded=decoded, heard=heard)

    def _decode(self, encoded: Encoded, temperature: float) -> Decoded:
        from appliance.infer.decoder import Decoder

        states, duration_s = encoded.states, encoded.duration_s
        if not isinstance(self._decoder, Decoder):
            return self._decoder.decode(states, duration_s, temperature)
        before = self._spoken.get(encoded.room, "") if encoded.room is not None else ""
        return self._decoder.decode(states, duration_s, temperature, language=before)

    def _remember(self, room: str | None, heard: Transcription) -> None:
        """What language a room speaks, where that is sure."""
        from appliance.infer.languages import ROOMS, SURE

        if room is None or not heard.language_probability >= SURE or not heard.text:
            return
        self._spoken.pop(room, None)
        self._spoken[room] = heard.language
        if len(self._spoken) > ROOMS:
            del self._spoken[next(iter(self._spoken))]

    def _is_finished(self, transcription: Transcription, decoded: Decoded) -> bool | None:
        prior = self._decoder.end_prior(decoded.tokens)
        doubtful = is_doubtful(transcription, self.gates)
        from appliance.infer.completeness import is_finished

        assert self.bundle.endings is not None
        return is_finished(decoded.logprobs[-1], prior, self.bundle.endings, doubtful=doubtful)

    def warm_up(self) -> None:
        """Transcribes a window of silence, so that the first real one is not slower."""
        from appliance.infer.decoder import Decoder

        length = self.bundle.frames * HOP
        self.transcribe(Window("", 1, True, np.zeros(length, np.int16), 0.0, 0.0, 0.0))
        if isinstance(self._decoder, Decoder):
            self._decoder.warm_up()
        if self.phrases:
            self.phrases.warm_up()
        if self._look:
            self._look.warm_up()

    def set_names(self, names: Sequence[Name]) -> None:
        """The names of the home, the likeliest first: words that may be said, and values of slots
        in the expected sentences. Any thread."""
        if self._look and (trouble := self._look.vocabulary.set_names(names)):
            log.info("names of the home: %s", trouble)
        if self.phrases:
            self.phrases.set_names(names)

    def close(self) -> None:
        """Frees the encoder's device."""
        self.encoder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _describe(self, decoded: Decoded, encoded: Encoded, decode_ms: float) -> Transcription:
        text = self._tokenizer.detokenize(decoded.tokens).strip()
        flags = {"demo_model": self.bundle.demo_model, "token_limit": not decoded.ended}
        heard = Transcription(
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
            decode_ms=decode_ms,
            confidence=self.bundle.confidence(decoded.logprobs),
            flags=tuple(flag for flag, raised in flags.items() if raised),
        )
        return self._corrections.applied(heard)


def open_transcriber(settings: Settings, products: Products | None = None) -> Transcriber:
    """The transcriber that the configuration asks for, loaded and verified; the processor's integer
    arithmetic is checked, too (`products`: see `find_trouble`).

    Raises ModelError for the bundle, ConfigError for guards that do not fit it, and DeviceError for
    a Hailo that must be there and cannot be used.
    """
    if lacking := lacking_runtime():
        raise ModelError(lacking)
    from appliance.infer.arithmetic import warn_of_trouble
    from appliance.infer.decoder import Decoder, choose_guards
    from appliance.infer.drafts import Drafts
    from appliance.infer.hailo.decoder import open_on_npu
    from appliance.infer.languages import choose_languages
    from appliance.infer.tokenizer import Tokenizer
    from appliance.model import load_bundle

    bundle = load_bundle(settings.model.bundle)
    rules = choose_guards(bundle, settings.decoder)
    tokenizer = Tokenizer.open(bundle)
    encoder: Encoder
    on_cpu = settings.decoder.backend == "cpu"
    drafts = Drafts() if settings.decoder.drafts and on_cpu else None
    cpu = Decoder(bundle, rules, settings.decoder.threads, drafts)
    wanted = settings.decoder.language
    cpu.languages, language = choose_languages(
        bundle, tokenizer, wanted, settings.decoder.languages, on_cpu=on_cpu
    )
    phrases = _open_phrases(settings, bundle, tokenizer, cpu)
    look = _open_look(settings, bundle, tokenizer, cpu)
    decoder: Decoder | HailoDecoder = cpu
    if settings.decoder.backend == "hailo":
        encoder, decoder = open_on_npu(bundle, settings.encoder, cpu)
    else:
        encoder = open_encoder(bundle, settings.encoder)
    gates = settings.gates
    if gates.no_speech_sure < 0:
        gates = replace(gates, no_speech_sure=bundle.no_speech_sure)
    if gates.no_speech_lone < 0:
        gates = replace(gates, no_speech_lone=bundle.no_speech_lone)
    if gates.low_confidence < 0:
        gates = replace(gates, low_confidence=bundle.low_confidence)
    fallback = settings.decoder.temperature_fallback
    trouble = warn_of_trouble(bundle, products)
    if cpu.languages:  # others are told what may be spoken, and one language if it is one
        one = "" if wanted == "auto" else language
        bundle = replace(bundle, language=one, languages=tuple(cpu.languages.tokens))
    return Transcriber(
        bundle,
        encoder,
        decoder,
        tokenizer,
        gates,
        fallback=fallback,
        trouble=trouble,
        phrases=phrases,
        drafts=drafts,
        look=look,
        corrections=Corrections(settings.vocabulary.replace),
        language=language,
        throats=_open_throats(bundle, settings, encoder, cpu),
    )


def check_files(settings: Settings) -> None:
    """Reads the files of words and of sentences that the configuration names. Raises ConfigError
    for those that `open_transcriber` would refuse, whatever the model."""
    from appliance.infer.phrases import read_phrases
    from appliance.infer.vocabulary import read_words

    read_words(settings.vocabulary)
    if settings.phrases.file not in ("", "bundle"):
        read_phrases(Path(settings.phrases.file))


def _open_look(
    settings: Settings, bundle: Bundle, tokenizer: Tokenizer, decoder: Decoder
) -> SecondLook | None:
    """What puts words of the home into a text; None where that is off. Raises ConfigError."""
    from appliance.infer.vocabulary import SecondLook, open_vocabulary

    wanted = settings.vocabulary
    boost = bundle.vocabulary_boost if wanted.boost < 0 else wanted.boost
    if settings.decoder.backend == "hailo":
        if wanted.words or wanted.file:
            raise ConfigError(
                "[vocabulary] words: expected [decoder] backend = cpu, found hailo, which has no "
                "cache in which texts could be compared"
            )
        return None
    vocabulary = open_vocabulary(wanted, bundle, tokenizer)
    return SecondLook(bundle, tokenizer, decoder, vocabulary, boost) if boost else None


def _open_phrases(
    settings: Settings, bundle: Bundle, tokenizer: Tokenizer, decoder: Decoder
) -> Phrases | None:
    """The sentences that are expected; None without any. Raises ConfigError."""
    from appliance.infer.phrases import Phrases, read_phrases
    from appliance.model import PHRASES_FILE

    name = settings.phrases.file
    own = name == "bundle"
    if not name or (own and PHRASES_FILE not in bundle.files):
        return None
    if settings.decoder.backend == "hailo":
        if own:
            return None
        raise ConfigError(
            "[phrases] file: expected [decoder] backend = cpu, found hailo, which has no cache in "
            "which sentences could be compared"
        )
    file = bundle.folder / PHRASES_FILE if own else Path(name)
    names: dict[str, list[str]] | None = {} if settings.homeassistant.url else None
    network = read_phrases(file, names, settings.assist.phrase)
    return Phrases(network, bundle, tokenizer, decoder)


def _open_throats(
    bundle: Bundle, settings: Settings, encoder: Encoder, decoder: Decoder
) -> OtherThroats | None:
    """What hears doubtful windows again, where the bundle says so. Raises ModelError."""
    from appliance.infer.encoder import CpuEncoder
    from appliance.infer.vtln import OtherThroats
    from appliance.model import ENCODER_FILE

    if not bundle.vtln or ENCODER_FILE not in bundle.files or settings.decoder.backend == "hailo":
        return None
    if not isinstance(encoder, CpuEncoder):  # a chip is for one thread
        encoder = CpuEncoder(bundle, settings.encoder.threads)
    return OtherThroats(bundle, bundle.vtln, encoder, decoder)


def open_encoder(bundle: Bundle, settings: EncoderSettings) -> Encoder:
    """The encoder that the settings ask for, open.

    auto: the NPU if the bundle has a HEF and there is a chip; else the CPU, which stands in for a
    chip that is there and cannot be used (see `trouble`). hailo: the same, but the NPU must be
    usable at the start: raises DeviceError or ModelError when it is not. Raises ModelError.
    """
    from appliance.infer.encoder import CpuEncoder
    from appliance.infer.hailo import errors
    from appliance.infer.hailo.failover import FailoverEncoder
    from appliance.infer.hailo.npu import open_npu
    from appliance.model import ENCODER_FILE, HEF_FILE, bundled_hef

    hef = bundled_hef(bundle)
    must = settings.backend == "hailo"
    if must and hef is None:
        raise ModelError(
            f"{bundle.folder}: expected {HEF_FILE} in the model, as [encoder] backend = hailo "
            f"wants it, found none; roomscribe model add {bundle.name} --hef hailo8, "
            "or backend = auto"
        )
    cpu = CpuEncoder(bundle, settings.threads) if ENCODER_FILE in bundle.files else None
    if cpu and (hef is None or settings.backend == "cpu"):
        return cpu
    if hef is None or settings.backend == "cpu":
        raise ModelError(f"{bundle.folder}: expected {ENCODER_FILE} in the model, found none")
    file = hef
    encoder = FailoverEncoder(lambda: open_npu(bundle, file, share=settings.share), cpu)
    if must or cpu is None or errors.nodes():
        try:
            encoder.open()
        except RoomscribeError:
            if must or cpu is None:
                raise
    return encoder
