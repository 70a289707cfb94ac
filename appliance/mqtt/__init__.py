"""From the store to the broker, and commands from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.mqtt import events as events
    from appliance.mqtt.commands import subscriptions as subscriptions
    from appliance.mqtt.connection import client_id as client_id
    from appliance.mqtt.credentials import (
        KEY_CREDENTIAL as KEY_CREDENTIAL,
        PASSWORD_CREDENTIAL as PASSWORD_CREDENTIAL,
        password as password,
    )
    from appliance.mqtt.former import ANNOUNCED_FILE as ANNOUNCED_FILE
    from appliance.mqtt.probe import Probe as Probe
    from appliance.mqtt.publisher import Publisher as Publisher

__getattr__ = lazily(__name__, __file__)
