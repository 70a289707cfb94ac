"""Speech to text for the house: what Home Assistant and others send over the Wyoming protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.wyoming.client import Client as Client
    from appliance.wyoming.discovery import advertise as advertise, own_address as own_address
    from appliance.wyoming.request import Answer as Answer
    from appliance.wyoming.server import Server as Server
    from appliance.wyoming.transcriber import open_transcriber as open_transcriber

__getattr__ = lazily(__name__, __file__)
