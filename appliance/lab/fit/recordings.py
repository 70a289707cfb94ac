"""Recordings whose texts are known, and what a model makes of them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.config import Settings
from appliance.errors import ConfigError
from appliance.infer import Transcriber, in_words, judge
from appliance.lab.fit.choices import Example
from appliance.lab.recordings import read_list
from appliance.lab.words import cut_windows, read_sound

_SHORT = (("what's", "what is"), ("it's", "it is"), ("i'm", "i am"), ("we're", "we are"))


@dataclass(frozen=True, slots=True)
class Clip:
    """A recorded sentence."""

    file: Path
    text: str


def recorded_clips(folder: Path) -> list[Clip]:
    """Return the sentences of a folder with a list (columns file and text). Raises ConfigError,
    which names the file."""
    listed = read_list(folder)
    if listed is None:
        raise ConfigError(
            f"{folder}: expected a folder with transcripts.tsv, found none. Write one line per "
            "recording: its file, a tab, its text; the first line is: file, a tab, text."
        )
    clips = [Clip(folder / name, one.text) for name, one in listed.items() if words(one.text)]
    if not clips:
        raise ConfigError(f"{folder}: its list has no text. Add your recordings to it.")
    if lost := next((clip.file for clip in clips if not clip.file.is_file()), None):
        raise ConfigError(f"{lost}: the list names it, and it does not exist. Correct the list.")
    return clips


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
) -> list[Example]:
    """Return the texts that are not discarded.

    A recording counts if it gives one window, as a sentence does. Those with one text are one
    group. Raises RoomscribeError.
    """
    texts = []
    for number, clip in enumerate(clips):
        advance(number, len(clips))
        windows = cut_windows(read_sound(clip.file), settings, transcriber.bundle.window_s)
        if len(windows) != 1:
            continue
        result = transcriber.transcribe(windows[0])
        if judge(result):
            continue
        right, mean = is_same(result.text, clip.text), result.avg_logprob
        total = mean * (len(result.tokens) + 1)
        texts.append(Example(right, (mean, total), clip.text, result.confidence))
    return texts
