"""Windows that wait to be transcribed, in the order in which they were spoken.

A window is leased to one owner at a time. While no window waits, the encoder may take the
speculation, which is the window that is likely to come next, and after that the requests of others.

Few samples are in memory: those of most windows are in the spool until their turn comes. When too
much waits, the oldest window is dropped, because the newest speech matters most in a home.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from appliance.config import Settings
from appliance.daemon.health import Health
from appliance.daemon.spool import Spool
from appliance.errors import DeviceError
from appliance.infer import Deliver, Encoded, Pending, Request
from appliance.records import Discarded, Listener, Transcription, Window
from appliance.system import Closing

log = logging.getLogger("roomscribe.daemon")

SAMPLES_IN_MEMORY = 4
"""Waiting windows that keep their samples here although the spool has them, too."""
UNSPOOLED_LIMIT = 64
"""Windows that may wait without being in the spool."""
DEATHS = 3
"""A window during whose transcription a process ended is a suspect: it is leased while no other
window is, so that none is set aside for another one's fault. After so many deaths the device may be
broken: the suspect waits until another window is transcribed, is tried once more, and is set aside
if the process ends again."""
FAILURES_IN_A_ROW = 3
"""So many windows failing one after another mean a broken device, not a strange sound."""
BEHIND_S = 30.0
"""More waiting speech than this is a problem."""
CAUGHT_UP_S = 10.0
"""Less than this ends the problem."""
REQUEST_LIMIT = 16
"""Requests that may wait."""
REQUEST_POLL_S = 0.02
"""Between two checks of requests that have to wait for the room, and of windows that have to be
alone."""
ROOM_FIRST_S = 1.0
"""While somebody speaks to the microphone, one request of others is taken in this time."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Work(Pending):
    """A request on its way through encoder and decoder, and what changes meanwhile.

    The encoder's thread encodes it, then the transcriber's thread decodes it.
    """

    request: Request
    deliver: Deliver | None = None
    """Gets the result of a request from elsewhere."""
    lease: Lease | None = None
    """Of a window of the microphone. Work without `deliver` and `lease` is a speculation."""
    decided: Callable[[Work, Transcription], object] = lambda *_: None
    """Called by `on_text`."""
    must_hurry: Callable[[], bool] = lambda: True
    """While it returns True, no search takes the decoder's time."""
    encoded: Encoded | Transcription | Exception | None = None
    """Encoder states; or the transcription, if another process or machine made it; or why there is
    neither; None before it is encoded."""
    transcription: Transcription | None = None
    """The decoder's result, of a speculation."""
    silence_ms: int = 0
    """Silence that ends the utterance of a speculation; 0 until that is known."""

    @property
    def window(self) -> Window:
        """The window to transcribe."""
        return self.request.window

    def has_time(self) -> bool:
        """Return True while a search for a better text may go on."""
        return not self.must_hurry()

    def on_text(self, result: Transcription) -> None:
        """Take in the first text, before any other work, and each later one that differs."""
        self.decided(self, result)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A window in the queue."""

    id: str
    utterance_id: str
    duration_s: float
    queued_s: float
    deaths: int = 0
    window: Window | None = None
    """None if only the spool has it."""
    spooled: bool = True
    speculation: Work | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Books:
    """What a backlog keeps of its leases."""

    spool: Spool
    bus: Listener
    on_transcribed: Callable[[], object]
    leased: set[str] = field(default_factory=set)
    """Ids of the windows whose lease has not ended."""
    failed: list[str] = field(default_factory=list)
    """Ids of the windows that failed in a row."""

    def discard(self, window: Window | _Waiting, reason: str) -> None:
        """Report that a window gives no transcript."""
        self.bus.on_discarded(Discarded(reason, window.utterance_id, window.duration_s))


@dataclass(slots=True, eq=False)
class Lease:
    """The exclusive right to process a window. Any thread may call any method.

    It ends with `finish`, `discard` or `fail`. The next start finds the window of a lease that has
    not ended (`keep_for_next_start`), and of one that failed together with others in a row.
    """

    window: Window
    queue_ms: float
    """How long it waited."""
    speculation: Work | None
    """The speculation that came true with this window; its result is used."""
    _books: _Books

    def mark_transcribed(self) -> None:
        """Note that the window only waits for the store, so no later death is its fault.

        Windows that failed just before did not meet a broken device, and are not tried again.
        """
        books = self._books
        while books.failed:
            books.spool.delete(books.failed.pop())
        books.spool.mark_survived(self.window.id)
        books.on_transcribed()

    def finish(self) -> None:
        """End the lease: the transcript is stored, or nobody wants the window any more."""
        self._books.leased.discard(self.window.id)
        self._books.spool.delete(self.window.id)

    def keep_for_next_start(self) -> None:
        """Leave the window to the next start: nobody can transcribe it now, which no death
        explains."""
        self._books.spool.mark_survived(self.window.id)

    def discard(self, reason: str) -> None:
        """End the lease without a transcript, and report why."""
        self._books.discard(self.window, reason)
        self.finish()

    def fail(self, error: Exception) -> None:
        """End the lease of a window whose transcription raised `error`, and report it.

        Raises DeviceError when several windows failed in a row.
        """
        window, books = self.window, self._books
        log.error("a window of %.1f s failed: %s", window.duration_s, error, exc_info=error)
        # The spool keeps it until another window succeeds: if the device is broken, the next start
        # tries it again.
        books.discard(window, "failed")
        books.leased.discard(window.id)
        books.failed.append(window.id)
        if len(books.failed) >= FAILURES_IN_A_ROW:
            raise DeviceError(
                f"transcribing failed {len(books.failed)} times in a row, last with: {error}"
            ) from error


class Backlog(Closing, Listener):
    """The queue between the segmenter and the encoder. Any thread may call any method."""

    def __init__(
        self,
        settings: Settings,
        health: Health,
        bus: Listener,
        *,
        in_process: bool = True,
        is_stored: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Open the spool and queue what it holds.

        `bus` gets each window that gives no transcript. If not `in_process`, windows are
        transcribed elsewhere, and no window can kill this process. `is_stored` tells whether
        the log has the transcript of a window: a process that died right after storing it left
        the window in the spool. Without that check a deleted transcript could come back.
        """
        self._in_process = in_process
        self._spool, self._limit = Spool.open(settings, health), settings.spool.limit_mb << 20
        self._health, self._books = health, _Books(self._spool, bus, self._retry_postponed)
        self._news = threading.Condition()
        now_s = time.monotonic()
        for kept in self._spool.windows():
            if is_stored(kept.id):
                self._spool.delete(kept.id)
        self._waiting = deque(
            _Waiting(kept.id, kept.utterance_id, kept.duration_s, now_s, kept.deaths)
            for kept in self._spool.windows()
        )
        self._postponed: list[_Waiting] = []
        """Windows of DEATHS deaths, which wait until another one is transcribed."""
        self._has_transcribed = self._speaking = False
        """Whether this process has transcribed a window; whether somebody speaks."""
        self._alone = False
        """Whether the window that was leased last is a suspect."""
        self._speculation: Work | None = None
        self._speculation_spooled = self._speculation_new = False
        """Whether the spool has it; whether nobody has taken it."""
        self._requests: deque[Work] = deque()
        self._request_s = -math.inf
        """When a request that is no partial was last taken."""
        self._ends_s = math.inf
        """When the queue ends even if windows wait."""
        self._complete = False
        """True if nothing more will be added."""
        self._behind = self._dropping = False
        if self._waiting:
            health.count("recovered", len(self._waiting))
            log.info("windows left over from the previous run: %d", len(self._waiting))
        self._report_delay()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_busy(self) -> bool:
        """True while a window of the microphone waits or is being transcribed."""
        return bool(self._waiting or self._books.leased)

    @property
    def is_room_busy(self) -> bool:
        """True while somebody speaks to the microphone, or that is being transcribed."""
        return self._speaking or self.is_busy

    @property
    def is_awaited(self) -> bool:
        """True while a speculation, or a window behind the one in work, is to be transcribed."""
        return bool(self._waiting or self._speculation) or len(self._books.leased) > 1

    def on_speech(self, speaking: bool) -> None:
        """Let the requests of others wait while someone speaks."""
        self._speaking = speaking

    def speculate(self, window: Window | None, make: Callable[[Window], Work]) -> None:
        """Offer the window with which the utterance may end, as the work that `make` makes of it;
        None withdraws the one before. Only the thread that calls `push`."""
        if window is (self._speculation.window if self._speculation else None):
            return
        self.withdraw_speculation()
        if window is None:
            return
        self._speculation_spooled = self._spool.put(window)
        with self._news:
            self._speculation, self._speculation_new = make(window), True
            self._news.notify()

    def withdraw_speculation(self, unless_id: str = "") -> None:
        """Cancel the speculation, unless it is this window, which is about to be pushed. Only the
        thread that calls `push`."""
        work = self._speculation
        if work and work.window.id != unless_id:
            self._speculation = None
            work.cancel()
            self._spool.delete(work.window.id)

    def end_silence(self) -> tuple[str, int] | None:
        """Return the speculation's id and the silence in ms that ends its utterance, once its text
        has decided that. Only the thread that calls `push`."""
        work = self._speculation
        return (work.window.id, work.silence_ms) if work and work.silence_ms else None

    def push(self, window: Window) -> None:
        """Save a window in the spool and queue it; drop the oldest ones if too many wait."""
        work = self._speculation
        work = work if work and work.window.id == window.id else None
        spooled = bool(work and self._speculation_spooled and work.window.flags == window.flags)
        if not spooled:
            self._spool.delete(window.id)
            spooled = self._spool.put(window)
        with self._news:
            self._speculation = None if work else self._speculation
            in_memory = sum(1 for waiting in self._waiting if waiting.window) < SAMPLES_IN_MEMORY
            kept = window if in_memory or not spooled else None
            fields = window.id, window.utterance_id, window.duration_s, time.monotonic()
            self._waiting.append(_Waiting(*fields, window=kept, spooled=spooled, speculation=work))
            dropped = self._remove_surplus()
            self._news.notify()
        for waiting in dropped:
            if not self._dropping:
                self._dropping = True
                log.error("too much speech waits to be transcribed: dropping the oldest")
            self._health.count("lost_overload")
            self._books.discard(waiting, "overload")
        self._report_delay()

    def take_window(self, timeout_s: float) -> Lease | None:
        """Lease the oldest window. Return None if none came before the time, a speculation or a
        request did, and for a suspect (DEATHS) that has to wait or is set aside. A death of this
        process before the lease's `mark_transcribed` counts."""
        with self._news:
            if not (self._waiting or self._speculation_new or self._requests or self.is_over):
                self._news.wait(timeout_s)
            if not self._waiting or self.is_over:
                return None
            if self._books.leased and (self._alone or self._waiting[0].deaths):
                self._news.wait(REQUEST_POLL_S)
                return None
            oldest = self._waiting.popleft()
            if oldest.deaths == DEATHS and self._in_process and not self._has_transcribed:
                log.error("%d processes ended with a window of %.1f s", DEATHS, oldest.duration_s)
                self._postponed.append(oldest)
                return None
            self._alone = oldest.deaths > 0
            self._books.leased.add(oldest.id)
        self._report_delay()
        window = oldest.window or self._spool.load(oldest.id)
        is_deadly = oldest.deaths > DEATHS and self._in_process
        if not window or is_deadly:
            if window:
                what = (
                    "a window of %.1f s is set aside: %d processes ended while they transcribed it"
                )
                log.error(what, window.duration_s, oldest.deaths)
                self._health.count("set_aside")
            self._books.leased.discard(oldest.id)
            self._spool.delete(oldest.id)
            self._books.discard(oldest, "set_aside" if window else "failed")
            return None
        if self._in_process:
            self._spool.begin(window.id)
        queue_ms = (time.monotonic() - oldest.queued_s) * 1000
        return Lease(window, queue_ms, oldest.speculation, self._books)

    def complete(self, within_s: float = math.inf) -> None:
        """Accept nothing more; leave what still waits after `within_s` to the next start."""
        with self._news:
            self._complete = True
            self._ends_s = min(self._ends_s, time.monotonic() + within_s)
            self._news.notify_all()

    @property
    def is_over(self) -> bool:
        """True if no more windows are to be taken."""
        return self._complete and (not self._waiting or self.is_out_of_time)

    @property
    def is_out_of_time(self) -> bool:
        """True if what still waits is left to the next start."""
        return time.monotonic() >= self._ends_s

    def count_lost(self) -> int:
        """Return the number of windows, waiting or leased, that would be lost with the process."""
        spooled = {kept.id for kept in self._spool.windows()}
        with self._news:
            return len({*self._books.leased, *(waiting.id for waiting in self._waiting)} - spooled)

    def close(self) -> None:
        """Close the spool, log what is left or lost, and end the requests that still wait."""
        if left := len(self._spool.windows()):
            log.info("%d windows are left to the next start", left)
        if lost := self.count_lost():
            log.error("stopped with %d windows untranscribed or transcripts unstored", lost)
        self._spool.close()
        with self._news:
            requests = [work for work in self._requests if work.wanted]
            self._requests.clear()
        for work in requests:
            if work.deliver:
                work.deliver(work.request, DeviceError("roomscribe is stopping"))

    def take_speculation(self) -> Work | None:
        """Return the speculation once; None while windows wait."""
        with self._news:
            if self._waiting or not self._speculation_new:
                return None
            work, self._speculation_new = self._speculation, False
        if work:
            if self._in_process:
                self._spool.begin(work.window.id)
            self._health.count("guesses")
        return work

    def end_speculation(self, work: Work) -> None:
        """Note that a speculation was transcribed, so no later death is its fault; it waits for its
        utterance to end."""
        self._spool.mark_survived(work.window.id)

    def submit(self, request: Request, deliver: Deliver) -> Work | None:
        """Queue a request. Return None if too many wait, or if the daemon stops."""
        work = Work(request, deliver, must_hurry=lambda: self.is_room_busy)
        with self._news:
            self._requests = deque(waiting for waiting in self._requests if waiting.wanted)
            if self._complete or len(self._requests) >= REQUEST_LIMIT:
                return None
            self._requests.append(work)
            self._news.notify()
        return work

    def take_request(self) -> Work | None:
        """Return the oldest request that is still wanted, partials last; None while windows or a
        speculation wait.

        While the room is busy, one request is taken in ROOM_FIRST_S, so that each has its turn.
        Waits some milliseconds if there is nothing else to take.
        """
        with self._news:
            if self._waiting or self._speculation_new:
                return None
            wanted = [work for work in self._requests if work.wanted]
            early = self.is_room_busy and time.monotonic() - self._request_s < ROOM_FIRST_S
            ready = [work for work in wanted if work.request.partial or not early]
            first = min(ready, key=lambda work: work.request.partial, default=None)
            self._requests = deque(work for work in wanted if work is not first)
            if first and not first.request.partial:
                self._request_s = time.monotonic()
            elif wanted and not first:
                self._news.wait(REQUEST_POLL_S)
        return first

    def _retry_postponed(self) -> None:
        """Queue the suspects once more: a window was transcribed, so the device works."""
        with self._news:
            self._has_transcribed = True
            self._waiting.extendleft(reversed(self._postponed))
            self._postponed.clear()
            self._news.notify()

    def _remove_surplus(self) -> list[_Waiting]:
        """Remove the oldest windows until the rest is within the limits, and return them."""
        unspooled = [waiting for waiting in self._waiting if not waiting.spooled]
        dropped = unspooled[: max(0, len(unspooled) - UNSPOOLED_LIMIT)]
        oldest_first = (*self._postponed, *self._waiting)
        for waiting in oldest_first if self._spool.size > self._limit else ():
            while self._spool.size > self._limit and self._spool.delete_transcribed():
                pass
            if self._spool.size <= self._limit:
                break
            if waiting.spooled:
                self._spool.delete(waiting.id)
                dropped.append(waiting)
        for waiting in dropped:
            (self._postponed if waiting in self._postponed else self._waiting).remove(waiting)
        return dropped

    def _report_delay(self) -> None:
        """Report it when the appliance falls behind, and when it has caught up."""
        with self._news:
            waiting_s = sum(waiting.duration_s for waiting in self._waiting)
            number = len(self._waiting)
            before, bound_s = self._behind, CAUGHT_UP_S if self._behind else BEHIND_S
            behind = self._behind = waiting_s > bound_s
            self._dropping = self._dropping and behind
        if behind == before:
            return
        if behind:
            log.warning("falling behind: %d windows (%.0f s of speech) wait", number, waiting_s)
        else:
            log.info("caught up: %d windows wait", number)
        self._health.trouble(
            "backlog",
            f"more than {BEHIND_S:.0f} s of speech wait: it comes faster than it can be "
            f"transcribed; use {'a smaller model' if self._in_process else 'a faster server'}"
            if behind
            else None,
        )
