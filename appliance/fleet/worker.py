"""The worker: transcribes windows of satellites, one at a time, while its own room has none.

The server keeps a window until its answer was sent. If a worker dies, hangs or loses its
connection, another worker gets the window. A worker keeps nothing of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from appliance.capture import split_sound
from appliance.config import GateSettings
from appliance.fleet.link import Link
from appliance.fleet.messages import (
    ANSWER,
    CONSUMER,
    LARGEST,
    RECOMMENDED,
    STREAM,
    WINDOWS,
    WORKERS,
    Answer,
    Job,
    MessageError,
    Refusal,
    is_inbox,
    pack_answer,
    pack_presence,
    read_id,
    read_window,
)
from appliance.infer import Model, Pending, Request, Submit, compression_ratio, future_result
from appliance.records import SAMPLE_RATE, Transcription, Window
from appliance.system import shorten

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js.client import JetStreamContext

log = logging.getLogger("roomscribe.fleet")

ACK_WAIT_S = 3.0
"""The server gives a window to another worker if this one reports no progress for so long."""
AT_WORK_S = 1.0
"""Pause between two progress reports."""
DELIVERIES = 3
"""A window is transcribed twice at most; at the third delivery it is refused."""
WAITING, WAITING_S = 4, 60.0
"""Windows of one satellite that wait at the server at most, and for how many seconds."""
PULL_S = 5.0
"""Longest wait of a request for a window."""
QUIET_S = 0.05
"""Pause between two checks whether our own room has windows, or the pipeline takes one."""
BUSY_S = 10.0
"""A window that our pipeline has not taken for so long is refused: another worker may have time."""
AGAIN_S = 1.0
"""Pause after the server has refused what a worker needs."""
API_S = 1.5
"""Limit for a JetStream request."""


@dataclass(frozen=True, slots=True)
class OwnRoom:
    """What the worker needs of the daemon that it runs in."""

    model: Callable[[], Model]
    submit: Submit
    count_waiting: Callable[[], int]
    """Windows of the machine's own room that wait."""
    count: Callable[[str], object]
    """Called with the name of the counter to raise: fleet_done."""
    report_trouble: Callable[[str | None], object]
    """Called with the reason why satellites are not served; None once they are."""


class FleetWorker:
    """Transcribes the windows of satellites. All of it runs in the link's loop."""

    def __init__(
        self,
        link: Link,
        room: OwnRoom,
        gates: GateSettings,
        busy_s: float = BUSY_S,
    ) -> None:
        """`gates` are the values that the model recommends, `busy_s` is BUSY_S."""
        self._link, self._room = link, room
        self._recommended = {name: getattr(gates, name) for name in RECOMMENDED}
        self._busy_s = busy_s

    @property
    def server(self) -> str:
        """Address of the connected server; empty while there is none."""
        return self._link.server

    def start(self) -> None:
        """Begin to serve, without waiting."""
        self._link.start(self._serve, self._room.report_trouble)

    def close(self) -> None:
        """Close the connection: its windows are another worker's then."""
        self._link.close()

    async def _serve(self, client: Client) -> None:
        """Serve a connection until it ends; begin again when the server refuses something."""
        from nats.errors import TimeoutError as SlowError
        from nats.js.errors import Error

        await client.subscribe(WORKERS, cb=self._announce)
        queue = await client.jetstream().pull_subscribe_bind(CONSUMER, STREAM)
        while True:
            try:
                await self._prepare(client)
                self._room.report_trouble(None)
                while message := await self._next(queue):
                    await self._process(client, message)
            except (Error, SlowError) as error:
                if isinstance(error, SlowError) and not self._link.refusal:
                    raise  # the connection seems dead
                self._room.report_trouble(
                    self._link.refusal
                    or f"refused: the fleet's server {self._link.address} refuses the stream "
                    f"{STREAM}: {shorten(str(error) or type(error).__name__, 120)}; see that its "
                    "JetStream is on (`roomscribe doctor`)"
                )
                await asyncio.sleep(AGAIN_S)

    async def _prepare(self, client: Client) -> None:
        """Create or update stream and consumer. Raises nats.js.errors.Error."""
        from nats.js import api
        from nats.js.errors import BadRequestError

        stream = api.StreamConfig(
            name=STREAM,
            subjects=[WINDOWS],
            retention=api.RetentionPolicy.WORK_QUEUE,
            storage=api.StorageType.MEMORY,
            discard=api.DiscardPolicy.NEW,
            discard_new_per_subject=True,
            max_msgs_per_subject=WAITING,
            max_msg_size=LARGEST,
            max_age=WAITING_S,
            duplicate_window=WAITING_S,
            # the server answers to any reply subject: satellites must not delete windows that way
            deny_purge=True,
            deny_delete=True,
        )
        consumer = api.ConsumerConfig(
            durable_name=CONSUMER,
            filter_subject=WINDOWS,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_S,
            max_deliver=DELIVERIES,
        )
        server = client.jetstream(timeout=API_S)
        try:
            await server.add_stream(stream)
        except BadRequestError:  # it exists with other values
            await server.update_stream(stream)
        await server.add_consumer(STREAM, consumer)

    async def _next(self, queue: JetStreamContext.PullSubscription) -> Msg | None:
        """Return the next window, once our own room has none; None if none comes in time, or if
        the stream is gone. Raises nats.js.errors.Error."""
        from nats.errors import TimeoutError as NothingError

        while self._room.count_waiting():
            await asyncio.sleep(QUIET_S)
        with suppress(NothingError):
            return (await queue.fetch(1, PULL_S))[0]
        return None

    async def _announce(self, message: Msg) -> None:
        """Send our presence to the inbox of a request for workers.

        Any other reply subject would make this worker publish where the sender may not.
        """
        if is_inbox(message.reply):
            presence = pack_presence(self._link.node, self._room.model())
            await message._client.publish(message.reply, presence)

    async def _process(self, client: Client, message: Msg) -> None:
        """Answer a window's message; return it to the server if the connection ends first."""
        try:
            answer = await self._answer(message)
            if answer:
                node = message.subject.rpartition(".")[2]
                await client.publish(ANSWER.format(node), pack_answer(answer))
                await client.flush()
            await message.ack()
        except asyncio.CancelledError:
            with suppress(Exception):
                await message.nak()
                await client.flush(1)
            raise

    async def _answer(self, message: Msg) -> Answer | None:
        """Return the answer to a window; None if its id is unreadable."""
        try:
            job = read_window(message.subject, message.headers, message.data)
        except MessageError as error:
            log.warning("a window of the fleet (%s) is refused: %s", message.subject, error)
            with suppress(MessageError):
                if window_id := read_id(message.headers):
                    refusal = Refusal(str(error), later=error.later)
                    return Answer(window_id, self._link.node, refusal)
            return None
        result: Transcription | Refusal
        if message.metadata.num_delivered >= DELIVERIES:
            text = f"{DELIVERIES - 1} workers did not finish this window, so it is not tried again"
            result = Refusal(text)
        else:
            result = await self._transcribe(job, message)
        if isinstance(result, Transcription):
            self._room.count("fleet_done")
        return Answer(job.window.id, self._link.node, result)

    async def _transcribe(self, job: Job, message: Msg) -> Transcription | Refusal:
        """Return the pipeline's transcription of a window, reporting progress to the server.

        A window longer than our model takes is transcribed in parts.
        """
        model = self._room.model()
        made: list[Transcription] = []
        begun_s = time.monotonic()
        parts = split_sound(job.window.samples, int(model.window_s * SAMPLE_RATE))
        for number, samples in enumerate(parts, start=1):
            last = job.window.last and number == len(parts)
            part = replace(job.window, samples=samples, last=last)
            result = await self._transcribe_part(part, job, message, begun_s)
            if isinstance(result, Refusal):
                return result
            if isinstance(result, Exception):
                log.error("a window of %s failed: %s", job.node, result)
                return Refusal(shorten(f"transcribing failed: {result}", 200))
            made.append(result)
        whole = _join(made)
        return replace(whole, model=whole.model or model.name, recommended=self._recommended)

    async def _transcribe_part(
        self, window: Window, job: Job, message: Msg, begun_s: float
    ) -> Transcription | Exception | Refusal:
        """Return the pipeline's result for a window, or part of one."""
        wanted = Request(window, completeness=job.ahead, room=None)
        made, deliver = future_result()
        pending: Pending | None = None
        progress_s = time.monotonic()
        try:
            while not made.done():
                now_s = time.monotonic()
                pending = pending or self._room.submit(wanted, deliver)
                if now_s - progress_s >= AT_WORK_S:
                    await message.in_progress()
                    progress_s = now_s
                if not pending and now_s - begun_s > self._busy_s:
                    return Refusal("its own room or other rooms keep it busy", later=True)
                await asyncio.wait({made}, timeout=AT_WORK_S / 2 if pending else QUIET_S)
        finally:
            if pending:
                pending.cancel()
        return made.result()


def _join(parts: Sequence[Transcription]) -> Transcription:
    """Return one transcription of a window that was transcribed in parts.

    It is as certain as the least certain part that has a text.
    """
    if len(parts) == 1:
        return parts[0]
    spoken = [part for part in parts if part.text] or parts[:1]
    text = " ".join(part.text for part in spoken)
    return replace(
        parts[-1],
        text=text,
        tokens=tuple(token for part in spoken for token in part.tokens),
        avg_logprob=min(part.avg_logprob for part in spoken),
        no_speech_prob=min(part.no_speech_prob for part in spoken),
        compression_ratio=compression_ratio(text),
        ended=all(part.ended for part in spoken),
        encode_ms=sum(part.encode_ms for part in parts),
        decode_ms=sum(part.decode_ms for part in parts),
        confidence=min(part.confidence for part in spoken),
        flags=tuple(dict.fromkeys(flag for part in spoken for flag in part.flags)),
        phrase=None,
    )
