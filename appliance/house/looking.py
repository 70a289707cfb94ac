"""One look at Home Assistant's websocket, for the doctor."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from appliance.config import HomeAssistantSettings
from appliance.house import names as naming
from appliance.house.connection import CommandError, Link, Place, connect
from appliance.house.home import describe, devices_of, find_device, token


@dataclass(frozen=True, slots=True)
class Look:
    """What was found."""

    where: str
    """Home Assistant's place and version."""
    names: str
    """How many names came; "" when they were refused."""
    refusal: str
    """Why, then."""
    device: bool
    """This appliance is among its devices."""
    pipeline: str
    """Name of the Assist pipeline that is preferred; "" when there is none."""


def look(settings: HomeAssistantSettings, node: str) -> Look:
    """Connects, asks and leaves. Raises HouseError, and ConfigError without a token."""
    chosen, place = token(settings), Place.of(settings.url)
    addresses = place.resolve()

    async def visit() -> Look:
        async with connect(place, addresses, chosen) as link:
            return await link.during(_ask(link, place, node))

    return asyncio.run(visit())


async def _ask(link: Link, place: Place, node: str) -> Look:
    devices = await devices_of(link)
    names = refusal = ""
    try:
        names = describe(await naming.fetch(link, devices))
    except CommandError as error:
        refusal = str(error)
    return Look(
        f"{place}, version {link.version}",
        names,
        refusal,
        bool(find_device(devices, node)),
        await _pipeline(link),
    )


async def _pipeline(link: Link) -> str:
    try:
        _, found = await link.ask("assist_pipeline/pipeline/list")
    except CommandError:
        return ""
    found = found if isinstance(found, dict) else {}
    pipelines = found.get("pipelines")
    for one in pipelines if isinstance(pipelines, list) else ():
        if isinstance(one, dict) and one.get("id") == found.get("preferred_pipeline"):
            return str(one.get("name") or "without a name")
    return ""
