"""Utterances are opened, closed and cut where they should be."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Self

import numpy as np
import pytest
from rigs.records import differences

from appliance.capture import endpoint
from appliance.capture.frames import FRAME_SAMPLES
from appliance.capture.joined import JoiningSegmenter
from appliance.capture.loudness import is_clipped
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import Judgement, VoiceDetector
from appliance.config import SegmenterSettings
from appliance.records import SAMPLE_RATE, Discarded, Frame, Samples, Window

FRAME_S = 0.03
LOUD = 1000
NO_OVERLAP = replace(SegmenterSettings(), overlap_ms=0)


class FakeVoice(VoiceDetector):
    """Takes a frame for speech when its first sample is loud; opens at the third in a row."""

    def __init__(self) -> None:
        self.in_a_row = self.resets = 0
        self.missed_s = 0.0

    def push(self, frame: Frame) -> Judgement:
        speech = abs(int(frame.samples[0])) >= LOUD
        self.in_a_row = self.in_a_row + 1 if speech else 0
        voiced_s = FRAME_S if speech else 0.0
        return Judgement(self.in_a_row >= 3, speech, voiced_s, missed_s=self.missed_s)

    def reset(self) -> None:
        self.in_a_row = 0
        self.resets += 1


def speech(frames: int, level: int = 2 * LOUD) -> list[Samples]:
    """Frames of alternating samples."""
    signs = np.where(np.arange(FRAME_SAMPLES) % 2, -1, 1)
    return [(signs * level).astype(np.int16)] * frames


def silence(frames: int) -> list[Samples]:
    return [np.zeros(FRAME_SAMPLES, np.int16)] * frames


class Room:
    """Feeds a segmenter and keeps what it gives."""

    def __init__(
        self,
        window_s: float = 10.0,
        settings: SegmenterSettings | None = None,
        kind: type[Segmenter] = Segmenter,
    ) -> None:
        self.voice = FakeVoice()
        self.segmenter = kind(self.voice, settings or SegmenterSettings(), window_s)
        self.found: list[Window | Discarded] = []
        self.now_s = 0.0

    def hear(self, *parts: list[Samples], after_gap: bool = False) -> Self:
        for samples in (one for part in parts for one in part):
            frame = Frame(samples, self.now_s, after_gap)
            after_gap = False
            self.found += self.segmenter.push(frame)
            self.now_s += FRAME_S
        return self

    def windows(self) -> list[Window]:
        assert all(isinstance(one, Window) for one in self.found)
        return [one for one in self.found if isinstance(one, Window)]


def test_an_utterance_carries_its_pre_roll_and_a_short_tail() -> None:
    room = Room().hear(silence(100), speech(30), silence(30))
    (window,) = room.windows()
    assert window.start_s == pytest.approx(3.06 - 0.6)
    assert window.speech_end_s == pytest.approx(3.9)
    assert window.start_s + window.duration_s == pytest.approx(4.05)
    assert (window.index, window.last, window.flags) == (1, True, ())
    assert window.voiced_s == pytest.approx(0.9)


def test_an_utterance_is_returned_as_soon_as_the_hang_over_is_over() -> None:
    room = Room().hear(silence(100), speech(30), silence(19))
    assert room.found == []
    assert room.segmenter.speaking
    room.hear(silence(1))
    assert len(room.found) == 1
    assert not room.segmenter.speaking


def test_after_five_silent_frames_there_is_a_speculative_window() -> None:
    room = Room().hear(silence(100), speech(30), silence(4))
    assert room.segmenter.speculative_window is None
    speculation = room.hear(silence(1)).segmenter.speculative_window
    assert speculation
    assert room.hear(silence(14)).segmenter.speculative_window is speculation
    (window,) = room.hear(silence(1)).windows()
    assert room.segmenter.speculative_window is None
    assert window.id == speculation.id
    assert not differences(window, speculation)


def test_the_window_so_far_is_what_was_heard_while_somebody_speaks() -> None:
    room = Room().hear(silence(30), speech(2))
    assert room.segmenter.so_far() is None, "nobody speaks yet"
    first = room.hear(speech(20)).segmenter.so_far()
    second = room.hear(speech(1)).segmenter.so_far()
    assert first
    assert second
    assert (first.index, first.last, first.utterance_id) == (1, False, second.utterance_id)
    assert first.id != second.id
    assert (second.samples[: len(first.samples)] == first.samples).all()
    assert room.hear(silence(1)).segmenter.so_far() is None, "nobody speaks just now"
    room.hear(silence(30))
    assert room.segmenter.so_far() is None
    (window,) = room.windows()
    assert window.utterance_id == first.utterance_id
    assert (window.samples[: len(second.samples)] == second.samples).all()


def test_the_window_so_far_is_the_one_that_is_being_filled() -> None:
    room = Room(window_s=2.0, settings=NO_OVERLAP).hear(silence(20), speech(80))
    (full,) = room.windows()
    so_far = room.segmenter.so_far()
    assert so_far
    assert (so_far.utterance_id, so_far.index) == (full.utterance_id, 2)
    assert so_far.start_s == pytest.approx(full.start_s + full.duration_s)
    assert so_far.duration_s < full.duration_s


def test_speech_that_resumes_drops_the_speculative_window() -> None:
    room = Room().hear(silence(30), speech(20), silence(15))
    first = room.segmenter.speculative_window
    assert first
    assert room.hear(speech(1)).segmenter.speculative_window is None
    second = room.hear(silence(10)).segmenter.speculative_window
    assert second
    (window,) = room.hear(silence(10)).windows()
    assert second.id == window.id != first.id
    assert len(first.samples) < len(second.samples) == len(window.samples)


def closed_early(*, silent_frames: int = 11) -> tuple[Room, Window]:
    """A room in which an utterance was closed after so many frames of silence."""
    room = Room().hear(silence(30), speech(20), silence(silent_frames - 1))
    speculation = room.segmenter.speculative_window
    assert speculation
    room.segmenter.end_after(speculation.id, 320)
    (window,) = room.hear(silence(1)).windows()
    assert window.id == speculation.id
    assert room.segmenter.closed_early
    return room, window


@pytest.mark.parametrize(("frames", "traces"), [(30, 0), (60, 1)])
def test_a_sound_like_speech_that_never_opened_leaves_a_trace(frames: int, traces: int) -> None:
    """Unless it may be part of the utterance before, which may have been closed early."""
    room, _ = closed_early()
    room.hear(silence(frames)).voice.missed_s = 0.42
    room.hear(silence(1))
    found = [one for one in room.found[1:] if isinstance(one, Discarded) and one.utterance_id]
    assert [(one.reason, one.duration_s) for one in found] == [("no_speech", 0.42)] * traces


@pytest.mark.parametrize("silent_frames", [11, 15, 19])
def test_an_early_close_gives_the_samples_of_the_speculative_window(silent_frames: int) -> None:
    _, early = closed_early(silent_frames=silent_frames)
    (late,) = Room().hear(silence(30), speech(20), silence(20)).windows()
    assert differences(early, late) == ["utterance_id", "id"]


def test_an_utterance_that_may_go_on_waits_for_longer() -> None:
    room = Room().hear(silence(30), speech(20), silence(12))
    assert room.segmenter.speculative_window
    room.segmenter.end_after(room.segmenter.speculative_window.id, 1000)
    assert room.hear(silence(21)).found == []
    assert len(room.hear(silence(1)).windows()) == 1
    assert not room.segmenter.closed_early
    room.hear(speech(20), silence(19))
    assert len(room.found) == 1
    assert len(room.hear(silence(1)).windows()) == 2, "the next one waits no longer than ever"


@pytest.mark.parametrize("pause", range(11, 40))
def test_speech_after_an_early_close_continues_in_the_next_utterance(pause: int) -> None:
    """At once, within the hang-over, within 800 ms, later: no frame of speech is lost, none is in
    two windows, and no pause but the one that was cut is heard."""
    room, first = closed_early()
    room.hear(silence(pause - 11), speech(20), silence(20))
    second = room.windows()[1]
    ends_s = first.start_s + first.duration_s
    assert second.start_s == pytest.approx(max(ends_s, first.speech_end_s + pause * FRAME_S - 0.54))
    assert second.voiced_s == pytest.approx(20 * FRAME_S)
    soon = pause * FRAME_S <= 0.8
    assert second.continues == (first.utterance_id if soon else "")
    assert second.utterance_id != first.utterance_id
    assert second.index == 1
    room.hear(silence(10), speech(20), silence(20))
    assert room.windows()[2].continues == ""


def test_an_utterance_that_is_due_closes_without_another_frame() -> None:
    room = Room()
    room.hear(silence(30), speech(20), silence(12))
    speculation = room.segmenter.speculative_window
    assert speculation and room.segmenter.close_if_due() == []
    room.segmenter.end_after(speculation.id, 350)
    (window,) = room.segmenter.close_if_due()
    assert isinstance(window, Window) and window.id == speculation.id
    assert room.segmenter.closed_early
    assert room.segmenter.close_if_due() == []


def test_what_would_have_kept_the_utterance_open_opens_the_next_one() -> None:
    """Four frames in which the detector would not open: a soft last word."""
    for pause, soft in ((11, [1, 2, 1]), (18, [2, 2]), (30, [2, 2])):
        room, first = closed_early()
        room.hear(silence(pause - 11))
        for frames in soft:
            room.hear(speech(frames), silence(1))
        room.hear(silence(19))
        assert [one.continues for one in room.windows()[1:]] == (
            [first.utterance_id] if pause * FRAME_S < 0.6 else []
        )


def test_a_breath_after_an_early_close_is_no_utterance() -> None:
    room, _ = closed_early()
    room.hear(speech(2), silence(20))
    (discarded,) = (one for one in room.found if isinstance(one, Discarded))
    assert discarded.reason == "too_short"
    assert not room.segmenter.speaking


def test_after_a_lost_source_nothing_continues_the_utterance_before() -> None:
    room, _ = closed_early()
    assert room.segmenter.flush(interrupted=True) == []
    assert not room.segmenter.closed_early
    room.hear(speech(20), silence(20))
    assert room.windows()[1].continues == ""


def test_where_there_is_talk_without_end_nothing_ends_early() -> None:
    """A television's sentences with pauses of 0.4 s; then quiet, and a sentence of somebody."""
    room = Room()
    for _ in range(8):
        room.hear(speech(35), silence(11))
        speculation = room.segmenter.speculative_window
        assert speculation
        room.segmenter.end_after(speculation.id, 350)
        room.hear(silence(3))
    assert 1 <= len(room.windows()) <= 2, "only in the first 3 s, of which nothing is known"
    room.hear(silence(150), speech(20), silence(11))
    speculation = room.segmenter.speculative_window
    assert speculation
    room.segmenter.end_after(speculation.id, 350)
    before = len(room.windows())
    room.hear(silence(1))
    assert len(room.windows()) == before + 1


@pytest.mark.parametrize("seed", range(8))
def test_however_speech_and_silence_alternate_each_frame_is_in_one_window(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten minutes of them in all, and guesses that are sure, unsure or late."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(endpoint, "MIN_VOICED_SHARE", 0.0)
    room, length = Room(settings=replace(NO_OVERLAP, min_speech_ms=0)), 0
    said: list[int] = []
    while length < 2500:
        loud, quiet = int(rng.integers(3, 20)), int(rng.integers(1, rng.choice([30, 120])))
        said += range(length, length + loud)
        length += loud + quiet
        answer = int(rng.choice([0, 350, 350, 1000]))
        late = int(rng.integers(0, 6))
        for sound in (*speech(loud), *silence(quiet)):
            room.hear([sound])
            speculation = room.segmenter.speculative_window
            late -= speculation is not None
            if speculation and answer and late < 0:
                room.segmenter.end_after(speculation.id, answer)
    room.found += room.segmenter.flush()
    windows = room.windows()
    spans = [(one.start_s, one.start_s + one.duration_s) for one in windows]
    assert all(end <= begin + 1e-6 for (_, end), (begin, _) in itertools.pairwise(spans))
    heard = [
        round(one.start_s / FRAME_S) + number
        for one in windows
        for number in range(len(one.samples) // FRAME_SAMPLES)
        if abs(one.samples[number * FRAME_SAMPLES]) >= LOUD
    ]
    assert heard == said
    ids = [one.utterance_id for one in windows]
    assert all(
        not one.continues or one.continues in ids[:number] for number, one in enumerate(windows)
    )
    assert any(one.continues for one in windows)


def test_too_little_speech_has_no_speculative_window() -> None:
    room = Room(settings=replace(SegmenterSettings(), min_speech_ms=300))
    assert room.hear(silence(30), speech(5), silence(15)).segmenter.speculative_window is None
    room.hear(silence(5))
    assert [type(one) for one in room.found] == [Discarded]


def test_a_pause_shorter_than_the_hang_over_is_part_of_the_utterance() -> None:
    room = Room().hear(silence(30), speech(20), silence(15), speech(20), silence(30))
    (window,) = room.windows()
    assert window.voiced_s == pytest.approx(1.2)


def test_the_first_word_is_whole_when_speech_begins_with_the_stream() -> None:
    (window,) = Room().hear(speech(20), silence(30)).windows()
    assert window.start_s == 0.0


def test_too_little_speech_is_discarded_with_its_reason() -> None:
    settings = replace(SegmenterSettings(), min_speech_ms=150)
    room = Room(settings=settings).hear(silence(50), speech(4), silence(30))
    (discarded,) = room.found
    assert isinstance(discarded, Discarded)
    assert discarded.reason == "too_short"


def test_long_speech_is_cut_at_its_quietest_without_loss_or_repetition() -> None:
    room = Room(5.0, NO_OVERLAP)
    room.hear(silence(30), speech(120), speech(6, LOUD), speech(100), silence(30))
    first, second = room.windows()
    assert first.utterance_id == second.utterance_id
    assert (first.index, first.last, first.flags) == (1, False, ("cut_at_window",))
    assert (second.index, second.last, second.flags) == (2, True, ())
    assert second.start_s == pytest.approx((30 + 120 + 4) * FRAME_S), "in the middle, the later"
    assert second.start_s == pytest.approx(first.start_s + first.duration_s)
    assert first.speech_end_s == pytest.approx(second.start_s)
    assert first.voiced_s + second.voiced_s == pytest.approx(226 * FRAME_S)


def test_speech_without_end_is_cut_into_windows_that_fit_the_model() -> None:
    room = Room(5.0, NO_OVERLAP).hear(silence(10), speech(1000), silence(30))
    windows = room.windows()
    assert len(windows) >= 6
    assert all(len(window.samples) <= 5 * SAMPLE_RATE for window in windows)
    assert [window.index for window in windows] == list(range(1, len(windows) + 1))
    assert [window.last for window in windows] == [False] * (len(windows) - 1) + [True]
    length = sum(len(window.samples) for window in windows)
    assert length == (10 + 1000 + 5) * FRAME_SAMPLES


def test_speech_that_ends_with_the_window_is_not_cut() -> None:
    room = Room(5.0).hear(silence(30), speech(144), silence(30))
    (window,) = room.windows()
    assert window.last
    assert window.flags == ()
    assert window.duration_s <= 5.0


def test_the_end_of_a_source_gives_what_was_heard() -> None:
    room = Room().hear(silence(30), speech(20))
    (window,) = room.segmenter.flush()
    assert isinstance(window, Window)
    assert window.last
    assert window.flags == ()
    assert room.segmenter.flush() == []
    assert room.voice.resets == 2


def test_a_lost_source_is_flagged() -> None:
    room = Room().hear(silence(30), speech(20))
    (window,) = room.segmenter.flush(interrupted=True)
    assert isinstance(window, Window)
    assert window.flags == ("interrupted",)


def test_a_short_gap_is_flagged_and_does_not_end_the_utterance() -> None:
    room = Room().hear(silence(30), speech(20))
    room.now_s += 0.1
    (window,) = room.hear(speech(20), after_gap=True).hear(silence(30)).windows()
    assert window.flags == ("gap",)


def test_a_long_gap_ends_the_utterance() -> None:
    room = Room().hear(silence(30), speech(20))
    room.now_s += 3.0
    room.hear(speech(20), silence(30), after_gap=True)
    first, second = room.windows()
    assert first.flags == ("interrupted",)
    assert second.flags == ()
    assert second.start_s == pytest.approx(50 * FRAME_S + 3.0)


def test_clipped_speech_is_flagged() -> None:
    (window,) = Room().hear(silence(30), speech(20, 32767), silence(30)).windows()
    assert window.flags == ("clipped",)
    assert not is_clipped(np.array([32767] + [0] * 1999, np.int16))


def test_idle_memory_is_bounded() -> None:
    room = Room().hear(silence(5000))
    assert len(room.segmenter._idle.judged) <= 21


def heard_with_reference(
    explained: Callable[[int], bool], share: float = 1.0
) -> list[Window | Discarded]:
    """What comes of 1 s of speech and 1 s of silence whose frames the reference explains;
    cancellation left so much of the power."""
    segmenter = Segmenter(FakeVoice(), SegmenterSettings(), 10.0)
    found = []
    for number, samples in enumerate([*silence(10), *speech(33), *silence(33)]):
        recorded = float(np.mean(samples.astype(float) ** 2)) / share
        frame = Frame(samples, number * FRAME_S, False, explained(number), recorded)
        found += segmenter.push(frame)
    return [*found, *segmenter.flush()]


def test_speech_of_the_loudspeakers_opens_nothing_and_is_reported_once() -> None:
    (lost,) = heard_with_reference(lambda _: True)
    assert isinstance(lost, Discarded) and lost.reason == "reference"
    assert lost.duration_s == pytest.approx(1.0, abs=0.05)


def test_an_utterance_that_cancellation_mostly_removed_is_discarded() -> None:
    (kept,) = heard_with_reference(lambda _: False, share=0.3)
    assert isinstance(kept, Window)
    (lost,) = heard_with_reference(lambda _: False, share=0.1)
    assert isinstance(lost, Discarded) and lost.reason == "reference"


def test_speech_ends_where_only_the_loudspeakers_go_on() -> None:
    (window,) = heard_with_reference(lambda number: number >= 25)
    assert isinstance(window, Window)
    assert window.speech_end_s == pytest.approx(25 * FRAME_S, abs=0.01)


def test_of_a_file_utterances_that_fit_are_one_window_with_their_pauses() -> None:
    parts = silence(100), speech(60), silence(50), speech(30), silence(25), speech(20), silence(9)
    apart, joined = Room().hear(*parts), Room(kind=JoiningSegmenter).hear(*parts)
    assert joined.found == []
    apart.found += apart.segmenter.flush()
    joined.found += joined.segmenter.flush()
    first, *_, last = apart.windows()
    (window,) = joined.windows()
    sound = np.concatenate([samples for part in parts for samples in part])
    begin = round(window.start_s * SAMPLE_RATE)
    assert np.array_equal(window.samples, sound[begin : begin + len(window.samples)])
    assert (window.start_s, window.speech_end_s) == (first.start_s, last.speech_end_s)
    assert window.voiced_s == pytest.approx(sum(one.voiced_s for one in apart.windows()))
    assert (window.index, window.last) == (1, True)


def test_of_a_file_what_does_not_fit_is_a_window_of_its_own() -> None:
    parts = silence(30), speech(150), silence(50), speech(150), silence(50), speech(100)
    room = Room(kind=JoiningSegmenter).hear(*parts, silence(30), speech(380), silence(40))
    _, second, *cut = room.windows()
    assert second.duration_s == pytest.approx(9.69)
    assert [(one.index, one.last) for one in cut] == [(1, False)]
    room.found = room.segmenter.flush()
    (rest,) = room.windows()
    assert (rest.utterance_id, rest.index, rest.last) == (cut[0].utterance_id, 2, True)


def test_nothing_is_held_back_while_somebody_waits_for_it() -> None:
    room = Room(kind=JoiningSegmenter).hear(speech(30), silence(30))
    assert room.found == []
    assert isinstance(room.segmenter, JoiningSegmenter)
    room.segmenter.joins = False
    room.hear(silence(1))
    assert len(room.windows()) == 1
    room.hear(speech(30), silence(20))
    assert len(room.windows()) == 2
