"""Opens what the configuration asks for: the transcriber of this machine, or its encoder alone.

Modules that compute are imported when a model is opened, see `transcriber`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.config import BUILT_IN_SENTENCES, EncoderSettings, Settings
from appliance.errors import ModelError, RoomscribeError
from appliance.infer.corrections import Corrections
from appliance.infer.gates import fill_gates
from appliance.infer.runtime import Model, lacking_runtime
from appliance.infer.transcriber import Transcriber

if TYPE_CHECKING:
    from appliance.infer.decoder import Decoder
    from appliance.infer.encoder import Backend, Encoder
    from appliance.infer.phrases import Phrases
    from appliance.infer.sentences import WordNetwork
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
    from appliance.infer.languages import choose_languages, language_tokens
    from appliance.infer.tokenizer import Tokenizer
    from appliance.model import load_bundle

    bundle = bundle or load_bundle(settings.model.bundle)
    chosen = settings.decoder
    tokenizer = Tokenizer.open(bundle)
    decoder = Decoder(bundle, chosen.threads)
    languages, language = choose_languages(bundle, tokenizer, chosen.language, chosen.languages)
    decoder.languages = languages
    decoder.known_languages = language_tokens(bundle, tokenizer)
    spoken = chosen.languages if chosen.language == "auto" and chosen.languages else (language,)
    make_phrases = _PhraseMaker(settings, bundle, tokenizer, decoder, spoken)
    phrases = make_phrases.configured()
    rescorer = _open_rescorer(settings, bundle, tokenizer, decoder)
    encoder = open_encoder(bundle, settings.encoder)
    gates = fill_gates(settings.gates, recommended_gates(bundle))
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
        beam_size=chosen.beam_size,
        rescorer=rescorer,
        phrases=phrases,
        make_phrases=make_phrases,
        address=settings.assist.phrase,
    )


def check_files(settings: Settings) -> None:
    """Read the file of sentences that the configuration names. Raises ConfigError for one that
    `open_transcriber` would refuse, whatever the model."""
    from appliance.infer.sentences import read_phrases

    if settings.phrases.own_file:
        read_phrases(Path(settings.phrases.own_file), _home(settings))


def recommended_gates(bundle: Bundle) -> dict[str, float]:
    """Return the limits that a model recommends, by the names of GateSettings."""
    return {"low_confidence": bundle.calibration.low, "act_confidence": bundle.calibration.act}


def _open_rescorer(
    settings: Settings, bundle: Bundle, tokenizer: Tokenizer, decoder: Decoder
) -> Rescorer | None:
    from appliance.infer.vocabulary import Rescorer, open_vocabulary

    boost = settings.vocabulary.boost
    boost = bundle.vocabulary_boost if boost < 0 else boost
    vocabulary = open_vocabulary(settings.vocabulary, bundle, tokenizer)
    return Rescorer(bundle, tokenizer, decoder, vocabulary, boost) if boost else None


@dataclass(frozen=True, slots=True)
class _PhraseMaker:
    """Makes expected sentences for one decoder, where `languages` are spoken."""

    settings: Settings
    bundle: Bundle
    tokenizer: Tokenizer
    decoder: Decoder
    languages: Sequence[str]

    def configured(self) -> Phrases | None:
        """Return the configuration's; None without any. Raises ConfigError."""
        from appliance.infer.sentences import read_phrases

        own = Path(self.settings.phrases.own_file) if self.settings.phrases.own_file else None
        if phrases_file(self.settings, self.languages) is None:
            return None
        home, address = _home(self.settings), self.settings.assist.phrase
        built_in = built_in_sentences(self.languages)
        try:
            return self._made(read_phrases(own, home, address, built_in))
        except ModelError:  # a vocabulary without some letters
            log.info("%s cannot write the built-in sentences", self.bundle.name)
            return self._made(read_phrases(own, home, address)) if own else None

    def __call__(self, table: Mapping[str, Any], *, alone: bool) -> Phrases:
        """Return others, `alone`: without the built-in ones, and few. Raises ConfigError."""
        from appliance.infer.sentences import WORDS_AT_MOST, WORDS_RECEIVED, build_network

        built_in = None if alone else built_in_sentences(self.languages)
        most = WORDS_RECEIVED if alone else WORDS_AT_MOST
        home, address = _home(self.settings), self.settings.assist.phrase
        return self._made(build_network(table, address, home, built_in, most=most))

    def _made(self, network: WordNetwork) -> Phrases:
        from appliance.infer.phrases import Phrases

        return Phrases(network, self.bundle, self.tokenizer, self.decoder)


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
    from appliance.infer.hailo import diagnosis
    from appliance.infer.hailo.failover import FailoverEncoder
    from appliance.infer.hailo.process_owner import NpuProcess
    from appliance.infer.hailo.shared import make_order
    from appliance.model import ENCODER_FILE, HEF_FILE

    hef = bundle.hef
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
    order = make_order(bundle, share=settings.share)
    encoder = FailoverEncoder(lambda: NpuProcess(order), cpu)
    if must or cpu is None or diagnosis.nodes():
        try:
            encoder.open()
        except RoomscribeError:
            if must or cpu is None:
                raise
    return encoder


def why_on_cpu(settings: Settings, bundle: Model, backend: Backend) -> str:
    """Return why this machine's Hailo does not encode; empty while it does, and without one."""
    from appliance.infer.hailo import diagnosis
    from appliance.model import Bundle

    driven = diagnosis.nodes()
    if backend.name != "cpu" or not (driven or diagnosis.on_bus()):
        return ""
    if backend.trouble:
        return backend.trouble
    if settings.encoder.backend == "cpu":
        return "[encoder] backend is cpu"
    if isinstance(bundle, Bundle) and bundle.hef is None:
        return f"the model {bundle.name} has no encoder for it (docs/hailo.md, step 2)"
    return "" if driven else f"its driver is not loaded; run `{diagnosis.generation().install}`"
