"""Requests to the fleet from outside the daemon, for commands."""

import asyncio
import logging
from typing import Any

from appliance.config import FleetSettings
from appliance.fleet.link import connect, connect_options, disconnect, explain_failure
from appliance.fleet.messages import WORKERS, MessageError, Presence, read_presence

PRESENT_S = 0.5
"""Seconds to wait for the presence of workers, which answer within milliseconds."""


def find_workers(settings: FleetSettings, node: str) -> tuple[list[Presence], list[str]]:
    """Connect as a node; return the workers of this version, by name, and the others, with the fix.

    Raises ConfigError for an unusable credential or certificate, and ServerError if the server does
    not accept us.
    """
    connect_options(settings, node)
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    try:
        return asyncio.run(_find_workers(settings, node))
    except Exception as error:
        raise explain_failure(settings.server, error) from error


async def _find_workers(settings: FleetSettings, node: str) -> tuple[list[Presence], list[str]]:
    found, misfits = dict[str, Presence](), list[str]()

    async def keep(message: Any) -> None:
        try:
            worker = read_presence(message.data)
            found[worker.node] = worker
        except MessageError as error:
            if error.later:
                misfits.append(str(error))

    client, _ = await connect(settings, node, asyncio.Event())
    try:
        inbox = client.new_inbox()
        await client.subscribe(inbox, cb=keep)
        await client.publish(WORKERS, b"", reply=inbox)
        await asyncio.sleep(PRESENT_S)
    finally:
        await disconnect(client)
    return [found[name] for name in sorted(found)], misfits
