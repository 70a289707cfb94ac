"""Home Assistant's websocket: reads the names of the home, hands sentences to Assist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.homeassistant.address import AddressPhrase as AddressPhrase
    from appliance.homeassistant.client import (
        TOKEN_CREDENTIAL as TOKEN_CREDENTIAL,
        Callbacks as Callbacks,
        HomeAssistantClient as HomeAssistantClient,
    )
    from appliance.homeassistant.names import NAMES_FILE as NAMES_FILE
    from appliance.homeassistant.probe import ProbeResult as ProbeResult, probe_home as probe_home

__getattr__ = lazily(__name__, __file__)
