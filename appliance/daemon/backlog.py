"""Windows that wait to be transcribed, in the order in which they were spoken.

A window is leased to one owner at a time. While no window waits, the encoder may take the
speculation, which is the window that is likely to come next, and after that the requests of others.

Few samples are in memory: those of most windows are in the spool until their turn comes. When too
much waits, the oldest window is dropped, because the newest speech matters most in a home.
"""

from __future__ import annotations

import enum
import logging
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, cast

from appliance.config import Settings
from appliance.daemon.health import Health
from appliance.daemon.spool import Spool
from appliance.errors import DeviceError
from appliance.infer import Encoded, Phrases
from appliance.records import Discarded, Transcription, Window

log = logging.getLogger("roomscribe.daemon")

SAMPLES_IN_MEMORY = 4
"""Waiting windows that keep their samples here although the spool has them, too."""
UNSPOOLED_LIMIT = 64
"""Windows that may wait without being in the spool."""
DEATHS = 3
"""A window during whose transcription so many processes ended waits until another one is
transcribed, and is then tried once more: the device may be broken. After the first death it is
transcribed alone, so that none is set aside for another one's fault."""
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


class Kind(enum.Enum):
    """What a task is for."""

    MICROPHONE = "a leased window of the microphone"
    SPECULATION = "a window with which the utterance may end"
    REQUEST = "a window from another program or machine"
    PARTIAL = "a window that somebody is still speaking; all other tasks go first"


@dataclass(slots=True, eq=False, weakref_slot=True)
class Task:
    """A window to transcribe, and who gets the result.

    The encoder's thread encodes it, then the transcriber's thread decodes it.
    """

    window: Window
    deliver: Callable[[Transcription | Exception], object]
    """Called once with the transcription, by the transcriber's thread, or with why there is none,
    by any thread. Not called if the task is not `wanted` any more. Must be quick."""
    kind: Kind = Kind.REQUEST
    names: tuple[str, ...] = ()
    """Words that are likely in it, besides the names of the home."""
    language: str = ""
    """The language that is spoken in it; "" if the client does not say."""
    phrases: Phrases | None = None
    """Sentences to expect in place of the usual ones."""
    ask_completeness: bool = False
    """Whether the result must tell if the text is a whole sentence."""
    search: bool = False
    """Whether a better text may take more time; the microphone's may not."""
    words: bool = False
    """Whether the times of the words are wanted."""
    wanted: bool = True
    """False cancels the task. Any thread may set it."""
    decided: Callable[[Transcription], object] = lambda _: None
    """Called with the first text and its completeness, while the rest is still being computed."""
    speculation: Task | None = None
    """The speculation that came true with this window; its result is used."""
    encoded: Encoded | Transcription | Exception | None = None
    """Encoder states; or the transcription, if another process or machine made it; or why there is
    neither; None before it is encoded."""
    transcription: Transcription | None = None
    """The decoder's result, of a speculation."""
    silence_ms: int = 0
    """Silence that ends the utterance of a speculation; 0 until that is known."""

    def weak(self) -> Callable[[], Task]:
        """Return a function that returns this task, for its own callbacks: a task that they held
        would keep its states, 0.8 MB, until Python looks for cycles."""
        return cast("Callable[[], Task]", weakref.ref(self))


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
    speculation: Task | None = None


@dataclass(slots=True, eq=False)
class Lease:
    """The exclusive right to process a window. Any thread may call any method.

    It ends with `finish`, `discard` or `fail`. The next start finds the window of a
    lease that has not ended, and of one that failed together with others in a row.
    """

    _backlog: Backlog
    window: Window
    queued_s: float
    """When it was queued, on time.monotonic()'s clock."""
    speculation: Task | None = None

    def mark_transcribed(self) -> None:
        """Note that the window only waits for the store, so no later death is its fault.

        Windows that failed just before did not meet a broken device, and are not tried again.
        """
        failed, self._backlog._failed = self._backlog._failed, []
        for window_id in failed:
            self._backlog._spool.delete(window_id)
        self._backlog._spool.mark_survived(self.window.id)
        self._backlog._end_doubt()

    def finish(self) -> None:
        """End the lease: the transcript is stored, or nobody wants the window any more."""
        self._backlog._leased.discard(self.window.id)
        self._backlog._spool.delete(self.window.id)

    def leave(self) -> None:
        """Leave the window to the next start: nobody can transcribe it now, which no death
        explains."""
        self._backlog._spool.mark_survived(self.window.id)

    def discard(self, reason: str) -> None:
        """End the lease without a transcript, and report why."""
        window = self.window
        self._backlog._discard(Discarded(reason, window.utterance_id, window.duration_s))
        self.finish()

    def fail(self, error: Exception) -> None:
        """End the lease of a window whose transcription raised `error`, and report it.

        Raises DeviceError when several windows failed in a row.
        """
        window, backlog = self.window, self._backlog
        log.error("a window of %.1f s failed: %s", window.duration_s, error, exc_info=error)
        # The spool keeps it until another window succeeds: if the device is broken, the next start
        # tries it again.
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
        is_stored: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Open the spool and queue what it holds.

        `discard` is called with each window that gives no transcript. If not `in_process`, windows
        are transcribed elsewhere, and no window can kill this process. `is_stored` tells whether
        the log has the transcript of a window: a process that died right after storing it left
        the window in the spool. Without that check a deleted transcript could come back.
        """
        self._in_process = in_process
        self._spool, self._limit = Spool.open(settings, health), settings.spool.limit_mb << 20
        self._health, self._discard = health, discard
        self._news = threading.Condition()
        now_s = time.monotonic()
        for kept in self._spool.windows():
            if is_stored(kept.id):
                self._spool.delete(kept.id)
        self._waiting = deque(
            _Waiting(kept.id, kept.utterance_id, kept.duration_s, now_s, kept.attempts)
            for kept in self._spool.windows()
        )
        self._doubtful: list[_Waiting] = []
        """Windows that wait until another one is transcribed."""
        self._works = False
        """Whether this process has transcribed a window."""
        self._leased: set[str] = set()
        """Ids of the windows whose lease has not ended."""
        self._alone = False
        """Whether the window that was leased last is transcribed alone."""
        self._failed: list[str] = []
        """Ids of the windows that failed in a row."""
        self._speculation: Task | None = None
        self._speculation_spooled = self._speculation_new = False
        """Whether the spool has it; whether nobody has taken it."""
        self._requests: deque[Task] = deque()
        self._request_s = -math.inf
        """When a request that is no partial was last taken."""
        self._ends_s = math.inf
        """When the queue ends even if windows wait."""
        self._complete = False
        """True if nothing more will be added."""
        self._behind = self._dropping = False
        if self._waiting:
            health.count("recovered", len(self._waiting))
            log.info("the process before left %d windows", len(self._waiting))
        self._report_delay()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_busy(self) -> bool:
        """True while a window of the microphone waits or is being transcribed."""
        return bool(self._waiting or self._leased)

    def speculate(self, window: Window | None, make: Callable[[Window], Task]) -> None:
        """Offer the window with which the utterance may end, as the task that `make` makes of it;
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
        task = self._speculation
        if task and task.window.id != unless_id:
            self._speculation, task.wanted = None, False
            self._spool.delete(task.window.id)

    def end_silence(self) -> tuple[str, int] | None:
        """Return the speculation's id and the silence in ms that ends its utterance, once its text
        has decided that. Only the thread that calls `push`."""
        task = self._speculation
        return (task.window.id, task.silence_ms) if task and task.silence_ms else None

    def push(self, window: Window) -> None:
        """Save a window in the spool and queue it; drop the oldest ones if too many wait."""
        task = self._speculation
        task = task if task and task.window.id == window.id else None
        spooled = bool(task and self._speculation_spooled and task.window.flags == window.flags)
        if not spooled:
            self._spool.delete(window.id)
            spooled = self._spool.put(window)
        with self._news:
            self._speculation = None if task else self._speculation
            in_memory = sum(1 for waiting in self._waiting if waiting.window) < SAMPLES_IN_MEMORY
            self._waiting.append(
                _Waiting(
                    window.id,
                    window.utterance_id,
                    window.duration_s,
                    time.monotonic(),
                    window=window if in_memory or not spooled else None,
                    spooled=spooled,
                    speculation=task,
                )
            )
            dropped = self._remove_surplus()
            self._news.notify()
        for waiting in dropped:
            if not self._dropping:
                self._dropping = True
                log.error("too much speech waits to be transcribed: dropping the oldest")
            self._health.count("lost_overload")
            self._discard(Discarded("overload", waiting.utterance_id, waiting.duration_s))
        self._report_delay()

    def take_window(self, timeout_s: float) -> Lease | None:
        """Lease the oldest window. Return None if none came in time, if a speculation or a request
        waits, or if the window may be deadly. If this process dies before the lease's
        `mark_transcribed`, that counts."""
        with self._news:
            if not (self._waiting or self._speculation_new or self._requests or self.is_over):
                self._news.wait(timeout_s)
            if not self._waiting or self.is_over:
                return None
            if self._leased and (self._alone or self._waiting[0].deaths):
                self._news.wait(REQUEST_POLL_S)
                return None
            oldest = self._waiting.popleft()
            if oldest.deaths == DEATHS and self._in_process and not self._works:
                log.error("%d processes ended with a window of %.1f s", DEATHS, oldest.duration_s)
                self._doubtful.append(oldest)
                return None
            self._alone = oldest.deaths > 0
            self._leased.add(oldest.id)
        self._report_delay()
        window = oldest.window or self._spool.load(oldest.id)
        if window and oldest.deaths > DEATHS and self._in_process:
            log.error(
                "a window of %.1f s is set aside: %d processes ended while they transcribed it",
                window.duration_s,
                oldest.deaths,
            )
            self._health.count("set_aside")
            Lease(self, window, oldest.queued_s).discard("set_aside")
            return None
        if window:
            if self._in_process:
                self._spool.begin(window.id)
            return Lease(self, window, oldest.queued_s, oldest.speculation)
        self._leased.discard(oldest.id)
        self._spool.delete(oldest.id)
        self._discard(Discarded("failed", oldest.utterance_id, oldest.duration_s))
        return None

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
            return len({*self._leased, *(waiting.id for waiting in self._waiting)} - spooled)

    def close(self) -> None:
        """Close the spool, log what is left or lost, and end the requests that still wait."""
        if left := len(self._spool.windows()):
            log.info("%d windows are left to the next start", left)
        if lost := self.count_lost():
            log.error("stopped with %d windows untranscribed or transcripts unstored", lost)
        self._spool.close()
        with self._news:
            requests = [task for task in self._requests if task.wanted]
            self._requests.clear()
        for task in requests:
            task.deliver(DeviceError("roomscribe is stopping"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take_speculation(self) -> Task | None:
        """Return the speculation once; None while windows wait."""
        with self._news:
            if self._waiting or not self._speculation_new:
                return None
            task, self._speculation_new = self._speculation, False
        if task:
            if self._in_process:
                self._spool.begin(task.window.id)
            self._health.count("guesses")
        return task

    def end_speculation(self, task: Task) -> None:
        """Note that a speculation was transcribed, so no later death is its fault; it waits for its
        utterance to end."""
        self._spool.mark_survived(task.window.id)

    def submit(self, task: Task) -> bool:
        """Queue a request or a partial. Return False if too many wait, or if the daemon stops."""
        with self._news:
            self._requests = deque(waiting for waiting in self._requests if waiting.wanted)
            if self._complete or len(self._requests) >= REQUEST_LIMIT:
                return False
            self._requests.append(task)
            self._news.notify()
        return True

    def take_request(self, *, room_first: bool = False) -> Task | None:
        """Return the oldest request that is still wanted, partials last; None while windows or a
        speculation wait.

        With `room_first`, one request is taken in ROOM_FIRST_S, so that each has its turn. Waits
        some milliseconds if there is nothing else to take.
        """
        with self._news:
            if self._waiting or self._speculation_new:
                return None
            wanted = [task for task in self._requests if task.wanted]
            early = room_first and time.monotonic() - self._request_s < ROOM_FIRST_S
            ready = [task for task in wanted if task.kind is Kind.PARTIAL or not early]
            first = min(ready, key=lambda task: task.kind is Kind.PARTIAL, default=None)
            self._requests = deque(task for task in wanted if task is not first)
            if first and first.kind is not Kind.PARTIAL:
                self._request_s = time.monotonic()
            elif wanted and not first:
                self._news.wait(REQUEST_POLL_S)
        return first

    def _end_doubt(self) -> None:
        """Queue the doubtful windows once more: a window was transcribed, so the device works."""
        with self._news:
            self._works = True
            self._waiting.extendleft(reversed(self._doubtful))
            self._doubtful.clear()
            self._news.notify()

    def _remove_surplus(self) -> list[_Waiting]:
        """Remove the oldest windows until the rest is within the limits, and return them."""
        unspooled = [waiting for waiting in self._waiting if not waiting.spooled]
        dropped = unspooled[: max(0, len(unspooled) - UNSPOOLED_LIMIT)]
        spooled = (*self._doubtful, *self._waiting)
        for waiting in spooled if self._spool.size > self._limit else ():
            while self._spool.size > self._limit and self._spool.delete_transcribed():
                pass
            if self._spool.size <= self._limit:
                break
            if waiting.spooled:
                self._spool.delete(waiting.id)
                dropped.append(waiting)
        for waiting in dropped:
            (self._doubtful if waiting in self._doubtful else self._waiting).remove(waiting)
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
