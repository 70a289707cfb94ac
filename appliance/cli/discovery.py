"""Find services that the network announces (DNS-SD), with avahi-daemon over D-Bus."""

from __future__ import annotations

import time
from contextlib import suppress

AVAHI = "org.freedesktop.Avahi"
ANY, NO_FLAGS = -1, 0
CALL_S = 3.0
"""Longest wait for an answer of avahi-daemon; it needs some ms, more for a name that has gone."""


def find_services(service: str, within_s: float) -> list[tuple[str, int]]:
    """Return host and port of each announced `service`, such as _mqtt._tcp.

    Empty if avahi-daemon does not run or does not answer in time.
    """
    try:
        from jeepney import AuthenticationError, DBusErrorResponse
    except ImportError:
        return []
    with suppress(OSError, EOFError, KeyError, AuthenticationError, DBusErrorResponse):
        return _browse(service, time.monotonic() + within_s)
    return []


def _browse(service: str, deadline_s: float) -> list[tuple[str, int]]:
    """Return the same. Raises OSError (TimeoutError) and DBusErrorResponse."""
    from jeepney import (
        DBusAddress,
        DBusErrorResponse,
        HeaderFields,
        MatchRule,
        Message,
        message_bus,
        new_method_call,
    )
    from jeepney.io.blocking import Proxy, open_dbus_connection
    from jeepney.wrappers import unwrap_msg

    server = DBusAddress("/", AVAHI, f"{AVAHI}.Server")
    item = MatchRule(type="signal", interface=f"{AVAHI}.ServiceBrowser")
    found: list[tuple[str, int]] = []
    with open_dbus_connection("SYSTEM") as bus, bus.filter(item, bufsize=256) as signals:

        def call(method: str, form: str, body: tuple[object, ...]) -> tuple[object, ...]:
            left_s = max(0.1, min(CALL_S, deadline_s - time.monotonic()))
            message = new_method_call(server, method, form, body)
            answer: tuple[object, ...] = unwrap_msg(bus.send_and_get_reply(message, timeout=left_s))
            return answer

        Proxy(message_bus, bus, timeout=CALL_S).AddMatch(item)
        call("ServiceBrowserNew", "iissu", (ANY, ANY, service, "", NO_FLAGS))
        while (left_s := deadline_s - time.monotonic()) > 0:
            try:
                signal: Message = bus.recv_until_filtered(signals, timeout=left_s)
            except TimeoutError:
                break
            member = signal.header.fields[HeaderFields.member]
            if member in ("AllForNow", "Failure"):
                break
            if member == "ItemNew":
                interface, protocol, name, kind, domain, _ = signal.body
                item_fields = (interface, protocol, name, kind, domain, ANY, NO_FLAGS)
                with suppress(DBusErrorResponse, TimeoutError):  # it has gone meanwhile
                    resolved = call("ResolveService", "iisssiu", item_fields)
                    found.append((str(resolved[5]), int(str(resolved[8]))))
    return list(dict.fromkeys(found))
