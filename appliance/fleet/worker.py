"""The worker: transcribes windows of satellites, one at a time, while its own room has none.

The server keeps a window until its answer was sent. If a worker dies, hangs or loses its
connection, another worker gets the window. A worker keeps only the last texts, in memory, in case
a satellite sends a window again.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from appliance import __version__
from appliance.capture import split_sound
from appliance.config import GateSettings
from appliance.errors import ServerError
from appliance.fleet.link import Link
from appliance.fleet.messages import (
    CONSUMER,
    LARGEST,
    RECOMMENDED,
    STREAM,
    WINDOWS,
    WORKERS,
    Answer,
    Job,
    MessageError,
    Presence,
    Refusal,
    Subjects,
    is_inbox,
    pack_answer,
    pack_presence,
    read_identity,
    read_window,
    read_window_header,
)
from appliance.infer import Model, join_transcriptions
from appliance.records import SAMPLE_RATE, Transcription, Window
from appliance.system import shorten

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

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
"""Pause between two requests for a window while none comes."""
QUIET_S = 0.05
"""Pause between two checks whether our own room has windows, or the pipeline takes one."""
PATIENCE = 2.0
"""A window that was not begun in so many times its satellite's patience is refused as busy."""
REMEMBERED = 32
"""Texts kept for windows that are sent again."""
API_S = 1.5
"""Limit for a JetStream request."""


class RequestHandle(Protocol):
    """A window that the pipeline of this machine is to transcribe."""

    wanted: bool
    """Set to False if the transcription is not needed any more."""


Submit = Callable[[Window, bool, Callable[[Transcription | Exception], None]], RequestHandle | None]
"""Queue a window for transcription; None if too many wait. If the flag is true, the transcription
also says whether the text is a complete sentence. The callback gets the result, in any thread."""


@dataclass(frozen=True, slots=True)
class OwnRoom:
    """What the worker needs of the daemon that it runs in."""

    model: Callable[[], Model]
    submit: Submit
    count_waiting: Callable[[], int]
    """Windows of the machine's own room that wait."""
    count: Callable[[str], object]
    """Called with the name of the counter to raise: fleet_done, fleet_redone or fleet_refused."""
    report_trouble: Callable[[str | None], object]
    """Called with the reason why satellites are not served; None once they are."""


class FleetWorker:
    """Transcribes the windows of satellites. All of it runs in the link's loop."""

    def __init__(
        self,
        link: Link,
        room: OwnRoom,
        gates: GateSettings,
        *,
        pull_s: float = PULL_S,
    ) -> None:
        """Create it before the link is started. `gates` are the values that the model recommends,
        `pull_s` the seconds between two requests for a window."""
        self._link, self._room = link, room
        self._recommended = {name: getattr(gates, name) for name in RECOMMENDED}
        self._pull_s = pull_s
        self._busy, self._done = False, 0
        self._recent: OrderedDict[tuple[str, str], Transcription] = OrderedDict()
        """By satellite and window: a satellite that knows another's ids does not get its texts."""
        link.add(self._serve)
        link.changed = room.report_trouble
        link.refused = self._report_refusal

    async def _serve(self, client: Client) -> None:
        """Serve a connection until it ends. Raises ServerError."""
        await self._prepare(client)
        self._link.confirm_service()
        subscription = await client.subscribe(WORKERS, cb=self._announce)
        try:
            while True:
                while self._room.count_waiting():
                    await asyncio.sleep(QUIET_S)
                if message := await _fetch(client, self._pull_s):
                    await self._process(client, message)
        finally:
            with suppress(Exception):
                await subscription.unsubscribe()

    async def _prepare(self, client: Client) -> None:
        """Create or update stream and consumer. Raises ServerError."""
        from nats.errors import Error
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
        server = client.jetstream(timeout=API_S)
        try:
            try:
                await server.add_stream(stream)
            except BadRequestError:  # it exists with other values
                await self._update_stream(server, stream)
            wanted = api.ConsumerConfig(
                durable_name=CONSUMER,
                filter_subject=WINDOWS,
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=ACK_WAIT_S,
                max_deliver=DELIVERIES,
            )
            await server.add_consumer(STREAM, wanted)
        except Error as error:
            raise ServerError(
                f"refused: the fleet's server {self._link.server} refuses the stream {STREAM}: "
                f"{shorten(str(error) or type(error).__name__, 120)}; see that its JetStream is on "
                "(`roomscribe doctor`)",
                kind=ServerError.REFUSED,
            ) from error

    async def _update_stream(self, server: Any, stream: Any) -> None:
        """Update the stream, as far as the server allows it."""
        from nats.js.errors import APIError

        found = (await server.stream_info(STREAM)).config
        try:
            await server.update_stream(stream.evolve(num_replicas=found.num_replicas or 1))
        except APIError as error:
            log.warning("the stream %s stays as it is: %s", STREAM, error)

    async def _announce(self, message: Msg) -> None:
        """Send our presence to the inbox of a request for workers.

        Any other reply subject would make this worker publish where the sender may not.
        """
        if not is_inbox(message.reply):
            return
        model = self._room.model()
        await message._client.publish(
            message.reply,
            pack_presence(
                Presence(
                    node=self._link.node,
                    name=model.name,
                    version=__version__,
                    busy=self._busy,
                    done=self._done,
                    queue=self._room.count_waiting(),
                    language=model.language,
                    languages=tuple(model.languages),
                    window_s=model.window_s,
                )
            ),
        )

    async def _process(self, client: Client, message: Msg) -> None:
        """Answer a window's message; return it to the server if the connection ends first."""
        self._busy = True
        try:
            answer = await self._answer(message)
            if answer:
                node = message.subject.rpartition(".")[2]
                await client.publish(Subjects(node).answer, pack_answer(answer, self._recommended))
                await client.flush()
            await message.ack()
        except asyncio.CancelledError:
            with suppress(Exception):
                await message.nak()
                await client.flush(1)
            raise
        finally:
            self._busy = False

    async def _answer(self, message: Msg) -> Answer | None:
        """Return the answer to a window; None if its id is unreadable."""
        deliveries = message.metadata.num_delivered
        try:
            job = read_window(message.subject, message.headers, message.data)
        except MessageError as error:
            self._room.count("fleet_refused")
            log.warning("a window of the fleet (%s) is refused: %s", message.subject, error)
            with suppress(MessageError):
                window_id, attempt = read_identity(read_window_header(message.headers))
                if window_id:
                    refusal = Refusal(error.code, str(error))
                    return Answer(window_id, attempt, self._link.node, refusal)
            return None
        answer_with = functools.partial(Answer, job.window.id, job.attempt, self._link.node)
        key = job.node, job.window.id
        if known := self._recent.get(key):
            return answer_with(known)
        if deliveries >= DELIVERIES:
            self._room.count("fleet_refused")
            text = f"{DELIVERIES - 1} workers did not finish this window, so it is not tried again"
            return answer_with(Refusal("set_aside", text))
        result = await self._transcribe(job, message)
        if isinstance(result, Refusal):
            self._room.count("fleet_refused")
            return answer_with(result)
        self._recent[key] = result
        while len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        self._done += 1
        self._room.count("fleet_done")
        if deliveries > 1:
            self._room.count("fleet_redone")
        return answer_with(result)

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
                return Refusal("failed", shorten(f"transcribing failed: {result}", 200))
            made.append(result)
        whole = join_transcriptions(made)
        return replace(whole, model=whole.model or model.name)

    async def _transcribe_part(
        self, window: Window, job: Job, message: Msg, begun_s: float
    ) -> Transcription | Exception | Refusal:
        """Return the pipeline's result for a window, or part of one."""
        loop = asyncio.get_running_loop()
        made: asyncio.Future[Transcription | Exception] = loop.create_future()

        def settle(result: Transcription | Exception) -> None:
            if not made.done():
                made.set_result(result)

        def answer(result: Transcription | Exception) -> None:
            self._link.call_soon(functools.partial(settle, result))

        request: RequestHandle | None = None
        progress_s = time.monotonic()
        try:
            while not made.done():
                now_s = time.monotonic()
                request = request or self._room.submit(window, job.ahead, answer)
                if now_s - progress_s >= AT_WORK_S:
                    await message.in_progress()
                    progress_s = now_s
                if now_s - begun_s > PATIENCE * job.patience_s:
                    return Refusal(
                        "busy", "it has no time: its own room or other rooms keep it busy"
                    )
                await asyncio.wait({made}, timeout=AT_WORK_S / 2 if request else QUIET_S)
        finally:
            if request:
                request.wanted = False
        return made.result()

    def _report_refusal(self, message: str) -> None:
        """Report the server's message that we lack a permission."""
        self._room.report_trouble(
            f"refused: the fleet's server does not let {self._link.node} do what a worker does "
            f"({shorten(message, 160)}); join again with a code for a worker"
        )


async def _fetch(client: Client, within_s: float) -> Msg | None:
    """Return the next window; None after `within_s`. Raises ServerError if the stream or consumer
    is gone."""
    from nats.errors import TimeoutError as NothingError

    heard: Subscription = await client.subscribe(inbox := client.new_inbox())
    wanted = b'{"batch":1,"expires":%d}' % int(within_s * 1e9)
    try:
        await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}", wanted, reply=inbox)
        with suppress(NothingError):  # the server says itself that no window came in time
            message = await heard.next_msg(timeout=within_s + API_S)
            headers = message.headers or {}
            status = headers.get("Status", "")
            if not status:
                return message
            if status not in ("404", "408"):
                raise ServerError(
                    f"worker lost: the fleet's stream {STREAM} is gone: {status} "
                    f"{headers.get('Description', 'no responders')}"
                )
    finally:
        with suppress(Exception):
            await heard.unsubscribe()
    return None
