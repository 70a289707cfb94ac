"""Checks Home Assistant's websocket, for the doctor."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from appliance.config import HomeAssistantSettings
from appliance.homeassistant import names as naming
from appliance.homeassistant.assist import preferred_pipeline
from appliance.homeassistant.client import describe, devices_of, own_device, token
from appliance.homeassistant.connection import (
    CommandError,
    HomeAssistantUrl,
    WebsocketLink,
    as_list,
    connect,
)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What the check found."""

    where: str
    """Home Assistant's address and version."""
    names: str
    """How many names were read; "" if they were refused."""
    refusal: str
    """Why they were refused; "" otherwise."""
    device: bool
    """True if this appliance is among its devices."""
    area: str
    """The area that the device is in; "" without one."""
    pipeline: str
    """Name of the preferred Assist pipeline; "" without one."""


def probe_home(settings: HomeAssistantSettings, node: str) -> ProbeResult:
    """Connect, read and disconnect. Raises HomeAssistantError, and ConfigError without a token."""
    chosen, url = token(settings), HomeAssistantUrl.parse(settings.url)

    addresses = url.resolve()

    async def visit() -> ProbeResult:
        async with connect(url, addresses, chosen) as link:
            return await link.during(_request_probe(link, url, node))

    return asyncio.run(visit())


async def _request_probe(link: WebsocketLink, url: HomeAssistantUrl, node: str) -> ProbeResult:
    devices = await devices_of(link)
    names = refusal = ""
    try:
        names = describe(await naming.fetch(link, devices))
    except CommandError as error:
        refusal = str(error)
    device = own_device(devices, node)
    return ProbeResult(
        f"{url}, version {link.version}",
        names,
        refusal,
        bool(device),
        await _area(link, device),
        await _pipeline(link),
    )


async def _area(link: WebsocketLink, device: Mapping[str, Any]) -> str:
    """Return the name of the area of a device, or its id where the names are refused; "" if the
    device is in none."""
    area = device.get("area_id")
    if not area:
        return ""
    try:
        _, areas = await link.send_command("config/area_registry/list")
    except CommandError:
        return str(area)
    names = (one.get("name") for one in as_list(areas) if one.get("area_id") == area)
    return str(next(names, None) or area)


async def _pipeline(link: WebsocketLink) -> str:
    try:
        found = await preferred_pipeline(link)
    except CommandError:
        return ""
    return str(found.get("name") or "without a name") if found else ""
