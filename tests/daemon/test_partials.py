"""What of a window is told while it is spoken, and what is withdrawn."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest
from rigs.speaking import Account
from rigs.transcriber import HEARD
from rigs.windows import a_window

from appliance.capture.segmenter import Segmenter
from appliance.daemon.backlog import Work
from appliance.daemon.partials import EVERY_S, Partials, stable_chars
from appliance.infer.request import Deliver, Request
from appliance.records import Transcription, Window


class OpenUtterance:
    """A segmenter in whose utterance somebody speaks."""

    def __init__(self, utterance_id: str = "") -> None:
        self.speaking = True
        self.speculative_window: Window | None = None
        self.window = a_window(utterance_id, last=False)

    def so_far(self) -> Window | None:
        return self.window


def speculation(window: Window, transcription: Transcription | None) -> Work:
    return Work(Request(window), transcription=transcription)


class Rig:
    """Partial texts, on a clock of their own, of an utterance that goes on."""

    def __init__(self) -> None:
        self.account = Account()
        self.asked: list[Work] = []
        self.room = False
        """True when no more requests are taken."""
        self.discarded = False
        self.meanwhile: Callable[[], object] = lambda: None
        """What another thread does while a text is looked at."""
        self.partials = Partials(self.ask, self.preview, self.account)
        self.segmenter = OpenUtterance()
        self.now_s = 100.0
        self.hear()

    def ask(self, request: Request, deliver: Deliver) -> Work | None:
        if self.room:
            return None
        self.asked.append(Work(request, deliver))
        return self.asked[-1]

    def preview(self, _window: Window, result: Transcription) -> str:
        self.meanwhile()
        return "" if self.discarded else result.text

    def hear(self, seconds: float = 0.0) -> None:
        """Speech goes on for so long."""
        self.now_s += seconds
        self.partials.follow(cast(Segmenter, self.segmenter), self.now_s)

    def answer(self, found: str | Exception) -> None:
        """The oldest pass is done."""
        work = self.asked.pop(0)
        if work.wanted and work.deliver:
            result = replace(HEARD, text=found) if isinstance(found, str) else found
            work.deliver(work.request, result)

    def guess(self, text: str = "turn on the light") -> Work:
        """Silence, and what an utterance that ends there would say."""
        self.segmenter.speculative_window = window = replace(self.segmenter.window, last=True)
        self.hear()
        found = speculation(window, replace(HEARD, text=text))
        self.partials.publish_eager(found)
        return found

    @property
    def told(self) -> list[tuple[int, str, str]]:
        kinds = {(True, False): "eager", (False, True): "resumed", (False, False): ""}
        return [(one.rev, one.text, kinds[one.eager, one.resumed]) for one in self.account.partials]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_pass_is_asked_for_once_a_second_and_never_two_at_once(rig: Rig) -> None:
    rig.hear(EVERY_S - 0.1)
    assert rig.asked == []
    rig.hear(0.1)
    assert [work.request.partial for work in rig.asked] == [True]
    rig.hear(3 * EVERY_S)
    assert len(rig.asked) == 1, "the first is not answered"
    rig.answer("turn")
    rig.hear()
    assert len(rig.asked) == 1
    rig.answer("turn on")
    assert rig.told == [(1, "turn", ""), (2, "turn on", "")]
    assert [one.stable_chars for one in rig.account.partials] == [0, 4]


def test_a_pass_that_nobody_does_is_asked_for_again(rig: Rig) -> None:
    rig.hear(EVERY_S)
    rig.asked.pop().wanted = False  # the decoder had enough to do
    rig.hear(EVERY_S)
    assert len(rig.asked) == 1
    rig.asked.clear()
    rig.partials.close()
    rig.room = True
    rig.hear(EVERY_S)
    rig.room = False
    rig.hear(EVERY_S)
    assert len(rig.asked) == 1, "too many waited for the one before"


def test_what_is_no_news_or_nothing_is_not_told(rig: Rig) -> None:
    for text in ("turn on", "turn on", "turn on"):
        rig.hear(EVERY_S)
        rig.answer(text)
    # the second says that all of it is stable
    assert [one.stable_chars for one in rig.account.partials] == [0, 7]
    rig.discarded = True
    rig.hear(EVERY_S)
    rig.answer("thank you")
    assert rig.guess().transcription
    assert len(rig.told) == 2


def test_a_failed_pass_is_not_told(rig: Rig) -> None:
    rig.hear(EVERY_S)
    rig.answer(RuntimeError("the encoder is gone"))
    assert rig.told == []
    rig.hear(EVERY_S)
    assert len(rig.asked) == 1


def test_an_eager_text_stands_when_the_utterance_ends_with_it(rig: Rig) -> None:
    rig.guess()
    rig.partials.close()
    rig.segmenter.speaking = False
    rig.segmenter.speculative_window = None
    rig.hear(EVERY_S)
    assert rig.told == [(1, "turn on the light", "eager")]


@pytest.mark.parametrize("close", [False, True], ids=["speech goes on", "it ends otherwise"])
def test_an_eager_text_is_withdrawn_when_it_does_not_hold(rig: Rig, close: bool) -> None:
    guess = rig.guess()
    guess.wanted = False
    rig.segmenter.speculative_window = None
    if close:
        rig.partials.close()
    rig.hear()
    rig.hear()
    assert rig.told == [(1, "turn on the light", "eager"), (2, "turn on the light", "resumed")]
    rig.guess("turn on the light in the hall")
    assert rig.told[2:] == [(3, "turn on the light in the hall", "eager")]


def test_a_guess_that_came_too_late_is_not_told(rig: Rig) -> None:
    guess = rig.guess()
    guess.wanted = False
    rig.partials.publish_eager(guess)
    rig.partials.publish_eager(speculation(guess.window, None))
    assert len(rig.told) == 1


def test_nothing_is_told_of_what_ends_just_then(rig: Rig) -> None:
    """By another thread, while this one looks at the text."""
    guess = speculation(rig.segmenter.window, HEARD)
    rig.meanwhile = lambda: setattr(guess, "wanted", False)
    rig.partials.publish_eager(guess)
    rig.hear(EVERY_S)
    rig.meanwhile = rig.partials.close
    rig.answer("turn")
    assert rig.told == []


def test_a_pass_is_given_up_for_a_speculation_and_at_the_windows_end(rig: Rig) -> None:
    rig.hear(EVERY_S)
    rig.guess()
    rig.answer("turn")
    assert rig.told == [(1, "turn on the light", "eager")]
    rig.segmenter.speculative_window = None
    rig.hear(EVERY_S)
    rig.partials.close()
    rig.answer("turn")
    assert len(rig.told) == 1


def test_another_window_begins_anew_and_another_utterance_counts_anew(rig: Rig) -> None:
    for index, text in ((1, "turn on the light"), (2, "turn on the light"), (2, "turn on the")):
        rig.segmenter.window = replace(rig.segmenter.window, index=index)
        rig.hear(EVERY_S)
        rig.answer(text)
    assert [one.window for one in rig.account.partials] == [1, 2, 2]
    assert [one.stable_chars for one in rig.account.partials] == [0, 0, 11]
    first, rig.segmenter = rig.segmenter, OpenUtterance("another")
    rig.segmenter.window = replace(rig.segmenter.window, continues=first.window.utterance_id)
    rig.hear(EVERY_S)
    rig.answer("in the hall")
    newest = rig.account.partials[-1]
    assert (newest.utterance_id, newest.rev, newest.stable_chars) == ("another", 1, 0)
    assert newest.continues == first.window.utterance_id


def test_nothing_is_asked_for_or_told_where_nobody_wants_it(rig: Rig) -> None:
    rig.account.wants_partials = False
    rig.hear(2 * EVERY_S)
    rig.guess()
    assert (rig.asked, rig.told) == ([], [])


@pytest.mark.parametrize(
    ("before", "text", "stable"),
    [
        ("", "turn on", ""),
        ("turn on", "turn on the light", "turn on"),
        ("turn on", "turn once", "turn"),
        ("Turn on.", "Turn on the light.", "Turn on"),
        ("turn on, please", "turn on the light", "turn on"),
        ("don't", "don'x", ""),
        ("I don't", "I don't know", "I don't"),
        ("turn off", "turn on", "turn"),
        ("light", "lights", ""),
        ("turn on the light", "turn on the light", "turn on the light"),
        ("電気をつ", "電気をつけて", "電気をつ"),
        ("Grüße an", "Grüße ans", "Grüße"),
    ],
)
def test_stable_is_what_two_texts_have_in_common_up_to_the_end_of_a_word(
    before: str, text: str, stable: str
) -> None:
    assert text[: stable_chars(before, text)] == stable
