"""Speech to text over the Wyoming protocol: a server for others, and a client of other servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.wyoming.client import WyomingClient
    from appliance.wyoming.discovery import advertise, own_address
    from appliance.wyoming.protocol import Event, ProtocolError, pack, read_event
    from appliance.wyoming.request import LONGEST_FILE_S, Answer, Hints, Hooks
    from appliance.wyoming.server import WyomingServer
    from appliance.wyoming.transcriber import open_transcriber

__getattr__ = lazily(__name__, __file__)
