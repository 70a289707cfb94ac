"""Windows to transcriptions by the workers of a fleet; `infer/remote` says what happens while they
cannot.

One window is under way at a time, which keeps the order. It is sent again, as another attempt, if
the connection was lost meanwhile, or the server has dropped it after WAITING_S. While it waits at
the server it is not sent again: workers would do it twice. An answer is for a window's
id: the first one counts, whichever attempt it is for.

Over 500 lines because asking, and what is known of who is asked, change together.
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
from appliance.fleet.link import COMING, RENEW_RIGHTS, Link
from appliance.fleet.messages import (
    FLEET,
    FORMER_WORKERS,
    RECOMMENDED,
    WHO,
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
    token,
    window_headers,
)
from appliance.infer import (
    IGNORE_PROGRESS,
    WINDOW_S,
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
from appliance.system import boot_id

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

log = logging.getLogger("roomscribe.fleet")

PRESENCE_S = 1.0
"""For a worker to say that it is there, and between two such questions while a window waits."""
SENT_S = 2.0
"""For the server to say that it has a window."""
COMING_S = 2.0
"""A connection so young knows of no worker yet: workers come back as satellites do."""
WAITING_S = 60.0
"""For so long a window waits at the server, which then drops it."""
GREETING_S, ANSWER_S = 60.0, 1.0
"""Between two greetings for other machines with our credential, and between two answers to one."""
AGAIN_S = 0.1
CONNECT_S = 2.5
"""At the start, for the first connection."""
REMEMBERED = 64
"""So many windows' attempts are remembered, and so many late answers at most are kept."""
ROUND_TRIPS = 100
FULL = 10077
"""nats-server's number for: maximum messages per subject exceeded."""
PROBED = "doctor-"
"""What ids of windows begin with that `roomscribe fleet check` sends under our name."""
STATUS = "see `roomscribe fleet status`"


@dataclass(slots=True)
class Attempt:
    """How a window was sent last."""

    number: int
    client: Client | None = None
    """The connection on which the server took it."""
    sent_s: float = 0.0
    refused: bool = False
    """True once a worker has given it back."""

    def is_queued(self, client: Client | None) -> bool:
        """True while the window may wait at the server that `client` is connected to."""
        queued = client is not None and self.client is client and not self.refused
        return queued and time.monotonic() - self.sent_s < WAITING_S


class Satellite:
    """Sends windows over a link and waits for the answers. `present` and `transcribe` may be called
    by any thread, the latter by one at a time; both raise ServerError."""

    def __init__(self, link: Link, settings: FleetSettings, machine: str = "") -> None:
        """Before the link is started. `machine` names this one; the default is its boot's id."""
        self.muted: Callable[[], bool] = lambda: False
        """While true not a byte of sound is sent."""
        self.counts: Counter[str] = Counter()
        """fleet_sent, fleet_redone (sent again), fleet_late."""
        self.round_trips_ms: deque[float] = deque(maxlen=ROUND_TRIPS)
        self._link, self._model, self._patience_s = link, settings.model, settings.patience_s
        self._subjects = Subjects(link.node, settings.model)
        self._awaited: dict[str, asyncio.Future[Answer]] = {}
        """Answers that somebody waits for, by the window's id."""
        self._attempts: OrderedDict[str, Attempt] = OrderedDict()
        self._given_up: OrderedDict[str, Answer | None] = OrderedDict()
        """Windows that nobody waits for any more, and what came of them all the same."""
        self._refusal = ""
        """What the server says that we have no right to."""
        self._sending: asyncio.Future[Any] | None = None
        self._machine = (machine or boot_id()).encode()
        self._rival_s = self._greeted_s = self._warned_s = -math.inf
        """When another machine with our credential was heard, when we answered it, and when a
        message that is no answer was logged."""
        link.add(self._listen)
        link.refused = self._refused

    def present(self) -> Presence:
        """A worker that is there, and would take our windows."""
        self._link.settle(CONNECT_S)

        async def ask() -> Presence:
            client = self._link.client
            if client is None:
                raise ServerError(self._link.trouble or COMING)
            return await self._presence(client)

        return self._link.call(ask, PRESENCE_S + 0.5)

    def transcribe(self, job: Job, within_s: float) -> Transcription:
        """The first answer to a window."""
        try:
            sound = pack_sound(job.window.samples)
        except MessageError as error:
            raise ServerError(str(error)) from error
        answer = self._link.call(lambda: self._ask(job, sound, within_s), within_s + 1.0)
        if isinstance(answer.result, Refusal):
            raise _refused(answer.worker, answer.result)
        if len(answer.result.text) > longest_text(job.window.duration_s):
            raise ServerError(f"the worker {answer.worker} answered with more than anybody says")
        return answer.result

    def hang_up(self) -> None:
        """Nobody waits for an answer any more. Any thread."""

        def drop() -> None:
            for one in self._awaited.values():
                if not one.done():
                    one.set_exception(ServerError("the question was given up", busy=True))

        self._link.soon(drop)

    async def _listen(self, client: Client) -> None:
        """Is called on each connection."""
        self._refusal = ""
        await client.subscribe(self._subjects.answer, cb=self._take)
        await client.subscribe(self._subjects.machines, cb=self._meet)
        while True:  # until the connection ends
            await client.publish(self._subjects.machines, self._machine)
            await asyncio.sleep(GREETING_S)

    @property
    def rival(self) -> str:
        """Why this node's transcripts may be another machine's, with the fix; empty if not."""
        if time.monotonic() - self._rival_s > 2.5 * GREETING_S:
            return ""
        return (
            f"another machine uses the invitation of {self._link.node}: texts of two rooms are "
            "mixed. Run `sudo roomscribe fleet invite OTHER-NAME` where the server runs, and join "
            "with that code on one of the two machines"
        )

    async def _meet(self, message: Msg) -> None:
        """Some machine with our credential says which one it is, or asks."""
        if not self._machine or message.data == self._machine:
            return
        now_s = time.monotonic()
        if message.data != WHO:
            if not self.rival:
                log.warning("another machine is connected as %s", self._link.node)
            self._rival_s = now_s
        if now_s - self._greeted_s > ANSWER_S and (client := self._link.client):
            self._greeted_s = now_s
            await client.publish(self._subjects.machines, self._machine)

    async def _take(self, message: Msg) -> None:
        """Whatever comes on our subject."""
        try:
            answer = read_answer(message.data, compression_ratio)
        except MessageError as error:
            if time.monotonic() - self._warned_s > GREETING_S:  # anybody may send them
                self._warned_s = time.monotonic()
                log.warning("an answer of the fleet is none: %s", error)
            for one in self._awaited.values():
                if error.code == "version" and not one.done():
                    one.set_exception(
                        ServerError(
                            f"refused: a worker answers: {error}; upgrade the older of the two",
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
        if answer.id.startswith(PROBED):
            return
        self.counts["fleet_late"] += 1
        if answer.id in self._given_up and not isinstance(answer.result, Refusal):
            self._given_up[answer.id] = answer

    async def _ask(self, job: Job, sound: bytes, within_s: float) -> Answer:
        """The answer to a window, which is sent on every connection that stands meanwhile."""
        loop, window_id = asyncio.get_running_loop(), job.window.id
        if known := self._given_up.pop(window_id, None):
            return known
        answer: asyncio.Future[Answer] = loop.create_future()
        self._awaited[window_id] = answer
        look: asyncio.Future[bool] | None = None
        sent_to: Client | None = None
        begun_s, ends_s = time.monotonic(), loop.time() + within_s
        looked_s = 0.0
        try:
            while not answer.done():
                left_s, client = ends_s - loop.time(), self._link.client
                if left_s <= 0:
                    raise _lost(within_s)
                if client is None and sent_to is None:
                    raise ServerError(self._link.trouble or COMING, busy=True)
                if client is not None and client is not sent_to:
                    last = self._attempts.get(window_id)
                    queued = last is not None and last.is_queued(client)
                    if not queued and not await self._send(client, job, sound):
                        await asyncio.sleep(AGAIN_S)
                        continue
                    sent_to, look = client, None
                if client is not None and (look is None or loop.time() - looked_s > PRESENCE_S):
                    look, looked_s = asyncio.ensure_future(self._is_there(client)), loop.time()
                waits = {answer, *([look] if look and not look.done() else ())}
                pause_s = PRESENCE_S if client else AGAIN_S
                await asyncio.wait(
                    waits, timeout=min(left_s, pause_s), return_when=asyncio.FIRST_COMPLETED
                )
                if not answer.done() and look and look.done() and not look.result():
                    if self._link.age_s > COMING_S or self._link.client is not sent_to:
                        raise self._nobody("worker lost")
                    look, looked_s = None, loop.time()
                    await asyncio.wait({answer}, timeout=AGAIN_S)
            self.round_trips_ms.append(1000 * (time.monotonic() - begun_s))
            return answer.result()
        except BaseException:
            self._give_up(window_id)
            raise
        finally:
            del self._awaited[window_id]
            if look:
                look.cancel()

    async def _send(self, client: Client, job: Job, sound: bytes) -> bool:
        """Has the server take a window; False when no worker has made the stream yet. Raises
        ServerError."""
        if self.muted():
            raise ServerError("muted: what was said before is not sent", busy=True)
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
                raise self._nobody("no worker") from None
            return False
        except asyncio.CancelledError:
            if self._refusal:
                raise ServerError(self._refusal, busy=True) from None
            raise
        except SlowError:
            self._link.reset()
            return False
        except (Error, OSError):
            return False  # the connection is lost, and will be another
        finally:
            self._sending = None
        if not self._is_taken(reply.data):
            return False
        attempt.client, attempt.sent_s = client, time.monotonic()
        self.counts["fleet_sent"] += 1
        if attempt.number > 1:
            self.counts["fleet_redone"] += 1
        return True

    def _is_taken(self, data: bytes) -> bool:
        """What the server says of a window that was sent; False: it had this attempt already, of
        the process before. Raises ServerError."""
        try:
            told = json.loads(data)
            error = told.get("error")
        except (ValueError, AttributeError):
            told, error = {}, {"description": "no answer that is one"}
        if error:
            said = str(error.get("description", ""))[:100]
            if error.get("err_code") == FULL:
                said = "more waits for the workers than they can do"
            raise ServerError(
                f"refused: the fleet's server takes no window: {said}; {STATUS}", busy=True
            )
        return not told.get("duplicate")

    async def _is_there(self, client: Client) -> bool:
        """False when the server says that no worker listens."""
        try:
            await self._presence(client)
        except ServerError as error:
            return not str(error).startswith("no worker")
        return True

    async def _presence(self, client: Client) -> Presence:
        """A worker that would take our windows. Raises ServerError."""
        from nats.errors import Error

        loop = asyncio.get_running_loop()
        ends_s = loop.time() + PRESENCE_S
        others = trouble = ""
        asked_former = False
        heard = await client.subscribe(inbox := client.new_inbox())
        try:
            await client.publish(WORKERS, b"", reply=inbox)
            while (left_s := ends_s - loop.time()) > 0:
                reply = await heard.next_msg(timeout=left_s)
                if reply.headers and reply.headers.get("Status") == "503":
                    if asked_former:
                        raise self._nobody("no worker")
                    await client.publish(FORMER_WORKERS, b"", reply=inbox)
                    asked_former = True
                    continue
                try:
                    found = read_presence(reply.data)
                except MessageError as error:
                    trouble = f"refused: the worker {error}; upgrade the older of the two"
                    continue
                if not self._model or token(found.name) == self._model:
                    return found
                others = found.name
        except Error:
            pass  # nobody else answers, or the connection is lost
        finally:
            with suppress(Error):
                await heard.unsubscribe()
        if others:
            raise ServerError(
                f"no worker: expected one with the model {self._model}, found {others}; see "
                "fleet.model",
                busy=True,
            )
        raise ServerError(trouble or f"worker lost: no worker answers; {STATUS}", busy=True)

    def _nobody(self, kind: str) -> ServerError:
        what = "none is" if kind == "no worker" else "the one that was is not any more"
        return ServerError(
            f"{kind}: expected a worker at the fleet's server {self._link.server}, {what} there; "
            f"{STATUS}",
            busy=True,
        )

    def _refused(self, said: str) -> None:
        """The server says that we have no right to something."""
        if self._subjects.machines in said:
            return  # a server that was set up before machines greeted each other
        self._refusal = (
            f"refused: the fleet's server does not let {self._link.node} do what a satellite does "
            f"({said}); {RENEW_RIGHTS}, or join again with a code for a satellite"
        )
        if self._sending:
            self._sending.cancel()

    def _give_up(self, window_id: str) -> None:
        """Nobody waits for this answer now; perhaps somebody asks again."""
        self._given_up[window_id] = None
        while len(self._given_up) > REMEMBERED:
            self._given_up.popitem(last=False)


class FleetBackend(RemoteBackend[Presence, Transcription]):
    """How the workers are."""

    remote_name = FLEET
    away = "the question before has not ended"
    pauses_s = 0.5, 2.0

    def __init__(
        self,
        satellite: Satellite,
        link: Link,
        settings: Settings,
        local: Backend | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Asks for a worker, without waiting. `local` encodes while there is none."""
        self._satellite, self._link = satellite, link
        self._patience_s = settings.fleet.patience_s
        segmenter = settings.segmenter
        self._guesses = segmenter.speculate and segmenter.early_ms > 0
        self._seen: object = None
        self._waited_for = False
        """True while a window waits for a worker."""
        self.own_cpu = 0
        """Windows that this machine's model encoded."""
        super().__init__(local, clock)

    @property
    def trouble(self) -> str | None:
        """As the base's, and that another machine uses our credential."""
        return "; ".join(filter(None, (super().trouble, self._satellite.rival))) or None

    def describe(self) -> Presence:
        """What a worker says of itself."""
        return self._satellite.present()

    def prove(self) -> Presence:
        """The same, once a worker has transcribed a second of silence, where one had failed."""
        found = self._satellite.present()
        if self._failures and not self._satellite.muted():
            silence = Window("silence", 1, True, self.silence, 0.0, 0.0, 0.0)
            self._satellite.transcribe(Job(silence, self._link.node, 1), 1.0 + self._patience_s)
        return found

    def request(self, window: Window, within_s: float) -> Transcription:
        """A worker's transcription."""
        # the window that ends an utterance was guessed before; that is when this is asked
        ahead = self._guesses and window.last
        job = Job(window, self._link.node, 1, ahead=ahead, patience_s=within_s)
        return self._satellite.transcribe(job, within_s)

    def within_s(self, window: Window, failures: int) -> float:
        """`patience_s`."""
        return self._patience_s

    def hang_up(self) -> None:
        """Ends what is being asked."""
        self._satellite.hang_up()

    def ask(self, window: Window) -> Transcription:
        """A worker's transcription. Raises as the base's, and ServerError while muted."""
        if self._satellite.muted():
            raise ServerError("muted: what was said before is not sent", busy=True)
        self._waited_for = True
        reply = super().ask(window)
        self._waited_for = False
        return reply

    def facts(self) -> dict[str, Any]:
        """Beside what is known of the chip here, `counters` and `round_trips_ms`."""
        counters = {**self._satellite.counts, "fleet_own_cpu": self.own_cpu}
        mine = {"counters": counters, "round_trips_ms": tuple(self._satellite.round_trips_ms)}
        return {**super().facts(), **mine}

    def stood_in(self) -> None:
        """This machine's model encoded a window: none waits for a worker."""
        self.own_cpu += 1
        self._waited_for = False

    def _fail(self, error: ServerError) -> None:
        """A worker is looked for as often as at the beginning while a window waits for one."""
        super()._fail(error)
        if self._waited_for and not self._local:
            self._pause_s = self.pauses_s[0]
            self._look_s = self._clock() + self._pause_s

    def _watch(self, now_s: float) -> None:
        """That the connection was lost, or is another, is looked into at once."""
        if self._link.client is not self._seen:
            self._seen = self._link.client
            self._look_s = now_s
        super()._watch(now_s)


class SatelliteTranscriber(RemoteTranscriber[Presence, Transcription]):
    """Has windows transcribed by the workers."""

    backend: FleetBackend

    def __init__(self, settings: Settings, local: Transcriber | None, link: Link) -> None:
        """Starts the link."""
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
            return RemoteModel("unknown", "und", (), WINDOW_S)
        window_s = min(found.window_s, local.bundle.window_s) if local else found.window_s
        return RemoteModel(found.name, found.language, found.languages, window_s, found.demo_model)

    def transcription(self, window: Window, reply: Transcription) -> Transcription:
        """What a worker says is one already."""
        return reply

    def begin(self, window: Window) -> Encoded | Transcription:
        """As the base's; counts what is encoded here."""
        begun = super().begin(window)
        if isinstance(begun, Encoded):
            self.backend.stood_in()
        return begun

    def decode(self, encoded: Encoded, progress: Progress = IGNORE_PROGRESS) -> Transcription:
        """The text of what `encode` gave, with what its model recommends for the gates."""
        result = super().decode(encoded, progress)
        if not self._local:
            return result
        told = {name: getattr(self._local.gates, name) for name in RECOMMENDED}
        return replace(result, recommended=told)

    def close(self) -> None:
        """Ends what is being asked, and the connection."""
        super().close()
        self.link.close()


def open_satellite(settings: Settings) -> SatelliteTranscriber:
    """Return the transcriber of a satellite.

    The model on this machine stands in for the workers, if one was chosen: the built-in one knows
    too little to.

    Raises ConfigError for a credential that cannot be used, and as infer's `open_transcriber` does
    for the model here, but never for a server or a worker that is away.
    """
    link = Link(settings.fleet, node_name(settings))
    has_model = bool(settings.model.bundle or chosen_model()) and not lacking_runtime()
    return SatelliteTranscriber(settings, open_model(settings) if has_model else None, link)


def _lost(within_s: float) -> ServerError:
    return ServerError(
        f"worker lost: expected an answer within {within_s:g} s (fleet.patience_s), found none; "
        f"{STATUS}",
        busy=True,
    )


def _refused(worker: str, refusal: Refusal) -> ServerError:
    """Why a worker has no text, as an error; the window's fault only where it is."""
    said = f"the worker {worker}: {refusal.text}"
    if refusal.code == "version":
        return ServerError(f"refused: {said}; upgrade that worker", busy=True)
    if refusal.code == "busy":
        return ServerError(
            f"worker lost: {said}; another worker or a smaller model helps", busy=True
        )
    return ServerError(f"worker lost: {said}; see its journal")
