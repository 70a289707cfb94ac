"""From the store to the broker, and commands from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.mqtt import commands as commands, events as events, tls as tls
    from appliance.mqtt.events import (
        encode as encode,
        timestamp as timestamp,
        transcript as transcript,
    )
    from appliance.mqtt.probe import ANSWER_S as ANSWER_S, REFUSED as REFUSED, Probe as Probe
    from appliance.mqtt.publisher import Publisher as Publisher
    from appliance.mqtt.tls import PASSWORD_CREDENTIAL as PASSWORD_CREDENTIAL

__getattr__ = lazily(__name__, __file__)
