"""Requests to the fleet from outside the daemon, for commands: one connection, step by step."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Self, TypeVar

from appliance.config import FleetSettings
from appliance.errors import ServerError
from appliance.fleet.link import Link
from appliance.fleet.messages import WORKERS, MessageError, Presence, read_presence
from appliance.system import one_line

CONNECT_S = 6.0
"""Limit for the first attempt to connect."""
PRESENT_S = 0.5
"""Seconds to wait for the presence of workers, which answer within milliseconds."""
REFUSED_S = 0.3
"""Seconds to wait for a refusal, which nats-server sends at once."""
API_S = 3.0
Result = TypeVar("Result")


class Probe:
    """A context manager: connects as a node."""

    def __init__(self, settings: FleetSettings, node: str) -> None:
        """Raises ConfigError for an unusable credential or certificate."""
        logging.getLogger("roomscribe.fleet").setLevel(logging.CRITICAL)  # what fails is raised
        self._link = Link(settings, node)
        self.node = self._link.node
        """Our name at the server."""
        self.address = settings.server
        self._refusals: list[str] = []
        self.misfits: list[str] = []
        """Workers of another version that `find_workers` last found, with the fix."""

    def __enter__(self) -> Self:
        """Connect. Raises ServerError if the server does not accept us."""
        self._link.start(refused=self._record_refusal)
        self._link.settle(CONNECT_S)
        if self._link.client is None:
            self._link.close()
            raise ServerError(self._link.trouble or "the fleet's server does not answer")
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    @property
    def version(self) -> str:
        """Version of nats-server."""
        return str(self._client()._server_info.get("version", "of unknown version"))

    def find_workers(self, within_s: float = PRESENT_S) -> list[Presence]:
        """Return the workers of this version, by name; others are in `misfits`. Raises
        ServerError."""
        return self._call(lambda: self._find_workers(within_s), within_s + API_S)

    def may_read(self, subject: str) -> bool:
        """Return True if we may subscribe to `subject`. Raises ServerError."""
        return self._allowed(lambda: self._client().subscribe(subject))

    def may_send(self, subject: str) -> bool:
        """Return True if we may publish to `subject`, which gets an empty message then. Raises
        ServerError."""
        return self._allowed(lambda: self._client().publish(subject, b""))

    def _client(self) -> Any:
        """Return the connected client. Raises ServerError if the connection is lost."""
        if self._link.client is None:
            raise ServerError(self._link.trouble or "the connection to the fleet's server is lost")
        return self._link.client

    def _call(self, work: Callable[[], Coroutine[Any, Any, Result]], within_s: float) -> Result:
        from nats.errors import Error

        try:
            return self._link.call(work(), within_s)
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
        client, found = self._client(), dict[str, Presence]()
        self.misfits.clear()

        async def keep(message: Any) -> None:
            try:
                worker = read_presence(message.data)
                found[worker.node] = worker
            except MessageError as error:
                if error.later:
                    self.misfits.append(str(error))

        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox, cb=keep)
        await client.publish(WORKERS, b"", reply=inbox)
        await asyncio.sleep(within_s)
        await subscription.unsubscribe()
        return [found[node] for node in sorted(found)]
