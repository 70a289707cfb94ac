#!/usr/bin/env python3
"""Prints each sentence as it is said: subscriber.py [HOST [PORT]]. Needs paho-mqtt 2."""

import json
import sys

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion


def on_message(_client: Client, _userdata: object, message: MQTTMessage) -> None:
    """Prints one transcript."""
    event = json.loads(message.payload)
    print(f"{event['node']}: {event['text']}{' (late)' if event['late'] else ''}", flush=True)


host = sys.argv[1] if len(sys.argv) > 1 else "localhost"
port = int(sys.argv[2]) if len(sys.argv) > 2 else 1883
client = Client(CallbackAPIVersion.VERSION2)  # client.username_pw_set(...) where the broker asks
client.on_connect = lambda client, *_: client.subscribe("roomscribe/+/transcript", qos=1)
client.on_message = on_message
client.connect(host, port)
client.loop_forever()
