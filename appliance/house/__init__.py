"""Home Assistant's websocket: the names of the home, and sentences handed to Assist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.house.home import TOKEN_CREDENTIAL as TOKEN_CREDENTIAL, Home as Home
    from appliance.house.looking import Look as Look, look as look
    from appliance.house.names import NAMES_FILE as NAMES_FILE

__getattr__ = lazily(__name__, __file__)
