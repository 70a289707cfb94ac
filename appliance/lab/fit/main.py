"""`fit_model`: listen, measure, choose, and write the result into bundle.json.

    listen to every sentence under CONDITIONS -> doubtful texts again -> choices -> bundle.json

Each measurement is kept in the bundle's folder until the end, so that an interrupted fit continues.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from appliance import __version__
from appliance.config import Settings
from appliance.errors import ConfigError, ModelError
from appliance.lab.fit.choices import (
    ENOUGH,
    Example,
    choose_second_pass,
    doubtful_below,
    fit_calibration,
    fit_endings,
    fit_phrases,
)
from appliance.lab.fit.listening import Again, FoundSentence, Heard, SentenceListener, Text
from appliance.lab.fit.measurements import Measurements
from appliance.lab.fit.speech import (
    CONDITIONS,
    HARDER,
    PEOPLE,
    PLAIN,
    Clip,
    Condition,
    is_same,
    noise_sound,
    only_window,
    read_sound,
    recorded_clips,
    shipped_clips,
    words,
)
from appliance.lab.short_windows import (
    Comparison,
    ShortWindowsTrial,
    count_changes,
    noise_window,
)
from appliance.model import MANIFEST, Bundle, Vtln, is_packaged, library, load_bundle, read_json
from appliance.system import write_whole

WITH_PHRASES = ("plain", "noise 5 dB")
"""Conditions under which expected sentences are searched for."""
HOPELESS = 24
"""Sentences in quiet of which at least one must be right."""
TOKENS_PER_WORD = 1.3
"""The log has no number of tokens."""
WRONG = 2.0
"""Weight of a wrong text of the package's speech. People are harder to understand than its voices:
with the same log-probabilities a model is right half as often (in odds)."""
TRIED = 60
"""Doubtful texts that decide whether there is a second pass."""
SHORT_WINDOWS, NOISES = 150, 8
"""Most sentences, and noises, that decide on short windows."""
SEED = 5
Show = Callable[[str, int, int], object]
"""Called with the present step, what is done of it, and how much it is."""


@dataclass(frozen=True, slots=True)
class FitRequest:
    """What to fit a model to."""

    folder: Path
    recordings: Path | None = None
    """Folder with transcripts.tsv."""
    corrections: Path | None = None
    """See `read_corrections`."""
    every: int = 1
    """Listen to each so many-th sentence of the package only."""


def fit_model(request: FitRequest, settings: Settings, show: Show) -> dict[str, Any]:
    """Fit a bundle and write the result into its bundle.json; return what was written there.

    Raises RoomscribeError; then the bundle is as before.
    """
    folder = request.folder
    if is_packaged(folder):
        raise ConfigError(
            f"{folder.name} belongs to the package and is fitted already. Name a model that you "
            "added, or a copy of its folder."
        )
    bundle = load_bundle(folder)
    recordings = recorded_clips(request.recordings) if request.recordings else []
    corrections = read_corrections(request.corrections, bundle.name) if request.corrections else []
    shipped = shipped_clips()[:: request.every] if "en" in bundle.languages else []
    if not shipped and not recordings:
        raise ConfigError(
            f"{bundle.name} writes no English, and the package's speech is English. Name a folder "
            "with your recordings: --recordings FOLDER"
        )
    before = (folder / MANIFEST).read_bytes()
    clips = [*shipped, *recordings]
    identity = [
        __version__, hashlib.sha256(before).hexdigest(),
        [[str(clip.file), clip.text, clip.file.stat().st_size] for clip in clips],
    ]  # fmt: skip
    with Measurements(folder, identity) as measured:
        commands = sorted({clip.text for clip in shipped[: len(shipped) * 2 // 3]})
        near = similar_sentences(commands)
        with SentenceListener(bundle, settings, sorted({*commands, *near}), near) as listener:
            session = _Fit(listener, measured, clips, show)
            facts = session.fit(corrections)
            facts["fitted"]["encoded"] = dict(listener.encoded)  # without those before a resumption
        vtln = Vtln(**facts["vtln"]) if facts["vtln"] else None
        facts["short_windows"], facts["fitted"]["short_windows"] = _short_windows(
            replace(bundle, vtln=vtln), measured, clips, show
        )
        facts["fitted"] |= {
            "version": __version__,
            "date": datetime.now(UTC).date().isoformat(),
            "clips": len(shipped),
            "recordings": len(recordings),
            "corrections": len(corrections),
        }
        write_facts(folder, before, facts)
        measured.discard()
    return facts


def _short_windows(
    bundle: Bundle, measured: Measurements, clips: Sequence[Clip], show: Show
) -> tuple[bool, dict[str, Any]]:
    """Return whether the encoder may take short windows, and the figures. `bundle` has the second
    pass that was chosen."""
    chosen = clips[:: -(-len(clips) // SHORT_WINDOWS)]
    try:
        trial = ShortWindowsTrial(bundle)
    except ModelError:  # an encoder of an older version, or for a chip
        return False, {"clips": 0, "same_text": 0, "changed_gates": 0}

    def compare(item: Clip | int) -> object:
        if isinstance(item, int):
            return trial.compare(noise_window(noise_sound(item), bundle), is_speech=False)[:2]
        window = only_window(read_sound(item.file), PLAIN, item.file.name, bundle.window_s)
        return trial.compare(window, is_speech=True)[:2] if window else None

    speech: list[Any] = []
    sounds: list[Any] = []
    with trial:
        for number, clip in enumerate(chosen):
            show("short windows", number, len(chosen))
            speech.append(measured.take(f"{clip.file} short", functools.partial(compare, clip)))
        for number in range(NOISES):
            key = f"noise {number} short"
            sounds.append(measured.take(key, functools.partial(compare, number)))
    found = count_changes(
        [Comparison(*one) for one in speech if one], [Comparison(*one) for one in sounds if one]
    )
    return found.safe, {
        "clips": found.speech,
        "same_text": found.same_text,
        "changed_gates": found.changed_gates,
    }


def write_facts(folder: Path, before: bytes, facts: dict[str, Any]) -> None:
    """Add facts to bundle.json unless it differs from `before`. Raises ModelError."""
    file = folder / MANIFEST
    with library.model_errors(file):
        if file.read_bytes() != before:
            raise ModelError(
                f"{folder}: the model was replaced while it was being fitted; fit it again"
            )
        values = read_json(file) | facts
        text = json.dumps(values, ensure_ascii=False, indent=1) + "\n"
        write_whole(file, text, mode=file.stat().st_mode & 0o777)


def read_corrections(file: Path, model: str) -> list[Example]:
    """Return the texts of a model that somebody corrected or confirmed, from what
    `roomscribe log --export jsonl` writes. Raises ConfigError, which names the line."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: the corrections cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            text, spoken, mean = row["text"], row.get("correction"), row["avg_logprob"]
            if row["model"] != model or not spoken:
                continue
            count = round(TOKENS_PER_WORD * len(words(text))) + 1
            found.append(Example(is_same(text, spoken), mean, float(mean) * count, PEOPLE, text))
        except (AttributeError, LookupError, TypeError, ValueError):
            raise ConfigError(
                f"{file}, line {number}: expected a transcript with a correction, as "
                "`roomscribe log --export jsonl` writes them; write the file with that command"
            ) from None
    return found


def similar_sentences(texts: Sequence[str]) -> list[str]:
    """Return sentences that differ from `texts` in one word, and none of them."""
    rng = random.Random(SEED)
    pool = [word for text in texts for word in text.split()]
    found = set()
    for text in texts:
        spoken = text.split()
        place = rng.randrange(len(spoken))
        spoken[place] = rng.choice([word for word in pool if word != spoken[place]] or ["other"])
        found.add(" ".join(spoken))
    return sorted(found - set(texts)) or ["other"]


def _weight(clip: Clip, text: Text) -> float:
    return clip.weight * (WRONG if clip.weight == 1.0 and not text.right else 1.0)


class _Fit:
    """One fit: what is measured, and the choices made of it."""

    def __init__(
        self, listener: SentenceListener, measured: Measurements, clips: Sequence[Clip], show: Show
    ) -> None:
        self._listener, self._measured, self._clips = listener, measured, clips
        self._show = show
        self._heard: list[tuple[Clip, Condition, Heard]] = []

    def fit(self, corrections: Sequence[Example]) -> dict[str, Any]:
        """Return the facts for bundle.json. Raises RoomscribeError."""
        self._listen(CONDITIONS)
        if self._count(right=False) < 2 * ENOUGH <= self._count(right=True):
            self._listen(HARDER)
        texts = [heard.text for _, _, heard in self._heard if heard.text.kept]
        if self._count(right=True) < ENOUGH:  # before the longer steps
            fit_calibration([Example(one.right, one.mean, one.total, 1.0, "") for one in texts])
        vtln, second = self._second_pass(texts)
        final = self._final_texts(vtln)
        examples = [
            Example(text.right, text.mean, text.total, _weight(clip, text), clip.text)
            for clip, text in final
            if text.kept
        ]
        calibration, figures = fit_calibration([*examples, *corrections])
        phrases, of_phrases = fit_phrases(self._found_sentences())
        endings, of_endings = self._endings()
        return {
            "calibration": asdict(calibration),
            "phrase_calibration": asdict(phrases) if phrases else None,
            "endings": asdict(endings) if endings else None,
            "vtln": asdict(vtln) if vtln else None,
            "fitted": figures | of_phrases | of_endings | {"second_pass": second},
        }

    def _count(self, *, right: bool) -> int:
        return sum(h.text.kept and h.text.right is right for _, _, h in self._heard)

    def _listen(self, conditions: Sequence[Condition]) -> None:
        jobs = [(clip, condition) for condition in conditions for clip in self._clips]
        for number, (clip, condition) in enumerate(jobs):
            self._show("listening", number, len(jobs))
            if number == HOPELESS and not self._count(right=True):
                raise ModelError(
                    f"this model cannot be calibrated: none of {HOPELESS} sentences in quiet was "
                    "transcribed correctly; nothing was changed"
                )
            phrases = condition.name in WITH_PHRASES and clip.weight == 1.0
            found = self._measured.take(
                f"{clip.file} {condition.name}",
                functools.partial(self._listener.hear, clip, condition, phrases=phrases),
            )
            if found:
                text, prior, *sentences = found
                listed, other = (FoundSentence(*one) if one else None for one in sentences)
                self._heard.append((clip, condition, Heard(Text(*text), prior, listed, other)))

    def _again(self, clip: Clip, condition: Condition) -> Again | None:
        found = self._measured.take(
            f"{clip.file} {condition.name} again",
            lambda: self._listener.hear_again(clip, condition),
        )
        return Again(Text(*found[0]), Text(*found[1]), *found[2:]) if found else None

    def _second_pass(self, texts: Sequence[Text]) -> tuple[Vtln | None, dict[str, Any]]:
        """Choose a second pass by a part of the doubtful texts."""
        below = min(0.0, doubtful_below(texts))
        doubtful = [one for one in self._heard if one[2].text.mean < below]
        random.Random(SEED).shuffle(doubtful)
        first, again = [], []
        for number, (clip, condition, heard) in enumerate(doubtful[:TRIED]):
            self._show("trying a second pass", number, min(TRIED, len(doubtful)))
            if found := self._again(clip, condition):
                first.append(heard.text)
                again.append(found)
        return choose_second_pass(below, first, again)

    def _final_texts(self, vtln: Vtln | None) -> list[tuple[Clip, Text]]:
        """Return the texts as the appliance will write them."""
        final = []
        for number, (clip, condition, heard) in enumerate(self._heard):
            text = heard.text
            if vtln and text.mean < vtln.below:
                self._show("second pass", number, len(self._heard))
                if found := self._again(clip, condition):
                    text = found.warped if vtln.warp else found.beam
            final.append((clip, text))
        return final

    def _found_sentences(self) -> list[list[tuple[FoundSentence, bool]]]:
        """The sentences that were found in each list, in each condition."""
        parts = [
            [(found, found.right) for _, one, h in self._heard
             if one.name == name and (found := getattr(h, listed))]
            for name in WITH_PHRASES for listed in ("listed", "other")
        ]  # fmt: skip
        return [part for part in parts if part]

    def _endings(self) -> tuple[Any, dict[str, Any]]:
        whole = [h.prior for _, c, h in self._heard if c.name == "plain" and h.text.right]
        beginnings = []
        for number, clip in enumerate(self._clips):
            self._show("beginnings of sentences", number, len(self._clips))
            found = self._measured.take(
                f"{clip.file} beginning",
                functools.partial(self._listener.hear_beginning, clip),
            )
            beginnings += [] if found is None else [found]
        return fit_endings(whole, beginnings)
