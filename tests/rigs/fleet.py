"""A plain NATS client for tests of several rooms: somebody who is no appliance."""

import asyncio
import json
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

import nats
from nats.aio.msg import Msg
from rigs.waiting import PATIENCE_S

from appliance.fleet.messages import Job, pack_sound, window_headers

Found = TypeVar("Found")


def pack_window(job: Job, series: str = "") -> tuple[dict[str, str], bytes]:
    """Headers and payload of a window's message."""
    return window_headers(job, series), pack_sound(job.window.samples)


class Bus:
    """Use with `with`; a connection that comes back by itself, in a thread of its own."""

    def __init__(self, *urls: str, node: str = "watcher", **options: Any) -> None:
        """`options` are those of nats.connect: user, password, tls."""
        self._urls, self._options, self._node = [*urls], options, node
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.heard: list[Msg] = []
        """What came on the subjects that were listened to."""
        self.errors: list[str] = []
        """What the server refused."""

    def run(self, work: Coroutine[Any, Any, Found], within_s: float = PATIENCE_S) -> Found:
        """What `work` comes to in the client's thread. Raises as it does."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within_s)

    def listen(self, subject: str) -> None:
        """Keeps what comes on a subject in `heard`."""

        async def keep(message: Msg) -> None:
            self.heard.append(message)

        self.run(self._listen(subject, keep))

    def publish(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> None:
        """Publishes, and returns when the server has it, or has refused it."""
        self.run(self._publish(subject, payload, headers))

    def reply_with(self, subject: str, payload: bytes) -> None:
        """Replies the same to every request on a subject."""

        async def reply(message: Msg) -> None:
            await message.respond(payload)

        self.run(self._listen(subject, reply))

    def workers(self, within_s: float = 0.3) -> dict[str, dict[str, Any]]:
        """What the workers say of themselves, by node."""
        replies = self.run(self.ask_all("roomscribe.workers", within_s))
        return {one["node"]: one for one in replies if "node" in one}

    async def _listen(self, subject: str, keep: Any) -> None:
        await self.client.subscribe(subject, cb=keep)
        await self.client.flush()

    async def _publish(self, subject: str, payload: bytes, headers: dict[str, str] | None) -> None:
        await self.client.publish(subject, payload, headers=headers)
        await self.client.flush()

    async def ask_all(self, subject: str, within_s: float) -> list[dict[str, Any]]:
        """What comes within a time in reply to an empty message."""
        replies: list[dict[str, Any]] = []
        inbox = self.client.new_inbox()

        async def keep(message: Msg) -> None:
            with suppress(ValueError):  # no responders: an empty one
                replies.append(json.loads(message.data))

        waiting = await self.client.subscribe(inbox, cb=keep)
        await self.client.publish(subject, b"", reply=inbox)
        await asyncio.sleep(within_s)
        await waiting.unsubscribe()
        return replies

    async def _note(self, error: Exception) -> None:
        self.errors.append(str(error))

    async def _connect(self) -> None:
        self.client = await nats.connect(
            self._urls,
            name=self._node,
            inbox_prefix=f"_INBOX.{self._node}".encode(),
            error_cb=self._note,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            allow_reconnect=True,
            connect_timeout=5,
            **self._options,
        )

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self._connect())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):
            self.run(self.client.close())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()
