"""Recordings whose texts are known, and what a model makes of them."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from appliance.config import Settings
from appliance.errors import ConfigError
from appliance.infer import Transcriber, in_words, judge
from appliance.lab.fit.choices import Example
from appliance.lab.words import Recorded, cut_windows, read_recordings

_SHORT = (("what's", "what is"), ("it's", "it is"), ("i'm", "i am"), ("we're", "we are"))


def spoken_recordings(folder: Path) -> list[Recorded]:
    """Return the recordings of a folder with a list (columns file and text) that has words for
    them. Raises ConfigError and AudioError, which name the file."""
    found = [one for one in read_recordings(folder) if words(one.text)]
    if not found:
        raise ConfigError(f"{folder}: its list has no text. Add your recordings to it.")
    return found


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
    recordings: Sequence[Recorded],
    advance: Callable[[int, int], object],
) -> list[Example]:
    """Return the texts that are not discarded.

    A recording counts if it gives one window, as a sentence does. Those with one text are one
    group. Raises RoomscribeError.
    """
    texts = []
    for number, recorded in enumerate(recordings):
        advance(number, len(recordings))
        windows = cut_windows(recorded.samples, settings, transcriber.bundle.window_s)
        if len(windows) != 1:
            continue
        result = transcriber.transcribe(windows[0])
        if judge(result):
            continue
        right, mean = is_same(result.text, recorded.text), result.avg_logprob
        total = mean * (len(result.tokens) + 1)
        texts.append(Example(right, (mean, total), recorded.text, result.confidence))
    return texts
