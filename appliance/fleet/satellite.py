"""Transcription by the workers of a fleet; `infer/remote` says what happens while they cannot.

One window is under way at a time, which keeps the order. It is sent again, as another attempt, if
the connection was lost, or if the server has dropped it after WAITING_S. While it waits at the
server it is not sent again, because workers would transcribe it twice. An answer names a window's
id: the first one counts, whichever attempt it is for.

Over 500 lines because sending windows and what is known of the workers change together.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from appliance.config import FleetSettings, Settings, node_name
from appliance.errors import ServerError
from appliance.fleet.link import COMING, Link
from appliance.fleet.messages import (
    FLEET,
    RECOMMENDED,
    WORKERS,
    Answer,
    Job,
    MessageError,
    Presence,
    Refusal,
    Subjects,
    pack_sound,
    read_answer,
    read_presence,
    window_headers,
)
from appliance.infer import (
    IGNORE_PROGRESS,
    Backend,
    Encoded,
    Model,
    Progress,
    RemoteBackend,
    RemoteModel,
    RemoteTranscriber,
    Transcriber,
    compression_ratio,
    lacking_runtime,
    longest_text,
    open_transcriber as open_model,
)
from appliance.model import chosen_model
from appliance.records import Transcription, Window

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

log = logging.getLogger("roomscribe.fleet")

PRESENCE_S = 1.0
"""Limit for a worker's presence, and pause between two such requests while a window waits."""
SENT_S = 2.0
"""Limit for the server's acknowledgement of a window."""
COMING_S = 2.0
"""After so short a connection no worker is no error: workers reconnect as satellites do."""
WAITING_S = 60.0
"""Seconds after which the server drops a waiting window."""
WARNED_S = 60.0
"""Pause between two warnings about messages that are no answers."""
AGAIN_S = 0.1
CONNECT_S = 2.5
"""Limit for the first connection at the start."""
REMEMBERED = 64
"""Attempts, and late answers, that are remembered at most."""
ROUND_TRIPS = 100
FULL = 10077
"""nats-server's number for: maximum messages per subject exceeded."""
STATUS = "see `roomscribe fleet status`"


@dataclass(slots=True)
class Attempt:
    """How a window was last sent."""

    number: int
    client: Client | None = None
    """The connection on which the server accepted it."""
    sent_s: float = 0.0
    refused: bool = False
    """True once a worker has refused it."""

    def is_queued(self, client: Client | None) -> bool:
        """True while the window may wait at the server that `client` is connected to."""
        queued = client is not None and self.client is client and not self.refused
        return queued and time.monotonic() - self.sent_s < WAITING_S


class Satellite:
    """Sends windows over a link and waits for the answers.

    Any thread may call `find_worker` and `transcribe`, the latter one thread at a time. Both raise
    ServerError.
    """

    def __init__(self, link: Link, settings: FleetSettings) -> None:
        """Create it before the link is started."""
        self.muted: Callable[[], bool] = lambda: False
        """While it returns true, no sound is sent."""
        self.counts: Counter[str] = Counter()
        """fleet_sent, fleet_redone (sent again), fleet_late."""
        self.round_trips_ms: deque[float] = deque(maxlen=ROUND_TRIPS)
        self._link, self._patience_s = link, settings.patience_s
        self._subjects = Subjects(link.node)
        self._awaited: dict[str, asyncio.Future[Answer]] = {}
        """Futures of awaited answers, by the window's id."""
        self._attempts: OrderedDict[str, Attempt] = OrderedDict()
        self._abandoned: OrderedDict[str, Answer | None] = OrderedDict()
        """Windows that are not awaited any more, with the late answer if one came."""
        self._refusal = ""
        """Why the server refuses what a satellite does; empty if it does not."""
        self._sending: asyncio.Future[Any] | None = None
        self._warned_s = -math.inf
        """When a message that is no answer was logged."""
        link.add(self._listen)
        link.refused = self._record_refusal

    def find_worker(self) -> Presence:
        """Return a connected worker. Any thread."""
        self._link.settle(CONNECT_S)

        async def ask() -> Presence:
            client = self._link.client
            if client is None:
                raise ServerError(self._link.trouble or COMING)
            return await self._find_worker(client)

        return self._link.call(ask, PRESENCE_S + 0.5)

    def transcribe(self, job: Job, within_s: float) -> Transcription:
        """Return the first answer to a window. Any thread, one at a time."""
        try:
            sound = pack_sound(job.window.samples)
        except MessageError as error:
            raise ServerError(str(error)) from error
        answer = self._link.call(lambda: self._await_answer(job, sound, within_s), within_s + 1.0)
        if isinstance(answer.result, Refusal):
            raise _explain_refusal(answer.worker, answer.result)
        if len(answer.result.text) > longest_text(job.window.duration_s):
            raise ServerError(f"the worker {answer.worker} sent a text too long for its window")
        return answer.result

    def hang_up(self) -> None:
        """Abandon the answer that is awaited. Any thread."""

        def drop() -> None:
            for future in self._awaited.values():
                if not future.done():
                    future.set_exception(ServerError("the request was abandoned", busy=True))

        self._link.call_soon(drop)

    async def _listen(self, client: Client) -> None:
        """Subscribe on a new connection."""
        self._refusal = ""
        await client.subscribe(self._subjects.answer, cb=self._handle_answer)

    async def _handle_answer(self, message: Msg) -> None:
        """Handle a message on our answer subject, which may be from anybody."""
        try:
            answer = read_answer(message.data, compression_ratio)
        except MessageError as error:
            if time.monotonic() - self._warned_s > WARNED_S:  # anybody may send them
                self._warned_s = time.monotonic()
                log.warning("a message of the fleet is not an answer: %s", error)
            for future in self._awaited.values():
                if error.code == "version" and not future.done():
                    future.set_exception(
                        ServerError(
                            f"refused: a worker answered: {error}; upgrade the older of the two",
                            busy=True,
                        )
                    )
            return
        if isinstance(answer.result, Refusal) and (attempt := self._attempts.get(answer.id)):
            attempt.refused = True
        awaited = self._awaited.get(answer.id)
        if awaited and not awaited.done():
            awaited.set_result(answer)
            return
        self.counts["fleet_late"] += 1
        if answer.id in self._abandoned and not isinstance(answer.result, Refusal):
            self._abandoned[answer.id] = answer

    async def _await_answer(self, job: Job, sound: bytes, within_s: float) -> Answer:
        """Return the answer to a window, which is sent again on each new connection."""
        window_id = job.window.id
        if known := self._abandoned.pop(window_id, None):
            return known
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._awaited[window_id] = answer
        begun_s = time.monotonic()
        delivery = asyncio.ensure_future(self._deliver(job, sound))
        try:
            async with asyncio.timeout(within_s):
                waits: set[asyncio.Future[Any]] = {answer, delivery}
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                delivery.result()  # raises why no answer can come
            found = answer.result()
        except BaseException as error:
            self._remember_abandoned(window_id)
            if isinstance(error, TimeoutError):
                raise _timed_out(within_s) from None
            raise
        finally:
            delivery.cancel()
            del self._awaited[window_id]
        self.round_trips_ms.append(1000 * (time.monotonic() - begun_s))
        return found

    async def _deliver(self, job: Job, sound: bytes) -> None:
        """Send a window on each new connection, until no worker can answer it: raise ServerError
        then."""
        sent_to: Client | None = None
        while True:
            client = self._link.client
            if client is None:
                if sent_to is None:  # nothing sent: no answer can come
                    raise ServerError(self._link.trouble or COMING, busy=True)
            elif client is not sent_to:
                # an earlier call may have queued the window on this connection: then a second copy
                # would be transcribed twice
                last = self._attempts.get(job.window.id)
                if (last and last.is_queued(client)) or await self._send(client, job, sound):
                    sent_to = client
                    continue
            elif await self._has_worker(client):
                await asyncio.sleep(PRESENCE_S)
                continue
            elif self._link.age_s > COMING_S:
                raise self._no_worker(ServerError.WORKER_LOST)
            await asyncio.sleep(AGAIN_S)

    async def _send(self, client: Client, job: Job, sound: bytes) -> bool:
        """Send a window; False if it has to be sent again: no worker has made the stream yet, or
        the connection is lost. Raises ServerError."""
        if self.muted():
            raise ServerError("muted: speech from before is not sent", busy=True)
        if self._refusal:
            raise ServerError(self._refusal, busy=True)
        before = self._attempts.pop(job.window.id, None)
        attempt = Attempt(before.number + 1 if before else 1)
        self._attempts[job.window.id] = attempt
        while len(self._attempts) > REMEMBERED:
            self._attempts.popitem(last=False)
        headers = window_headers(replace(job, attempt=attempt.number))
        self._sending = asyncio.ensure_future(
            client.request(self._subjects.window, sound, timeout=SENT_S, headers=headers)
        )
        from nats.errors import Error, NoRespondersError, TimeoutError as SlowError

        try:
            reply = await self._sending
        except NoRespondersError:
            if self._link.age_s > COMING_S:
                raise self._no_worker(ServerError.NO_WORKER) from None
            return False
        except asyncio.CancelledError:
            if self._refusal:
                raise ServerError(self._refusal, busy=True) from None
            self._count_sent(attempt)  # the answer was faster than the acknowledgement
            raise
        except SlowError:
            self._link.reset()
            return False
        except (Error, OSError):
            return False  # the connection is lost; the link makes another
        finally:
            self._sending = None
        if not self._is_taken(reply.data):
            return False
        attempt.client, attempt.sent_s = client, time.monotonic()
        self._count_sent(attempt)
        return True

    def _count_sent(self, attempt: Attempt) -> None:
        self.counts["fleet_sent"] += 1
        if attempt.number > 1:
            self.counts["fleet_redone"] += 1

    def _is_taken(self, data: bytes) -> bool:
        """Return False if the server has this attempt already, from the process before. Raises
        ServerError if it refuses the window."""
        try:
            reply_fields = json.loads(data)
            error = reply_fields.get("error")
        except (ValueError, AttributeError):
            reply_fields, error = {}, {"description": "an unreadable answer"}
        if error:
            reason = str(error.get("description", ""))[:100]
            if error.get("err_code") == FULL:
                reason = "more windows wait than the workers can transcribe"
            raise ServerError(
                f"refused: the fleet's server does not accept the window: {reason}; {STATUS}",
                busy=True,
            )
        return not reply_fields.get("duplicate")

    async def _has_worker(self, client: Client) -> bool:
        """Return False if the server answers that no worker is connected."""
        try:
            await self._find_worker(client)
        except ServerError as error:
            return error.kind != ServerError.NO_WORKER
        return True

    async def _find_worker(self, client: Client) -> Presence:
        """Return a worker. Raises ServerError."""
        from nats.errors import Error

        loop = asyncio.get_running_loop()
        ends_s = loop.time() + PRESENCE_S
        trouble = ""
        heard = await client.subscribe(inbox := client.new_inbox())
        try:
            await client.publish(WORKERS, b"", reply=inbox)
            while (left_s := ends_s - loop.time()) > 0:
                reply = await heard.next_msg(timeout=left_s)
                if reply.headers and reply.headers.get("Status") == "503":
                    raise self._no_worker(ServerError.NO_WORKER)
                try:
                    return read_presence(reply.data)
                except MessageError as error:
                    trouble = f"refused: the worker {error}; upgrade the older of the two"
        except Error:
            pass  # no other worker answers, or the connection is lost
        finally:
            with suppress(Error):
                await heard.unsubscribe()
        raise ServerError(trouble or f"worker lost: no worker answers; {STATUS}", busy=True)

    def _no_worker(self, kind: str) -> ServerError:
        what = (
            "no worker: none is" if kind == ServerError.NO_WORKER else "worker lost: none is left"
        )
        return ServerError(
            f"{what} connected to the fleet's server {self._link.server}; {STATUS}",
            busy=True,
            kind=kind,
        )

    def _record_refusal(self, message: str) -> None:
        """Keep the server's message that we lack a permission."""
        self._refusal = (
            f"refused: the fleet's server does not let {self._link.node} do what a satellite does "
            f"({message}); join again with a code for a satellite"
        )
        if self._sending:
            self._sending.cancel()

    def _remember_abandoned(self, window_id: str) -> None:
        """Keep a late answer to this window for when it is requested again."""
        self._abandoned[window_id] = None
        while len(self._abandoned) > REMEMBERED:
            self._abandoned.popitem(last=False)


class FleetBackend(RemoteBackend[Presence, Transcription]):
    """The state of the workers."""

    remote_name = FLEET
    away = "the request before has not ended"
    pauses_s = 0.5, 2.0

    def __init__(
        self,
        satellite: Satellite,
        link: Link,
        settings: Settings,
        local: Backend | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look for a worker, without waiting. `local` encodes while there is none."""
        self._satellite, self._link = satellite, link
        self._patience_s = settings.fleet.patience_s
        segmenter = settings.segmenter
        self._guesses = segmenter.speculate and segmenter.early_ms > 0
        self._seen: object = None
        self._waited_for = False
        """True while a window waits for a worker, which is then looked for more often."""
        self.own_cpu = 0
        """Windows that this machine's model encoded."""
        super().__init__(local, clock)

    def describe(self) -> Presence:
        """Return a worker's presence."""
        return self._satellite.find_worker()

    def prove(self) -> Presence:
        """Return a worker's presence; after a failure, once it has transcribed silence."""
        found = self._satellite.find_worker()
        if self._failures and not self._satellite.muted():
            silence = Window("silence", 1, True, self.silence, 0.0, 0.0, 0.0)
            self._satellite.transcribe(Job(silence, self._link.node, 1), 1.0 + self._patience_s)
        return found

    def request(self, window: Window, within_s: float) -> Transcription:
        """Return a worker's transcription."""
        # the last window of an utterance was speculated on, which asks for completeness
        ahead = self._guesses and window.last
        job = Job(window, self._link.node, 1, ahead=ahead, patience_s=within_s)
        return self._satellite.transcribe(job, within_s)

    def within_s(self, window: Window, failures: int) -> float:
        """Return `patience_s`."""
        return self._patience_s

    def hang_up(self) -> None:
        """Abandon the request under way."""
        self._satellite.hang_up()

    def ask(
        self, window: Window, should_continue: Callable[[], bool] = lambda: True
    ) -> Transcription:
        """Return a worker's transcription. Raises as the base's, and ServerError while muted."""
        if self._satellite.muted():
            raise ServerError("muted: speech from before is not sent", busy=True)
        self._waited_for = True
        reply = super().ask(window, should_continue)
        self._waited_for = False
        return reply

    def facts(self) -> dict[str, Any]:
        """Return `counters` and `round_trips_ms`, and what is known of the chip here."""
        local = super().facts()
        counters = {**local.get("counters", {}), **self._satellite.counts}
        counters["fleet_own_cpu"] = self.own_cpu
        mine = {"counters": counters, "round_trips_ms": tuple(self._satellite.round_trips_ms)}
        return {**local, **mine}

    def count_local(self) -> None:
        """Count a window that this machine's model encoded; it does not wait for a worker."""
        self.own_cpu += 1
        self._waited_for = False

    def _fail(self, error: ServerError) -> None:
        """As the base's, but look again soon while a window waits for a worker."""
        super()._fail(error)
        if self._waited_for and not self._local:
            self._pause_s = self.pauses_s[0]
            self._look_s = self._clock() + self._pause_s

    def _watch(self, now_s: float) -> None:
        """As the base's, but look at once if the connection was lost or is new."""
        if self._link.client is not self._seen:
            self._seen = self._link.client
            self._look_s = now_s
        super()._watch(now_s)


class SatelliteTranscriber(RemoteTranscriber[Presence, Transcription]):
    """Transcribes windows by the workers."""

    backend: FleetBackend

    def __init__(self, settings: Settings, local: Transcriber | None, link: Link) -> None:
        """Start the link."""
        self.satellite, self.link = Satellite(link, settings.fleet), link
        link.start()
        backend = FleetBackend(self.satellite, link, settings, local.backend if local else None)
        super().__init__(backend, local, settings.gates, settings.vocabulary.replace)

    @property
    def bundle(self) -> Model:
        """The model that transcribes now."""
        local, found = self._local, self.backend.info
        if local and (self.backend.fault or not found):
            return local.bundle
        if not found:
            return RemoteModel("unknown", "und", ())
        window_s = min(found.window_s, local.bundle.window_s) if local else found.window_s
        return RemoteModel(found.name, found.language, found.languages, window_s)

    def transcription(self, window: Window, reply: Transcription) -> Transcription:
        """Return `reply`, which is a transcription already."""
        return reply

    def begin(self, window: Window) -> Encoded | Transcription:
        """As the base's; counts windows encoded here."""
        begun = super().begin(window)
        if isinstance(begun, Encoded):
            self.backend.count_local()
        return begun

    def decode(self, encoded: Encoded, progress: Progress = IGNORE_PROGRESS) -> Transcription:
        """Return the transcription of `encoded`, with the gates that its model recommends."""
        result = super().decode(encoded, progress)
        if not self._local:
            return result
        gates = {name: getattr(self._local.gates, name) for name in RECOMMENDED}
        return replace(result, recommended=gates)

    def close(self) -> None:
        """Abandon the request under way, and close the connection."""
        super().close()
        self.link.close()


def open_satellite(settings: Settings) -> SatelliteTranscriber:
    """Return the transcriber of a satellite.

    The model on this machine stands in for the workers if one was chosen; the built-in one knows
    too few words.

    Raises ConfigError for an unusable credential, and as infer's `open_transcriber` for the model
    here, but never if a server or worker is offline.
    """
    link = Link(settings.fleet, node_name(settings))
    has_model = bool(settings.model.bundle or chosen_model()) and not lacking_runtime()
    return SatelliteTranscriber(settings, open_model(settings) if has_model else None, link)


def _timed_out(within_s: float) -> ServerError:
    return ServerError(
        f"worker lost: no answer within {within_s:g} s (fleet.patience_s); {STATUS}",
        busy=True,
    )


def _explain_refusal(worker: str, refusal: Refusal) -> ServerError:
    """Return a worker's refusal as an error; `busy` unless the window itself is the cause."""
    text = f"the worker {worker}: {refusal.text}"
    if refusal.code == "version":
        return ServerError(f"refused: {text}; upgrade that worker", busy=True)
    if refusal.code == "busy":
        return ServerError(
            f"worker lost: {text}; another worker or a smaller model helps", busy=True
        )
    return ServerError(f"worker lost: {text}; see its journal")
