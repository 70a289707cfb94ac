"""The format of a model bundle: names and keys; how a bundle is found, read and verified.

A bundle is a folder with bundle.json (the manifest), three ONNX graphs, the token embedding, the
vocabulary, and HEFs if there are any. The manifest sizes everything in infer/. It is read strictly
(every value has its field's type, every error names its key), and it lists every file with its size
and SHA-256. `appliance.convert.build` builds bundles, `write_manifest` writes manifests.
"""

import functools
import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

from appliance.errors import MissingModelError, ModelError, passes
from appliance.model.files import read_json, sha256, unreadable
from appliance.records import FRAMES_PER_SECOND
from appliance.system import shorten, user_folder

log = logging.getLogger("roomscribe.model")

SCHEMA = 3
"""Version of the format."""
MANIFEST = "bundle.json"
ENCODER_FILE, CROSS_FILE, STEP_FILE = "encoder.onnx", "cross.onnx", "step.onnx"
EMBEDDING_FILE, VOCABULARY_FILE = "embedding.bin", "vocabulary.json"
SILENCE_FILE = "silence.bin"
"""States behind the window, (silences, d_model) float32, see Bundle.silences."""
CANDIDATES = 32
SCREENED_FILE = "screened.onnx"
"""The step whose logits are found in two stages; models of int8 have it from version 0.3 on."""
ALWAYS = (ENCODER_FILE, CROSS_FILE, STEP_FILE, EMBEDDING_FILE, SILENCE_FILE, VOCABULARY_FILE)
HEF_FILE, HEF_MAGIC = "encoder.hef", b"\x01HEF"
CHIP_NAMES = {"hailo8": "Hailo-8", "hailo8l": "Hailo-8L", "hailo10h": "Hailo-10H"}
QUANTIZE = ("none", "int8")
"""none: all weights are float32, and the graphs compute exactly what the checkpoint does. int8: the
matrices and the token embedding have 8 bits, the other weights float16; activations float32."""
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
    """Probability that an expected sentence was spoken, and not something else: a logistic
    regression, fitted on commands and near misses (scripts/measure acts --fit). Fields that a
    manifest lacks are those of DEFAULT_PHRASE_CALIBRATION."""

    offset: float
    share: float
    """Of the log-odds of its share among the expected sentences."""
    mean: float
    """Of the mean natural log-probability of its tokens."""
    lead: float = -0.11
    """Of the free text's lead."""
    text: float = 0.14
    """Of the log-odds of the free text's confidence."""
    added: float = -3.43
    """Of words that only the free text has; this and the next three as in infer/wording.py."""
    missing: float = -1.52
    changed: float = -0.6
    sense: float = -4.0
    report: float = -2.0
    """Of the log-odds that the sound says the sentence's verb in the past."""

    def confidence(self, evidence: Mapping[str, float]) -> float:
        """Return the probability, 0..1, of a sentence with this value for each field's weight."""
        score = self.offset + sum(getattr(self, name) * value for name, value in evidence.items())
        return 1.0 / (1.0 + math.exp(min(700.0, max(-700.0, -score))))


DEFAULT_CALIBRATION = Calibration(offset=3.02, mean=0.0, total=1.278, low=0.2, act=0.725)
"""Of every Whisper whose bundle has none, fitted to 65 texts of tiny.en by 16 people or collections
(commands, readings, digits; windows with states of silence). Speakers left out: calibration error
0.09, area under the ROC curve 0.86; of the commands, 9 of 16 right ones may act and 0 of 6 wrong
ones. `low` was chosen on synthesised commands behind the address phrase (37 of 38 right ones lie
above it, 34 above 0.3); of 24 right commands of people all do."""
DEFAULT_PHRASE_CALIBRATION = PhraseCalibration(offset=3.18, share=0.24, mean=1.18)
"""The same for expected sentences, fitted to other voices. Of these people's 20 that the built-in
list has, 17 have at least 0.7, and one of the 45 other texts has ("nine", taken for "no")."""


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
    alignment: tuple[int, ...] = ()
    """Heads of the cross-attention that follow the sound, as layer x heads + head; empty: the graph
    does not show them, and there are no times of words."""

    @property
    def title(self) -> str:
        """The model's name for people, such as Whisper tiny.en."""
        return self.description or f"Whisper ({self.name})"

    @property
    def hef(self) -> Path | None:
        """The encoder for a Hailo; None without one."""
        return self.folder / HEF_FILE if HEF_FILE in self.files else None

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
        return np.setdiff1d(np.arange(self.vocabulary_size), np.array(self.suppressed, np.intp))

    @property
    def left_out(self) -> NDArray[np.intp]:
        """Ids of the suppressed tokens, ascending: the embedding's last rows."""
        return np.unique(np.array(self.suppressed, np.intp))

    @property
    def candidates(self) -> int:
        """Columns of which `screened.onnx` leaves the exact logits to the host."""
        return min(CANDIDATES, len(self.kept))

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
    file = folder / MANIFEST
    try:
        values = read_json(file)
        bundle = _parse(values, folder)
        _verify_files(values["files"], bundle)
    except ModelError as error:
        raise ModelError(f"{error}; {DISK if passes(error) else _fix(folder)}") from error
    except _WrongValueError as error:
        raise ModelError(f"{file}: {error}; {error.fix or _fix(folder)}") from error.__cause__
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
    """Return the folder for models: $ROOMSCRIBE_MODELS, otherwise INSTALLED; for an ordinary user
    on a machine without that, the one in their home."""
    if named := os.environ.get(VARIABLE, ""):
        return Path(named).expanduser().absolute()
    if not os.geteuid() or INSTALLED.exists():
        return INSTALLED
    return user_folder("XDG_DATA_HOME", ".local/share") / "models"


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

    Folders that this user may not read are left out.
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
    return [PACKAGED, models_folder()]


def is_packaged(folder: Path) -> bool:
    """Return whether `folder` is a model of the package; each of those may lie behind a link."""
    return folder.resolve() in [each.resolve() for each in PACKAGED.glob("*")]


def _fix(folder: Path) -> str:
    if is_packaged(folder):
        return (
            "the built-in model is damaged: reinstall the package roomscribe-model-tiny-en, or, in "
            "a checkout, run scripts/demo"
        )
    return "the bundle is damaged: install it again, or roomscribe model add tiny"


class _WrongValueError(ValueError):
    """A value of bundle.json: its key, what was expected and what was found."""

    def __init__(self, key: str, expected: str, found: object, fix: str = "") -> None:
        self.fix = fix
        text = f"{shorten(key, 80)}: expected {expected}, found {shorten(found, 80)}"
        super().__init__(text)


_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    Path: ("a folder", lambda value: isinstance(value, Path)),
    str: ("a text", lambda value: isinstance(value, str)),
    int: ("a whole number", lambda value: type(value) is int and value >= 0),
    int | None: ("a whole number or null", lambda value: value is None or type(value) is int),
    float: ("a number", lambda value: type(value) in (int, float) and -1000 <= value <= 1000),
    tuple[int, ...]: ("a list of token ids", lambda value: _is_list(value, int)),
    tuple[str, ...]: ("a list of texts", lambda value: _is_list(value, str)),
}
"""The types of the manifest's values: what a message calls them, and what they take."""


def _is_list(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(type(each) is kind for each in value)


def _read(kind: Any, value: Any, key: str) -> Any:
    """Return a value of the manifest as a field of this type. Raises _WrongValueError."""
    if not is_dataclass(kind):
        expected, fits = _KINDS[kind]
        if not fits(value):
            raise _WrongValueError(key, expected, repr(value))
        return tuple(value) if isinstance(value, list) else value
    if not isinstance(value, dict):
        raise _WrongValueError(key, "a table", repr(value))
    kinds, found = get_type_hints(kind), {}
    for field in fields(kind):
        inner = f"{key}.{field.name}".removeprefix(".")
        if field.name in value:
            found[field.name] = _read(kinds[field.name], value[field.name], inner)
        elif field.default is MISSING:
            raise _WrongValueError(inner, "a value", "nothing")
    return cast(Callable[..., Any], kind)(**found)


def _parse(values: dict[str, Any], folder: Path) -> Bundle:
    """Return the bundle that the manifest describes. Raises _WrongValueError."""
    if values.get("schema") != SCHEMA:
        fix = "another version made this model: add it again, or roomscribe model add tiny.en"
        raise _WrongValueError("schema", str(SCHEMA), repr(values.get("schema", "nothing")), fix)
    if not isinstance(values.get("files"), dict):
        raise _WrongValueError("files", "a table", repr(values.get("files", "nothing")))
    bundle: Bundle = _read(Bundle, values | {"folder": folder, "files": [*values["files"]]}, "")
    return bundle


def _verify_files(table: dict[str, Any], bundle: Bundle) -> None:
    """Raise _WrongValueError at the first file that is absent or not as the manifest says."""
    for name in dict.fromkeys((*ALWAYS, *bundle.files)):
        key, entry = f"files.{name}", table.get(name)
        if Path(name).name != name:
            raise _WrongValueError(key, "the name of a file in the folder itself", name)
        if not isinstance(entry, dict):
            raise _WrongValueError(key, "a table", entry or "nothing")
        try:
            size = (bundle.folder / name).stat().st_size
            if size != entry.get("size"):
                raise _WrongValueError(f"{key}.size", f"{entry.get('size')} bytes", f"{size} bytes")
            if (found := sha256(bundle.folder / name)) != entry.get("sha256"):
                raise _WrongValueError(f"{key}.sha256", str(entry.get("sha256")), found)
        except OSError as error:
            fix = DISK if passes(error) else ""
            raise _WrongValueError(key, "a readable file", error.strerror, fix) from error
