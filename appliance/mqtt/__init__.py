"""Publishes the store's transcripts to the broker, and handles commands from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.mqtt import events
    from appliance.mqtt.commands import subscriptions
    from appliance.mqtt.credentials import PASSWORD_CREDENTIAL, read_password
    from appliance.mqtt.live_topics import read_stats
    from appliance.mqtt.probe import BrokerProbe
    from appliance.mqtt.publisher import Publisher

__getattr__ = lazily(__name__, __file__)
