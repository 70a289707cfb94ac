"""The format of a model bundle: names and keys; how a bundle is found, read and verified.

A bundle is a folder with bundle.json (the manifest), three ONNX graphs, the token embedding, the
vocabulary, and HEFs if there are any. The manifest sizes everything in infer/. It is read strictly
(every value has a type and a range, every error names its key), and it lists every file with its
size and SHA-256. `appliance.convert.build` builds bundles, `write_manifest` writes manifests.
Over 500 lines because the whole format is here.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.errors import MissingModelError, ModelError, passes
from appliance.model.files import read_json, sha256, unreadable
from appliance.records import FRAMES_PER_SECOND
from appliance.system import shorten

log = logging.getLogger("roomscribe.model")

SCHEMA = 3
"""Version of the format."""
MANIFEST = "bundle.json"
ENCODER_FILE, CROSS_FILE, STEP_FILE = "encoder.onnx", "cross.onnx", "step.onnx"
EMBEDDING_FILE, VOCABULARY_FILE = "embedding.bin", "vocabulary.json"
SILENCE_FILE = "silence.bin"
"""States behind the window, (silences, d_model) float32, see Bundle.silences."""
ALWAYS = (ENCODER_FILE, CROSS_FILE, STEP_FILE, EMBEDDING_FILE, SILENCE_FILE, VOCABULARY_FILE)
HEF_FILE = "encoder.hef"
DECODER_FILES = DECODER_HEF, TOKEN_TABLE, PLACE_TABLE = (
    "decoder.hef",
    "token_embedding_weight.npy",
    "onnx_add_input.npy",
)
"""Hailo's decoder: its HEF, and the two tables, named as in Hailo's store, from which the host
makes the network's input."""
QUANTIZE = ("none", "int8")
"""none: all weights are float32, and the graphs compute exactly what the checkpoint does. int8: the
matrices and the token embedding have 8 bits, the other weights float16; activations float32."""
MOST_ODDS = 4.0
"""Log-odds (98 %) up to which a sentence's share counts: in a short list, one sentence is by far
the likeliest whatever was spoken."""
LEADS = (-4.0, 5.0)
"""Least and largest lead of the free text over an expected sentence that counts."""
FRAMES_PER_POSITION = 2
"""Whisper's second convolution has stride 2: a position is two mel frames, 20 ms."""
POSITIONS_PER_SECOND = FRAMES_PER_SECOND // FRAMES_PER_POSITION
SILENCES = 50
"""Most virtual positions of silence: with so many texts are as with all, with one some repeat."""
SILENT_MEL = -0.8
"""All bands of a silent window: the lowest value of an ordinary window of speech, 2 below its
loudest (median of 200 recordings)."""

PACKAGED = Path(__file__).resolve().parent.parent / "bundles"
"""Models of the package, or links to them; never written to."""
INSTALLED = Path("/var/lib/roomscribe-models")
"""The user roomscribe-models owns it (docs/web.md) and every user may read it, unlike the daemon's
own folder /var/lib/roomscribe."""
VARIABLE = "ROOMSCRIBE_MODELS"
"""Environment variable: a folder for models in place of INSTALLED."""
BUILT_IN = "tiny.en"
WINDOW_S, LONGEST_WINDOW_S = 10.0, 30.0
"""Usual window of a model, seconds; and the one that Whisper was trained on."""
DISK = "see that the disk is there and works"
CHOICE = "in-use"
"""File in the models folder that holds the name of the chosen model."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Ids of the tokens that are not text."""

    start: int
    end_of_text: int
    no_speech: int | None
    """None: the model was not trained to say that there is no speech."""
    no_timestamps: int
    first_special: int
    """No id from this one on is text."""
    timestamp_begin: int | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Turns log-probabilities into the probability that a text is right word for word: a logistic
    regression on their mean and sum, fitted on recordings that the model was not trained on."""

    offset: float
    mean: float
    total: float
    low: float
    """Confidence below which a text is flagged."""
    act: float = 0.0
    """Confidence from which on so few texts were wrong that something may act on them; 0 if that
    was not measured."""

    def confidence(self, logprobs: Sequence[float]) -> float:
        """Return the probability for tokens with these natural log-probabilities."""
        total = min(0.0, sum(logprobs))
        score = self.offset + (self.mean / max(1, len(logprobs)) + self.total) * total
        return 1.0 / (1.0 + math.exp(min(700.0, -score)))


@dataclass(frozen=True, slots=True)
class PhraseCalibration:
    """Probability that an expected sentence was spoken: a logistic regression on its share among
    the expected sentences, its tokens' log-probability and the free text's lead over it. Fitted on
    recordings that the model was not trained on, also of other sentences (scripts/measure phrases
    --fit)."""

    offset: float
    share: float
    """Of the share's log-odds, which are cut at MOST_ODDS."""
    mean: float
    """Of the mean natural log-probability."""
    lead: float = 0.0
    """Of the free text's lead, cut at LEADS; 0 where the manifest says nothing."""

    def confidence(self, share: float, mean: float, lead: float) -> float:
        """Return the probability, 0..1. `lead` is the natural log-probability of the free text
        minus the sentence's."""
        lead = min(max(lead, LEADS[0]), LEADS[1])
        score = self.offset + self.share * log_odds(share) + self.mean * mean + self.lead * lead
        return 1.0 / (1.0 + math.exp(min(700.0, max(-700.0, -score))))


DEFAULT_CALIBRATION = Calibration(offset=3.02, mean=0.0, total=1.278, low=0.2, act=0.725)
"""Of every Whisper whose bundle has none, fitted to 65 texts of tiny.en by 16 people or collections
(commands, readings, digits; windows with states of silence). Speakers left out: calibration error
0.09, area under the ROC curve 0.86; of the commands, 9 of 16 right ones may act and 0 of 6 wrong
ones. `low` was chosen on synthesised commands behind the address phrase (37 of 38 right ones lie
above it, 34 above 0.3); of 24 right commands of people all do."""
DEFAULT_PHRASE_CALIBRATION = PhraseCalibration(offset=-2.59, share=1.94, mean=2.72)
"""The same for expected sentences, fitted to other voices. Of these people's 20 that the built-in
list has, 17 have at least 0.7, and one of the 45 other texts has ("nine", taken for "no")."""


def log_odds(share: float) -> float:
    """Return the log-odds of a probability 0..1, cut at MOST_ODDS."""
    least = 1.0 / (1.0 + math.exp(MOST_ODDS))
    share = min(1.0 - least, max(least, share))
    return math.log(share / (1.0 - share))


@dataclass(frozen=True, slots=True)
class Bundle:
    """A verified model folder. The fields, except `folder`, are the manifest's keys."""

    folder: Path
    name: str
    description: str
    source: str
    licence: str
    checkpoint_sha256: str
    d_model: int
    encoder_layers: int
    decoder_layers: int
    heads: int
    n_mels: int
    vocabulary_size: int
    max_tokens: int
    """Context of the decoder, prompt included."""
    quantize: str
    """One of QUANTIZE."""
    window_s: float
    """Length of the model's window, seconds."""
    positions: int
    """Encoder positions of one window."""
    trained_positions: int
    """Encoder positions that the decoder was trained on, most of them silence."""
    languages: tuple[str, ...]
    language: str
    prompt: tuple[int, ...]
    tokens: Tokens
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    """Suppressed at the first step, in addition to `suppressed`."""
    calibration: Calibration = DEFAULT_CALIBRATION
    files: tuple[str, ...] = ()
    vocabulary_boost: float = 1.0
    """Recommended VocabularySettings.boost; 1 if it was not measured."""
    phrase_calibration: PhraseCalibration = DEFAULT_PHRASE_CALIBRATION

    @property
    def title(self) -> str:
        """The model's name for people, such as Whisper tiny.en."""
        return self.description or f"Whisper ({self.name})"

    @property
    def frames(self) -> int:
        """Mel frames of one window."""
        return self.positions * FRAMES_PER_POSITION

    @property
    def silences(self) -> int:
        """Virtual positions behind the window's own: each is the mean state of as many positions of
        silence, which the decoder was trained to find there. None if the window is as long as those
        that it was trained on."""
        return min(SILENCES, self.trained_positions - self.positions)

    @property
    def attended(self) -> int:
        """Positions that the decoder attends to: the window's own and the virtual ones."""
        return self.positions + self.silences

    def read_silence(self) -> NDArray[np.float32]:
        """Return the states of the virtual positions, (silences, d_model). Raises ModelError."""
        file, shape = self.folder / SILENCE_FILE, (self.silences, self.d_model)
        try:
            found = np.fromfile(file, "<f4")
        except OSError as error:
            raise unreadable(file, error) from error
        if found.size != math.prod(shape):
            raise ModelError(
                f"{file}: expected {shape[0]} rows of {shape[1]} numbers, found {found.size} "
                "numbers; build or install the bundle again"
            )
        return found.reshape(shape)

    @property
    def kept(self) -> NDArray[np.intp]:
        """Ids of the tokens that are not suppressed, ascending: the columns of the step's logits,
        and the first rows of the embedding's file."""
        return np.flatnonzero(~self._is_suppressed())

    @property
    def left_out(self) -> NDArray[np.intp]:
        """Ids of the suppressed tokens, ascending: the embedding's last rows."""
        return np.flatnonzero(self._is_suppressed())

    def _is_suppressed(self) -> NDArray[np.bool_]:
        suppressed = np.zeros(self.vocabulary_size, bool)
        suppressed[list(self.suppressed)] = True
        return suppressed

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.heads


def load_bundle(path_or_name: str | Path) -> Bundle:
    """Return the bundle in a folder, or the installed one of that name, with all checksums
    verified.

    A name with a slash is a folder; "" means the chosen model, or the built-in one. Raises
    ModelError, which names file, key, what was expected and found, and what to do.
    """
    try:
        folder = find_bundle(path_or_name)
    except OSError as error:
        raise ModelError(
            f"{error.filename}: expected a folder with models, found: {error.strerror}; {DISK}"
        ) from error
    table = _Table.read(folder / MANIFEST, _fix(folder))
    bundle = _parse(table, folder)
    _check_sense(table, bundle)
    _verify_files(table.table("files"), bundle)
    return bundle


def write_manifest(bundle: Bundle, folder: Path) -> None:
    """Write bundle.json for the files in `folder`. Raises OSError."""
    values = asdict(bundle)
    del values["folder"], values["files"]
    if bundle.calibration == DEFAULT_CALIBRATION:  # better ones count for all models without a fit
        del values["calibration"]
    if bundle.phrase_calibration == DEFAULT_PHRASE_CALIBRATION:
        del values["phrase_calibration"]
    files = {file.name: identify(file) for file in sorted(folder.iterdir())}
    write_json(folder / MANIFEST, {"schema": SCHEMA} | values | {"files": files}, indent=1)


def enter_files(folder: Path, names: Sequence[str], **facts: object) -> None:
    """Add files, and `facts`, to the bundle.json of a folder."""
    values = read_json(folder / MANIFEST) | facts
    values["files"] |= {name: identify(folder / name) for name in names}
    write_json(folder / MANIFEST, values, indent=1)


def identify(file: Path) -> dict[str, Any]:
    """Return a file's size in bytes and SHA-256. Raises OSError."""
    return {"size": file.stat().st_size, "sha256": sha256(file)}


def write_json(file: Path, values: dict[str, Any], indent: int | None = None) -> None:
    """Write a table as JSON in UTF-8."""
    file.write_text(json.dumps(values, ensure_ascii=False, indent=indent) + "\n", "utf-8")


def models_folder() -> Path:
    """Return the folder for models: $ROOMSCRIBE_MODELS, otherwise INSTALLED."""
    named = os.environ.get(VARIABLE, "")
    return Path(named).expanduser().absolute() if named else INSTALLED


def chosen_model() -> str:
    """Return the name of the model that `roomscribe model use` chose; "" if none."""
    file = models_folder() / CHOICE
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        if passes(error):
            raise unreadable(file, error) from error
        return ""


def installed_bundles() -> dict[str, Path]:
    """Return the folders of the bundles that load_bundle finds by name, not verified.

    A folder that this user may not read is skipped, with one line in the log.
    """
    found: dict[str, Path] = {}
    for models in _models_folders():
        try:
            for folder in sorted(models.iterdir()):
                with suppress(PermissionError):
                    if (folder / MANIFEST).is_file():
                        found.setdefault(folder.name, folder)
        except PermissionError:
            _warn_unreadable(models)
        except (FileNotFoundError, NotADirectoryError):
            pass
    return found


@functools.cache
def _warn_unreadable(folder: Path) -> None:
    """Log it once in a process."""
    log.warning("%s: this user may not read it; its models are ignored; run it with sudo", folder)


def find_bundle(path_or_name: str | Path) -> Path:
    """Return the folder of a bundle, by its path or its name. Raises ModelError."""
    path_or_name = path_or_name or chosen_model() or BUILT_IN
    installed = installed_bundles()
    if isinstance(path_or_name, Path) or os.sep in path_or_name or path_or_name in (".", ".."):
        folder = Path(path_or_name).expanduser()
        try:
            found = "no such file in it" if folder.is_dir() else "no such folder"
            found = "" if (folder / MANIFEST).is_file() else found
        except PermissionError:
            found = "that this user may not read it: run it with sudo"
        if found:
            raise MissingModelError(
                f"{folder}: expected a model bundle (a folder with a {MANIFEST}), found {found}; "
                f"correct its path, or take an installed one: {', '.join(installed) or 'none'}"
            )
        return folder
    if path_or_name in installed:
        return installed[path_or_name]
    fix = "name one of these, or roomscribe model add tiny"
    if path_or_name == BUILT_IN:
        fix = "`sudo apt install roomscribe-model-tiny-en` or `roomscribe model add tiny.en`"
    raise MissingModelError(
        f"model bundle {path_or_name!r} is not installed in "
        f"{', '.join(map(str, _models_folders()))}; installed are: "
        f"{', '.join(installed) or 'none'}; {fix}"
    )


def _models_folders() -> list[Path]:
    """Folders to search for a model by its name, in this order."""
    return list(dict.fromkeys([PACKAGED, INSTALLED, models_folder()]))


def is_packaged(folder: Path) -> bool:
    """Return whether `folder` is a model of the package; each of those may lie behind a link."""
    return folder.resolve() in [each.resolve() for each in PACKAGED.glob("*")]


def _fix(folder: Path) -> str:
    """What to do about a damaged bundle."""
    if is_packaged(folder):
        return (
            "the built-in model is damaged: reinstall the package roomscribe-model-tiny-en, or, in "
            "a checkout, run scripts/demo"
        )
    return "the bundle is damaged: install it again, or roomscribe model add tiny"


class _Table:
    """One table of bundle.json; `key` is the prefix of its keys ("" at the top, "tokens.")."""

    def __init__(self, file: Path, values: dict[str, Any], fix: str, key: str = "") -> None:
        self._file, self._values, self._fix, self._key = file, values, fix, key

    @classmethod
    def read(cls, file: Path, fix: str) -> _Table:
        """Return the manifest in `file`. Raises ModelError if it is not a JSON table of SCHEMA."""
        try:
            table = cls(file, read_json(file), fix)
        except ModelError as error:
            raise ModelError(f"{error}; {DISK if passes(error) else fix}") from error
        if table._values.get("schema") != SCHEMA:
            found = repr(table._values.get("schema", "nothing"))
            fix = "another version made this model: add it again, or roomscribe model add tiny.en"
            raise table.trouble("schema", str(SCHEMA), found, fix)
        return table

    def trouble(self, key: str, expected: str, found: object, fix: str = "") -> ModelError:
        """Return the error for a wrong value."""
        where = f"{self._file}: {shorten(self._key + key, 80)}"
        return ModelError(
            f"{where}: expected {expected}, found {shorten(found, 80)}; {fix or self._fix}"
        )

    def __iter__(self) -> Iterator[str]:
        """Names in this table."""
        return iter(self._values)

    def text(self, key: str) -> str:
        """A string."""
        return str(self._take(key, "a text", lambda value: isinstance(value, str)))

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """One of a few strings."""
        return str(self._take(key, f"one of {', '.join(choices)}", choices.__contains__))

    def whole(self, key: str, low: int, high: int | None = None) -> int:
        """A whole number of at least `low` and, if given, at most `high`."""
        limits = f"a whole number from {low}" + ("" if high is None else f" to {high}")
        return int(self._take(key, limits, lambda value: _is_whole(value, low, high)))

    def whole_or_none(self, key: str, low: int, high: int) -> int | None:
        """A whole number, or None where the table says null."""
        return None if self.is_null(key) else self.whole(key, low, high)

    def number(self, key: str, low: float, high: float, absent: float | None = None) -> float:
        """A number from `low` to `high`; `absent`, if given, is the default."""
        if absent is not None and key not in self._values:
            return absent

        def fits(value: object) -> bool:
            if isinstance(value, bool) or not isinstance(value, int | float):
                return False
            return low <= value <= high

        return float(self._take(key, f"a number from {low:g} to {high:g}", fits))

    def ids(self, key: str, below: int) -> tuple[int, ...]:
        """A list of token ids, each less than `below`."""
        limits = f"a list of token ids less than {below}"
        values = self._take(key, limits, lambda value: isinstance(value, list))
        for value in values:
            if not _is_whole(value, 0, below - 1):
                raise self.trouble(key, limits, repr(value))
        return tuple(values)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings, at least one."""

        def fits(values: object) -> bool:
            if not values or not isinstance(values, list):
                return False
            return all(isinstance(each, str) for each in values)

        return tuple(self._take(key, "a list of texts", fits))

    def is_null(self, key: str) -> bool:
        """Whether the table says null."""
        return self._take(key, "a value or null") is None

    def table(self, key: str) -> _Table:
        """The table inside."""
        values = self._take(key, "a table", lambda value: isinstance(value, dict))
        return _Table(self._file, values, self._fix, f"{self._key}{key}.")

    def optional(self, key: str) -> _Table | None:
        """The table inside; None if it is missing or null."""
        return None if self._values.get(key) is None else self.table(key)

    def _take(self, key: str, expected: str, fits: Callable[[Any], bool] = lambda _: True) -> Any:
        """The value of a key, if it `fits`. Raises ModelError."""
        if key not in self._values:
            raise self.trouble(key, expected, "nothing")
        if not fits(value := self._values[key]):
            raise self.trouble(key, expected, repr(value))
        return value


def _is_whole(value: object, low: int, high: int | None) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return low <= value and (high is None or value <= high)


def _parse(table: _Table, folder: Path) -> Bundle:
    """The bundle that the manifest describes, without checks between values."""
    vocabulary_size, positions = table.whole("vocabulary_size", 2), table.whole("positions", 2)
    last = vocabulary_size - 1
    tokens = table.table("tokens")
    return Bundle(
        folder=folder,
        name=table.text("name"),
        description=table.text("description"),
        source=table.text("source"),
        licence=table.text("licence"),
        checkpoint_sha256=table.text("checkpoint_sha256"),
        d_model=table.whole("d_model", 1),
        encoder_layers=table.whole("encoder_layers", 1),
        decoder_layers=table.whole("decoder_layers", 1),
        heads=table.whole("heads", 1),
        n_mels=table.whole("n_mels", 1),
        vocabulary_size=vocabulary_size,
        max_tokens=table.whole("max_tokens", 2),
        quantize=table.choice("quantize", QUANTIZE),
        window_s=table.number("window_s", 0.04, LONGEST_WINDOW_S),
        positions=positions,
        trained_positions=table.whole("trained_positions", positions),
        languages=table.texts("languages"),
        language=table.text("language"),
        prompt=table.ids("prompt", vocabulary_size),
        tokens=Tokens(
            start=tokens.whole("start", 0, last),
            end_of_text=tokens.whole("end_of_text", 0, last),
            no_speech=tokens.whole_or_none("no_speech", 0, last),
            no_timestamps=tokens.whole("no_timestamps", 0, last),
            first_special=tokens.whole("first_special", 1, last),
            timestamp_begin=tokens.whole_or_none("timestamp_begin", 0, last),
        ),
        suppressed=table.ids("suppressed", vocabulary_size),
        suppressed_first=table.ids("suppressed_first", vocabulary_size),
        calibration=_parse_calibration(table),
        files=tuple(table.table("files")),
        vocabulary_boost=table.number("vocabulary_boost", 0.0, 4.0, absent=1.0),
        phrase_calibration=_parse_phrase_calibration(table),
    )


def _parse_calibration(table: _Table) -> Calibration:
    if (values := table.optional("calibration")) is None:
        return DEFAULT_CALIBRATION
    return Calibration(
        offset=values.number("offset", -100.0, 100.0),
        mean=values.number("mean", 0.0, 1000.0),
        total=values.number("total", 0.0, 1000.0),
        low=values.number("low", 0.0, 1.0),
        act=values.number("act", 0.0, 1.0, absent=0.0),
    )


def _parse_phrase_calibration(table: _Table) -> PhraseCalibration:
    if (values := table.optional("phrase_calibration")) is None:
        return DEFAULT_PHRASE_CALIBRATION
    offset = values.number("offset", -100.0, 100.0)
    share = values.number("share", 0.0, 100.0)
    mean = values.number("mean", 0.0, 100.0)
    return PhraseCalibration(offset, share, mean, values.number("lead", -100.0, 0.0, absent=0.0))


def _check_sense(table: _Table, bundle: Bundle) -> None:
    """Raises ModelError if two values contradict each other."""
    positions = bundle.window_s * POSITIONS_PER_SECOND
    if abs(positions - bundle.positions) > 1e-6:
        wanted = f"{positions:g} for {bundle.window_s:g} s"
        raise table.trouble("positions", wanted, bundle.positions)
    if bundle.d_model % bundle.heads:
        raise table.trouble("heads", f"a divisor of d_model {bundle.d_model}", bundle.heads)
    if not 0 < len(bundle.prompt) < bundle.max_tokens:
        raise table.trouble("prompt", f"1 to {bundle.max_tokens - 1} tokens", len(bundle.prompt))
    if bundle.tokens.start not in bundle.prompt:
        raise table.trouble("prompt", f"tokens.start {bundle.tokens.start} in it", bundle.prompt)
    if bundle.tokens.end_of_text in bundle.suppressed:
        raise table.trouble("suppressed", "a list without end_of_text", bundle.tokens.end_of_text)
    if bundle.language not in bundle.languages:
        raise table.trouble("language", f"one of {', '.join(bundle.languages)}", bundle.language)


def _verify_files(table: _Table, bundle: Bundle) -> None:
    """Raises ModelError at the first file that is absent or not as the manifest says."""
    for name in dict.fromkeys((*ALWAYS, *bundle.files)):
        entry = table.table(name)
        if Path(name).name != name:
            raise table.trouble(name, "the name of a file in the folder itself", name)
        size, digest = entry.whole("size", 0), entry.text("sha256")
        try:
            found_size = (bundle.folder / name).stat().st_size
            if found_size != size:
                raise entry.trouble("size", f"{size} bytes", f"{found_size} bytes")
            found = sha256(bundle.folder / name)
        except OSError as error:
            fix = DISK if passes(error) else ""
            raise table.trouble(name, "a readable file", error.strerror, fix) from error
        if found != digest:
            raise entry.trouble("sha256", digest, found)
