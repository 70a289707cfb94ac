"""A look at the fleet from outside the daemon, for commands: one connection, asked step by step."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from appliance.config import FleetSettings
from appliance.errors import ServerError
from appliance.fleet.link import Link, read_credential
from appliance.fleet.messages import (
    FORMER_WORKERS,
    LARGEST_MACHINE,
    STREAM,
    WHO,
    WORKERS,
    Answer,
    Job,
    MessageError,
    Presence,
    Subjects,
    consumer_name,
    pack_window,
    read_answer,
    read_presence,
)
from appliance.system import boot_id, one_line

CONNECT_S = 6.0
"""For the first round of all servers; the link's own limit is one server's."""
PRESENT_S = 0.5
"""Workers that are there answer within milliseconds; so long is waited for the last of them."""
REFUSED_S = 0.3
"""nats-server says at once what it refuses; so long is waited for that."""
API_S = 3.0
DELIVERIES = 2
"""A window is given out so often at least."""
NOBODY = "503"
"""Status of what the server answers in place of nobody."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class QueueState:
    """What waits for the workers, as the server has it."""

    windows: int
    storage: str
    retention: str
    replicas: int
    max_per_subject: int
    consumers: tuple[str, ...]
    """Those of the stream's consumers that were asked for and are there."""
    careless: tuple[str, ...]
    """Those of them that do not give a window to another worker when one is lost."""


class Probe:
    """For use in `with`: connects as a node, to the first server that lets us in."""

    def __init__(self, settings: FleetSettings, node: str) -> None:
        """Raises ConfigError for a credential or a certificate that is not to be used."""
        self._settings = settings
        logging.getLogger("roomscribe.fleet").setLevel(logging.CRITICAL)  # what fails is raised
        self._link = Link(settings, node)
        self._link.refused = self._record_refusal
        self.node = self._link.node
        """As the server knows us."""
        self.connect_ms = 0.0
        self._refusals: list[str] = []
        self.misfits: list[str] = []
        """Workers of another version that `find_workers` found last, with what to do."""

    def __enter__(self) -> Self:
        """Raises ServerError when no server lets us in."""
        begun_s = time.monotonic()
        self._link.start()
        self._link.settle(CONNECT_S)
        self.connect_ms = 1000 * (time.monotonic() - begun_s)
        if self._link.client is None:
            self._link.close()
            raise ServerError(
                self._link.trouble or "the fleet's server does not answer",
                kind=self._link.trouble_kind,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    @property
    def address(self) -> str:
        """The server that let us in."""
        return self._link.server

    @property
    def version(self) -> str:
        """The server's."""
        return str(self._client()._server_info.get("version", "of unknown version"))

    @property
    def max_payload(self) -> int:
        """Bytes that the server takes at once."""
        return int(self._client().max_payload)

    @property
    def may_see_queue(self) -> bool:
        """False for a satellite at a server with users: it must not see when other rooms speak."""
        return self._settings.role != "satellite" or read_credential(self._settings) is None

    def count_rivals(self, within_s: float = PRESENT_S) -> int:
        """How many other machines are connected with our credential. Raises ServerError."""
        return len(
            self._call(lambda: self._find_machines(within_s), within_s + API_S) - {boot_id()}
        )

    def find_workers(self, within_s: float = PRESENT_S) -> list[Presence]:
        """Who transcribes, by name; those alone that this version understands. Raises
        ServerError."""
        return self._call(lambda: self._find_workers(within_s), within_s + API_S)

    def read_queue(self, models: Sequence[str] = ("",)) -> QueueState | None:
        """What the server has for us; None where no worker has made that yet.

        `models`: whose consumers are looked for. Raises ServerError.
        """
        return self._call(lambda: self._read_queue(models), (2 + len(models)) * API_S)

    def may_read(self, subject: str) -> bool:
        """True when we may read what is sent to `subject`. Raises ServerError."""
        return self._allowed(lambda: self._client().subscribe(subject))

    def may_send(self, subject: str) -> bool:
        """True when we may send to `subject`; an empty message goes there then. Raises
        ServerError."""
        return self._allowed(lambda: self._client().publish(subject, b""))

    def transcribe(self, job: Job, within_s: float) -> tuple[Answer, float]:
        """What a worker makes of a window, and after how many milliseconds. Raises ServerError."""
        return self._call(lambda: self._transcribe(job, within_s), within_s + API_S)

    def _client(self) -> Any:
        """Raises ServerError when the connection is gone."""
        if self._link.client is None:
            raise ServerError(self._link.trouble or "the fleet's server: the connection is gone")
        return self._link.client

    def _call(self, work: Callable[[], Coroutine[Any, Any, Result]], within_s: float) -> Result:
        from nats.errors import Error

        try:
            return self._link.call(work, within_s)
        except (Error, TimeoutError) as error:
            raise ServerError(
                f"the fleet's server {self.address}: {one_line(error)}; see "
                "`journalctl -u nats-server` there"
            ) from error

    def _record_refusal(self, message: str) -> None:
        self._refusals.append(message)

    def _allowed(self, attempt: Callable[[], Awaitable[object]]) -> bool:
        async def attempt_and_flush() -> None:
            await attempt()
            await self._client().flush()

        before = len(self._refusals)
        self._call(attempt_and_flush, API_S)
        deadline_s = time.monotonic() + REFUSED_S
        while len(self._refusals) == before and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return len(self._refusals) == before

    async def _find_workers(self, within_s: float) -> list[Presence]:
        client, found, unheard = self._client(), dict[str, Presence](), 0
        self.misfits.clear()
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        for subject in (WORKERS, FORMER_WORKERS):
            await client.publish(subject, b"", reply=inbox)
        deadline_s = time.monotonic() + within_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            try:
                message = await subscription.next_msg(left_s)
            except TimeoutError:
                break
            if (message.headers or {}).get("Status") == NOBODY:
                unheard += 1
                if unheard == 2:
                    break
                continue
            try:
                worker = read_presence(message.data)
                found[worker.node] = worker
            except MessageError as error:
                self.misfits.append(f"the worker {error}; upgrade the older of the two")
        await subscription.unsubscribe()
        return [found[node] for node in sorted(found)]

    async def _find_machines(self, within_s: float) -> set[str]:
        client, subject = self._client(), Subjects(self.node).machines
        subscription = await client.subscribe(subject)
        await client.publish(subject, WHO)
        found, deadline_s = set[str](), time.monotonic() + within_s
        with suppress(TimeoutError):
            while (left_s := deadline_s - time.monotonic()) > 0:
                data = (await subscription.next_msg(left_s)).data
                if data != WHO and len(data) < LARGEST_MACHINE:
                    found.add(data.decode("utf-8", "replace"))
        await subscription.unsubscribe()
        return found

    async def _read_queue(self, models: Sequence[str]) -> QueueState | None:
        from nats.js.errors import NotFoundError

        stream = self._client().jetstream(timeout=API_S)
        there, careless = list[str](), list[str]()
        try:
            info = await stream.stream_info(STREAM)
        except NotFoundError:
            return None
        for name in map(consumer_name, models):
            with suppress(NotFoundError):
                chosen = (await stream.consumer_info(STREAM, name)).config
                there.append(name)
                if chosen.ack_policy != "explicit" or (chosen.max_deliver or 0) < DELIVERIES:
                    careless.append(name)
        config = info.config
        return QueueState(
            windows=info.state.messages,
            storage=str(config.storage or ""),
            retention=str(config.retention or ""),
            replicas=config.num_replicas or 1,
            max_per_subject=config.max_msgs_per_subject or -1,
            consumers=tuple(there),
            careless=tuple(careless),
        )

    async def _transcribe(self, job: Job, within_s: float) -> tuple[Answer, float]:
        client, subjects = self._client(), Subjects(self.node, self._settings.model)
        headers, payload = pack_window(job)
        subscription = await client.subscribe(subjects.answer)
        begun_s = time.monotonic()
        await client.jetstream(timeout=API_S).publish(
            subjects.window, payload, stream=STREAM, headers=headers
        )
        try:
            while True:
                left_s = begun_s + within_s - time.monotonic()
                message = await subscription.next_msg(max(0.001, left_s))
                with suppress(MessageError):
                    answer = read_answer(message.data, lambda _text: 1.0)
                    if answer.id == job.window.id:
                        return answer, 1000 * (time.monotonic() - begun_s)
        except TimeoutError:
            raise ServerError(
                f"no worker answered within {within_s:g} s; `roomscribe fleet status` shows those "
                "that are there"
            ) from None
