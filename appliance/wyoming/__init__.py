"""Speech to text over the Wyoming protocol: the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.wyoming.discovery import TOKEN, advertise, offer_to_supervisor, own_address
    from appliance.wyoming.protocol import Event, ProtocolError, pack, read_event
    from appliance.wyoming.request import LONGEST_FILE_S, Hooks, KnownTexts
    from appliance.wyoming.satellite import Question, VoiceSatellite
    from appliance.wyoming.server import WyomingServer

__getattr__ = lazily(__name__, __file__)
