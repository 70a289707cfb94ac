"""Publishes the store's transcripts to the broker, and handles commands from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.mqtt import events as events
    from appliance.mqtt.client import OutgoingMessage as OutgoingMessage
    from appliance.mqtt.commands import subscriptions as subscriptions
    from appliance.mqtt.connection import client_id as client_id
    from appliance.mqtt.credentials import (
        KEY_CREDENTIAL as KEY_CREDENTIAL,
        PASSWORD_CREDENTIAL as PASSWORD_CREDENTIAL,
        read_password as read_password,
    )
    from appliance.mqtt.probe import BrokerProbe as BrokerProbe
    from appliance.mqtt.publisher import (
        Announcement as Announcement,
        Publisher as Publisher,
        Sources as Sources,
    )

__getattr__ = lazily(__name__, __file__)
