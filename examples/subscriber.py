#!/usr/bin/env python3
"""Prints each sentence that is spoken: subscriber.py [HOST [PORT]]. Needs paho-mqtt 2."""

import json
import sys

from paho.mqtt import subscribe
from paho.mqtt.client import MQTTMessage


def show(_client: object, _userdata: object, message: MQTTMessage) -> None:
    """Prints one transcript."""
    event = json.loads(message.payload)
    print(f"{event['node']}: {event['text']}{' (late)' if event['late'] else ''}", flush=True)


host, port = (sys.argv[1:] + ["localhost", "1883"][len(sys.argv) - 1 :])[:2]
subscribe.callback(show, "roomscribe/+/transcript", qos=1, hostname=host, port=int(port))
