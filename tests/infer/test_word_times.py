"""Words are timed by the decoder's attention and the pauses of the sound."""

import csv

import numpy as np
from rigs.checkout import shared
from rigs.word_errors import same_words

from appliance.capture.recording import Recording
from appliance.infer.overlap import last_words
from appliance.infer.transcriber import Transcriber
from appliance.infer.word_times import _begins
from appliance.records import SAMPLE_RATE, Samples, Transcription, Window, Word

FOLDERS = ("fsdd_digits", "ha_commands_ohf", "ha_commands_rhasspy", "misc_commands")
"""Single digits and commands, spoken by people."""
CLICK = "is the front door locked"
"""A clip that begins with a click, long before the speech."""


def bounds(sound: Samples, below_db: float) -> tuple[float, float]:
    """When the speech of a clip begins and ends: what is at most so far below its loudest 20 ms."""
    frames = sound[: len(sound) // 320 * 320].reshape(-1, 320).astype(np.float64)
    powers = np.square(frames).mean(axis=1)
    (loud,) = np.nonzero(powers > powers.max() * 10 ** (-below_db / 10))
    return float(loud[0] * 0.02), float((loud[-1] + 1) * 0.02)


def clips() -> list[tuple[Samples, str]]:
    """Clips with their texts, cut to their speech, of which is known where that is: in noise the
    place would depend on the level."""
    folder = shared("data/audio")
    with (folder / "MANIFEST.tsv").open(encoding="utf-8") as listed:
        rows = list(csv.DictReader(listed, delimiter="\t", quoting=csv.QUOTE_NONE))
    found = []
    for row in rows:
        file, text = folder / row["path"], row["transcript"]
        if row["path"].partition("/")[0] not in FOLDERS or text in (CLICK, "") or "(" in text:
            continue
        with Recording(str(file), real_time=False) as recording:
            mono = np.concatenate([frame.samples for frame in recording.frames()])
        if len(mono) > 4 * SAMPLE_RATE:
            continue
        near, far = bounds(mono, 20), bounds(mono, 35)
        if max(abs(near[0] - far[0]), abs(near[1] - far[1])) <= 0.15:
            begin, end = (int(at * SAMPLE_RATE) for at in bounds(mono, 30))
            found.append((mono[begin:end], text))
    return found


def transcribe(transcriber: Transcriber, sound: Samples) -> Transcription:
    length_s = len(sound) / SAMPLE_RATE
    window = Window("u", 1, True, sound, 0.0, length_s, length_s)
    return transcriber.transcribe(window, search=True, words=True)


def test_words_of_people_begin_and_end_within_a_fifth_of_a_second(transcriber: Transcriber) -> None:
    """Two clips are joined, with a pause: the first word of each begins and its last one ends at a
    known time."""
    known = clips()
    chance, errors_s = np.random.default_rng(1), list[float]()
    for _ in range(40):
        (one, said), (two, then) = (known[at] for at in chance.choice(len(known), 2, replace=False))
        lead, pause = np.zeros(4800, np.int16), np.zeros(int(chance.choice([6400, 9600])), np.int16)
        if len(one) + len(two) > 8 * SAMPLE_RATE:
            continue
        found = transcribe(transcriber, np.concatenate([lead, one, pause, two, lead]))
        count = len(said.split())
        if not same_words(found.text, f"{said} {then}") or len(found.words) != count + len(
            then.split()
        ):
            continue  # of a misheard word is not known when it was spoken
        begun = len(lead)
        for words, sound in ((found.words[:count], one), (found.words[count:], two)):
            errors_s += [
                abs(words[0].start_s - begun / SAMPLE_RATE),
                abs(words[-1].end_s - (begun + len(sound)) / SAMPLE_RATE),
            ]
            begun += len(sound) + len(pause)
    print(f"{len(errors_s)} times of {len(known)} clips, error at most {max(errors_s):.2f} s, 95 %:"
          f" {np.quantile(errors_s, 0.95):.2f} s")  # fmt: skip
    assert len(errors_s) >= 40
    assert np.quantile(errors_s, 0.95) <= 0.2


def test_words_are_computed_only_for_who_wants_them(transcriber: Transcriber) -> None:
    sound = np.zeros(SAMPLE_RATE, np.int16)
    window = Window("u", 1, True, sound, 0.0, 1.0, 1.0)
    assert transcriber.transcribe(window, search=True).words == ()


def test_the_way_through_the_weights_goes_where_each_token_looks() -> None:
    gains = np.full((3, 9), -1.0, np.float32)
    gains[0, :4] = gains[1, 4:6] = gains[2, 6:] = 1.0
    assert _begins(gains) == [0, 4, 6]


def test_of_words_that_repeat_the_window_before_the_last_ones_are_kept() -> None:
    words = [Word(text, at, at + 1.0) for at, text in enumerate(("turn", "on", "the", "lamp"))]
    assert last_words(words, "the lamp") == tuple(words[2:])
    assert last_words(words, "turn on the lamp") == tuple(words)
    assert last_words(words, "") == ()
