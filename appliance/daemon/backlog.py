"""Windows that wait to be transcribed: a bounded queue in the order in which they were spoken, and
the lease under which one of them is handed out; and the window that is likely to come next, a
guess, which may be transcribed ahead while nothing waits; and, when that is done, too, requests of
others.

Few samples are in memory: those of the others are in the spool until their turn comes. When too
much waits, the oldest window is dropped; the newest speech matters most in a house.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from appliance.config import Settings
from appliance.daemon.health import Health
from appliance.daemon.spool import Spool
from appliance.errors import DeviceError
from appliance.infer import Encoded
from appliance.records import Discarded, Transcription, Window

log = logging.getLogger("roomscribe.daemon")

HELD = 4
"""So many windows at most keep their samples here although the spool has them, too."""
UNSPOOLED = 64
"""So many windows wait at most that the spool does not have."""
DEATHS = 2
"""A window that was being transcribed when so many processes died is tried apart."""
FAILURES_IN_A_ROW = 3
"""So many windows failing one after another are a broken device, not a strange sound."""
BEHIND_S = 30.0
"""More speech than this, waiting, is a trouble."""
CAUGHT_UP_S = 10.0
"""Less than this is no trouble any more."""
REQUESTS = 16
"""So many requests wait at most."""
REQUEST_LOOK_S = 0.02
"""Between two looks at requests that have to wait for the room."""
ROOM_FIRST_S = 1.0
"""While the microphone has speech, one request of others is taken in so many seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A window in the queue."""

    id: str
    utterance_id: str
    duration_s: float
    queued_s: float
    deaths: int = 0
    window: Window | None = None
    """None when it is in the spool alone."""
    spooled: bool = True
    guess: Guess | None = None
    """What is known of it already."""


@dataclass(slots=True, eq=False)
class Guess:
    """A window that an utterance may end with. In the spool like any other: should the process die
    of it, or before the utterance ends, the next start finds what was said so far."""

    window: Window
    spooled: bool
    wanted: bool = True
    """False once speech went on, and it will not come."""
    encoded: Encoded | None = None
    """What the encoder made of it; None before, and when it failed, which is no fault of the
    window: it is encoded again if it comes."""
    transcription: Transcription | None = None
    """The same of the decoder."""
    silence_ms: int = 0
    """So much silence ends its utterance, by what the text is; 0: not known."""


@dataclass(slots=True, eq=False)
class Request:
    """A window that is to be transcribed while the room's microphone has none: for somebody on the
    network, or of a sentence that goes on. It is not in the spool: who asks can ask again."""

    window: Window
    answer: Callable[[Transcription | Exception], None]
    """Called once, by the encoder's or the transcriber's thread, with the transcription or with why
    there is none; not at all when it is not wanted any more. Should not take long."""
    names: tuple[str, ...] = ()
    """Words that are likely in it, beside the home's."""
    idle: bool = False
    """True when all other requests go first, as for what is being said here."""
    ahead: bool = False
    """True when it is asked, too, whether the text is a whole sentence."""
    wanted: bool = True
    """Whoever asked may set it to False; any thread."""
    encoded: Encoded | None = None


class Lease:
    """A window whose turn has come; nobody else gets it. Any thread may call any method.

    It ends with `done`, `discard`, `set_aside` or `failed`. The window of a lease that is not
    ended, and of one that failed with others in a row, is found by the next start.
    """

    def __init__(
        self,
        backlog: Backlog,
        window: Window,
        queued_s: float,
        deaths: int,
        guess: Guess | None = None,
    ) -> None:
        """The window was queued at `queued_s` (time.monotonic()); `deaths` processes died while
        they transcribed it.
        """
        self.window, self.queued_s, self.deaths = window, queued_s, deaths
        self.guess = guess
        self.here = deaths < DEATHS or not backlog._in_process
        """True when it may be transcribed in this process."""
        self._backlog, self._spool = backlog, backlog._spool
        if self.here:
            self.try_here()

    def try_here(self) -> None:
        """Has it transcribed in this process: its death before `transcribed` is counted."""
        self.here = True
        if self._backlog._in_process:
            self._spool.begin(self.window.id)

    def transcribed(self) -> None:
        """The window waits for the store alone, and no death is its fault any more.

        What failed just before was no broken device, then, and is not tried again.
        """
        failed, self._backlog._failed = self._backlog._failed, []
        for window_id in failed:
            self._spool.done(window_id)
        self._spool.survived(self.window.id)

    def done(self) -> None:
        """The transcript is in the store, or nobody wants the window any more."""
        self._backlog._leased.discard(self.window.id)
        self._spool.done(self.window.id)

    def leave(self) -> None:
        """Nobody can transcribe the window now: the next start finds it, and no death is its
        fault."""
        self._spool.survived(self.window.id)

    def discard(self, reason: str) -> None:
        """The window gives no transcript, which is reported."""
        window = self.window
        self._backlog._discard(Discarded(reason, window.utterance_id, window.duration_s))
        self.done()

    def set_aside(self, trouble: str) -> None:
        """The window kills whatever transcribes it."""
        log.error("a window of %.1f s is set aside: %s", self.window.duration_s, trouble)
        self._backlog._health.count("set_aside")
        self.discard("set_aside")

    def failed(self, error: Exception) -> None:
        """Transcribing it failed, which is reported.

        Raises DeviceError when several windows failed here in a row.
        """
        window, backlog = self.window, self._backlog
        log.error("a window of %.1f s failed: %s", window.duration_s, error, exc_info=error)
        if not self.here:
            self.discard("failed")
            return
        # the spool keeps it until another one does not fail: were it the device, the next start
        # would try it again
        backlog._discard(Discarded("failed", window.utterance_id, window.duration_s))
        backlog._leased.discard(window.id)
        backlog._failed.append(window.id)
        if len(backlog._failed) >= FAILURES_IN_A_ROW:
            raise DeviceError(
                f"transcribing failed {len(backlog._failed)} times in a row, last with: {error}"
            ) from error


class Backlog:
    """The queue between the segmenter and the encoder. Any thread may call any method."""

    def __init__(
        self,
        settings: Settings,
        health: Health,
        discard: Callable[[Discarded], None],
        *,
        in_process: bool = True,
    ) -> None:
        """Opens the spool and begins with what was left in it; `discard` is called with each window
        that gives no transcript. Not `in_process`: no window can be what this process dies of.
        """
        self._in_process = in_process
        self._spool, self._limit = Spool.open(settings, health), settings.spool.limit_mb << 20
        self._health, self._discard = health, discard
        self._news = threading.Condition()
        now_s = time.monotonic()
        self._waiting = deque(
            _Waiting(kept.id, kept.utterance_id, kept.duration_s, now_s, kept.attempts)
            for kept in self._spool.left()
        )
        self._leased: set[str] = set()
        """Ids of the windows whose lease has not ended."""
        self._failed: list[str] = []
        """Ids of the windows that failed in a row."""
        self._guess: Guess | None = None
        """The window that is likely to come."""
        self._untaken = False
        """True until somebody takes the guess."""
        self._requests: deque[Request] = deque()
        self._request_s = -math.inf
        """When a request that is not `idle` was taken last."""
        self._ends_s = math.inf
        """When it is over even if windows wait."""
        self._complete = False
        """True when nothing will be added."""
        self._behind = self._dropping = False
        if self._waiting:
            health.count("recovered", len(self._waiting))
            log.info("%d windows were left by the process before", len(self._waiting))
        self._judge()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """True while a window of the microphone waits or is being transcribed."""
        return bool(self._waiting or self._leased)

    def guess(self, window: Window | None) -> None:
        """`window` is likely to come; None: the one before is not likely any more. One thread's,
        with `push`."""
        before = self._guess
        if window is (before.window if before else None):
            return
        if before:
            before.wanted = False
            self._spool.done(before.window.id)
        if window is None:
            self._guess = None
            return
        spooled = self._spool.put(window)
        with self._news:
            self._guess, self._untaken = Guess(window, spooled), True
            self._news.notify()

    def settle(self, window_id: str) -> None:
        """The window of this id is about to be pushed, or ("") none: a guess of any other is not
        likely any more. As `guess`."""
        if self._guess and self._guess.window.id != window_id:
            self.guess(None)

    def expected(self) -> tuple[str, int] | None:
        """Id of the guess and the silence, ms, that ends its utterance, once its text has told. The
        thread's of `guess`."""
        guess = self._guess
        return (guess.window.id, guess.silence_ms) if guess and guess.silence_ms else None

    def push(self, window: Window) -> None:
        """Keeps a window over a crash, then queues it; drops the oldest of too many."""
        guess = self._guess if self._guess and self._guess.window.id == window.id else None
        spooled = bool(guess and guess.spooled and guess.window.flags == window.flags)
        if not spooled:
            self._spool.done(window.id)
            spooled = self._spool.put(window)
        with self._news:
            self._guess = None if guess else self._guess
            held = sum(1 for one in self._waiting if one.window) < HELD
            self._waiting.append(
                _Waiting(
                    window.id,
                    window.utterance_id,
                    window.duration_s,
                    time.monotonic(),
                    window=window if held or not spooled else None,
                    spooled=spooled,
                    guess=guess,
                )
            )
            dropped = self._surplus()
            self._news.notify()
        for one in dropped:
            if not self._dropping:
                self._dropping = True
                log.error("too much speech waits to be transcribed: the oldest is dropped")
            self._health.count("lost_overload")
            self._discard(Discarded("overload", one.utterance_id, one.duration_s))
        self._judge()

    def take(self, timeout_s: float) -> Lease | None:
        """The oldest window, whose transcription begins now; None when none came for a while, or
        there is a guess or a request."""
        with self._news:
            if not (self._waiting or self._untaken or self._requests or self.over):
                self._news.wait(timeout_s)
            if not self._waiting or self.over:
                return None
            one = self._waiting.popleft()
            self._leased.add(one.id)
        self._judge()
        window = one.window or self._spool.load(one.id)
        if window:
            return Lease(self, window, one.queued_s, one.deaths, one.guess)
        self._leased.discard(one.id)
        self._spool.done(one.id)
        self._discard(Discarded("failed", one.utterance_id, one.duration_s))
        return None

    def complete(self, within_s: float = math.inf) -> None:
        """Nothing follows; what still waits after `within_s` is left to the next start."""
        with self._news:
            self._complete = True
            self._ends_s = min(self._ends_s, time.monotonic() + within_s)
            self._news.notify_all()

    @property
    def over(self) -> bool:
        """True when no more windows are to be taken."""
        return self._complete and (not self._waiting or self.out_of_time)

    @property
    def out_of_time(self) -> bool:
        """True when what still waits is left to the next start."""
        return time.monotonic() >= self._ends_s

    def lost(self) -> int:
        """How many windows, waiting or leased, would be lost with the process."""
        kept = {one.id for one in self._spool.left()}
        with self._news:
            return len({*self._leased, *(one.id for one in self._waiting)} - kept)

    def close(self) -> None:
        """Says what the next start finds, and what nobody will; closes the spool."""
        if left := len(self._spool.left()):
            log.info("%d windows are left to the next start", left)
        if lost := self.lost():
            log.error("stopped with %d windows untranscribed or transcripts unstored", lost)
        self._spool.close()
        with self._news:
            left_requests = [one for one in self._requests if one.wanted]
            self._requests.clear()
        for request in left_requests:
            request.answer(DeviceError("roomscribe is stopping"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take_guess(self) -> Guess | None:
        """The guess, which may be transcribed ahead; once, and None while windows wait."""
        with self._news:
            if self._waiting or not self._untaken:
                return None
            guess, self._untaken = self._guess, False
        if guess:
            if self._in_process:
                self._spool.begin(guess.window.id)
            self._health.count("guesses")
        return guess

    def survived(self, guess: Guess) -> None:
        """No death is the guess's fault any more; it waits for its utterance to end."""
        self._spool.survived(guess.window.id)

    def ask(self, request: Request) -> bool:
        """Queues a request; False when too many wait, or nothing more is transcribed."""
        with self._news:
            self._requests = deque(one for one in self._requests if one.wanted)
            if self._complete or len(self._requests) >= REQUESTS:
                return False
            self._requests.append(request)
            self._news.notify()
        return True

    def take_request(self, *, room_first: bool = False) -> Request | None:
        """The oldest request that is still wanted, those that are not `idle` first; None while
        windows or a guess wait.

        With `room_first` one of the others is taken in ROOM_FIRST_S, so that all of them are taken
        at last. Waits some milliseconds if there is nothing else to take.
        """
        with self._news:
            if self._waiting or self._untaken:
                return None
            wanted = [one for one in self._requests if one.wanted]
            early = room_first and time.monotonic() - self._request_s < ROOM_FIRST_S
            ready = [one for one in wanted if one.idle or not early]
            first = min(ready, key=lambda one: one.idle, default=None)
            self._requests = deque(one for one in wanted if one is not first)
            if first and not first.idle:
                self._request_s = time.monotonic()
            elif wanted and not first:
                self._news.wait(REQUEST_LOOK_S)
        return first

    def _surplus(self) -> list[_Waiting]:
        """Takes out the oldest windows until the rest is within the limits."""
        unspooled = [one for one in self._waiting if not one.spooled]
        dropped = unspooled[: max(0, len(unspooled) - UNSPOOLED)]
        size = self._spool.size
        for one in self._waiting if size > self._limit else ():
            while self._spool.size > self._limit and self._spool.release():
                pass
            if self._spool.size <= self._limit:
                break
            if one.spooled:
                self._spool.done(one.id)
                dropped.append(one)
        for one in dropped:
            self._waiting.remove(one)
        return dropped

    def _judge(self) -> None:
        """Says so when the appliance falls behind, and when it has caught up."""
        with self._news:
            waiting_s = sum(one.duration_s for one in self._waiting)
            number = len(self._waiting)
            was, bound_s = self._behind, CAUGHT_UP_S if self._behind else BEHIND_S
            behind = self._behind = waiting_s > bound_s
            self._dropping = self._dropping and behind
        if behind == was:
            return
        if behind:
            log.warning("%d windows wait (%.0f s of speech): we are behind", number, waiting_s)
        else:
            log.info("caught up: %d windows wait", number)
        self._health.trouble(
            "backlog",
            f"more than {BEHIND_S:.0f} s of speech wait: it comes faster than it can be "
            f"transcribed; {'a smaller model' if self._in_process else 'a faster server'} helps"
            if behind
            else None,
        )
