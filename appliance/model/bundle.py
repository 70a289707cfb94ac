"""A model bundle: a folder whose bundle.json sizes everything in infer/, verified before use.

bundle.json, read strictly: every value has its type and range, every mistake names its key.

Where model bundles lie, and which one is in use when the configuration names none.

Finds model bundles: by name in the package itself and in the models folders of
appliance.model.bundle, or where a path says.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.records import FRAMES_PER_SECOND

SCHEMA = 2
"""Version of the bundle format that this program reads."""


class Manifest:
    """One table of bundle.json; `key` is where it stands ("" at the top, "tokens.")."""

    def __init__(self, file: Path, values: dict[str, Any], cure: str, key: str = "") -> None:
        self._file, self._values, self._cure, self._key = file, values, cure, key

    @classmethod
    def read(cls, file: Path, cure: str) -> Manifest:
        """The manifest in `file`. Raises ModelError when it is not a JSON table of this SCHEMA."""
        try:
            values = json.loads(file.read_bytes())
        except OSError as error:
            raise ModelError(
                f"{file}: expected a readable file, found: {error.strerror}; {cure}"
            ) from error
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{file}: expected JSON, found: {error}; {cure}") from error
        if not isinstance(values, dict):
            raise ModelError(
                f"{file}: expected a JSON table, found {type(values).__name__}; {cure}"
            )
        manifest = cls(file, values, cure)
        if values.get("schema") != SCHEMA:
            raise manifest.fault("schema", str(SCHEMA), repr(values.get("schema", "nothing")))
        return manifest

    def fault(self, key: str, expected: str, found: object) -> ModelError:
        """The error to raise for a wrong value."""
        where = f"{self._file}: {_shown(f'{self._key}{key}')}"
        return ModelError(f"{where}: expected {expected}, found {_shown(found)}; {self._cure}")

    def keys(self) -> list[str]:
        """Names in this table."""
        return list(self._values)

    def text(self, key: str) -> str:
        """A string."""
        value = self._value(key, "a text")
        if not isinstance(value, str):
            raise self.fault(key, "a text", repr(value))
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """One of a few strings."""
        value = self._value(key, f"one of {', '.join(choices)}")
        if value not in choices:
            raise self.fault(key, f"one of {', '.join(choices)}", repr(value))
        return str(value)

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self._value(key, "true or false")
        if not isinstance(value, bool):
            raise self.fault(key, "true or false", repr(value))
        return value

    def whole(self, key: str, low: int, high: int | None = None) -> int:
        """A whole number of at least `low` and, if given, at most `high`."""
        limits = f"a whole number from {low}" + ("" if high is None else f" to {high}")
        value = self._value(key, limits)
        if not _is_whole(value, low, high):
            raise self.fault(key, limits, repr(value))
        return int(value)

    def whole_or_none(self, key: str, low: int, high: int) -> int | None:
        """A whole number, or None where the table says null."""
        return (
            None
            if self._value(key, "a whole number or null") is None
            else self.whole(key, low, high)
        )

    def number(self, key: str, low: float, high: float) -> float:
        """A number from `low` to `high`."""
        limits = f"a number from {low:g} to {high:g}"
        value = self._value(key, limits)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            raise self.fault(key, limits, repr(value))
        return float(value)

    def ids(self, key: str, below: int) -> tuple[int, ...]:
        """A list of token ids, each less than `below`."""
        limits = f"a list of token ids less than {below}"
        values = self._value(key, limits)
        if not isinstance(values, list):
            raise self.fault(key, limits, repr(values))
        for value in values:
            if not _is_whole(value, 0, below - 1):
                raise self.fault(key, limits, repr(value))
        return tuple(values)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings, at least one."""
        values = self._value(key, "a list of texts")
        if (
            not values
            or not isinstance(values, list)
            or not all(isinstance(v, str) for v in values)
        ):
            raise self.fault(key, "a list of texts", repr(values))
        return tuple(values)

    def table(self, key: str) -> Manifest:
        """The table inside."""
        value = self._value(key, "a table")
        if not isinstance(value, dict):
            raise self.fault(key, "a table", repr(value))
        return Manifest(self._file, value, self._cure, f"{self._key}{key}.")

    def _value(self, key: str, expected: str) -> Any:
        if key not in self._values:
            raise self.fault(key, expected, "nothing")
        return self._values[key]


def _shown(found: object) -> str:
    """`found` on one line, cut short."""
    text = str(found) if str(found).isprintable() else repr(found)
    return text if len(text) <= 80 else text[:77] + "..."


def _is_whole(value: object, low: int, high: int | None) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return low <= value and (high is None or value <= high)


PACKAGED = Path(__file__).resolve().parent.parent / "bundles"
"""Comes with the package; never written to."""
INSTALLED = Path("/var/lib/roomscribe/models")
VARIABLE = "ROOMSCRIBE_MODELS"
"""Environment variable naming another folder than INSTALLED to put models into."""
BUILT_IN = "home-en"
CHOICE = "in-use"
"""File in the models folder that holds the name of the chosen model."""


def models_folder() -> Path:
    """Where models are installed: $ROOMSCRIBE_MODELS, else INSTALLED."""
    named = os.environ.get(VARIABLE, "")
    return Path(named).expanduser().absolute() if named else INSTALLED


def model_places() -> list[Path]:
    """Folders in which a model is looked for by its name, in this order."""
    return list(dict.fromkeys([PACKAGED, INSTALLED, models_folder()]))


def chosen_model() -> str:
    """Name of the model that `roomscribe model use` chose; "" when nobody chose one."""
    try:
        return (models_folder() / CHOICE).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


MANIFEST = "bundle.json"


def installed_bundles() -> dict[str, Path]:
    """Folders of the bundles that load_bundle finds by name; not verified."""
    found: dict[str, Path] = {}
    for place in model_places():
        if place.is_dir():
            for file in sorted(place.glob(f"*/{MANIFEST}")):
                found.setdefault(file.parent.name, file.parent)
    return found


def find_bundle(path_or_name: str | Path) -> Path:
    """The folder meant by a path or a bare name, which has a manifest. Raises ModelError."""
    path_or_name = path_or_name or chosen_model() or BUILT_IN
    if isinstance(path_or_name, Path) or os.sep in path_or_name or path_or_name in (".", ".."):
        folder = Path(path_or_name).expanduser()
        if not (folder / MANIFEST).is_file():
            raise ModelError(
                f"{folder}: expected a model bundle (a folder with a {MANIFEST}), found "
                f"{'no such file in it' if folder.is_dir() else 'no such folder'}; "
                f"correct [model] bundle; installed are: {_installed_names()}"
            )
        return folder
    installed = installed_bundles()
    if path_or_name in installed:
        return installed[path_or_name]
    places = ", ".join(map(str, model_places()))
    raise ModelError(
        f"model bundle {path_or_name!r}: expected it in {places}, found there: "
        f"{_installed_names()}; correct [model] bundle, or roomscribe model add tiny"
    )


def _installed_names() -> str:
    return ", ".join(installed_bundles()) or "none"


def cure(folder: Path) -> str:
    """What to do about a fault in a bundle."""
    if folder.resolve().is_relative_to(PACKAGED):
        return "the package is damaged: reinstall roomscribe"
    return "the bundle is damaged: install it again, or roomscribe model add tiny"


__all__ = ["Bundle", "Guards", "Tokens", "installed_bundles", "load_bundle"]

ENCODER_FILE, CROSS_FILE, STEP_FILE = "encoder.onnx", "cross.onnx", "step.onnx"
EMBEDDING_FILE, VOCABULARY_FILE = "embedding.bin", "vocabulary.json"
QUANTIZE = ("none", "int8")
SCANS = ("exact", "int4")
BEST = 32
"""So many columns of the rough logits of an int4 scan come with it, as model/ builds it."""
FRAMES_PER_POSITION = 2
"""Whisper's second convolution has stride 2: a position is two mel frames, 20 ms."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Ids of the tokens that are not text."""

    start: int
    end_of_text: int
    no_speech: int | None
    """None: the model was not trained to say that nobody speaks."""
    no_timestamps: int
    first_special: int
    """No id from this one on is text."""
    timestamp_begin: int | None


@dataclass(frozen=True, slots=True)
class Guards:
    """How the decoder is kept from running on."""

    positions: int
    """Encoder positions after zero-padding; at least the bundle's own."""
    repetition_penalty: float
    """1 is off."""
    eot_boost: float
    """Added to the score of end-of-text; 0 is off."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A verified model folder."""

    folder: Path
    name: str
    description: str
    source: str
    licence: str
    demo_model: bool
    """True for a model that must never be mistaken for real Whisper."""
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
    """One of QUANTIZE: none, or int8 matrices and a float16 embedding."""
    zero_points: bool
    """True where the 8-bit matrices' zero point is written out; False where the manifest says
    nothing: the first INT8 models had none, and processors that need unsigned weights do without
    them there."""
    vocabulary_scan: str
    """One of SCANS: int4 logits are rough, and the best are to be computed again exactly."""
    window_s: float
    """Length of the model's window, seconds."""
    positions: int
    """Encoder positions of one window."""
    trained_positions: int
    """Encoder positions, most of them silence, that the decoder was trained on."""
    languages: tuple[str, ...]
    language: str
    prompt: tuple[int, ...]
    tokens: Tokens
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    """Suppressed at the first step only, besides `suppressed`."""
    guards: Guards
    """What the bundle recommends; the configuration may say otherwise."""
    no_speech_sure: float
    """GateSettings.no_speech_sure, as this model wants it."""
    no_speech_lone: float
    """GateSettings.no_speech_lone; 1 where the manifest says nothing."""
    files: tuple[str, ...]

    @property
    def frames(self) -> int:
        """Mel frames of one window."""
        return self.positions * FRAMES_PER_POSITION

    @property
    def kept(self) -> NDArray[np.intp]:
        """Ids of the tokens that can be written, ascending: the columns of the step's logits and
        the first rows of the embedding's file."""
        return np.flatnonzero(~self._is_suppressed())

    @property
    def left_out(self) -> NDArray[np.intp]:
        """Ids of all other tokens, ascending: the embedding's last rows."""
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
    """The bundle in a folder, or the installed one of that name, every checksum verified.

    Anything with a slash in it is a folder; "" is the one that was chosen, or the built-in one.
    Raises ModelError naming file, key, what was expected, what was found and what to do.
    """
    folder = find_bundle(path_or_name)
    manifest = Manifest.read(folder / MANIFEST, cure(folder))
    bundle = _parse(manifest, folder)
    _verify_files(manifest.table("files"), bundle)
    return bundle


def _parse(manifest: Manifest, folder: Path) -> Bundle:
    """The bundle that the manifest describes; its parts fit each other, files are not looked at."""
    vocabulary_size = manifest.whole("vocabulary_size", 2)
    positions = manifest.whole("positions", 2)
    bundle = Bundle(
        folder=folder,
        name=manifest.text("name"),
        description=manifest.text("description"),
        source=manifest.text("source"),
        licence=manifest.text("licence"),
        demo_model=manifest.flag("demo_model"),
        checkpoint_sha256=manifest.text("checkpoint_sha256"),
        d_model=manifest.whole("d_model", 1),
        encoder_layers=manifest.whole("encoder_layers", 1),
        decoder_layers=manifest.whole("decoder_layers", 1),
        heads=manifest.whole("heads", 1),
        n_mels=manifest.whole("n_mels", 1),
        vocabulary_size=vocabulary_size,
        max_tokens=manifest.whole("max_tokens", 2),
        quantize=manifest.choice("quantize", QUANTIZE),
        zero_points=_parse_zero_points(manifest),
        vocabulary_scan=manifest.choice("vocabulary_scan", SCANS),
        window_s=manifest.number("window_s", 0.04, 30.0),
        positions=positions,
        trained_positions=manifest.whole("trained_positions", positions),
        languages=manifest.texts("languages"),
        language=manifest.text("language"),
        prompt=manifest.ids("prompt", vocabulary_size),
        tokens=_parse_tokens(manifest.table("tokens"), vocabulary_size),
        suppressed=manifest.ids("suppressed", vocabulary_size),
        suppressed_first=manifest.ids("suppressed_first", vocabulary_size),
        guards=_parse_guards(manifest.table("guards"), positions),
        no_speech_sure=manifest.table("guards").number("no_speech_sure", 0.0, 1.0),
        no_speech_lone=_parse_lone(manifest.table("guards")),
        files=tuple(manifest.table("files").keys()),
    )
    _check_sense(manifest, bundle)
    return bundle


def _parse_zero_points(manifest: Manifest) -> bool:
    names = manifest.keys()
    return "zero_points" in names and manifest.flag("zero_points")


def _parse_lone(table: Manifest) -> float:
    names = table.keys()
    return table.number("no_speech_lone", 0.0, 1.0) if "no_speech_lone" in names else 1.0


def _parse_tokens(table: Manifest, vocabulary_size: int) -> Tokens:
    last = vocabulary_size - 1
    return Tokens(
        start=table.whole("start", 0, last),
        end_of_text=table.whole("end_of_text", 0, last),
        no_speech=table.whole_or_none("no_speech", 0, last),
        no_timestamps=table.whole("no_timestamps", 0, last),
        first_special=table.whole("first_special", 1, last),
        timestamp_begin=table.whole_or_none("timestamp_begin", 0, last),
    )


def _parse_guards(table: Manifest, positions: int) -> Guards:
    return Guards(
        positions=table.whole("positions", positions),
        repetition_penalty=table.number("repetition_penalty", 0.5, 2.0),
        eot_boost=table.number("eot_boost", 0.0, 5.0),
    )


def _check_sense(manifest: Manifest, bundle: Bundle) -> None:
    """Raises ModelError where two values contradict each other."""
    frames = bundle.window_s * FRAMES_PER_SECOND
    if abs(frames - bundle.frames) > 1e-6:
        raise manifest.fault(
            "positions", f"{frames / 2:g} for {bundle.window_s:g} s", bundle.positions
        )
    if bundle.d_model % bundle.heads:
        raise manifest.fault("heads", f"a divisor of d_model {bundle.d_model}", bundle.heads)
    if not 0 < len(bundle.prompt) < bundle.max_tokens:
        raise manifest.fault("prompt", f"1 to {bundle.max_tokens - 1} tokens", len(bundle.prompt))
    if bundle.tokens.start not in bundle.prompt:
        raise manifest.fault("prompt", f"tokens.start {bundle.tokens.start} in it", bundle.prompt)
    if bundle.tokens.end_of_text in bundle.suppressed:
        raise manifest.fault("suppressed", "a list without end_of_text", bundle.tokens.end_of_text)
    if bundle.language not in bundle.languages:
        raise manifest.fault("language", f"one of {', '.join(bundle.languages)}", bundle.language)


def _verify_files(table: Manifest, bundle: Bundle) -> None:
    """Raises ModelError at the first file that is absent or not as the manifest says."""
    always = (ENCODER_FILE, CROSS_FILE, STEP_FILE, EMBEDDING_FILE, VOCABULARY_FILE)
    for name in dict.fromkeys((*always, *bundle.files)):
        entry = table.table(name)
        if Path(name).name != name:
            raise table.fault(name, "the name of a file in the folder itself", name)
        size, digest = entry.whole("size", 0), entry.text("sha256")
        try:
            with (bundle.folder / name).open("rb") as file:
                found_size = os.fstat(file.fileno()).st_size
                if found_size != size:
                    raise entry.fault("size", f"{size} bytes", f"{found_size} bytes")
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise table.fault(name, "a readable file", error.strerror) from error
        if found != digest:
            raise entry.fault("sha256", digest, found)
