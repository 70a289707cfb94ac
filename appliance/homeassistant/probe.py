"""One look at Home Assistant's websocket, for the doctor."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from appliance.config import HomeAssistantSettings
from appliance.homeassistant import names as naming
from appliance.homeassistant.assist import preferred_pipeline
from appliance.homeassistant.client import describe, devices_of, own_device, token
from appliance.homeassistant.connection import CommandError, Link, Place, connect


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
    area: str
    """The area that the device is in; "" without one."""
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
    device = own_device(devices, node)
    return Look(
        f"{place}, version {link.version}",
        names,
        refusal,
        bool(device),
        await _area(link, device),
        await _pipeline(link),
    )


async def _area(link: Link, device: Mapping[str, Any]) -> str:
    """Return the name of the area of a device, or its id where the names are refused; "" if the
    device is in none."""
    area = device.get("area_id")
    if not area:
        return ""
    try:
        _, areas = await link.ask("config/area_registry/list")
    except CommandError:
        return str(area)
    for one in areas if isinstance(areas, list) else ():
        if isinstance(one, dict) and one.get("area_id") == area:
            return str(one.get("name") or area)
    return str(area)


async def _pipeline(link: Link) -> str:
    """Return the name of the preferred Assist pipeline; "" without one."""
    try:
        found = await preferred_pipeline(link)
    except CommandError:
        return ""
    return str(found.get("name") or "without a name") if found else ""
