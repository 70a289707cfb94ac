"""Partial texts: what somebody says, transcribed while it is said, for whoever wants to see it.

While speech goes on, the window so far is transcribed once a second, if the encoder and the decoder
have nothing else to do; the guess of an utterance's end gives an `eager` one. The rule that readers
rely on: the transcript of a window has the text of its last eager partial, unless a `resumed` one
came between. Nothing of it is stored, and where nobody wants it nothing is done.
"""

from __future__ import annotations

import itertools
import logging
import math
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from appliance.capture import Segmenter
from appliance.daemon.backlog import Guess, Request
from appliance.daemon.transcription import Listener
from appliance.infer import is_unspaced
from appliance.records import Partial, Transcription, Window

log = logging.getLogger("roomscribe.daemon")

EVERY_S = 1.0
"""From one pass to the next, on the frames' clock."""
WORD_ENDS = re.compile(r"\W*(\s|$)")
"""What follows the end of a word."""


class Partials:
    """Asks for passes, and tells their texts. `follow` and `close` are the segmenter's thread's,
    `guessed` and the answers the transcriber's."""

    def __init__(
        self,
        ask: Callable[[Request], bool],
        preview: Callable[[Window, Transcription], str],
        listeners: Sequence[Listener],
    ) -> None:
        """`ask` queues a request; `preview` gives a transcription's text as the transcript would
        have it, empty where it would be discarded, and is called by the transcriber's thread."""
        self._ask, self._preview, self._listeners = ask, preview, listeners
        self._lock = threading.Lock()
        self._last: Partial | None = None
        self._eager: tuple[Guess, Partial] | None = None
        """The guess whose text was told, and may have to be withdrawn."""
        self._request: Request | None = None
        self._next_s = math.inf
        self._speaking = False

    def follow(self, segmenter: Segmenter, now_s: float) -> None:
        """After each frame, which ended at `now_s`: withdraws an eager text that holds no more, and
        asks for the next pass when that is due."""
        if self._eager and not self._eager[0].wanted:
            self._settle()
        if segmenter.speaking != self._speaking:
            self._speaking = segmenter.speaking
            self._next_s = now_s + EVERY_S if self._speaking else math.inf
        if segmenter.guess:
            self._forget()
            return
        due = now_s >= self._next_s and not self._waiting() and self._wanted()
        if due and (window := segmenter.so_far()):
            self._next_s = now_s + EVERY_S
            self._pass(window)

    def close(self) -> None:
        """Before a window, or an utterance that is discarded, is handed on: of it no partial comes
        any more. A guess that did not come true is no longer `wanted` by then."""
        self._forget()
        self._settle()

    def guessed(self, guess: Guess) -> None:
        """A guess was transcribed, or was not: tells its text, if it still is likely to come."""
        if not (guess.wanted and guess.transcription and self._wanted()):
            return
        text = self._preview(guess.window, guess.transcription)
        with self._lock:
            if text and guess.wanted:
                self._eager = guess, self._tell(self._said(guess.window, text, eager=True))

    def _wanted(self) -> bool:
        return any(one.wants_partials for one in self._listeners)

    def _waiting(self) -> bool:
        """True while a pass is asked for and was neither answered nor given up."""
        return bool(self._request and self._request.wanted)

    def _pass(self, window: Window) -> None:
        """Asks for a transcription of the window so far."""
        request = Request(window, lambda result: self._answered(request, result), idle=True)
        self._request = request if self._ask(request) else None

    def _answered(self, request: Request, result: Transcription | Exception) -> None:
        """What became of a pass. Nothing new is not told."""
        text = ""
        if isinstance(result, Exception):
            log.info("a partial text could not be transcribed: %s", result)
        else:
            text = self._preview(request.window, result)
        with self._lock:
            if not request.wanted:
                return
            request.wanted = False
            if text:
                said = self._said(request.window, text)
                if not self._last or replace(said, rev=self._last.rev) != self._last:
                    self._tell(said)

    def _forget(self) -> None:
        """Nobody needs the pass any more: its text is not told after this."""
        with self._lock:
            if self._request:
                self._request.wanted = False
                self._request = None

    def _settle(self) -> None:
        """An eager text whose guess holds no more is withdrawn; one that came true stays."""
        with self._lock:
            if self._eager and not self._eager[0].wanted:
                said = self._eager[1]
                self._tell(replace(said, rev=said.rev + 1, eager=False, resumed=True))
            self._eager = None

    def _said(self, window: Window, text: str, *, eager: bool = False) -> Partial:
        """The next revision."""
        last = self._last
        if last and last.utterance_id != window.utterance_id:
            last = None
        before = last.text if last and last.window == window.index else ""
        return Partial(
            window.utterance_id,
            window.index,
            last.rev + 1 if last else 1,
            text,
            stable_chars(before, text),
            eager=eager,
            continues=window.continues,
        )

    def _tell(self, said: Partial) -> Partial:
        """Tells the listeners; with the lock, so that they get the revisions in order."""
        self._last = said
        for listener in self._listeners:
            listener.partial(said)
        return said


def stable_chars(before: str, text: str) -> int:
    """The length of what two hypotheses have in common at their beginning, up to the end of a word
    of both; in scripts without spaces each letter is a word."""
    pairs = zip(before, text, strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    if not is_unspaced(text):
        while same and not all(WORD_ENDS.match(one, same) for one in (before, text)):
            same -= 1
    return len(text[:same].rstrip())
