"""Home Assistant's websocket: reads the names of the home, hands sentences to Assist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.homeassistant.address import AddressPhrase, after_phrase
    from appliance.homeassistant.assist import RefusedText, find_command, refuse, why_not_listed
    from appliance.homeassistant.client import HomeAssistantClient, satellite_name
    from appliance.homeassistant.media import MediaPlayers
    from appliance.homeassistant.names import NAMES_FILE

__getattr__ = lazily(__name__, __file__)
