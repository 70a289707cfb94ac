"""Partial results: the text of a window while somebody is still speaking it.

During speech the window so far is transcribed once a second, if the encoder and the decoder have
nothing else to do. A speculation gives an `eager` partial. Subscribers rely on this rule: the
transcript of a window has the text of its last eager partial, unless a `resumed` one came between.
Partials are never stored, and without a subscriber nothing is computed.
"""

import itertools
import logging
import math
import re
import threading
from collections.abc import Callable
from dataclasses import replace

from appliance.capture import Segmenter
from appliance.daemon.backlog import Work
from appliance.infer import Deliver, Request, is_unspaced
from appliance.records import Listener, Partial, Transcription, Window

log = logging.getLogger("roomscribe.daemon")

EVERY_S = 1.0
"""Seconds from one pass to the next, on the frames' clock."""
WORD_ENDS = re.compile(r"\W*(\s|$)")
"""Matches at the end of a word."""


class Partials:
    """Requests passes and publishes their texts.

    The segmenter's thread calls `follow` and `close`, the transcriber's thread `publish_eager`, and
    it delivers the passes.
    """

    def __init__(
        self,
        submit: Callable[[Request, Deliver], Work | None],
        preview: Callable[[Window, Transcription], str],
        bus: Listener,
    ) -> None:
        """`submit` queues a request. `preview` returns the text that would be stored, empty if it
        would be discarded; the transcriber's thread calls it."""
        self._submit, self._preview, self._bus = submit, preview, bus
        self._lock = threading.Lock()
        self._last: Partial | None = None
        self._eager: tuple[Work, Partial] | None = None
        """The speculation whose text was published, and may have to be withdrawn."""
        self._pass: Work | None = None
        self._next_s = math.inf
        self._speaking = False

    def follow(self, segmenter: Segmenter, now_s: float) -> None:
        """Withdraw an eager text that does not hold any more, and request the next pass if it is
        due. Call after each frame, which ended at `now_s`."""
        if self._eager and not self._eager[0].wanted:
            self._settle_eager()
        if segmenter.speaking != self._speaking:
            self._speaking = segmenter.speaking
            self._next_s = now_s + EVERY_S if self._speaking else math.inf
        if segmenter.speculative_window:
            self._cancel_pass()
            return
        waits = self._pass and self._pass.wanted
        due = now_s >= self._next_s and not waits and self._bus.wants_partials
        if due and (window := segmenter.so_far()):
            self._next_s = now_s + EVERY_S
            with self._lock:  # its text may come before it is known here
                self._pass = self._submit(Request(window, partial=True), self._deliver)

    def close(self) -> None:
        """Publish no more partials of this window. Call before it is pushed or its utterance is
        discarded, and after a speculation that did not come true was cancelled."""
        self._cancel_pass()
        self._settle_eager()

    def publish_eager(self, work: Work) -> None:
        """Publish the text of a speculation that was transcribed and is still wanted."""
        if not (work.wanted and work.transcription and self._bus.wants_partials):
            return
        text = self._preview(work.window, work.transcription)
        with self._lock:
            if text and work.wanted:
                self._eager = work, self._publish(self._revision(work.window, text, eager=True))

    def _deliver(self, request: Request, result: Transcription | Exception) -> None:
        """Publish the text of a pass, unless nothing in it is new."""
        text = ""
        if isinstance(result, Exception):
            log.info("a partial text could not be transcribed: %s", result)
        else:
            text = self._preview(request.window, result)
        with self._lock:
            if not (self._pass and self._pass.wanted and self._pass.request is request):
                return
            self._pass.cancel()
            if text:
                partial = self._revision(request.window, text)
                if not self._last or replace(partial, rev=self._last.rev) != self._last:
                    self._publish(partial)

    def _cancel_pass(self) -> None:
        """Cancel the pass: its text is not published after this."""
        with self._lock:
            if self._pass:
                self._pass.cancel()
                self._pass = None

    def _settle_eager(self) -> None:
        """Withdraw an eager text if its speculation does not hold; keep one that came true."""
        with self._lock:
            if self._eager and not self._eager[0].wanted:
                partial = self._eager[1]
                self._publish(replace(partial, rev=partial.rev + 1, eager=False, resumed=True))
            self._eager = None

    def _revision(self, window: Window, text: str, *, eager: bool = False) -> Partial:
        """Return the next revision of the utterance's text."""
        last = self._last
        if last and last.utterance_id != window.utterance_id:
            last = None
        before = last.text if last and last.window == window.index else ""
        return Partial(
            window.utterance_id, window.index, last.rev + 1 if last else 1, text,
            stable_chars(before, text), eager=eager, continues=window.continues,
        )  # fmt: skip

    def _publish(self, partial: Partial) -> Partial:
        """Give a revision to the listeners. The lock is held, so that they come in order."""
        self._last = partial
        self._bus.on_partial(partial)
        return partial


def stable_chars(before: str, text: str) -> int:
    """Return the length of the common beginning of two texts, up to the end of a word of both; in
    scripts without spaces each letter is a word."""
    pairs = zip(before, text, strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    if not is_unspaced(text):
        while same and not all(WORD_ENDS.match(side, same) for side in (before, text)):
            same -= 1
    return len(text[:same].rstrip())
