"""What the network announces of a service (DNS-SD), asked of avahi-daemon over D-Bus."""

from __future__ import annotations

import time
from contextlib import suppress

AVAHI = "org.freedesktop.Avahi"
ANY, NO_FLAGS = -1, 0
CALL_S = 3.0
"""avahi-daemon answers within some ms; for a name that has gone it asks the network."""


def announced(service: str, within_s: float) -> list[tuple[str, int]]:
    """Host and port of all that announce `service`, such as _mqtt._tcp; none where avahi-daemon
    does not run, or within the time."""
    try:
        from jeepney import AuthenticationError, DBusErrorResponse
    except ImportError:
        return []
    with suppress(OSError, EOFError, KeyError, AuthenticationError, DBusErrorResponse):
        return _browsed(service, time.monotonic() + within_s)
    return []


def _browsed(service: str, deadline_s: float) -> list[tuple[str, int]]:
    """The same. Raises OSError (TimeoutError) and DBusErrorResponse."""
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
                asked = (interface, protocol, name, kind, domain, ANY, NO_FLAGS)
                with suppress(DBusErrorResponse, TimeoutError):  # it has gone meanwhile
                    resolved = call("ResolveService", "iisssiu", asked)
                    found.append((str(resolved[5]), int(str(resolved[8]))))
    return list(dict.fromkeys(found))
