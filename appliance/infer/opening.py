"""Opens what the configuration asks for: the transcriber of this machine, or its encoder alone.

Modules that compute are imported when a model is opened, see `transcriber`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.config import BUILT_IN_SENTENCES, EncoderSettings, GateSettings, Settings
from appliance.errors import ModelError, RoomscribeError
from appliance.infer.corrections import Corrections
from appliance.infer.runtime import lacking_runtime
from appliance.infer.transcriber import Transcriber

if TYPE_CHECKING:
    from appliance.infer.decoder import Decoder
    from appliance.infer.encoder import Encoder
    from appliance.infer.hailo.decoder import HailoDecoder
    from appliance.infer.phrases import Phrases
    from appliance.infer.tokenizer import Tokenizer
    from appliance.infer.vocabulary import Rescorer
    from appliance.model import Bundle


log = logging.getLogger("roomscribe.infer")

SENTENCES_FILE = Path(__file__).with_name("sentences.toml")
"""English home commands."""


def open_transcriber(settings: Settings, bundle: Bundle | None = None) -> Transcriber:
    """Return the transcriber that the configuration asks for, loaded and verified.

    With `bundle`, that one instead of the configuration's. Raises ModelError for the bundle,
    ConfigError for settings that do not fit it, and DeviceError for a Hailo that must be there and
    cannot be used.
    """
    if lacking := lacking_runtime():
        raise ModelError(lacking)
    from appliance.infer.decoder import Decoder
    from appliance.infer.hailo.decoder import open_on_npu, refuse_settings
    from appliance.infer.languages import choose_languages
    from appliance.infer.tokenizer import Tokenizer
    from appliance.model import load_bundle

    bundle = bundle or load_bundle(settings.model.bundle)
    chosen, on_npu = settings.decoder, settings.decoder.backend == "hailo"
    tokenizer = Tokenizer.open(bundle)
    cpu = Decoder(bundle, chosen.threads)
    languages, language = choose_languages(bundle, tokenizer, chosen.language, chosen.languages)
    cpu.languages = languages
    phrases, make_phrases, rescorer, search = None, None, None, None
    encoder: Encoder
    decoder: Decoder | HailoDecoder = cpu
    if on_npu:
        refuse_settings(settings, bundle, languages)
        encoder, decoder = open_on_npu(bundle, settings.encoder, cpu)
    else:
        spoken = chosen.languages if chosen.language == "auto" and chosen.languages else (language,)
        make_phrases = functools.partial(
            _make_phrases,
            settings=settings,
            bundle=bundle,
            tokenizer=tokenizer,
            decoder=cpu,
            languages=spoken,
        )
        phrases = _open_phrases(settings, bundle, tokenizer, cpu, spoken)
        rescorer = _open_rescorer(settings, bundle, tokenizer, cpu)
        if chosen.beam_size > 1:
            search = functools.partial(cpu.search, chosen.beam_size)
        encoder = open_encoder(bundle, settings.encoder)
    gates = fill_gates(settings.gates, bundle)
    if languages:  # others read here which languages may be spoken, and which one if it is one
        single = "" if chosen.language == "auto" else language
        bundle = replace(bundle, language=single, languages=tuple(languages.tokens))
    return Transcriber(
        bundle,
        encoder,
        decoder,
        tokenizer,
        gates,
        language=language,
        corrections=Corrections(settings.vocabulary.replace),
        search=search,
        rescorer=rescorer,
        phrases=phrases,
        make_phrases=make_phrases,
    )


def check_files(settings: Settings) -> None:
    """Read the files of words and sentences that the configuration names. Raises ConfigError for
    those that `open_transcriber` would refuse, whatever the model."""
    from appliance.infer.sentences import read_phrases
    from appliance.infer.vocabulary import read_words

    read_words(settings.vocabulary)
    if settings.phrases.own_file:
        read_phrases(Path(settings.phrases.own_file), _home(settings))


def fill_gates(gates: GateSettings, bundle: Bundle) -> GateSettings:
    """Return the gates with the bundle's limits where the configuration leaves them to it."""
    fitted = {"low_confidence": bundle.calibration.low, "act_confidence": bundle.calibration.act}
    return replace(
        gates, **{name: value for name, value in fitted.items() if getattr(gates, name) < 0}
    )


def _open_rescorer(
    settings: Settings, bundle: Bundle, tokenizer: Tokenizer, decoder: Decoder
) -> Rescorer | None:
    """The contextual biasing; None if it is off. Raises ConfigError."""
    from appliance.infer.vocabulary import Rescorer, open_vocabulary

    boost = settings.vocabulary.boost
    boost = bundle.vocabulary_boost if boost < 0 else boost
    vocabulary = open_vocabulary(settings.vocabulary, bundle, tokenizer)
    return Rescorer(bundle, tokenizer, decoder, vocabulary, boost) if boost else None


def _open_phrases(
    settings: Settings,
    bundle: Bundle,
    tokenizer: Tokenizer,
    decoder: Decoder,
    languages: Sequence[str],
) -> Phrases | None:
    """The expected sentences, with numbers in `languages`; None without any. Raises ConfigError."""
    from appliance.infer.phrases import Phrases
    from appliance.infer.sentences import read_phrases

    own = Path(settings.phrases.own_file) if settings.phrases.own_file else None
    if phrases_file(settings, languages) is None:
        return None

    def read(built_in: Path | None) -> Phrases:
        network = read_phrases(own, _home(settings), settings.assist.phrase, languages, built_in)
        return Phrases(network, bundle, tokenizer, decoder)

    try:
        return read(built_in_sentences(languages))
    except ModelError:  # a vocabulary without some letters
        log.info("%s cannot write the built-in sentences: they are not expected", bundle.name)
        return read(None) if own else None


def _make_phrases(
    table: Mapping[str, Any],
    *,
    alone: bool,
    settings: Settings,
    bundle: Bundle,
    tokenizer: Tokenizer,
    decoder: Decoder,
    languages: Sequence[str],
) -> Phrases:
    """Return other expected sentences for the same decoder, `alone`: without the built-in ones, and
    few. Raises ConfigError."""
    from appliance.infer.phrases import Phrases
    from appliance.infer.sentences import WORDS_AT_MOST, WORDS_RECEIVED, build_network

    built_in, most = built_in_sentences(languages), WORDS_AT_MOST
    if alone:
        built_in, most = None, WORDS_RECEIVED
    home, address = _home(settings), settings.assist.phrase
    network = build_network(table, address, languages, home, built_in, most=most)
    return Phrases(network, bundle, tokenizer, decoder)


def _home(settings: Settings) -> dict[str, list[str]] | None:
    """No names of the home yet; None if there will never be any."""
    return {} if settings.homeassistant.url else None


def built_in_sentences(languages: Collection[str]) -> Path | None:
    """Return the built-in file of expected sentences where `languages` are spoken, if any."""
    return SENTENCES_FILE if "en" in languages else None


def phrases_file(settings: Settings, languages: Collection[str]) -> Path | None:
    """Return the file of expected sentences in use where `languages` are spoken; None without
    any."""
    if settings.phrases.file == BUILT_IN_SENTENCES:
        return built_in_sentences(languages)
    return Path(settings.phrases.file) if settings.phrases.file else None


def open_encoder(bundle: Bundle, settings: EncoderSettings) -> Encoder:
    """Return the encoder that the settings ask for, open.

    auto: the NPU if the bundle has a HEF and there is a chip, otherwise the CPU, which also stands
    in for a chip that cannot be used (see `trouble`). hailo: the same, but the NPU must work at the
    start: raises DeviceError or ModelError if it does not. Raises ModelError.
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
            f"{bundle.folder}: the model has no {HEF_FILE}, which [encoder] backend = hailo needs; "
            f"run roomscribe model add {bundle.name} --hef hailo8, or set backend = auto"
        )
    cpu = CpuEncoder(bundle, settings.threads) if ENCODER_FILE in bundle.files else None
    if cpu and (hef is None or settings.backend == "cpu"):
        return cpu
    if hef is None or settings.backend == "cpu":
        raise ModelError(f"{bundle.folder}: the model has no {ENCODER_FILE}; add it again")
    file = hef
    encoder = FailoverEncoder(lambda: open_npu(bundle, file, share=settings.share), cpu)
    if must or cpu is None or errors.nodes():
        try:
            encoder.open()
        except RoomscribeError:
            if must or cpu is None:
                raise
    return encoder
