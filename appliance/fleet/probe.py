"""Requests to the fleet from outside the daemon, for commands: one connection, step by step."""

import asyncio
import logging
from typing import Any, Self

from appliance.config import FleetSettings
from appliance.errors import ServerError
from appliance.fleet.link import Link
from appliance.fleet.messages import WORKERS, MessageError, Presence, read_presence
from appliance.system import one_line

CONNECT_S = 6.0
"""Limit for the first attempt to connect."""
PRESENT_S = 0.5
"""Seconds to wait for the presence of workers, which answer within milliseconds."""
API_S = 3.0


class Probe:
    """A context manager: connects as a node."""

    def __init__(self, settings: FleetSettings, node: str) -> None:
        """Raises ConfigError for an unusable credential or certificate."""
        logging.getLogger("roomscribe.fleet").setLevel(logging.CRITICAL)  # what fails is raised
        self.link = Link(settings, node)
        self.address = settings.server
        self.misfits: list[str] = []
        """Workers of another version that `find_workers` last found, with the fix."""

    def __enter__(self) -> Self:
        """Connect. Raises ServerError if the server does not accept us."""
        self.link.start()
        self.link.settle(CONNECT_S)
        if self.link.client is None:
            self.link.close()
            raise ServerError(self.link.trouble or "the fleet's server does not answer")
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()

    def client(self) -> Any:
        """Return the connected client. Raises ServerError if the connection is lost."""
        if self.link.client is None:
            raise ServerError(self.link.trouble or "the connection to the fleet's server is lost")
        return self.link.client

    def find_workers(self) -> list[Presence]:
        """Return the workers of this version, by name; others are in `misfits`. Raises
        ServerError."""
        from nats.errors import Error

        try:
            return self.link.call(self._find_workers(), PRESENT_S + API_S)
        except (Error, TimeoutError) as error:
            raise ServerError(
                f"the fleet's server {self.address}: {one_line(error)}; see "
                "`journalctl -u nats-server` there"
            ) from error

    async def _find_workers(self) -> list[Presence]:
        client, found = self.client(), dict[str, Presence]()
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
        await asyncio.sleep(PRESENT_S)
        await subscription.unsubscribe()
        return [found[node] for node in sorted(found)]
