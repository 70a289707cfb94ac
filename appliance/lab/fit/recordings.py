"""Recordings whose texts are known, and what a model makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from appliance.capture import Recording, Segmenter, VoiceDetector
from appliance.config import Settings
from appliance.errors import ConfigError
from appliance.infer import Transcriber, in_words, judge
from appliance.lab.fit.choices import Example
from appliance.lab.recordings import LISTS, listed_texts, read_rows
from appliance.model import LEADS, log_odds
from appliance.records import Window, likelihood

_SHORT = (("what's", "what is"), ("it's", "it is"), ("i'm", "i am"), ("we're", "we are"))


@dataclass(frozen=True, slots=True)
class Clip:
    """A recorded sentence."""

    file: Path
    text: str
    speaker: str
    """"" if it is unknown."""


def recorded_clips(folder: Path) -> list[Clip]:
    """Return the sentences of a folder with a list (columns file and text, perhaps speaker). Raises
    ConfigError, which names the file."""
    try:
        texts, speakers = listed_texts(folder), _listed_speakers(folder)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{folder}: its list of recordings cannot be read: {error}. Write it as UTF-8."
        ) from error
    if texts is None:
        raise ConfigError(
            f"{folder}: expected a folder with transcripts.tsv, found none. Write one line per "
            "recording: its file, a tab, its text; the first line is: file, a tab, text."
        )
    clips = [
        Clip(folder / name, text, speakers.get(name, ""))
        for name, text in texts.items()
        if words(text)
    ]
    if not clips:
        raise ConfigError(f"{folder}: its list has no text. Add your recordings to it.")
    if lost := next((clip.file for clip in clips if not clip.file.is_file()), None):
        raise ConfigError(f"{lost}: the list names it, and it does not exist. Correct the list.")
    return clips


def _listed_speakers(folder: Path) -> dict[str, str]:
    """Speakers by the names of their files, if the list has a column for them."""
    listed = next((folder / name for name in LISTS if (folder / name).is_file()), None)
    rows = read_rows(listed) if listed else []
    return {row.get("file") or row.get("path") or "": row.get("speaker") or "" for row in rows}


def words(text: str) -> list[str]:
    """Return the words of a text as they are compared: without case, marks and digits."""
    text = (
        text.lower().replace("\u2019", "'").replace("%", " percent ").replace("\u00b0", " degrees ")
    )
    for short, long in _SHORT:
        text = re.sub(rf"\b{short}\b", long, text)
    text = re.sub(r"\d{1,3}", lambda number: f" {in_words(int(number[0]))} ", text)
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text)


def is_same(text: str, spoken: str) -> bool:
    """True if two texts have the same words, however they are separated."""
    return "".join(words(text)) == "".join(words(spoken))


def listen(
    transcriber: Transcriber,
    settings: Settings,
    clips: Sequence[Clip],
    advance: Callable[[int, int], object],
) -> tuple[list[Example], list[Example]]:
    """Return the texts that are not discarded, and the expected sentences that were found.

    A recording counts if it gives one window, as a sentence does. Sentences of one speaker, or with
    one text if speakers are unknown, are one group. Raises RoomscribeError.
    """
    texts, sentences = [], []
    known = len({clip.speaker for clip in clips if clip.speaker}) > 1
    for number, clip in enumerate(clips):
        advance(number, len(clips))
        window = _only_window(clip.file, settings, transcriber.bundle.window_s)
        if window is None:
            continue
        result = transcriber.transcribe(window)
        if judge(result):
            continue
        group = clip.speaker if known else clip.text
        right, mean = is_same(result.text, clip.text), result.avg_logprob
        total = mean * (len(result.tokens) + 1)
        texts.append(Example(right, (mean, total), group, likelihood(result)))
        found = transcriber.phrases.evidence if transcriber.phrases and result.text else None
        if found:
            features = (log_odds(found.share), found.mean, float(np.clip(found.lead, *LEADS)))
            right = is_same(found.sentence, clip.text)
            sentences.append(Example(right, features, group, found.confidence))
    return texts, sentences


def _only_window(file: Path, settings: Settings, window_s: float) -> Window | None:
    """The window that the microphone's path makes of a recording; None if it does not make exactly
    one. Raises AudioError."""
    segmenter = Segmenter(VoiceDetector(settings.voice), settings.segmenter, window_s)
    with Recording(str(file), real_time=False) as recording:
        found = [one for frame in recording.frames() for one in segmenter.push(frame)]
    windows = [one for one in (*found, *segmenter.flush()) if isinstance(one, Window)]
    return windows[0] if len(windows) == 1 else None
