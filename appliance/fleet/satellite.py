"""Transcription by the workers of a fleet. While none can, this machine's model does, or windows
wait.

One window is under way at a time, which keeps the order. It is sent once on each connection: the
server recognises it when it is sent again, because workers would transcribe it twice. An answer
names a window's id. The first one counts. A late one is kept until its window is requested again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, wait
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from appliance.config import Settings, node_name
from appliance.errors import DeviceError, ServerError
from appliance.fleet.link import COMING, Link
from appliance.fleet.messages import (
    ANSWER,
    FLEET,
    RECOMMENDED,
    WINDOW,
    WORKERS,
    Answer,
    Job,
    MessageError,
    Presence,
    Refusal,
    pack_sound,
    read_answer,
    read_presence,
    window_headers,
)
from appliance.infer import (
    AnyTranscriber,
    Backend,
    Corrections,
    Encoded,
    Model,
    Pending,
    RemoteModel,
    Request,
    Transcriber,
    lacking_runtime,
    open_transcriber as open_model,
)
from appliance.model import chosen_model
from appliance.records import Transcription

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

log = logging.getLogger("roomscribe.fleet")

PATIENCE_S = 5.0
"""Longest wait for an answer. Then this machine's model transcribes, or the window is requested
again."""
PRESENCE_S, WATCH_EVERY_S = 2.0, 1.0
"""Longest wait for a worker's presence, and pause between two such requests."""
SENT_S = 2.0
"""Longest wait for the server's acknowledgement of a window."""
AGAIN_S = 0.1
"""Pause before a window is sent again, while no worker has prepared the server."""
POLL_S = 0.2
"""Between two checks whether an answer is still wanted."""
SETTLE_S = 3.0
"""Longest wait for a worker at the start."""
LATE_ANSWERS = 8
STATUS = "see `roomscribe fleet status`"


class Satellite(Backend):
    """Sends windows over a link, waits for the answers, and knows whether a worker is there."""

    def __init__(
        self,
        link: Link,
        local: Backend | None = None,
        patience_s: float = PATIENCE_S,
        is_muted: Callable[[], bool] = lambda: False,
    ) -> None:
        """`local` encodes while no worker can. While `is_muted` returns True, no sound is sent."""
        self._is_muted = is_muted
        self.counts: Counter[str] = Counter()
        """fleet_sent, and fleet_own_cpu: windows that this machine's model encoded."""
        self.worker: Presence | None = None
        """The worker that answered last."""
        self._link, self._local, self._patience_s = link, local, patience_s
        self._fault: str | None = COMING
        """Why no worker is used, with the fix; None while one is."""
        self._series = ""
        """Names the connection; anew once a worker has refused a window."""
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        """The last answers that were not taken, by the window's id."""
        self._arrived = asyncio.Event()
        self._known = threading.Event()
        """Set once it is known whether a worker is there."""

    def start(self) -> None:
        """Begin to connect, without waiting."""
        self._link.start(self._serve, self._on_change)

    @property
    def fault(self) -> str | None:
        """Why no worker is used, with the fix; None while one is."""
        return self._link.trouble or self._link.refusal or self._fault

    @property
    def name(self) -> str:
        """What encodes now: the fleet, or the encoder on this machine."""
        return self._local.name if self._local and self.fault else FLEET

    @property
    def trouble(self) -> str | None:
        """Why no worker is used, with the fix; None while one is."""
        if not (fault := self.fault):
            return None
        if not self._local:
            return f"{fault}; until then speech waits to be transcribed"
        instead = "until then this machine's model transcribes"
        return "; ".join(filter(None, (fault, instead, self._local.trouble)))

    def poll(self, now_s: float) -> None:
        """Maintain the device on this machine."""
        if self._local:
            self._local.poll(now_s)

    def facts(self) -> dict[str, Any]:
        """Return `counters`, and what is known of the chip here."""
        local = self._local.facts() if self._local else {}
        return {**local, "counters": {**local.get("counters", {}), **self.counts}}

    def settle(self, within_s: float) -> None:
        """Wait until it is known whether a worker is there."""
        self._known.wait(within_s)

    def transcribe(
        self, job: Job, should_continue: Callable[[], bool] = lambda: True
    ) -> Transcription:
        """Return a worker's transcription. Any thread, one at a time.

        `should_continue` is called several times a second; False gives up. Raises ServerError if
        no worker can transcribe now, and DeviceError if one failed with this window.
        """
        if self._is_muted():
            raise ServerError("muted: speech from before is not sent")
        if fault := self.fault:
            raise ServerError(fault)
        future = self._link.submit(self._exchange(job))
        deadline_s = time.monotonic() + self._patience_s + 1.0
        while not wait([future], POLL_S).done:
            if not should_continue() or time.monotonic() > deadline_s:
                future.cancel()
        try:
            result = future.result()
        except CancelledError:
            raise ServerError("the request to the fleet was given up") from None
        if isinstance(result, Refusal):
            raise DeviceError(result.text)
        return result

    async def _serve(self, client: Client) -> None:
        """Listen to answers on a new connection, and look for a worker again and again."""
        self._series = secrets.token_hex(4)
        await client.subscribe(ANSWER.format(self._link.node), cb=self._handle_answer)
        while True:
            self._fault = await self._find_worker(client)
            self._known.set()
            await asyncio.sleep(WATCH_EVERY_S)

    async def _find_worker(self, client: Client) -> str | None:
        """Look for a worker; return why there is none, with the fix."""
        from nats.errors import Error, NoRespondersError

        try:
            reply = await client.request(WORKERS, b"", timeout=PRESENCE_S)
            self.worker = read_presence(reply.data)
        except NoRespondersError:
            return f"no worker: none is connected to {self._link.address}; {STATUS}"
        except Error:
            return f"worker lost: no worker answers; {STATUS}"
        except MessageError as error:
            return f"refused: {error}"
        return None

    async def _handle_answer(self, message: Msg) -> None:
        """Keep a message on our answer subject, if it is one."""
        try:
            answer = read_answer(message.data)
        except MessageError as error:
            log.debug("a message of the fleet is %s", error)
            return
        if isinstance(answer.result, Refusal):
            self._series = secrets.token_hex(4)
        self._answers[answer.id] = answer
        while len(self._answers) > LATE_ANSWERS:
            self._answers.popitem(last=False)
        self._arrived.set()

    async def _exchange(self, job: Job) -> Transcription | Refusal:
        """Return the answer to a window. Raises ServerError."""
        sound = pack_sound(job.window.samples)
        sent = ""
        try:
            async with asyncio.timeout(self._patience_s):
                while not (answer := self._answers.pop(job.window.id, None)):
                    if fault := self.fault:
                        raise ServerError(fault)
                    self._arrived.clear()
                    if sent != self._series:
                        series = self._series
                        if await self._send(job, sound, series):
                            sent = series
                    pause_s = POLL_S if sent else AGAIN_S
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._arrived.wait(), pause_s)
        except TimeoutError:
            self._fault = f"worker lost: no answer within {self._patience_s:g} s; {STATUS}"
            raise ServerError(self._fault) from None
        if isinstance(answer.result, Refusal):
            text = f"worker lost: the worker {answer.worker}: {answer.result.text}"
            if answer.result.later:
                self._fault = text
                raise ServerError(text)
            return Refusal(text)
        return answer.result

    async def _send(self, job: Job, sound: bytes, series: str) -> bool:
        """Send a window; False if it has to be sent again: no worker has made the stream yet, or
        the connection is lost. Raises ServerError."""
        from nats.errors import Error, NoRespondersError, TimeoutError as SlowError

        client = self._link.client
        if self._is_muted():
            raise ServerError("muted: speech from before is not sent")
        if client is None:
            return False
        try:
            headers = window_headers(job, series)
            reply = await client.request(
                WINDOW.format(self._link.node), sound, timeout=SENT_S, headers=headers
            )
        except NoRespondersError:
            return False
        except SlowError:
            if not self._link.refusal:
                self._link.reset()
            return False
        except (Error, OSError):
            return False
        found = json.loads(reply.data)
        if error := found.get("error"):
            raise ServerError(
                "refused: the fleet's server does not accept the window: "
                f"{error.get('description')}; {STATUS}"
            )
        self.counts["fleet_sent"] += not found.get("duplicate")
        return True

    def _on_change(self, trouble: str | None) -> None:
        if trouble:
            self._known.set()


class SatelliteTranscriber(AnyTranscriber):
    """Transcribes windows by the workers; while none can, with the model on this machine, if there
    is one."""

    def __init__(
        self,
        settings: Settings,
        local: Transcriber | None,
        link: Link,
        patience_s: float = PATIENCE_S,
        is_muted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start the link. While `is_muted` returns True, no sound is sent."""
        self._local, self.link, self.gates = local, link, settings.gates
        self.in_process = local is not None
        self._corrections = Corrections(settings.vocabulary.replace)
        segmenter = settings.segmenter
        self._guesses = segmenter.speculate and segmenter.early_ms > 0
        self.satellite = Satellite(link, local.backend if local else None, patience_s, is_muted)
        self.satellite.start()

    @property
    def backend(self) -> Satellite:
        """The workers, or the device on this machine."""
        return self.satellite

    @property
    def bundle(self) -> Model:
        """The model that transcribes now."""
        local, found = self._local, self.satellite.worker
        if local and (self.satellite.fault or not found):
            return local.bundle
        if not found:
            return RemoteModel("unknown", "und", ())
        model = found.model
        window_s = min(model.window_s, local.bundle.window_s) if local else model.window_s
        return replace(model, window_s=window_s)

    def begin(
        self, request: Request, should_continue: Callable[[], bool] = lambda: True
    ) -> Encoded | Transcription:
        """Return a worker's transcription; encoder states if the model on this machine stands in.

        Raises ServerError if nothing can transcribe now, and DeviceError if a worker failed.
        """
        # the last window of an utterance was speculated on, which asks for completeness
        window = request.window
        job = Job(window, self.link.node, ahead=self._guesses and window.last)
        try:
            return self._corrections.apply(self.satellite.transcribe(job, should_continue))
        except DeviceError:
            if not self._local or not should_continue():
                raise
        self.satellite.counts["fleet_own_cpu"] += 1
        return self._local.begin(request)

    def decode(self, encoded: Encoded, pending: Pending | None = None) -> Transcription:
        """Return the transcription of states of the model on this machine, with the gates that it
        recommends. Raises DeviceError if there is none."""
        local = self._local
        if not local:
            raise DeviceError("no model on this machine can decode encoder states")
        gates = {name: getattr(local.gates, name) for name in RECOMMENDED}
        result = local.decode(encoded, pending)
        return replace(result, model=local.bundle.name, recommended=gates)

    def warm_up(self) -> None:
        """Warm up the model on this machine, and give a worker time to answer."""
        if self._local:
            self._local.warm_up()
        self.satellite.settle(SETTLE_S)

    def close(self) -> None:
        """Close the connection, and free the encoder's device."""
        self.link.close()
        if self._local:
            self._local.close()


def open_satellite(settings: Settings, is_muted: Callable[[], bool]) -> SatelliteTranscriber:
    """Return the transcriber of a satellite.

    The model on this machine stands in for the workers if one was chosen; the built-in one knows
    too few words.

    Raises ConfigError for an unusable credential, and as infer's `open_transcriber` for the model
    here, but never if a server or worker is offline. While `is_muted` returns True, no sound is
    sent.
    """
    link = Link(settings.fleet, node_name(settings))
    has_model = bool(settings.model.bundle or chosen_model()) and not lacking_runtime()
    local = open_model(settings) if has_model else None
    return SatelliteTranscriber(settings, local, link, is_muted=is_muted)
