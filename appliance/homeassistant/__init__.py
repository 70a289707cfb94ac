"""Home Assistant's websocket: the names of the home, and sentences handed to Assist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.homeassistant.client import TOKEN_CREDENTIAL as TOKEN_CREDENTIAL, Home as Home
    from appliance.homeassistant.names import NAMES_FILE as NAMES_FILE
    from appliance.homeassistant.probe import Look as Look, look as look

__getattr__ = lazily(__name__, __file__)
